//! The memory of a rank: which part of its segment is what, and how it is taken.
//!
//! ```text
//! open half     | page 0 | local heap →        ← symmetric heap | window (blocks over all ranks) |
//! guarded half  | page 0 | local heap →        ← symmetric heap | window (blocks of teams)       |
//! ```
//! The heaps of a half are its owner's ([`Seat::take`], no lock, no peer). The *window* has blocks at equal offsets on all
//! ranks that one rank takes without the others: the process of rank 0 keeps the book of it, every process commits its
//! ranks' parts, both asked by messages ([`Seat::take_blocks`]). The window of the guarded half has blocks at equal offsets on some ranks, the
//! members of a team: each keeps the book of its own, says which place is free there ([`Seat::find_for_team`]), and takes the one that all
//! have agreed on ([`Seat::take_for_team`]).
//!
//! Does not contain: who may reach what. Pointers reach the open half, handles the guarded one.

use super::segment::{Exhausted, HUGE};
use super::{Node, Seat, ledger_at, segments_at};
use crate::am::{Arrival, Handler};
use crate::contract::{At, Conduit, Half};
use crate::copy;
use crate::heap::{Block, Heaps, Side};
use crate::ofi::segment::CHUNK;
use crate::record::Site;
use crate::reference::{self, Question};
use crate::small::{self, Given, Size, Small};
use crate::wait::Aborted;
use bytemuck::{Pod, Zeroable};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of the window of a segment.
pub(super) fn window_len(segment: u64) -> u64 {
    (segment / 4).next_multiple_of(HUGE as u64)
}

/// Bytes of the open half.
pub(super) fn open_len(segment: u64) -> u64 {
    segment + window_len(segment)
}

/// Where the guarded half begins, after the start of a segment in its process's file.
pub(super) fn guarded_at(segment: u64) -> u64 {
    open_len(segment)
}

/// Bytes of the guarded half: its window is as long as its heaps.
pub(super) fn guarded_len(segment: u64) -> u64 {
    2 * segment
}

/// From one rank's segment to the next one's in the file of their process: both halves, and a page. What all ranks have at the same place would have addresses otherwise that differ in high bits only, and
/// caches that tell lines apart by a few bits of their address would have room for one of them at a time.
pub(super) fn stride(segment: u64) -> u64 {
    guarded_at(segment) + guarded_len(segment) + HUGE as u64
}

/// How many chunks of a segment the network can know.
pub(super) fn chunks(segment: u64) -> usize {
    (open_len(segment).div_ceil(CHUNK) + guarded_len(segment).div_ceil(CHUNK)) as usize
}

/// One half of a rank's segment, as its owner sees it.
#[derive(Debug)]
pub(super) struct Memory {
    heaps: RefCell<Heaps>,
    /// Small blocks of the local heap.
    small: RefCell<Small>,
    /// Bytes from the bottom and from the top that are committed.
    committed: [Cell<u64>; 2],
}

impl Memory {
    pub fn new(segment: u64) -> Memory {
        Memory { heaps: RefCell::new(Heaps::new(segment)), small: RefCell::default(), committed: Default::default() }
    }
}

/// The window of the guarded half of a rank's segment, as its owner sees it. Offsets in it are from its start.
#[derive(Debug)]
pub(super) struct TeamWindow {
    heaps: RefCell<Heaps>,
    committed: Cell<u64>,
}

impl TeamWindow {
    pub fn new(segment: u64) -> TeamWindow {
        TeamWindow { heaps: RefCell::new(Heaps::new(segment)), committed: Cell::new(0) }
    }
}

impl Node {
    /// Where an offset of the i-th segment of this process lies in its file, whose segments may be longer than what the
    /// node shares.
    fn in_file(&self, i: usize, half: Half, offset: u64) -> usize {
        let start = segments_at(self.own_segment, self.mine().len()) + i * stride(self.own_segment) as usize;
        start + offset as usize + if half == Half::Open { 0 } else { guarded_at(self.own_segment) as usize }
    }

    /// Makes so many bytes of this process's file present.
    pub(super) fn populate(&self, at: usize, len: u64) -> Result<(), Exhausted> {
        self.own.commit(self.file.as_fd(), at, len as usize, self.areas[0].pending())
    }

