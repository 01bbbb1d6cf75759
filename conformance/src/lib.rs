//! One suite per contract.
