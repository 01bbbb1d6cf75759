//! Operations of reductions, and how elements are combined wherever they are.
//!
//! An operation must be associative. Those here, and [`Commutative`] functions, may be applied to operands in any order; which one that
//! is depends on the number of ranks, the length and the algorithm only, so that floating results are the same each time. The operands
//! of an [`Ordered`] function keep their order.

use crate::am;
use crate::fail;
use bytemuck::Pod;
use partage_conduit::copy::{self, Line};
use partage_conduit::line;
use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

/// What combines two elements into one.
///
/// `Copy + 'static`, because a [`Plan`](super::Plan) keeps it. A program's own may be a type that implements this; most are closures
/// in [`Commutative`] or [`Ordered`].
#[diagnostic::on_unimplemented(message = "`{Self}` is no operation of `{T}`")]
pub trait ReduceOp<T>: Copy + 'static {
    /// Operands must keep their order.
    const ORDERED: bool = false;

    /// May it panic? That ends the job, whoever catches it: other ranks wait for what it was to give, wherever this one is by then.
    #[doc(hidden)]
    const PANICS: bool = true;

    /// `a` is of a lower rank, or of a lower index, if operands keep their order.
    fn combine(&self, a: T, b: T) -> T;
}

/// Addition; of integers it wraps.
#[derive(Clone, Copy, Debug)]
pub struct Sum;
/// Multiplication; of integers it wraps.
#[derive(Clone, Copy, Debug)]
pub struct Prod;
/// The smaller one. A number is smaller than none (NaN).
#[derive(Clone, Copy, Debug)]
pub struct Min;
/// The larger one. A number is larger than none (NaN).
#[derive(Clone, Copy, Debug)]
pub struct Max;
/// Bits that both have.
#[derive(Clone, Copy, Debug)]
pub struct And;
/// Bits that one of them has.
#[derive(Clone, Copy, Debug)]
pub struct Or;
/// Bits that just one of them has.
#[derive(Clone, Copy, Debug)]
pub struct Xor;
/// 1 if neither is 0, else 0.
#[derive(Clone, Copy, Debug)]
pub struct LogAnd;
/// 1 if one is not 0, else 0.
#[derive(Clone, Copy, Debug)]
pub struct LogOr;

/// A function of the program's own for which the order of operands does not matter.
///
/// ```
/// use partage::prelude::*;
/// partage::test(3, |job| {
///     let me = job.rank().0;
///     let nearest = Commutative(|a: [u32; 2], b: [u32; 2]| if a[0] <= b[0] { a } else { b });
///     assert_eq!(job.value([10 - me, me]).all_reduce(nearest), [8, 2]);
/// });
/// ```
#[derive(Clone, Copy)]
pub struct Commutative<F>(pub F);

/// A function of the program's own whose operands keep their order.
///
/// ```
/// use partage::prelude::*;
/// partage::test(3, |job| {
///     // Functions x ↦ ax + b, one after the other.
///     let then = Ordered(|f: [i64; 2], g: [i64; 2]| [f[0] * g[0], g[0] * f[1] + g[1]]);
///     let mine = [2, i64::from(job.rank().0)];
///     assert_eq!(job.value(mine).all_reduce(then), [8, 4]);
/// });
/// ```
#[derive(Clone, Copy)]
pub struct Ordered<F>(pub F);

impl<F> fmt::Debug for Commutative<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Commutative({})", type_name::<F>())
    }
}

impl<F> fmt::Debug for Ordered<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ordered({})", type_name::<F>())
    }
}

impl<T, F: Fn(T, T) -> T + Copy + 'static> ReduceOp<T> for Commutative<F> {
    #[inline(always)]
    fn combine(&self, a: T, b: T) -> T {
        self.0(a, b)
    }
}

impl<T, F: Fn(T, T) -> T + Copy + 'static> ReduceOp<T> for Ordered<F> {
    const ORDERED: bool = true;

    #[inline(always)]
    fn combine(&self, a: T, b: T) -> T {
        self.0(a, b)
    }
}

macro_rules! operations {
    ($([$($t:ty)+] { $($op:ident: |$a:ident, $b:ident| $value:expr;)+ })+) => { $(operations!(@ [$($t)+] $($op $a $b ($value))+);)+ };
    (@ $ts:tt $($op:ident $a:ident $b:ident $value:tt)+) => { $(operations!(@@ $ts $op $a $b $value);)+ };
    (@@ [$($t:ty)+] $op:ident $a:ident $b:ident $value:tt) => { $(
        impl ReduceOp<$t> for $op {
            const PANICS: bool = false;

            #[inline(always)]
            fn combine(&self, $a: $t, $b: $t) -> $t {
                $value
            }
        }
    )+ };
}

