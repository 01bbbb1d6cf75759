//! Locks ([`crate::lock`]) in the memory of a node, and the messages by which other nodes, and the reference path, take them.
//!
//! | message | to | says | answered by |
//! |---|---|---|---|
//! | [`LOCK`] | the home | I want it | granted and the value; queued behind whom; busy; refused |
//! | [`UNLOCK`] | the home, by who does not reach the word | release it, or hand it on; the value | free; tell this rank |
//! | [`GRANT`] | a rank in the line, by who held the lock | it is yours | |
//!
//! A handler sends to nobody but who asked, so it is the holder who tells the next. A holder on the home's node hands on by itself:
//! the line lies in memory of the node ([`crate::far`]), and the home may compute. [`GRANT`] also carries the answers. It may
//! overtake the answer that says *queued*: a rank first waits for the answer and then for the grant, which stays.
//!
//! # Sites
//! Where a holder took its lock is a number in the word, of a text in the control area of its process, or of the home's for
//! a holder elsewhere, which sent the text. A text is written once, before its number is in any word. A process that has
//! no more room for texts gives the number 0, which says nothing.

use super::control::{Control, MOST_SITES, Text};
use super::{Node, Seat};
use crate::am::{Arrival, Handler};
use crate::contract::At;
use crate::far::Waiting;
use crate::lock::{Asked, Cell, Handed, Neighbours, Owner, Turn};
use crate::pool::LARGE;
use crate::reference::GRANT;
#[cfg(doc)]
use crate::reference::{LOCK, UNLOCK};
use crate::shm::rma::Reach;
use crate::sync::{ticks, ticks_per_us};
use crate::wait::{Bell, Cores};
use bytemuck::{Pod, Zeroable};
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Mutex, PoisonError};

/// Others pass over a rank that waits for a lock for this long where every rank has a core.
const PATIENCE_US: u64 = 500;
/// The same where ranks share cores, once it is the first that waits. Whoever has the lock has it again and again until then
/// if the first has no core, and loses it at once to a first that has one. Ranks queue in the same order again and again, so
/// some would always be followed by the one and some by the other: with 200 µs the last of sixteen ranks had a fifth of its
/// share, with 20 µs three quarters, for less in all.
const PATIENCE_SHARED_US: u64 = 30;

/// Locks begin at a multiple of this.
pub const ALIGN: u64 = 64;

impl Reach {
    /// The lock there, if so many bytes from its start lie in a segment that is mapped here and it is aligned.
    #[inline(always)]
    pub fn lock(&self, at: At, len: usize) -> Option<&Cell> {
        let p = self.locate(at, len.max(size_of::<Cell>()))?;
        // SAFETY: inside a segment, which stays mapped as long as this table, and aligned, as segments are. It is made of
        // atomics, for which any bytes are valid; every access to segments that is not atomic is made by the copy routine,
        // which is opaque to the compiler.
        at.offset.is_multiple_of(ALIGN).then(|| unsafe { &*p.cast() })
    }
}

/// What a process knows of locks: the numbers of sites.
#[derive(Debug, Default)]
pub(super) struct Locks(Mutex<HashMap<String, u32>>);

impl Neighbours for Node {
    #[inline]
    fn of(&self, near: usize) -> Option<(&Turn, &Bell)> {
        let &(area, i) = self.seats.get(near)?;
        Some((self.areas[area].turn(i), self.areas[area].bell(i)))
    }

    #[inline]
    fn starves(&self, since: u64) -> bool {
        let patience = if self.cores == Cores::Own { PATIENCE_US } else { PATIENCE_SHARED_US };
        // Clocks of two cores may differ a little.
        ticks().wrapping_sub(since) as i64 > (patience * ticks_per_us()) as i64
    }
}

