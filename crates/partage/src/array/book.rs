//! How ranks agree on arrays: which memory and which number a new one has, and when those of dropped ones are free again.

use crate::error::{Error, Result};
use crate::job::Inner;
use crate::team::{Rank, Team};
use bytemuck::Zeroable;
use partage_conduit::barrier::{Call, Tag};
use partage_conduit::contract::{At, Conduit, Half};
use partage_conduit::heap::Side;
use partage_conduit::record::Site;
use partage_conduit::shm::bytes;
use partage_conduit::word::{Atomic, Op};
use partage_plan::layout::Spread;
use std::any::type_name;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Arrays that can be alive at a time: their numbers have so many bits in the tag of a phase.
pub(crate) const MOST_ARRAYS: usize = (1 << 14) - 1;

/// The arrays of one rank. Alike on all ranks but for what has been dropped.
#[derive(Debug, Default)]
pub(crate) struct Arrays(RefCell<Book>);

impl Arrays {
    /// A handle was dropped.
    pub fn dropped(&self, slot: u16) {
        self.0.borrow_mut().dropped.push(slot);
    }

    /// The numbers of those whose handles were not dropped.
    pub fn not_dropped(&self) -> Vec<usize> {
        let book = self.0.borrow();
        let dropped = |slot: usize| book.dropped.iter().chain(&book.told).any(|&d| d as usize == slot);
        let alive = |&slot: &usize| book.slots[slot].block.is_some() && !dropped(slot);
        (0..book.slots.len()).filter(alive).collect()
    }
}

#[derive(Debug, Default)]
struct Book {
    slots: Vec<Slot>,
    /// Dropped here, which nobody else knows yet.
    dropped: Vec<u16>,
    /// Dropped here and told.
    told: Vec<u16>,
    /// The free ones of them.
    free: BTreeSet<u16>,
    /// Where every rank has its board: what it wants to have, and how often arrays were dropped, by anybody, of every slot
    /// that falls to it if they are dealt out in turn.
    board: Option<u64>,
}

/// The number of an array. Used again when all ranks have dropped the array.
#[derive(Debug, Default, Clone, Copy)]
struct Slot {
    /// In which heap its block is, and where it begins there.
    block: Option<(Side, u64)>,
    /// Of an array on one rank, the others have nothing.
    mine: bool,
    /// How many arrays have had this number; every rank drops each of them once.
    used: u64,
}

/// Votes on a new array that are no offsets of blocks.
const NO_ROOM: u64 = 0;
const DIFFERENT: u64 = 1;

/// All that members must give alike.
type Description = [u64; 16];

/// What an array is asked for with, or locks.
pub(crate) struct Wanted {
    /// The kind of its layout, and its length.
    head: u64,
    description: Description,
    /// Bytes on each rank, or on the only one that has any.
    room: u64,
    align: u64,
    only: Option<Rank>,
    zeroed: bool,
}

impl Wanted {
    pub fn new<T>(spread: &Spread, room: u64, zeroed: bool) -> Wanted {
        let size = (size_of::<T>() as u64, align_of::<T>() as u64);
        Wanted::of(spread, type_name::<T>(), size, room, zeroed)
    }

    /// Of elements of this size and alignment.
    pub fn of(spread: &Spread, name: &str, (size, align): (u64, u64), room: u64, zeroed: bool) -> Wanted {
        let (align, words) = (align.max(64), spread.layout().words());
        // The type's name only helps to find mistakes: elements are plain bytes.
        let mut description = [0; 16];
        description[..words.len()].copy_from_slice(&words);
        description[12..].copy_from_slice(&[zeroed.into(), size, align, hash(name.bytes().map(u64::from))]);
        let only = spread.only_member().map(|r| Rank(r as u32));
        Wanted { head: words[0] << 60 | spread.len() as u64, description, room, align, only, zeroed }
    }

    fn hash(&self) -> u64 {
        hash(self.description.into_iter())
    }
}

/// Some number that differs if the words do, as a rule.
fn hash(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0x9e37_79b9_7f4a_7c15, |all: u64, word| (all.rotate_left(23) ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd))
}

