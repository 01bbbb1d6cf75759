//! How ranks agree on arrays: which memory and which number a new one has, and when those of dropped ones are free again.

use crate::error::{Error, Result};
use crate::job::Inner;
use crate::team::{Group, Team};
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
/// The same of a team that is not the job's, whose board is to be small.
const MOST_OF_TEAM: usize = (1 << 10) - 1;

/// The arrays of a team that one member has. Alike on all members but for what has been dropped.
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

    /// Blocks of arrays that are not given back yet, and their bytes. All of them have been dropped.
    pub fn remains(&self) -> (Vec<u64>, u64) {
        let book = self.0.borrow();
        let mine = book.slots.iter().filter(|slot| slot.mine);
        let all: Vec<_> = mine.filter_map(|slot| slot.block.map(|(_, block)| (block, slot.bytes))).collect();
        (all.iter().map(|&(block, _)| block).collect(), all.iter().map(|&(_, bytes)| bytes).sum())
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
    /// Bytes of the block.
    bytes: u64,
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
    /// The only member that has any.
    only: Option<usize>,
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
        let only = spread.only_member();
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
        let (inner, group, me) = (&self.inner, &*self.group, self.inner.rank);
        inner.quiet_at(site);
        inner.tell_of_dropped(group, site);
        inner.sweep_teams(site);
        let board = self.board(site, wanted.head)?;
        let at = At { rank: me.0, offset: board };
        inner.own_table().write(at, bytemuck::bytes_of(&wanted.description)).expect("a board of mine");
        self.meet(Tag::Call(Call::Array, wanted.head), u64::MAX, move || site);

        inner.reclaim(group, site);
        inner.sweep_lanes();
        inner.sweep_teams(site);
        if group.own.is_none() {
            inner.seat.sweep_mailboxes();
        }
        let left = group.engine.rank_of((self.rank().index() + self.size() - 1) % self.size()).0;
        let mut theirs = Description::zeroed();
        let read = inner.seat.get(site, At::guarded(left, board), bytemuck::bytes_of_mut(&mut theirs));
        inner.unless_outside(read).expect("a board of ours");
        let same = theirs == wanted.description;

        let book = group.arrays.0.borrow();
        let slot = book.free.first().map_or(book.slots.len(), |&slot| slot as usize);
        drop(book);
        let side = if wanted.only.is_some() { Side::Local } else { Side::Symmetric };
        let most = group.most_arrays();
        let (room, align) = (wanted.room, wanted.align);
        let taken = match wanted.only {
            _ if slot >= most => Err(format!("there are {most} already; drop some")),
            Some(only) if only != self.rank().index() => Ok(u64::MAX),
            _ if group.own.is_none() => {
                inner.seat.take_with(Half::Guarded, side, room, align, wanted.zeroed).map_err(|e| e.to_string())
            }
            Some(_) => {
                let found = inner.seat.find_for_team(room, align, 0);
                self.take_found(found.map_err(|e| e.to_string()), room, align, wanted.zeroed)
            }
            None => self.take_together(site, wanted.head, room, align, wanted.zeroed),
        };
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
                inner.give_block(group, side, block);
            }
            let why = taken.err().unwrap_or_else(|| "another rank has no room".into());
            return Err(Error::out_of_memory(format!("{me}: array of {} on a rank: {why}", bytes(wanted.room))));
        }
        let mut book = group.arrays.0.borrow_mut();
        if book.free.pop_first().is_none() {
            book.slots.push(Slot::default());
        }
        let used = book.slots[slot].used + 1;
        // What a heap has given for it.
        let bytes = room.max(1).next_multiple_of(align.max(16));
        book.slots[slot] = Slot { block: Some((side, agreed)), mine: vote != u64::MAX, bytes, used };
        Ok((slot as u16, agreed))
    }

    /// Takes a block at the same place on all members of a team: each says the lowest that is free from a place on, until nobody says a higher one.
    fn take_together(
        &self,
        site: Site,
        head: u64,
        room: u64,
        align: u64,
        zeroed: bool,
    ) -> std::result::Result<u64, String> {
        let mut from = 0;
        loop {
            let found = self.inner.seat.find_for_team(room, align, from);
            // The smallest is found: so of what is not.
            let vote = !*found.as_ref().unwrap_or(&u64::MAX);
            let highest = !self.meet(Tag::Call(Call::Array, head), vote, move || site);
            match found {
                Err(why) => return Err(why.to_string()),
                Ok(_) if highest == u64::MAX => return Err("another rank has no room".into()),
                Ok(at) if highest == from || self.inner.is_ending() => {
                    return self.take_found(Ok(at), room, align, zeroed);
                }
                Ok(_) => from = highest,
            }
        }
    }

    fn take_found(
        &self,
        found: std::result::Result<u64, String>,
        room: u64,
        align: u64,
        zeroed: bool,
    ) -> std::result::Result<u64, String> {
        let at = found?;
        let zeroed = if zeroed { u64::MAX - at } else { 0 };
        self.inner.seat.take_for_team(at, room, align, zeroed).map_err(|e| e.to_string())?;
        Ok(at)
    }

    /// Where the board is: memory of every rank for agreeing, taken together at the first call, for good.
    fn board(&self, site: Site, head: u64) -> Result<u64> {
        let inner = &self.inner;
        if let Some(board) = self.group.arrays.0.borrow().board {
            return Ok(board);
        }
        let len = size_of::<Description>() + 8 * self.group.most_arrays().div_ceil(self.size());
        let taken = match self.group.own {
            None => inner.seat.take(Half::Guarded, Side::Symmetric, len as u64, 64).map_err(|e| e.to_string()),
            Some(_) => self.take_together(site, head, len as u64, 64, true),
        };
        let vote = *taken.as_ref().unwrap_or(&NO_ROOM);
        if self.meet(Tag::Call(Call::Array, head), vote, move || site) == NO_ROOM {
            let why = match taken {
                Ok(board) => {
                    inner.give_block(&self.group, Side::Symmetric, board);
                    "another rank has no room".into()
                }
                Err(why) => why,
            };
            return Err(Error::out_of_memory(format!("{}: array: {why}", inner.rank)));
        }
        let board = taken.expect("agreed");
        if let Some(own) = &self.group.own {
            own.add(board, (len as u64).next_multiple_of(64));
        }
        self.group.arrays.0.borrow_mut().board = Some(board);
        Ok(board)
    }
}