impl Node {
    /// The number of a site in this process's table.
    fn site_number(&self, site: &str) -> u32 {
        let mut sites = self.locks.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&number) = sites.get(site) {
            return number;
        }
        let number = sites.len() + 1;
        let Some(text) = self.own_area().site(number) else { return 0 };
        write(text, site);
        sites.insert(site.to_string(), number as u32);
        number as u32
    }

    /// Who waits for a lock of this rank of the node, at this offset, without reaching it; `None` if the job is over.
    fn waiting(&self, home: usize, offset: u64) -> Option<Waiting<'_>> {
        let (area, i) = self.seats[self.ranks.near(home)];
        let places = self.areas[0].places(self.ranks.count());
        self.areas[area].gate(i).open(places, offset, || self.is_aborted())
    }

    /// Releases a lock of a near rank's memory that this rank holds, or hands it on: what is to be done then, as [`UNLOCK`] would say. `None` if the
    /// job is over.
    pub fn hand_on(&self, cell: &Cell, home: usize, offset: u64, rank: u32) -> Option<Told> {
        let handed = cell.hand_on(rank, &mut self.waiting(home, offset)?, self);
        let (how, rank) = match handed {
            Handed::Free => (FREE, 0),
            Handed::To(owner) => (TELL, u64::from(owner.rank())),
            Handed::Freeing(next) => (FREEING, next.map_or(NOBODY, |owner| u64::from(owner.rank()))),
            Handed::Freed => (FREED, 0),
            Handed::NotYours => (NOT_YOURS, 0),
        };
        Some(Told { what: UNLOCK_IS, how, rank })
    }

    fn own_area(&self) -> &Control {
        &self.areas[self.seats[self.ranks.near(self.mine().start)].0]
    }

    /// Where a holder took a lock of a near rank's memory: `src/a.rs:9:1`.
    pub fn site_of(&self, home: usize, owner: Owner) -> String {
        let whose = if owner.is_of_home() { home } else { owner.rank() as usize };
        let near = (whose < self.ranks.count() && self.ranks.is_near(whose)).then(|| self.ranks.near(whose));
        let text = near.filter(|_| owner.site() != 0).and_then(|near| {
            let area = &self.areas[self.seats[near].0];
            area.site(owner.site() as usize).map(read)
        });
        text.filter(|t| !t.is_empty()).unwrap_or_else(|| "an unknown line".into())
    }
}

fn write(text: &Text, site: &str) {
    // The end of a long path tells more than its start.
    let room = size_of::<Text>() - 1;
    let site = match site.len() <= room {
        true => site.to_string(),
        false => {
            let cut = (site.len() + 3 - room..).find(|&i| site.is_char_boundary(i)).unwrap_or(site.len());
            format!("…{}", &site[cut..])
        }
    };
    for (word, bytes) in text.iter().zip(site.as_bytes().chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(eight), Relaxed);
    }
}

fn read(text: &Text) -> String {
    let bytes = text.iter().flat_map(|w| w.load(Relaxed).to_le_bytes());
    String::from_utf8_lossy(&bytes.take_while(|&b| b != 0).collect::<Vec<u8>>()).into_owned()
}

/// The sites where a rank took locks last, and their numbers.
#[derive(Debug, Default)]
pub(super) struct SitesOfRank([std::cell::Cell<(Option<&'static Location<'static>>, u32)>; 8]);

impl Seat {
    /// This rank, as a holder that took a lock there and reaches the word.
    #[inline(always)]
    pub fn owner(&self, at: &'static Location<'static>) -> Owner {
        let slot = &self.sites.0[std::ptr::from_ref(at).addr() / align_of::<Location>() % 8];
        let number = match slot.get() {
            (Some(there), number) if std::ptr::eq(there, at) => number,
            _ => self.new_site(at, slot),
        };
        Owner::new(self.rank as u32, number, false)
    }

    #[cold]
    #[inline(never)]
    fn new_site(
        &self,
        at: &'static Location<'static>,
        slot: &std::cell::Cell<(Option<&'static Location<'static>>, u32)>,
    ) -> u32 {
        let number = self.node.site_number(&at.to_string());
        slot.set((Some(at), number));
        number
    }

    /// What this rank was told of locks.
    pub fn told(&self) -> &Answers {
        &self.own_letterbox().locks
    }
}

/// A lock in a request: in whose memory it is is whose message this is.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Ask {
    /// Where it lies, as in [`At`].
    pub offset: u64,
    /// Where its value begins, from there, and its bytes.
    pub value: [u32; 2],
    /// Of [`LOCK`]: does the rank wait? Of [`UNLOCK`]: does the payload go into the value?
    pub flag: u64,
}

/// What a rank is told.
#[derive(Clone, Copy, Debug, Pod, Zeroable, Default)]
#[repr(C)]
pub struct Told {
    what: u32,
    /// One of the numbers below.
    pub how: u32,
    /// A rank.
    pub rank: u64,
}

const LOCK_IS: u32 = 0;
const UNLOCK_IS: u32 = 1;
const YOURS_NOW: u32 = 2;

