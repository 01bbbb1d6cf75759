//! Pointers to elements of shared arrays, as UPC counts them.
//!
//! A pointer is a [`Place`]: whose element it is, at which address of that member's memory, and where it stands in its
//! block, the *phase*. Moving it by elements depends on three numbers that the pointer's type has in UPC and that are
//! arguments here: the block size (0: all on one member), the size of an element in bytes, and the number of members.
//!
//! Guaranteed: the formulas of UPC's specification, where division rounds down and remainders are not negative. For the
//! places of one array, `distance(step(p, i), p) == i`.
//!
//! Not contained: which places are allocated, or that two belong to the same array. Addresses count from the beginning of
//! a member's memory, and an array has the same on every member. A pointer that is taken for one of another block or
//! element size has its phase set to 0 by whoever does so.

use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
};

/// Where a pointer points to. Equality does not look at the phase.
///
/// ```
/// use partage_plan::pointer::{Place, distance, step};
///
/// // shared [4] double a[..] over 3 members; a[0] is at address 64 of member 0
/// let a = Place { member: 0, addr: 64, phase: 0 };
/// let a13 = step(a, 13, 4, 8, 3).unwrap();
/// assert_eq!((a13.member, a13.addr, a13.phase), (0, 64 + 8 * 5, 1));    // the second of member 0's second block
/// assert_eq!(distance(a13, a, 4, 8, 3), 13);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The member that has the element.
    pub member: usize,
    /// In its memory, in bytes.
    pub addr: u64,
    /// How many elements of the block come before it.
    pub phase: u64,
}

impl PartialEq for Place {
    fn eq(&self, other: &Place) -> bool {
        (self.member, self.addr) == (other.member, other.addr)
    }
}

impl Eq for Place {}

impl Hash for Place {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.member, self.addr).hash(state);
    }
}

/// The place `i` elements after this one, or before it. `None` if there is no such address.
pub fn step(place: Place, i: i64, block: usize, elem_size: usize, members: usize) -> Option<Place> {
    let Place { member, addr, phase } = place;
    let (member, elements, phase) = if block == 0 {
        (member, i as i128, 0)
    } else {
        let (block, members) = (block as i128, members as i128);
        let x = phase as i128 + i as i128;
        let turn = member as i128 + x.div_euclid(block);
        let moved = x.rem_euclid(block);
        let elements = block * turn.div_euclid(members) + moved - phase as i128;
        (turn.rem_euclid(members) as usize, elements, moved as u64)
    };
    let addr = (elem_size as i128).checked_mul(elements)?.checked_add(addr as i128)?;
    Some(Place { member, addr: addr.try_into().ok()?, phase })
}

/// By how many elements `p2` is after `p1`, two places in one array.
///
/// # Panics
///
/// If that exceeds an `i64`, which it does not in one array.
pub fn distance(p2: Place, p1: Place, block: usize, elem_size: usize, members: usize) -> i64 {
    let elements = |bytes: i128| bytes / elem_size as i128;
    let apart = |of: fn(&Place) -> u64| of(&p2) as i128 - of(&p1) as i128;
    let (addr, phase) = (apart(|p| p.addr), apart(|p| p.phase));
    let distance = if block == 0 {
        Some(elements(addr))
    } else {
        let rounds = elements(addr - phase * elem_size as i128).checked_mul(members as i128);
        let turns = (block as i128).checked_mul(p2.member as i128 - p1.member as i128);
        rounds.zip(turns).and_then(|(rounds, turns)| rounds.checked_add(turns)?.checked_add(phase))
    };
    distance.and_then(|d| d.try_into().ok()).expect("two places of one array are within an i64 of each other")
}

/// Which of two places in one array comes first.
pub fn compare(p2: Place, p1: Place, block: usize, elem_size: usize, members: usize) -> Ordering {
    distance(p2, p1, block, elem_size, members).cmp(&0)
}