    /// Tells the network, if there is one, of a committed part of the i-th segment.
    fn register(&self, i: usize, half: Half, range: Range<u64>) -> Result<(), Exhausted> {
        let Some(net) = self.net() else { return Ok(()) };
        let len = self.table(half).len();
        if let Some(whole) = net.with_pages(i, half, &range, len) {
            self.populate(self.in_file(i, half, whole.start), whole.end - whole.start)?;
        }
        let ledger = self.ledger(self.mine().start + i).expect("a rank of this process");
        let area = ledger_at(self.own_segment, self.mine().len(), i);
        let prepare = |bytes: Range<usize>| {
            let start = (area + bytes.start) & !4095;
            self.populate(start, (area + bytes.end - start) as u64)
        };
        // SAFETY: a half of the i-th segment, which stays mapped as long as the node, whose network this is.
        unsafe { net.register((i, ledger), half, self.own.base().add(self.in_file(i, half, 0)), len, range, prepare) }
    }
}

impl Seat {
    /// Takes `len` zeroed bytes of this rank's segment; the offset.
    pub fn take(&self, half: Half, side: Side, len: u64, align: u64) -> Result<u64, Exhausted> {
        if side == Side::Local
            && let Some(size) = Size::of(len, align)
            && let Some(offset) = self.take_small(half, size).or_else(|| self.take_small_of_new_page(half, size))
        {
            return Ok(offset);
        }
        self.take_with(half, side, len, align, true)
    }

    /// The same; without zeroing what was used before unless it is asked for.
    pub fn take_with(&self, half: Half, side: Side, len: u64, align: u64, zeroed: bool) -> Result<u64, Exhausted> {
        let block = self.take_as_it_is(half, side, len, align)?;
        if zeroed && !block.stale.is_empty() {
            let at = At { rank: self.rank as u32, offset: block.stale.start };
            let len = (block.stale.end - block.stale.start) as usize;
            let p = self.node.table(half).locate(at, len).expect("heaps stay inside the segment");
            // SAFETY: inside this rank's segment, in a block that nobody has, so no reference into it exists.
            unsafe { copy::zero(p, len) };
        }
        Ok(block.range.start)
    }

    /// Takes so many bytes, of pages that come when they are touched: it is not known before that there are as many. A network is told of them,
    /// and they have their pages where it wants that.
    pub fn take_untouched(&self, half: Half, side: Side, len: u64) -> Result<u64, Exhausted> {
        if side == Side::Local {
            return self.take(half, side, len, 4096);
        }
        let (node, memory) = (&self.node, &self.memory[half as usize]);
        let mut heaps = memory.heaps.borrow_mut();
        let Some(block) = heaps.take(side, len, 4096) else {
            return Err(Exhausted::Segment { largest: heaps.largest(side) });
        };
        let (committed, start) = (&memory.committed[side as usize], block.range.start);
        if node.segment - start > committed.get() {
            if let Err(e) = node.register(self.rank - node.mine().start, half, start..node.segment) {
                heaps.give(side, start);
                return Err(e);
            }
            committed.set(node.segment - start);
        }
        Ok(start)
    }

    fn take_as_it_is(&self, half: Half, side: Side, len: u64, align: u64) -> Result<Block, Exhausted> {
        let memory = &self.memory[half as usize];
        let mut heaps = memory.heaps.borrow_mut();
        let Some(block) = heaps.take(side, len, align) else {
            return Err(Exhausted::Segment { largest: heaps.largest(side) });
        };
        let committed = &memory.committed[side as usize];
        let have = committed.get();
        if let Err(e) = self.commit(half, side, &block.range) {
            heaps.give(side, block.range.start);
            self.trim(half, side, &mut heaps);
            committed.set(committed.get().min(have));
            return Err(e);
        }
        Ok(block)
    }

    /// Takes a small block if there is a page that has room for it.
    #[inline(always)]
    pub fn take_small(&self, half: Half, size: Size) -> Option<u64> {
        let (offset, stale) = self.memory[half as usize].small.borrow_mut().take(size)?;
        if stale {
            let (at, words) = (At { rank: self.rank as u32, offset }, size.bytes() as usize / 8);
            let p = self.node.table(half).locate(at, 8 * words)?;
            // SAFETY: as above.
            unsafe { if words <= 16 { copy::zero_words(p, words) } else { copy::zero(p, 8 * words) } }
        }
        Some(offset)
    }

    /// The same with a page more.
    fn take_small_of_new_page(&self, half: Half, size: Size) -> Option<u64> {
        let page = self.take_with(half, Side::Local, small::PAGE, small::PAGE, true).ok()?;
        self.memory[half as usize].small.borrow_mut().add(size, page);
        self.take_small(half, size)
    }