operations! {
    [i8 u8 i16 u16 i32 u32 i64 u64 i128 u128 isize usize] {
        Sum: |a, b| a.wrapping_add(b);
        Prod: |a, b| a.wrapping_mul(b);
        Min: |a, b| a.min(b);
        Max: |a, b| a.max(b);
        And: |a, b| a & b;
        Or: |a, b| a | b;
        Xor: |a, b| a ^ b;
        LogAnd: |a, b| (a != 0 && b != 0).into();
        LogOr: |a, b| (a != 0 || b != 0).into();
    }
    [f32 f64] {
        Sum: |a, b| a + b;
        Prod: |a, b| a * b;
        Min: |a, b| a.min(b);
        Max: |a, b| a.max(b);
        LogAnd: |a, b| u8::from(a != 0.0 && b != 0.0).into();
        LogOr: |a, b| u8::from(a != 0.0 || b != 0.0).into();
    }
}

/// What a collective does where elements meet. The movers have [`Moves`]; a reduction [`With`] its operation.
#[doc(hidden)]
pub trait Meets<T>: Copy + 'static {
    /// Must operands keep their order?
    const ORDERED: bool;
    fn combines(&self) -> Option<&(dyn Combine + 'static)>;
    fn owned(self) -> Option<Box<dyn Combine>>;
    /// What it does with which elements: the same on all ranks.
    fn name() -> &'static str;
}

/// Nothing meets.
#[derive(Clone, Copy, Debug)]
pub struct Moves;

/// Elements that meet are combined by this operation.
pub struct With<T, O>(pub(super) O, pub(super) PhantomData<fn(T)>);

impl<T, O: Copy> Clone for With<T, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, O: Copy> Copy for With<T, O> {}

impl<T, O> fmt::Debug for With<T, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "With({})", type_name::<O>())
    }
}

impl<T: Pod> Meets<T> for Moves {
    const ORDERED: bool = false;

    #[inline(always)]
    fn combines(&self) -> Option<&(dyn Combine + 'static)> {
        None
    }

    fn owned(self) -> Option<Box<dyn Combine>> {
        None
    }

    #[inline(always)]
    fn name() -> &'static str {
        type_name::<T>()
    }
}

impl<T: Pod, O: ReduceOp<T>> Meets<T> for With<T, O> {
    const ORDERED: bool = O::ORDERED;

    #[inline(always)]
    fn combines(&self) -> Option<&(dyn Combine + 'static)> {
        Some(self)
    }

    fn owned(self) -> Option<Box<dyn Combine>> {
        Some(Box::new(self))
    }

    #[inline(always)]
    fn name() -> &'static str {
        type_name::<(T, O)>()
    }
}

/// Some elements, and whether anybody else may touch them meanwhile, though a right program does not.
#[derive(Clone, Copy, Debug)]
pub struct Elements {
    pub(super) at: *mut u8,
    pub(super) shared: bool,
}

/// Combines elements of a type that only it knows.
#[doc(hidden)]
pub trait Combine: fmt::Debug {
    /// `dst` becomes `b ⊕ a` if `before`, else `a ⊕ b`, element by element. It may be `a`.
    ///
    /// # Safety
    /// All have so many bytes, a multiple of an element's, and do not overlap, but if `dst` is `a`; they can be read, `dst` written. To what
    /// is shared no reference exists; what is not is touched by nobody else.
    unsafe fn combine(&self, dst: Elements, a: Elements, b: Elements, len: usize, before: bool);
}

/// Bytes that are combined at a time where they must be copied: both operands stay in the first cache.
const ROOM: usize = 2048;

#[repr(C, align(64))]
struct Room([std::mem::MaybeUninit<u8>; ROOM]);

impl Room {
    fn new() -> Room {
        Room([std::mem::MaybeUninit::uninit(); ROOM])
    }

