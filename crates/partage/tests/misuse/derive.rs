//! A derived mark is checked: no padding, all bits are values.
#![allow(unused)]

use partage::prelude::*;

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Padded {
    a: u8,
    b: u64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Truth {
    a: bool,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
struct AnyOrder {
    a: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(u8)]
enum Choice {
    A = 0,
    B = 1,
}

fn main() {}