    /// Gives a small block back by its offset, if that is all there is to do.
    #[inline(always)]
    pub fn give_small(&self, half: Half, offset: u64) -> bool {
        self.memory[half as usize].small.borrow_mut().give_only(offset)
    }

    /// Gives a block back by its offset; false if none starts there on that side.
    pub fn give(&self, half: Half, side: Side, offset: u64) -> bool {
        if side == Side::Local {
            let given = self.memory[half as usize].small.borrow_mut().give(offset);
            match given {
                Given::Done => return true,
                Given::Emptied(page) => return self.give_whole(half, side, page),
                Given::NotInUse => return false,
                Given::NotOurs => {}
            }
        }
        self.give_whole(half, side, offset)
    }

    fn give_whole(&self, half: Half, side: Side, offset: u64) -> bool {
        let mut heaps = self.memory[half as usize].heaps.borrow_mut();
        let given = heaps.give(side, offset).is_some();
        self.trim(half, side, &mut heaps);
        given
    }

    /// The side of the block of open memory that starts at this offset.
    pub fn side_of(&self, offset: u64) -> Option<Side> {
        let Memory { small, heaps, .. } = &self.memory[Half::Open as usize];
        match small.borrow().is_in_use(offset) {
            Some(used) => used.then_some(Side::Local),
            None => heaps.borrow().side_of(offset),
        }
    }

    /// Bytes of this rank's heaps in use.
    pub fn in_use(&self) -> u64 {
        let of = |m: &Memory| m.heaps.borrow().in_use() - m.small.borrow().held() + m.small.borrow().in_use();
        self.memory.iter().map(of).sum::<u64>() + self.teams.heaps.borrow().in_use()
    }

    /// The lowest place, in the guarded half and not below `from`, where a block of a team's of so many bytes could be taken here; nothing is.
    pub fn find_for_team(&self, len: u64, align: u64, from: u64) -> Result<u64, Exhausted> {
        let (start, heaps) = (self.node.segment, self.teams.heaps.borrow());
        let found = heaps.find(len, align, from.saturating_sub(start));
        found.map(|at| start + at).ok_or_else(|| Exhausted::Segment { largest: heaps.largest(Side::Local) })
    }

    /// Takes it, with this many zeroed bytes at its start; what is after them may hold old ones.
    pub fn take_for_team(&self, offset: u64, len: u64, align: u64, zeroed: u64) -> Result<(), Exhausted> {
        let (start, mut heaps) = (self.node.segment, self.teams.heaps.borrow_mut());
        let block = offset.checked_sub(start).and_then(|at| heaps.take_at(at, len, align));
        let Some(Block { range, stale }) = block else {
            return Err(Exhausted::Segment { largest: heaps.largest(Side::Local) });
        };
        if let Err(why) = self.commit_for_teams(range.end) {
            heaps.give(Side::Local, range.start);
            return Err(why);
        }
        let stale = stale.start..stale.end.min(range.start + zeroed);
        if !stale.is_empty() {
            let (at, len) =
                (At { rank: self.rank as u32, offset: start + stale.start }, (stale.end - stale.start) as usize);
            let p = self.node.table(Half::Guarded).locate(at, len).expect("windows stay inside the segment");
            // SAFETY: inside this rank's segment, in a block that nobody has, so no reference into it exists.
            unsafe { copy::zero(p, len) };
        }
        Ok(())
    }

    /// Gives one back; false if none begins there.
    pub fn give_for_team(&self, offset: u64) -> bool {
        let (start, mut heaps) = (self.node.segment, self.teams.heaps.borrow_mut());
        let given = offset.checked_sub(start).and_then(|at| heaps.give(Side::Local, at)).is_some();
        let (keep, end) = (heaps.extent(Side::Local).next_multiple_of(HUGE as u64), self.teams.committed.get());
        // What a network knows stays.
        if self.far.is_none() && keep < end {
            let i = self.rank - self.node.mine().start;
            if self.node.own.release(self.node.in_file(i, Half::Guarded, start + keep), (end - keep) as usize) {
                self.teams.committed.set(keep);
                heaps.forget(Side::Local, keep, end);
            }
        }
        given
    }