    fn at(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

impl<T: Pod, O: ReduceOp<T>> Combine for With<T, O> {
    unsafe fn combine(&self, dst: Elements, a: Elements, b: Elements, len: usize, before: bool) {
        if !O::PANICS {
            // SAFETY: passed on to the caller.
            return unsafe { self.combine_all(dst, a, b, len, before) };
        }
        // SAFETY: as above.
        or_end::<T, O, ()>(|| unsafe { self.combine_all(dst, a, b, len, before) })
    }
}

/// Runs the operation on elements of this rank. Others wait for what comes of it.
#[inline(always)]
pub(super) fn or_end<T: Pod, O: ReduceOp<T>, R>(f: impl FnOnce() -> R) -> R {
    if O::PANICS { fail::or_end("the operation of a reduction", || am::in_operation(f)) } else { f() }
}

impl<T: Pod, O: ReduceOp<T>> With<T, O> {
    /// # Safety
    /// As for [`Combine::combine`].
    #[inline(always)]
    unsafe fn combine_all(&self, dst: Elements, a: Elements, b: Elements, len: usize, before: bool) {
        let size = size_of::<T>();
        if len == size {
            // SAFETY: one element each.
            return unsafe { self.combine_one(dst, a, b, before) };
        }
        if size > ROOM || align_of::<T>() > align_of::<Room>() {
            for at in (0..len).step_by(size) {
                let one = |e: Elements| Elements { at: e.at.wrapping_add(at), ..e };
                // SAFETY: one element of each.
                unsafe { self.combine_one(one(dst), one(a), one(b), before) };
            }
            return;
        }
        let is_mine = |e: Elements| !e.shared && e.at.addr().is_multiple_of(align_of::<T>());
        let in_place = dst.at == a.at;
        if in_place && is_mine(dst) && is_mine(b) {
            // SAFETY: elements of this rank's own, which do not overlap.
            unsafe {
                let all = std::slice::from_raw_parts_mut(dst.at.cast::<T>(), len / size);
                self.all(all, std::slice::from_raw_parts(b.at.cast::<T>(), len / size), before);
            }
            return;
        }
        let lines = if Line::has_whole::<T>() { len / Line::LEN } else { 0 };
        // SAFETY: so many lines of each.
        unsafe { self.lines(dst.at, a.at, b.at, lines, before) };
        let (mut x, mut y) = (Room::new(), Room::new());
        let chunk = ROOM / size * size;
        for at in (lines * Line::LEN..len).step_by(chunk) {
            let (n, at) = (chunk.min(len - at), |e: Elements| e.at.wrapping_add(at));
            // SAFETY: inside all of them. Rooms are aligned, and have what was copied.
            unsafe {
                copy::between(x.at(), at(a), n);
                copy::between(y.at(), at(b), n);
                let x_all = std::slice::from_raw_parts_mut(x.at().cast::<T>(), n / size);
                self.all(x_all, std::slice::from_raw_parts(y.at().cast::<T>(), n / size), before);
                copy::between(at(dst), x.at(), n);
            }
        }
    }
}

impl<T: Pod, O: ReduceOp<T>> With<T, O> {
    /// # Safety
    /// As for [`Combine::combine`], of one element each.
    #[inline(always)]
    unsafe fn combine_one(&self, dst: Elements, a: Elements, b: Elements, before: bool) {
        // SAFETY: passed on to the caller.
        unsafe {
            let (a, b) = (element::<T>(a.at), element::<T>(b.at));
            let value = if before { self.0.combine(b, a) } else { self.0.combine(a, b) };
            copy::between(dst.at, (&raw const value).cast(), size_of::<T>());
        }
    }
}

/// Bytes that are asked for before they are combined: they may be in another core's cache.
const AHEAD: usize = 2048;

impl<T: Pod, O: ReduceOp<T>> With<T, O> {
    /// Memory that is shared passes through registers.
    ///
    /// # Safety
    /// As for [`Combine::combine`]; all have so many lines, of whole elements.
    unsafe fn lines(&self, dst: *mut u8, a: *const u8, b: *const u8, lines: usize, before: bool) {
        for at in (0..lines).map(|i| i * Line::LEN) {
            line::prefetch_to_read(b.wrapping_add(at + AHEAD));
            // SAFETY: passed on to the caller.
            let (mut x, mut y) = unsafe { (Line::load(a.wrapping_add(at)), Line::load(b.wrapping_add(at))) };
            self.all(x.elements(), y.elements(), before);
            // SAFETY: the same.
            unsafe { x.store(dst.wrapping_add(at)) };
        }
    }

    /// Loops that the compiler turns into vector instructions.
    fn all(&self, a: &mut [T], b: &[T], before: bool) {
        match before {
            false => a.iter_mut().zip(b).for_each(|(a, b)| *a = self.0.combine(*a, *b)),
            true => a.iter_mut().zip(b).for_each(|(a, b)| *a = self.0.combine(*b, *a)),
        }
    }
}

/// # Safety
/// There is one, and no reference to it if it is shared.
#[inline(always)]
unsafe fn element<T: Pod>(at: *const u8) -> T {
    let mut value = T::zeroed();
    // SAFETY: passed on to the caller; any bits are a value.
    unsafe { copy::between((&raw mut value).cast(), at, size_of::<T>()) };
    value
}

/// An element that may not be there: a rank may have none. The second one says whether the first is.
#[derive(Clone, Copy)]
pub(super) struct OrNone<O>(pub O);

impl<T: Pod, O: ReduceOp<T>> ReduceOp<[T; 2]> for OrNone<O> {
    const ORDERED: bool = O::ORDERED;

    fn combine(&self, a: [T; 2], b: [T; 2]) -> [T; 2] {
        match (or_none(a), or_none(b)) {
            (Some(x), Some(y)) => [self.0.combine(x, y), a[1]],
            (Some(_), None) => a,
            _ => b,
        }
    }
}

/// What it says.
pub(super) fn or_none<T: Pod>(two: [T; 2]) -> Option<T> {
    (bytemuck::bytes_of(&two[1]).first() == Some(&1)).then_some(two[0])
}

/// As two.
pub(super) fn as_two<T: Pod>(value: Option<T>) -> [T; 2] {
    let mut there = T::zeroed();
    if let Some(first) = bytemuck::bytes_of_mut(&mut there).first_mut() {
        *first = value.is_some().into();
    }
    [value.unwrap_or(T::zeroed()), there]
}

/// Lanes in which elements are combined where their order does not matter.
const LANES: usize = 8;

/// All of them, if there are any, after what came before. Where the order does not matter, eight at a time.
pub(super) fn fold<T: Pod, O: ReduceOp<T>>(op: &O, before: Option<T>, all: &[T]) -> Option<T> {
    if O::ORDERED || all.len() < 2 * LANES {
        return all.iter().fold(before, |sum, &x| Some(sum.map_or(x, |sum| op.combine(sum, x))));
    }
    let (rows, rest) = all.as_chunks::<LANES>();
    let mut lanes = rows[0];
    for row in &rows[1..] {
        lanes.iter_mut().zip(row).for_each(|(lane, &x)| *lane = op.combine(*lane, x));
    }
    let before = lanes.iter().fold(before, |sum, &x| Some(sum.map_or(x, |sum| op.combine(sum, x))));
    fold(op, before, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts the elements of one after those of the other, as a number in base 10.
    fn join(a: u64, b: u64) -> u64 {
        let digits = |n: u64| 10u64.pow(n.checked_ilog10().unwrap_or(0) + 1);
        a * digits(b) + b
    }

    #[test]
    fn elements_are_combined_in_order_wherever_they_are() {
        let op = With(Ordered(join), PhantomData);
        for n in [1, 2, 7, 8, 9, 255, 256, 257, 1000] {
            for (before, ends) in [(false, [4, 7]), (true, [7, 4])] {
                for shared in 0..8 {
                    let mut all = [4u64, 7, 0].map(|x| vec![x; n]);
                    let mut i = 0;
                    let [a, b, dst] = all.each_mut().map(|v| {
                        i += 1;
                        Elements { at: v.as_mut_ptr().cast(), shared: shared >> (i - 1) & 1 == 1 }
                    });
                    let is = |v: &[u64], x| v.iter().all(|&y| y == x);
                    // SAFETY: three vectors.
                    unsafe { op.combine(dst, a, b, 8 * n, before) };
                    assert!(is(&all[0], 4) && is(&all[1], 7) && is(&all[2], join(ends[0], ends[1])), "{n}");
                    // SAFETY: two of them.
                    unsafe { op.combine(a, a, b, 8 * n, before) };
                    assert!(is(&all[0], join(ends[0], ends[1])) && is(&all[1], 7), "{n}");
                }
            }
        }
    }

    /// At any address that is aligned, in memory of which what is around stays as it is.
    fn subtract<T: Pod + PartialEq + fmt::Debug>(of: impl Fn(usize) -> T, minus: fn(T, T) -> T) {
        let op = With(Ordered(minus), PhantomData);
        for n in (1..70).chain([2049]) {
            for start in 0..3 {
                let make = |from: usize| (0..n + 4).map(|i| of(from + i)).collect::<Vec<T>>();
                let (mut a, mut b, mut dst) = (make(7), make(90), make(200));
                let wanted: Vec<T> = (0..n).map(|i| minus(a[start + i], b[start + i])).collect();
                let at = |v: &mut Vec<T>| Elements { at: v[start..].as_mut_ptr().cast(), shared: true };
                let (x, y, z) = (at(&mut a), at(&mut b), at(&mut dst));
                // SAFETY: three vectors, so long from there.
                unsafe { op.combine(z, x, y, n * size_of::<T>(), false) };
                let mut left = make(200);
                left[start..start + n].copy_from_slice(&wanted);
                assert_eq!(dst, left, "{n} from {start}");
                // SAFETY: two of them.
                unsafe { op.combine(x, x, y, n * size_of::<T>(), false) };
                assert_eq!((&a[start..start + n], b), (&wanted[..], make(90)));
            }
        }
    }

    #[test]
    fn elements_of_every_size_are_combined() {
        subtract(|i| i as u8, u8::wrapping_sub);
        subtract(|i| i as u16, u16::wrapping_sub);
        subtract(|i| i as f32, |a, b| a - b);
        subtract(|i| i as u128, u128::wrapping_sub);
        subtract(|i| [i as u8; 3], |a, b| [a[0].wrapping_sub(b[0]), a[1] ^ b[2], b[1]]);
        subtract(|i| [i as u64; 3], |a, b| [a[0].wrapping_sub(b[0]), b[1], a[2]]);
        subtract(|i| [i as u64; 8], |a, b| [a[0].wrapping_sub(b[0]), b[1], a[2], 0, 1, 2, b[6], 3]);
    }

    #[test]
    fn large_elements_are_combined() {
        let op = With(Sum2, PhantomData);
        let (mut a, mut b) = (vec![[1u32; 600]; 3], vec![[2u32; 600]; 3]);
        let [x, y] = [&mut a, &mut b].map(|v| Elements { at: v.as_mut_ptr().cast(), shared: true });
        // SAFETY: two vectors.
        unsafe { op.combine(x, x, y, 3 * 2400, false) };
        assert_eq!((a, b), (vec![[3; 600]; 3], vec![[2; 600]; 3]));
    }

    #[derive(Clone, Copy)]
    struct Sum2;
    impl ReduceOp<[u32; 600]> for Sum2 {
        fn combine(&self, a: [u32; 600], b: [u32; 600]) -> [u32; 600] {
            std::array::from_fn(|i| a[i] + b[i])
        }
    }

    #[test]
    fn folds_are_sums_of_all() {
        for n in 0..100u64 {
            let all: Vec<u64> = (0..n).map(|i| i * i + 1).collect();
            let sum = all.iter().copied().reduce(|a, b| a + b);
            assert_eq!(fold(&Sum, None, &all), sum);
            assert_eq!(fold(&Sum, Some(5), &all), Some(sum.unwrap_or(0) + 5));
            let digits: Vec<u64> = (0..n.min(18)).map(|i| i % 10).collect();
            assert_eq!(fold(&Ordered(join), None, &digits), digits.iter().copied().reduce(join));
        }
    }

    #[test]
    fn what_is_not_there_is_left_out() {
        let op = OrNone(Ordered(join));
        let two = |a: Option<u64>, b: Option<u64>| or_none(op.combine(as_two(a), as_two(b)));
        assert_eq!(
            [two(None, None), two(Some(1), None), two(None, Some(2)), two(Some(0), Some(2))],
            [None, Some(1), Some(2), Some(2)]
        );
        assert_eq!(two(Some(1), Some(2)), Some(12));
    }

    #[test]
    fn logical_operations_are_of_ones_and_zeros() {
        assert_eq!(
            (LogAnd.combine(5, 7), LogAnd.combine(5, 0), LogOr.combine(0, 9), LogOr.combine(0, 0)),
            (1, 0, 1, 0)
        );
        assert_eq!((LogAnd.combine(0.5, 2.0), LogOr.combine(0.0, 0.0)), (1.0, 0.0));
        assert_eq!(
            (Sum.combine(250u8, 10), Min.combine(f64::NAN, 1.0), Max.combine(-1.0f32, f32::NAN)),
            (4, 1.0, -1.0)
        );
    }
}
