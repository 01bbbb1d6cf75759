//! Private memory that stays registered with a network: [`Job::register`].
//!
//! A network may want memory registered before it copies from it or to it (most adapters do, tcp does not), which takes longer than
//! to copy a few pages. Memory of segments and arrays is registered once. Of other memory, short transfers are copied, and
//! longer ones are registered and forgotten each time, because nobody says when the memory goes away, unless somebody does: the
//! guard of `register` keeps a slice borrowed, so while it lives the registrations of its pages can stay.
//!
//! It changes no result, only how long transfers take: where there is no network, or one that does not ask for it, it does
//! nothing.

use crate::error::{Error, Result};
use crate::job::{Inner, Job};
use bytemuck::Pod;
pub use partage_conduit::ofi::cache::Counts;
pub use partage_conduit::ofi::local::Registrations;
use partage_conduit::shm::bytes;
use sealed::Bytes as _;
use std::ops::{Deref, DerefMut};

/// A slice that is kept registered while this lives. It derefs to the slice; see [`Job::register`].
#[derive(Debug)]
pub struct Registered<'j, S: Slice> {
    slice: S,
    inner: &'j Inner,
}

/// A borrowed slice: `&[T]` or `&mut [T]`.
pub trait Slice: sealed::Bytes {}
impl<T: Pod> Slice for &[T] {}
impl<T: Pod> Slice for &mut [T] {}

/// What can be lent as a slice: slices, vectors and arrays, by reference.
pub trait Lend {
    /// `&[T]` or `&mut [T]`.
    type As: Slice;
    /// As a slice.
    fn lend(self) -> Self::As;
}

mod sealed {
    use super::Pod;

    pub trait Bytes {
        fn bytes(&self) -> &[u8];
    }

    impl<T: Pod> Bytes for &[T] {
        fn bytes(&self) -> &[u8] {
            bytemuck::cast_slice(self)
        }
    }

    impl<T: Pod> Bytes for &mut [T] {
        fn bytes(&self) -> &[u8] {
            bytemuck::cast_slice(self)
        }
    }
}

macro_rules! lend {
    ($([$($n:tt)*] $kind:ty,)*) => {
        $(
            impl<'b, T: Pod $($n)*> Lend for &'b $kind {
                type As = &'b [T];
                fn lend(self) -> &'b [T] {
                    &self[..]
                }
            }

            impl<'b, T: Pod $($n)*> Lend for &'b mut $kind {
                type As = &'b mut [T];
                fn lend(self) -> &'b mut [T] {
                    &mut self[..]
                }
            }
        )*
    };
}
lend! {
    [] [T],
    [] Vec<T>,
    [, const N: usize] [T; N],
}

impl Job {
    /// Keeps memory outside the segments registered with the network while the guard lives: for buffers of more than some
    /// kilobytes from which or to which is copied again and again. The guard is used as the slice.
    ///
    /// Pages are registered as far as [`PARTAGE_REGISTERED`](crate::settings) allows; beyond that those that were used longest
    /// ago make room. A guard that is forgotten ([`std::mem::forget`]) keeps its addresses for good: transfers of what is mapped
    /// there later may bring the bytes of what was there before.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(2, |job| {
    ///     let there = job.alloc_all::<f64>(10_000).unwrap().on(job.neighbor(1));
    ///     let (field, mut back) = (vec![0.5; 10_000], vec![0.0; 10_000]);
    ///     let field = job.register(&field).unwrap();
    ///     let mut back = job.register(&mut back).unwrap();
    ///     for _ in 0..3 {
    ///         there.put_slice(job, &field);
    ///         there.get_slice(job, &mut back);
    ///     }
    ///     assert_eq!(back[..], field[..]);
    ///     # job.barrier();
    /// });
    /// ```
    ///
    /// # Errors
    /// If the network cannot register any of it: as a rule the limit of locked memory, which the error names.
    pub fn register<B: Lend>(&self, memory: B) -> Result<Registered<'_, B::As>> {
        let (inner, slice) = (&*self.all().inner, memory.lend());
        if let Some(net) = inner.seat.node().net() {
            let len = slice.bytes().len();
            net.keep(slice.bytes()).map_err(|why| {
                Error::out_of_memory(format!("{}: register of {}: {why}", self.rank(), bytes(len as u64)))
            })?;
        }
        Ok(Registered { slice, inner })
    }
}

impl<S: Slice + Deref> Deref for Registered<'_, S> {
    type Target = S::Target;

    #[inline]
    fn deref(&self) -> &S::Target {
        &self.slice
    }
}

impl<S: Slice + DerefMut> DerefMut for Registered<'_, S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut S::Target {
        &mut self.slice
    }
}

impl<S: Slice> Drop for Registered<'_, S> {
    fn drop(&mut self) {
        if let Some(net) = self.inner.seat.node().net() {
            net.forget(self.slice.bytes());
        }
    }
}