    /// Commits the window up to there.
    fn commit_for_teams(&self, needed: u64) -> Result<(), Exhausted> {
        let (node, start, have) = (&self.node, self.node.segment, self.teams.committed.get());
        if needed <= have {
            return Ok(());
        }
        let step = if needed <= HUGE as u64 { 64 << 10 } else { HUGE as u64 };
        let want = needed.next_multiple_of(step).min(start);
        let i = self.rank - node.mine().start;
        node.populate(node.in_file(i, Half::Guarded, start + have), want - have)?;
        node.register(i, Half::Guarded, start..start + want)?;
        self.teams.committed.set(want);
        Ok(())
    }

    /// Commits what of this range is not committed yet: small steps at first, huge pages then.
    fn commit(&self, half: Half, side: Side, range: &Range<u64>) -> Result<(), Exhausted> {
        let (node, size) = (&self.node, self.node.segment);
        let committed = &self.memory[half as usize].committed[side as usize];
        let needed = if side == Side::Local { range.end } else { size - range.start };
        let have = committed.get();
        if needed <= have {
            return Ok(());
        }
        let step = if needed <= HUGE as u64 { 64 << 10 } else { HUGE as u64 };
        let want = needed.next_multiple_of(step).min(size);
        let start = if side == Side::Local { have } else { size - want };
        committed.set(want);
        let i = self.rank - node.mine().start;
        node.populate(node.in_file(i, half, start), want - have)?;
        node.register(i, half, if side == Side::Local { 0..want } else { size - want..size })
    }

    /// Gives committed huge pages that lie beyond a heap back to the system.
    fn trim(&self, half: Half, side: Side, heaps: &mut Heaps) {
        if self.far.is_some() {
            // What a network knows stays.
            return;
        }
        let (size, page) = (self.node.segment, HUGE as u64);
        let other = if side == Side::Local { Side::Symmetric } else { Side::Local };
        let committed = &self.memory[half as usize].committed[side as usize];
        // A heap keeps the huge page in which it ends, and an empty one its first: so far its bytes count as committed.
        let whole = |side| heaps.extent(side).max(1).next_multiple_of(page);
        let keep = whole(side);
        // Not what the other heap keeps, to which this one may once have reached.
        let end = committed.get().min(size - whole(other));
        committed.set(committed.get().min(keep));
        if keep >= end {
            return;
        }
        let start = if side == Side::Local { keep } else { size - end };
        let i = self.rank - self.node.mine().start;
        if self.node.own.release(self.node.in_file(i, half, start), (end - keep) as usize) {
            heaps.forget(side, keep, end);
        }
    }
}

/// The windows of this process's ranks, and in the process of rank 0 the book of all.
#[derive(Debug)]
pub(super) struct Window {
    blocks: Mutex<Heaps>,
    /// By rank of the process: bytes that are committed.
    committed: Box<[Mutex<u64>]>,
}

impl Window {
    pub fn new(segment: u64, ranks: usize) -> Window {
        let committed = (0..ranks).map(|_| Mutex::new(0)).collect();
        Window { blocks: Mutex::new(Heaps::new(window_len(segment))), committed }
    }

    fn blocks(&self) -> MutexGuard<'_, Heaps> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What rank 0 is asked for.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Wanted {
    /// How many bytes; 0: gives back.
    len: u64,
    /// To which they are aligned, or where what is given back starts.
    align_or_start: u64,
    slot: u64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ToCommit {
    granted: Granted,
    slot: u64,
}

/// Its answer, and what every rank commits.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Granted {
    /// Where the block starts; 0: there is none.
    start: u64,
    end: u64,
    /// What of it may hold old bytes.
    stale: [u64; 2],
    /// The largest block that there is.
    largest: u64,
}

impl Seat {
    /// Takes `len` zeroed bytes at one offset of the windows of all ranks, of which these need them; waits for their
    /// processes to serve it.
    pub fn take_blocks(
        &self,
        site: Site,
        len: u64,
        align: u64,
        ranks: impl Iterator<Item = u32>,
    ) -> Result<Result<u64, String>, Aborted> {
        let granted = self.ask_for_blocks(site, Wanted { len: len.max(1), align_or_start: align, slot: 0 })?;
        if granted.start == 0 {
            let why = Exhausted::Segment { largest: granted.largest };
            return Ok(Err(why.to_string()));
        }
        let ranks: Vec<u32> = ranks.collect();
        let mut why = [0; 256];
        // SAFETY: dropped before the words are read.
        let asked = unsafe { Question::with_bytes(self, ranks.len() as u32, &raw mut why[..]) };
        for rank in ranks {
            self.request(site, rank, reference::COMMIT, &ToCommit { granted, slot: asked.slot.into() }, &[])?;
        }
        asked.wait(self, site)?;
        drop(asked);
        let why = String::from_utf8_lossy(&why).trim_end_matches('\0').to_string();
        if why.is_empty() {
            return Ok(Ok(granted.start));
        }
        self.give_blocks(site, granted.start)?;
        Ok(Err(why))
    }