impl Team {
    /// The number of a new array, and where its parts begin. Two barriers. Before the first, everything that ranks had under way
    /// is complete, and everybody has told what it has dropped and what it wants to have. So after it all find the same
    /// blocks to be free, and take the same; and each compares what its neighbour wants with what it wants itself. The
    /// second says whether all have found a block, zeroed it, and want the same, to the bit.
    pub(crate) fn agree_on_array(&self, site: Site, wanted: &Wanted) -> Result<(u16, u64)> {
        let (inner, me) = (&self.inner, self.inner.rank);
        inner.quiet_at(site);
        inner.tell_of_dropped(site);
        let board = self.board(site, wanted.head)?;
        let at = At { rank: me.0, offset: board };
        inner.own_table().write(at, bytemuck::bytes_of(&wanted.description)).expect("a board of mine");
        self.meet(Tag::Call(Call::Array, wanted.head), u64::MAX, move || site);

        inner.reclaim(site);
        inner.seat.sweep_mailboxes();
        let left = (me.0 + self.size() as u32 - 1) % self.size() as u32;
        let mut theirs = Description::zeroed();
        let read = inner.seat.get(site, At::guarded(left, board), bytemuck::bytes_of_mut(&mut theirs));
        inner.unless_outside(read).expect("a board of ours");
        let same = theirs == wanted.description;

        let mut book = inner.arrays.0.borrow_mut();
        let slot = book.free.first().map_or(book.slots.len(), |&slot| slot as usize);
        let side = if wanted.only.is_some() { Side::Local } else { Side::Symmetric };
        let taken = match wanted.only {
            _ if slot >= MOST_ARRAYS => Err(format!("there are {MOST_ARRAYS} already; drop some")),
            Some(only) if only != me => Ok(u64::MAX),
            _ => inner
                .seat
                .take_with(Half::Guarded, side, wanted.room, wanted.align, wanted.zeroed)
                .map_err(|e| e.to_string()),
        };
        drop(book);
        let vote = if same { *taken.as_ref().unwrap_or(&NO_ROOM) } else { DIFFERENT };
        let agreed = self.meet(Tag::Call(Call::ArrayDetails, wanted.hash()), vote, move || site);
        if inner.is_ending() {
            return Err(Error::config(format!("{me}: array: the job is over")));
        }
        if agreed == DIFFERENT || agreed != vote && vote > DIFFERENT && vote != u64::MAX && agreed > DIFFERENT {
            panic!("{me}: {site}: the members do not want the same array");
        }
        if agreed == NO_ROOM {
            if let Ok(block) = taken
                && block != u64::MAX
            {
                inner.seat.give(Half::Guarded, side, block);
            }
            let why = taken.err().unwrap_or_else(|| "another rank has no room".into());
            return Err(Error::out_of_memory(format!("{me}: array of {} on a rank: {why}", bytes(wanted.room))));
        }
        book = inner.arrays.0.borrow_mut();
        if book.free.pop_first().is_none() {
            book.slots.push(Slot::default());
        }
        let used = book.slots[slot].used + 1;
        book.slots[slot] = Slot { block: Some((side, agreed)), mine: vote != u64::MAX, used };
        Ok((slot as u16, agreed))
    }

    /// Where the board is: memory of every rank for agreeing, taken together at the first call, for good.
    fn board(&self, site: Site, head: u64) -> Result<u64> {
        let inner = &self.inner;
        if let Some(board) = inner.arrays.0.borrow().board {
            return Ok(board);
        }
        let len = size_of::<Description>() + 8 * MOST_ARRAYS.div_ceil(self.size());
        let taken = inner.seat.take(Half::Guarded, Side::Symmetric, len as u64, 64);
        let vote = *taken.as_ref().unwrap_or(&NO_ROOM);
        if self.meet(Tag::Call(Call::Array, head), vote, move || site) == NO_ROOM {
            let why = match taken {
                Ok(board) => {
                    inner.seat.give(Half::Guarded, Side::Symmetric, board);
                    "another rank has no room".into()
                }
                Err(why) => why.to_string(),
            };
            return Err(Error::out_of_memory(format!("{}: array: {why}", inner.rank)));
        }
        inner.arrays.0.borrow_mut().board = taken.as_ref().ok().copied();
        Ok(taken.expect("agreed"))
    }
}

impl Inner {
    /// Where it is counted who has dropped the array of this number.
    fn counter(&self, slot: u16) -> At {
        let (turn, i) = (slot as usize % self.size, slot as usize / self.size);
        let board = self.arrays.0.borrow().board.expect("there have been arrays");
        At::guarded(turn as u32, board + (size_of::<Description>() + 8 * i) as u64)
    }

    fn count(&self, site: Site, slot: u16, op: Op) -> u64 {
        let counted = self.seat.atomic(site, self.counter(slot), Atomic::on_u64(op, 1));
        self.unless_outside(counted).expect("a counter of ours")
    }

    fn tell_of_dropped(&self, site: Site) {
        let dropped = std::mem::take(&mut self.arrays.0.borrow_mut().dropped);
        dropped.iter().for_each(|&slot| _ = self.count(site, slot, Op::Add));
        self.arrays.0.borrow_mut().told.extend(dropped);
    }

    /// Gives back what all ranks have dropped. All ranks are here at the same time, so they find the same.
    fn reclaim(&self, site: Site) {
        let mut told = std::mem::take(&mut self.arrays.0.borrow_mut().told);
        // The same order everywhere.
        told.sort_unstable();
        told.retain(|&slot| {
            let used = self.arrays.0.borrow().slots[slot as usize].used;
            if self.count(site, slot, Op::Load) < used * self.size as u64 {
                return true;
            }
            let mut book = self.arrays.0.borrow_mut();
            let (side, block) = book.slots[slot as usize].block.take().expect("it was alive until now");
            if book.slots[slot as usize].mine {
                self.seat.give(Half::Guarded, side, block);
            }
            book.free.insert(slot);
            false
        });
        self.arrays.0.borrow_mut().told = told;
    }
}
