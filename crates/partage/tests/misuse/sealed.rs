//! Nobody else makes phases, or words.
#![allow(unused)]

use partage::phase::Phase;
use partage::prelude::*;

struct Mine(Vec<u64>);

impl Phase for Mine {
    type View<'p> = &'p mut [u64];

    unsafe fn view<'p>(&mut self) -> &'p mut [u64] {
        unimplemented!()
    }
}

impl partage::atomic::Word for f64 {}

fn main() {}