    /// Gives back what [`take_blocks`](Self::take_blocks) of any rank gave; false if there is no such block.
    pub fn give_blocks(&self, site: Site, offset: u64) -> Result<bool, Aborted> {
        Ok(self.ask_for_blocks(site, Wanted { len: 0, align_or_start: offset, slot: 0 })?.start != 0)
    }

    /// Bytes of the window in use; in the process of rank 0.
    pub fn blocks_in_use(&self) -> u64 {
        self.node.window.blocks().in_use()
    }

    fn ask_for_blocks(&self, site: Site, wanted: Wanted) -> Result<Granted, Aborted> {
        let mut granted = Granted::zeroed();
        // SAFETY: dropped before it is read.
        let asked = unsafe { Question::with_bytes(self, 1, &raw mut *bytemuck::bytes_of_mut(&mut granted)) };
        let wanted = Wanted { slot: asked.slot.into(), ..wanted };
        self.request(site, 0, reference::BLOCKS, &wanted, &[])?;
        asked.wait(self, site)?;
        drop(asked);
        Ok(granted)
    }
}

/// Takes or gives a block, at rank 0.
pub(crate) struct OnBlocks;
impl Handler for OnBlocks {
    fn run(&self, arrival: &Arrival<'_>) {
        let (Wanted { len, align_or_start, slot }, _) = arrival.open::<Wanted>();
        let (node, mut blocks) = (arrival.node(), arrival.node().window.blocks());
        let from = node.segment;
        let granted = match len {
            0 => {
                let given = align_or_start.checked_sub(from).and_then(|at| blocks.give(Side::Local, at));
                given.map(|range| Granted { start: from + range.start, end: from + range.end, ..Zeroable::zeroed() })
            }
            _ if !align_or_start.is_power_of_two() || align_or_start > 4096 => None,
            _ => blocks.take(Side::Local, len, align_or_start).map(|b| Granted {
                start: from + b.range.start,
                end: from + b.range.end,
                stale: [b.stale.start, b.stale.end].map(|at| from + at),
                largest: 0,
            }),
        };
        let none = Granted { largest: blocks.largest(Side::Local), ..Zeroable::zeroed() };
        drop(blocks);
        arrival.reply(reference::DATA, &[slot, 0], bytemuck::bytes_of(&granted.unwrap_or(none)));
    }
}

/// Commits and zeroes a rank's part of a block.
pub(crate) struct OnCommit;
impl Handler for OnCommit {
    fn run(&self, arrival: &Arrival<'_>) {
        let (ToCommit { granted, slot }, _) = arrival.open::<ToCommit>();
        match arrival.node().commit_window(arrival.target(), granted) {
            Ok(()) => arrival.reply(reference::DONE, &[slot, 0], &[]),
            Err(why) => {
                let why = format!("rank {}: {why}", arrival.target());
                arrival.reply(reference::DATA, &[slot, 0], &why.as_bytes()[..why.len().min(256)]);
            }
        }
    }
}

