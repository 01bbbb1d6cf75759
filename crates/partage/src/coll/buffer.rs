//! What collectives read and write: memory of one's own, or parts of shared arrays.

use crate::array::{SharedArray, SharedSlice};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::ops::Range;

/// The collective still needs a destination: `.to(…)`.
#[derive(Debug)]
pub struct NeedsTo;
/// The collective may run.
#[derive(Debug)]
pub struct Ready;

/// Memory that a collective can read: `[T]`, `Vec<T>`, `[T; N]`, [`SharedArray<T>`], and references to them.
pub trait Buffer {
    /// What it has.
    type Item: Pod;
    #[doc(hidden)]
    fn side(&self) -> Side<'_, Self::Item>;
}

/// Memory that a collective can write.
pub trait BufferMut: Buffer {
    #[doc(hidden)]
    fn side_mut(&mut self) -> Side<'_, Self::Item>;
}

/// What a collective can be given: a reference, which is a source only; a reference by which it may be written, which is in place
/// unless there is a destination; a slice of a shared array.
pub trait Source<'a> {
    /// What it has.
    type Item: Pod;
    /// [`NeedsTo`] or [`Ready`].
    type State;
    #[doc(hidden)]
    fn into_side(self) -> Side<'a, Self::Item>;
}

/// Where a collective can write.
pub trait Dest<'a> {
    /// What it has.
    type Item: Pod;
    #[doc(hidden)]
    fn into_side(self) -> Side<'a, Self::Item>;
}

/// A buffer, as collectives see it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Side<'a, T> {
    pub(super) what: What<T>,
    _borrowed: PhantomData<&'a mut T>,
}

#[derive(Debug)]
pub(super) enum What<T> {
    /// Memory of this rank's own.
    Private(*mut T, usize),
    /// The same, which can become longer.
    Vec(*mut Vec<T>),
    /// These elements of an array.
    Shared(*const SharedArray<T>, Range<usize>),
}

impl<T> Clone for What<T> {
    fn clone(&self) -> Self {
        match self {
            What::Private(p, len) => What::Private(*p, *len),
            What::Vec(v) => What::Vec(*v),
            What::Shared(array, range) => What::Shared(*array, range.clone()),
        }
    }
}

impl<'a, T> Side<'a, T> {
    #[inline(always)]
    fn new(what: What<T>) -> Side<'a, T> {
        Side { what, _borrowed: PhantomData }
    }
}

impl<T: Pod> Buffer for [T] {
    type Item = T;
    #[inline(always)]
    fn side(&self) -> Side<'_, T> {
        Side::new(What::Private(self.as_ptr().cast_mut(), self.len()))
    }
}

impl<T: Pod> BufferMut for [T] {
    #[inline(always)]
    fn side_mut(&mut self) -> Side<'_, T> {
        Side::new(What::Private(self.as_mut_ptr(), self.len()))
    }
}

impl<T: Pod, const N: usize> Buffer for [T; N] {
    type Item = T;
    #[inline(always)]
    fn side(&self) -> Side<'_, T> {
        self[..].side()
    }
}

impl<T: Pod, const N: usize> BufferMut for [T; N] {
    #[inline(always)]
    fn side_mut(&mut self) -> Side<'_, T> {
        self[..].side_mut()
    }
}

impl<T: Pod> Buffer for Vec<T> {
    type Item = T;
    #[inline(always)]
    fn side(&self) -> Side<'_, T> {
        self[..].side()
    }
}

impl<T: Pod> BufferMut for Vec<T> {
    #[inline(always)]
    fn side_mut(&mut self) -> Side<'_, T> {
        Side::new(What::Vec(self))
    }
}

impl<T: Pod> Buffer for SharedArray<T> {
    type Item = T;
    #[inline(always)]
    fn side(&self) -> Side<'_, T> {
        Side::new(What::Shared(self, 0..self.len()))
    }
}

impl<T: Pod> BufferMut for SharedArray<T> {
    #[inline(always)]
    fn side_mut(&mut self) -> Side<'_, T> {
        Buffer::side(&*self)
    }
}

impl<B: Buffer + ?Sized> Buffer for &B {
    type Item = B::Item;
    #[inline(always)]
    fn side(&self) -> Side<'_, B::Item> {
        (**self).side()
    }
}

impl<B: Buffer + ?Sized> Buffer for &mut B {
    type Item = B::Item;
    #[inline(always)]
    fn side(&self) -> Side<'_, B::Item> {
        (**self).side()
    }
}

impl<B: BufferMut + ?Sized> BufferMut for &mut B {
    #[inline(always)]
    fn side_mut(&mut self) -> Side<'_, B::Item> {
        (**self).side_mut()
    }
}

impl<'a, B: Buffer + ?Sized> Source<'a> for &'a B {
    type Item = B::Item;
    type State = NeedsTo;
    #[inline(always)]
    fn into_side(self) -> Side<'a, B::Item> {
        self.side()
    }
}

impl<'a, B: BufferMut + ?Sized> Source<'a> for &'a mut B {
    type Item = B::Item;
    type State = Ready;
    #[inline(always)]
    fn into_side(self) -> Side<'a, B::Item> {
        self.side_mut()
    }
}

impl<'a, B: BufferMut + ?Sized> Dest<'a> for &'a mut B {
    type Item = B::Item;
    #[inline(always)]
    fn into_side(self) -> Side<'a, B::Item> {
        self.side_mut()
    }
}

impl<'a, T: Pod> Source<'a> for SharedSlice<'a, T> {
    type Item = T;
    type State = NeedsTo;
    #[inline(always)]
    fn into_side(self) -> Side<'a, T> {
        Side::new(What::Shared(self.array(), self.indices()))
    }
}

impl<'a, T: Pod> Dest<'a> for SharedSlice<'a, T> {
    type Item = T;
    #[inline(always)]
    fn into_side(self) -> Side<'a, T> {
        Side::new(What::Shared(self.array(), self.indices()))
    }
}