impl Group {
    fn most_arrays(&self) -> usize {
        if self.own.is_none() { MOST_ARRAYS } else { MOST_OF_TEAM }
    }

    /// Where it is counted who has dropped the array of this number.
    fn counter(&self, slot: u16) -> At {
        let size = self.engine.desk.ranks();
        let (turn, i) = (slot as usize % size, slot as usize / size);
        let board = self.arrays.0.borrow().board.expect("there have been arrays");
        At::guarded(self.engine.rank_of(turn).0, board + (size_of::<Description>() + 8 * i) as u64)
    }
}

impl Inner {
    fn count(&self, group: &Group, site: Site, slot: u16, op: Op) -> u64 {
        let counted = self.seat.atomic(site, group.counter(slot), Atomic::on_u64(op, 1));
        self.unless_outside(counted).expect("a counter of ours")
    }

    /// Gives back the block of an array or a board.
    fn give_block(&self, group: &Group, side: Side, block: u64) {
        match group.own {
            None => self.seat.give(Half::Guarded, side, block),
            Some(_) => self.seat.give_for_team(block),
        };
    }

    fn tell_of_dropped(&self, group: &Group, site: Site) {
        let dropped = std::mem::take(&mut group.arrays.0.borrow_mut().dropped);
        dropped.iter().for_each(|&slot| _ = self.count(group, site, slot, Op::Add));
        group.arrays.0.borrow_mut().told.extend(dropped);
    }

    /// Gives back what all members have dropped. All are here at the same time, so they find the same.
    fn reclaim(&self, group: &Group, site: Site) {
        let size = group.engine.desk.ranks() as u64;
        let mut told = std::mem::take(&mut group.arrays.0.borrow_mut().told);
        // The same order everywhere.
        told.sort_unstable();
        told.retain(|&slot| {
            let used = group.arrays.0.borrow().slots[slot as usize].used;
            if self.count(group, site, slot, Op::Load) < used * size {
                return true;
            }
            let mut book = group.arrays.0.borrow_mut();
            let (side, block) = book.slots[slot as usize].block.take().expect("it was alive until now");
            if book.slots[slot as usize].mine {
                self.give_block(group, side, block);
            }
            book.free.insert(slot);
            false
        });
        group.arrays.0.borrow_mut().told = told;
    }
}