impl Node {
    fn commit_window(&self, rank: usize, Granted { end, stale, .. }: Granted) -> Result<(), String> {
        let (i, from) = (rank - self.mine().start, self.segment);
        let mut committed = self.window.committed[i].lock().unwrap_or_else(PoisonError::into_inner);
        let needed = end.checked_sub(from).filter(|&n| n <= window_len(from)).ok_or("a block outside the window")?;
        if needed > *committed {
            let step = if needed <= HUGE as u64 { 64 << 10 } else { HUGE as u64 };
            let want = needed.next_multiple_of(step).min(window_len(from));
            let populated = self.populate(self.in_file(i, Half::Open, from + *committed), want - *committed);
            populated.and_then(|()| self.register(i, Half::Open, from..from + want)).map_err(|e| e.to_string())?;
            *committed = want;
        }
        let at = At { rank: rank as u32, offset: stale[0] };
        let len = stale[1].saturating_sub(stale[0]) as usize;
        if len > 0 {
            let p = self.reach.locate(at, len).ok_or("a block outside the window")?;
            // SAFETY: inside a segment's open half, into which no reference exists.
            unsafe { copy::zero(p, len) };
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shm::Config;
    use crate::shm::tests::{Alone, config};
    use crate::sync::Ordering::Relaxed;
    use std::sync::Arc;

    #[test]
    fn halves_and_window_are_apart() {
        let node = Arc::new(Node::attach(&config(2), &mut Alone).unwrap());
        let (segment, seats) = (node.segment(), [0, 1].map(|r| node.seat(r)));
        assert_eq!((segment, node.reach.len(), node.guarded.len()), (8 << 20, 10 << 20, 16 << 20));
        // Everything there is, in both halves, and the whole window.
        let all = segment - crate::heap::FIRST;
        for (r, seat) in seats.iter().enumerate() {
            let open = seat.take(Half::Open, Side::Local, all, 64).unwrap();
            let guarded = seat.take(Half::Guarded, Side::Symmetric, all, 64).unwrap();
            let site = Site::here("test");
            for (at, value) in [(At { rank: r as u32, offset: open }, 1u8), (At::guarded(r as u32, guarded), 2)] {
                seat.put(site, at, &vec![value + 4 * r as u8; all as usize]).unwrap();
            }
            assert_eq!(
                (seat.in_use(), seat.side_of(open), seat.side_of(guarded)),
                (2 * all, Some(Side::Local), Some(Side::Local))
            );
            // A team's window is none of it, and the half ends where it does.
            let team = seat.find_for_team(all, 64, 0).unwrap();
            seat.take_for_team(team, all, 64, all).unwrap();
            assert!(seat.find_for_team(1, 1, 0).is_err() && seat.take_for_team(team, 1, 1, 0).is_err());
            let site = Site::here("test");
            seat.put(site, At::guarded(r as u32, team), &vec![3; all as usize]).unwrap();
            assert!(seat.put(site, At::guarded(r as u32, team + all - 1), &[9; 2]).is_err());
            assert_eq!(seat.in_use(), 3 * all);
        }
        let first =
            |r: usize, half| node.table(half).get::<u8>(At { rank: r as u32, offset: crate::heap::FIRST }).unwrap();
        for r in 0..2 {
            assert_eq!((first(r, Half::Open), first(r, Half::Guarded)), (1 + 4 * r as u8, 2 + 4 * r as u8));
        }
    }

    #[test]
    fn blocks_of_teams_are_zeroed_as_far_as_is_asked_for() {
        let node = Arc::new(Node::attach(&Config { segment: Some(16 << 20), ..config(1) }, &mut Alone).unwrap());
        let (seat, table) = (node.seat(0), node.table(Half::Guarded));
        let word = |offset: u64| table.get::<u64>(At { rank: 0, offset }).unwrap();
        for len in [100_000, 9 << 20] {
            let at = seat.find_for_team(len, 4096, 0).unwrap();
            seat.take_for_team(at, len, 4096, len).unwrap();
            assert!((0..len / 8).all(|i| word(at + 8 * i) == 0));
            (0..len / 8).for_each(|i| table.put(At { rank: 0, offset: at + 8 * i }, 7u64).unwrap());
            let next = seat.find_for_team(64, 64, 0).unwrap();
            assert!(next >= at + len && seat.find_for_team(64, 64, next + 1).unwrap() == next + 64);
            // So that not everything goes back to the system.
            seat.take_for_team(next, 64, 64, 64).unwrap();
            assert!(seat.give_for_team(at) && !seat.give_for_team(at));
            assert_eq!(seat.find_for_team(len, 4096, 0).unwrap(), at);
            seat.take_for_team(at, len, 4096, 800).unwrap();
            assert_eq!([0, 792, 800, len - 8].map(|i| word(at + i)), [0, 0, 7, 7]);
            assert!(seat.give_for_team(next) && seat.give_for_team(at));
        }
        assert_eq!(seat.in_use(), 0);
    }

    #[test]
    fn blocks_lie_at_one_offset_of_all_ranks() {
        let node = Arc::new(Node::attach(&config(3), &mut Alone).unwrap());
        let (seats, site) = ([0, 1, 2].map(|r| node.seat(r)), Site::here("test"));
        let take = |r: usize, len| seats[r].take_blocks(site, len, 64, 0..3).unwrap();
        let holds = |at, len: u64, v: u64| {
            (0..3).all(|rank| (0..len / 8).all(|i| node.reach().get(At { rank, offset: at + 8 * i }) == Some(v)))
        };
        let (a, b) = (take(2, 1000).unwrap(), take(0, 100_000).unwrap());
        assert!(a.is_multiple_of(64) && a >= node.segment() && b >= a + 1000 && holds(b, 100_000, 0));
        for rank in 0..3 {
            (0..100_000 / 8).for_each(|i| node.reach().put(At { rank, offset: b + 8 * i }, 7u64).unwrap());
        }
        assert!(seats[1].give_blocks(site, b).unwrap() && !seats[1].give_blocks(site, b).unwrap());
        assert!(!seats[0].give_blocks(site, 4096).unwrap() && !seats[0].give_blocks(site, u64::MAX).unwrap());
        assert_eq!(take(1, 100_000).unwrap(), b);
        assert!(holds(b, 100_000, 0), "what was used is zeroed, on all ranks");
        assert!(take(1, 3 << 20).unwrap_err().contains("largest free block"));
        assert!(take(1, 1 << 20).is_ok());
        // A rank that has no memory for it says so, and the block is free again.
        node.areas[0].pending().store(1 << 50, Relaxed);
        assert!(take(0, 700_000).unwrap_err().contains("of memory are left"));
        node.areas[0].pending().store(0, Relaxed);
        assert!(take(0, 700_000).is_ok());
    }

    #[test]
    fn memory_is_zeroed_reused_and_exhausted_as_an_error() {
        let node = Arc::new(Node::attach(&config(2), &mut Alone).unwrap());
        let seat = node.seat(1);
        for side in [Side::Local, Side::Symmetric] {
            let a = seat.take(Half::Open, side, 100_000, 8).unwrap();
            node.reach().put(At { rank: 1, offset: a }, u64::MAX).unwrap();
            assert!(seat.give(Half::Open, side, a) && !seat.give(Half::Open, side, a));
            let b = seat.take(Half::Open, side, 100_000, 8).unwrap();
            assert_eq!((a, node.reach().get(At { rank: 1, offset: b })), (b, Some(0u64)));
            let Err(Exhausted::Segment { largest }) = seat.take(Half::Open, side, 8 << 20, 8) else { panic!() };
            let c = seat.take(Half::Open, side, largest, 8).unwrap();
            assert!(seat.take(Half::Open, side, 1 << 12, 8).is_err());
            assert!(seat.give(Half::Open, side, b) && seat.give(Half::Open, side, c));
        }
        assert_eq!(seat.in_use(), 0);
    }

    #[test]
    fn freed_memory_goes_back_to_the_system() {
        let node = Arc::new(Node::attach(&Config { segment: Some(64 << 20), ..config(1) }, &mut Alone).unwrap());
        let seat = node.seat(0);
        let held = || rustix::fs::fstat(&node.file).unwrap().st_blocks as u64 * 512;
        let before = held();
        for side in [Side::Local, Side::Symmetric, Side::Local] {
            let small = seat.take(Half::Open, side, 100, 8).unwrap();
            let large = seat.take(Half::Open, side, 40 << 20, 8).unwrap();
            let at = At { rank: 0, offset: large };
            node.reach().put(at, 7u64).unwrap();
            node.reach().put(At { rank: 0, offset: small }, 9u64).unwrap();
            assert!(held() > before + (39 << 20));
            assert!(seat.give(Half::Open, side, large));
            assert!(held() < before + (10 << 20), "{side:?}: {} bytes are held", held());
            let again = seat.take(Half::Open, side, 40 << 20, 8).unwrap();
            assert_eq!((again, node.reach().get(at)), (large, Some(0u64)));
            assert_eq!(node.reach().get(At { rank: 0, offset: small }), Some(9u64));
            assert!(seat.give(Half::Open, side, again) && seat.give(Half::Open, side, small));
        }
        // What the other heap cuts off stays dirty until it is zeroed.
        let low = seat.take(Half::Open, Side::Symmetric, (31 << 20) + (1 << 19), 8).unwrap();
        let a = seat.take(Half::Open, Side::Local, 2 << 20, 8).unwrap();
        let b = seat.take(Half::Open, Side::Local, 29 << 20, 8).unwrap();
        for i in 0..(29 << 20) / 8 {
            node.reach().put(At { rank: 0, offset: b + 8 * i }, u64::MAX).unwrap();
        }
        assert!(seat.give(Half::Open, Side::Local, b));
        let c = seat.take(Half::Open, Side::Local, 1 << 20, 8).unwrap();
        assert!(seat.give(Half::Open, Side::Local, c));
        let d = seat.take(Half::Open, Side::Local, 29 << 20, 8).unwrap();
        assert!((0..(29 << 20) / 8).all(|i| node.reach().get(At { rank: 0, offset: d + 8 * i }) == Some(0u64)));
        assert!(
            seat.give(Half::Open, Side::Local, d)
                && seat.give(Half::Open, Side::Local, a)
                && seat.give(Half::Open, Side::Symmetric, low)
        );
        // A refused commit leaves nothing that counts as committed.
        node.areas[0].pending().store(1 << 50, Relaxed);
        for (side, len) in
            [(Side::Local, 3 << 20), (Side::Local, 1000), (Side::Symmetric, 3 << 20), (Side::Symmetric, 1000)]
        {
            let committed = seat.memory[0].committed[side as usize].get();
            seat.memory[0].committed[side as usize].set(0);
            for _ in 0..2 {
                assert!(matches!(seat.take(Half::Open, side, len, 8), Err(Exhausted::Memory { .. })), "{side:?} {len}");
            }
            seat.memory[0].committed[side as usize].set(committed);
        }
        node.areas[0].pending().store(0, Relaxed);
        // A full segment: neither side gives back what the other has.
        let a = seat.take(Half::Open, Side::Local, 30 << 20, 8).unwrap();
        let b = seat.take(Half::Open, Side::Symmetric, 33 << 20, 8).unwrap();
        for i in 0..(33 << 20) / 8 {
            node.reach().put(At { rank: 0, offset: b + 8 * i }, i).unwrap();
        }
        assert!(seat.give(Half::Open, Side::Local, a));
        assert!((0..(33 << 20) / 8).all(|i| node.reach().get(At { rank: 0, offset: b + 8 * i }) == Some(i)));
    }

    #[test]
    fn whatever_the_order_memory_is_there_zeroed_and_ours() {
        const SIZE: u64 = 12 << 20;
        let node = Arc::new(Node::attach(&Config { segment: Some(SIZE), ..config(2) }, &mut Alone).unwrap());
        let seat = node.seat(1);
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut below = |n: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % n
        };
        let words = |at: u64, len: u64| (0..len / 8).map(move |i| At { rank: 1, offset: at + 8 * i });
        let holds = |at: u64, len: u64, v: u64| words(at, len).all(|a| node.reach().get(a) == Some(v));
        let committed = |at: u64, len: u64| {
            let file = node.in_file(1, Half::Open, at) as u64;
            rustix::fs::seek(&*node.file, rustix::fs::SeekFrom::Hole(file)).unwrap() >= file + len
        };
        // What one heap keeps although it is empty, the other does not give back.
        for (small, large) in [(Side::Symmetric, Side::Local), (Side::Local, Side::Symmetric)] {
            let at = seat.take(Half::Open, small, 1000, 64).unwrap();
            assert!(seat.give(Half::Open, small, at));
            let all = seat.take(Half::Open, large, SIZE - crate::heap::FIRST, 64).unwrap();
            assert!(seat.give(Half::Open, large, all));
            // Larger than what is zeroed, and thereby touched, because it was used before.
            let at = seat.take(Half::Open, small, 50_000, 64).unwrap();
            assert!(committed(at, 50_000), "{small:?}");
            assert!(seat.give(Half::Open, small, at));
        }
        for _ in 0..if cfg!(debug_assertions) { 6 } else { 60 } {
            let mut held: Vec<(Side, u64, u64, u64)> = vec![];
            for tag in 1..60 {
                let side = if below(2) == 0 { Side::Local } else { Side::Symmetric };
                let most = [100, 1 << 16, 3 << 20, 9 << 20][below(4) as usize];
                if below(5) < 3 {
                    let len = below(most) / 8 * 8 + 8;
                    let Ok(at) = seat.take(Half::Open, side, len, 64) else { continue };
                    assert!(committed(at, len), "{side:?}: {len} bytes at {at:#x} are not committed");
                    assert!(holds(at, len, 0), "{side:?}: {len} bytes at {at:#x} are not zero");
                    words(at, len).for_each(|a| node.reach().put(a, tag).unwrap());
                    held.push((side, at, len, tag));
                } else if !held.is_empty() {
                    let (side, at, len, tag) = held.swap_remove(below(held.len() as u64) as usize);
                    assert!(holds(at, len, tag), "{side:?}: {len} bytes at {at:#x} were given away");
                    assert!(seat.give(Half::Open, side, at));
                }
            }
            for (side, at, len, tag) in held {
                assert!(holds(at, len, tag) && seat.give(Half::Open, side, at));
            }
        }
        assert_eq!(seat.in_use(), 0);
    }
}