/// You have it; the payload is the value, if it fits a message.
pub const GRANTED: u32 = 0;
/// You will be told; the payload is the site of the rank that has it, if one has.
pub const QUEUED: u32 = 1;
/// Not now.
pub const BUSY: u32 = 2;
/// You have it already; the payload is the site.
pub const YOURS: u32 = 3;
/// It was freed. Said to who releases it: the memory is nobody's, give it back.
pub const FREED: u32 = 4;
/// It was freed, and ranks wait for it: tell the one that is named, if one is, and ask the home again.
pub const FREEING: u32 = 5;
/// It is free.
pub const FREE: u32 = 6;
/// It is that rank's: tell it.
pub const TELL: u32 = 7;
/// You did not have it.
pub const NOT_YOURS: u32 = 8;

/// In place of a rank: there is none.
pub const NOBODY: u64 = u64::MAX;

/// Where a rank is told of locks. It asks for one at a time, and hands on one at a time.
#[derive(Debug, Default)]
pub struct Answers {
    answers: [Answer; 2],
    granted: AtomicU32,
}

#[derive(Debug, Default)]
struct Answer {
    come: AtomicU32,
    told: Mutex<(Told, Vec<u8>)>,
}

impl Answer {
    fn take(&self) -> (Told, Vec<u8>) {
        std::mem::take(&mut *self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Answers {
    /// Before it asks.
    pub fn begin_lock(&self) {
        self.answers[0].come.store(0, Relaxed);
        self.granted.store(0, Relaxed);
    }

    /// Has the answer come?
    pub fn lock_is_answered(&self) -> bool {
        self.answers[0].come.load(Acquire) != 0
    }

    /// The answer.
    pub fn lock_answer(&self) -> (Told, Vec<u8>) {
        self.answers[0].take()
    }

    /// After it was queued: is it its turn, or was the lock freed?
    pub fn is_granted(&self) -> bool {
        self.granted.load(Acquire) != 0
    }

    /// Which of the two: was it freed?
    pub fn is_freed(&self) -> bool {
        self.granted.load(Relaxed) == 1 + FREED
    }

    /// Before it hands on.
    pub fn begin_unlock(&self) {
        self.answers[1].come.store(0, Relaxed);
    }

    /// Has the answer come?
    pub fn unlock_is_answered(&self) -> bool {
        self.answers[1].come.load(Acquire) != 0
    }

    /// The answer.
    pub fn unlock_answer(&self) -> Told {
        self.answers[1].take().0
    }
}

/// The message that tells a rank that it has the lock for which it is in a line, or that it was freed.
pub fn grant(freed: bool) -> Told {
    Told { what: YOURS_NOW, how: if freed { FREED } else { GRANTED }, rank: 0 }
}

/// The lock that a message is about, and where its value is.
fn open<'h>(arrival: &Arrival<'h>, ask: &Ask) -> (&'h Cell, &'h Reach, At) {
    let (reach, at) = arrival.half(ask.offset);
    let [start, len] = ask.value.map(u64::from);
    match reach.lock(at, (start + len) as usize) {
        Some(cell) if start >= size_of::<Cell>() as u64 => (cell, reach, At { offset: at.offset + start, ..at }),
        _ => arrival.bad(&"a lock outside or not aligned"),
    }
}

pub(crate) struct OnLock;
impl Handler for OnLock {
    fn run(&self, arrival: &Arrival<'_>) {
        let (ask, site) = arrival.open::<Ask>();
        let (cell, reach, value) = open(arrival, &ask);
        let (node, home) = (arrival.node(), arrival.target());
        let number = node.site_number(&String::from_utf8_lossy(site));
        let theirs = Owner::new(arrival.source() as u32, number, true);
        let Some(mut waiting) = node.waiting(home, ask.offset) else { return };
        let asked = cell.ask(theirs, ask.flag != 0, &mut waiting);
        drop(waiting);
        let reply = |how: u32, rank: u64, bytes: &[u8]| {
            arrival.reply(GRANT, &Told { what: LOCK_IS, how, rank }, bytes);
        };
        match asked {
            Asked::Granted => {
                let (mut small, mut large) = ([0; 512], vec![]);
                let bytes = match ask.value[1] as usize {
                    n @ 0..=512 => &mut small[..n],
                    n @ 513..=LARGE => {
                        large.resize(n, 0);
                        &mut large[..]
                    }
                    _ => &mut [],
                };
                reach.read(value, bytes).unwrap_or_else(|e| arrival.bad(&e));
                reply(GRANTED, 0, bytes);
            }
            Asked::Queued(Some(there)) => {
                reply(QUEUED, u64::from(there.rank()), node.site_of(home, there).as_bytes());
            }
            Asked::Queued(None) => reply(QUEUED, NOBODY, &[]),
            Asked::Busy => reply(BUSY, 0, &[]),
            Asked::Yours(there) => reply(YOURS, 0, node.site_of(home, there).as_bytes()),
            Asked::Freed => reply(FREED, 0, &[]),
            Asked::Waits => arrival.bad(&"a lock by a rank that waits for one"),
        }
    }
}

pub(crate) struct OnUnlock;
impl Handler for OnUnlock {
    fn run(&self, arrival: &Arrival<'_>) {
        let (ask, bytes) = arrival.open::<Ask>();
        let (cell, reach, value) = open(arrival, &ask);
        let (node, source) = (arrival.node(), arrival.source() as u32);
        if ask.flag != 0 && cell.holder().is_some_and(|there| there.rank() == source) {
            if bytes.len() != ask.value[1] as usize {
                arrival.bad(&"a value of another length");
            }
            reach.write(value, bytes).unwrap_or_else(|e| arrival.bad(&e));
        }
        if let Some(told) = node.hand_on(cell, arrival.target(), ask.offset, source) {
            arrival.reply(GRANT, &told, &[]);
        }
    }
}

pub(crate) struct OnTold;
impl Handler for OnTold {
    fn run(&self, arrival: &Arrival<'_>) {
        let (told, bytes) = arrival.open::<Told>();
        let answers = arrival.node().answers(arrival.target());
        match told.what {
            LOCK_IS | UNLOCK_IS => {
                let answer = &answers.answers[told.what as usize];
                *answer.told.lock().unwrap_or_else(PoisonError::into_inner) = (told, bytes.to_vec());
                answer.come.store(1, Release);
            }
            YOURS_NOW => answers.granted.store(1 + told.how % (1 + FREED), Release),
            _ => arrival.bad(&"an answer to nothing"),
        }
    }
}

impl Node {
    fn answers(&self, rank: usize) -> &Answers {
        &self.mail.letterbox(self.ranks.near(rank)).locks
    }
}

const _: () = assert!(MOST_SITES <= u32::MAX as usize);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::contract::Half;
    use crate::shm::tests::{Alone, config};
    use std::sync::Arc;

    #[test]
    fn sites_are_numbered_once_and_cut_at_the_front() {
        let node = Arc::new(Node::attach(&config(2), &mut Alone).unwrap());
        let seat = node.seat(1);
        #[track_caller]
        fn here() -> &'static Location<'static> {
            Location::caller()
        }
        let (a, b) = (seat.owner(here()), seat.owner(here()));
        assert_eq!((a.rank(), a.site(), b.site()), (1, 1, 2));
        assert!(node.site_of(0, a).contains("lock.rs:") && node.site_of(0, a) != node.site_of(0, b));
        let long = format!("src/{}/é.rs:3:7", "é".repeat(200));
        let number = node.site_number(&long);
        assert_eq!(number, node.site_number(&long));
        let text = node.site_of(0, Owner::new(77, number, true));
        assert!(text.starts_with('…') && text.ends_with("/é.rs:3:7") && text.len() <= 127, "{text}");
        for owner in
            [Owner::new(0, 0, false), Owner::new(0, 99, false), Owner::new(77, 1, false), Owner::new(0, u32::MAX, true)]
        {
            assert_eq!(node.site_of(0, owner), "an unknown line");
        }
        (0..MOST_SITES).for_each(|i| _ = node.site_number(&format!("{i}")));
        assert_eq!(node.site_number("one too many"), 0);
    }

    #[test]
    fn locks_are_aligned_and_inside() {
        let node = Arc::new(Node::attach(&config(1), &mut Alone).unwrap());
        let reach = node.table(Half::Guarded);
        let lock = |offset, len| reach.lock(At { rank: 0, offset }, len).is_some();
        assert!(lock(4096, 0) && lock(4096, 100) && !lock(4104, 16) && !lock(0, 16) && !lock(reach.len(), 0));
        assert!(reach.lock(At { rank: 1, offset: 4096 }, 16).is_none());
    }
}
