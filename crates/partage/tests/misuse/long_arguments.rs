//! Arguments of a message have at most 64 bytes.
#![allow(unused)]

use partage::am::Request;

static LONG: Request<[u64; 9]> = Request::new(|_, _, _, _| ());

fn main() {}
