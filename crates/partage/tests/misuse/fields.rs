//! Handles and pointers are not made by hand.
#![allow(unused)]

use partage::phase::{Owned, View};
use partage::prelude::*;

fn longer(a: &mut SharedArray<u64>) {
    a.len = 1000;
}

fn forged() -> GlobalPtr<u64> {
    GlobalPtr { bits: 1 << 40 }
}

fn an_owned_one<'a>(held: Owned<'a, u64>) {
    let Owned(inner) = held;
}

fn a_view<'p>(view: View<'p, u64>) -> &'p SharedArray<u64> {
    view.array
}

fn main() {}
