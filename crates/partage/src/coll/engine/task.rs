//! A collective that is under way: what it is, whose memory it touches, and how far it is.

use super::super::choice::{Key, Prepared};
use super::super::reduce::{Combine, Meets};
use super::Engine;
use partage_conduit::contract::At;
use partage_conduit::ofi::rma::Started;
use partage_conduit::record::Site;
use partage_plan::layout::Spread;
use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::panic::Location;
use std::rc::Rc;

/// Where a buffer is.
#[derive(Debug, Clone)]
pub(in crate::coll) enum Base {
    /// Memory of this rank's own.
    Private(*mut u8),
    /// At this offset of every rank's guarded memory; that of this one is here, if it has a part.
    Same(u64, *mut u8),
    /// A part of an array that begins at this offset, whose elements have so many bytes: the elements from `first` on.
    Share { start: u64, spread: *const Spread, size: usize, first: usize },
}

impl Base {
    /// Where the part of a rank begins.
    #[inline(always)]
    pub(in crate::coll) fn offset(&self, rank: usize) -> u64 {
        match self {
            Base::Private(_) => unreachable!("nobody else touches private memory"),
            Base::Same(offset, _) => *offset,
            // SAFETY: of an array that is borrowed as long as the task.
            Base::Share { start, spread, size, first } => unsafe {
                start + ((**spread).part_before(rank, *first) * size) as u64
            },
        }
    }

    /// Where the part of a member begins, in its half.
    pub(in crate::coll) fn at(&self, engine: &Engine, member: usize) -> At {
        At { rank: engine.rank_of(member).0, offset: self.offset(member) }
    }
}

/// A collective that is under way.
#[derive(Debug)]
pub(crate) struct Task {
    pub(in crate::coll) site: Site,
    pub(in crate::coll) key: Key,
    /// Bytes of an element, and its type.
    pub(in crate::coll) element: fn() -> (u32, &'static str),
    /// What else all ranks must have alike, by a number: the algorithm that was named, and counts.
    pub(in crate::coll) besides: u32,
    /// Nothing until the source of a permutation is known.
    pub(in crate::coll) prepared: OnceCell<Rc<Prepared>>,
    /// Source and destination.
    pub(in crate::coll) bases: [Base; 2],
    /// What combines elements: the caller's, who waits for the task, or its own.
    pub(in crate::coll) combine: Option<*const dyn Combine>,
    /// What combines elements, if its caller does not keep it.
    pub(super) own_combine: Option<Box<dyn Combine>>,
    /// Its source, if that is a copy.
    pub(super) source: RefCell<Vec<u64>>,
    /// How many parts pass.
    pub(in crate::coll) parts: usize,
    pub(super) first: Cell<u64>,
    /// Which of all that this rank has started it is.
    pub(super) started: Cell<u64>,
    /// The scope that it was started in, by how many there were.
    pub(super) depth: Cell<u32>,
    pub(super) place: Place,
    /// Transfers from and to other nodes that are under way, if there were any.
    pub(super) under_way: RefCell<Option<UnderWay>>,
    pub(in crate::coll) has_under_way: Cell<bool>,
    pub(super) busy: Cell<bool>,
    pub(super) done: Cell<bool>,
}

#[derive(Debug, Default)]
pub(in crate::coll) struct UnderWay {
    pub(in crate::coll) gets: Vec<Started>,
    pub(in crate::coll) puts: Vec<Started>,
    /// What was got to be combined.
    pub(in crate::coll) operand: Option<Vec<u64>>,
}

impl UnderWay {
    /// All are complete.
    pub(in crate::coll) fn clear(&mut self) {
        self.gets.clear();
        self.puts.clear();
    }
}

impl Task {
    /// One of which the rest is still to be said. (A site in memory that was just written would be waited for.)
    #[inline(always)]
    pub(in crate::coll) fn new(call: &'static str, at: &'static Location<'static>) -> Task {
        Task {
            site: Site { call, at },
            key: Key::default(),
            element: || (0, ""),
            besides: 0,
            prepared: OnceCell::new(),
            bases: [Base::Private(std::ptr::null_mut()), Base::Private(std::ptr::null_mut())],
            combine: None,
            own_combine: None,
            source: RefCell::new(vec![]),
            parts: 1,
            first: Cell::new(0),
            started: Cell::new(0),
            depth: Cell::new(0),
            place: Place::default(),
            under_way: RefCell::new(None),
            has_under_way: Cell::new(false),
            busy: Cell::new(false),
            done: Cell::new(false),
        }
    }

    /// This is its source until it has ended; where that is.
    pub(in crate::coll) fn set_source(&mut self, room: Vec<u64>) -> *mut u8 {
        let source = self.source.get_mut();
        *source = room;
        source.as_mut_ptr().cast()
    }

    /// It has what combines elements, since its caller does not wait.
    pub(in crate::coll) fn keep_combine<T, M: Meets<T>>(&mut self, meets: &M) {
        if let Some(combine) = meets.owned() {
            let kept = self.own_combine.insert(combine);
            self.combine = Some(&raw const **kept);
        }
    }

    pub(in crate::coll) fn under_way(&self, engine: &Engine) -> RefMut<'_, UnderWay> {
        RefMut::map(self.under_way.borrow_mut(), |all| all.get_or_insert_with(|| engine.spare.under_way()))
    }

    /// Does this hold of what is under way, if there is anything?
    pub(in crate::coll) fn is_under_way(&self, holds: impl FnOnce(&UnderWay) -> bool) -> bool {
        self.under_way.borrow().as_ref().is_none_or(holds)
    }

    pub fn is_done(&self) -> bool {
        self.done.get()
    }

    /// The number of its first part.
    pub(in crate::coll) fn first(&self) -> u64 {
        self.first.get()
    }

    pub(in crate::coll) fn epoch(&self) -> u64 {
        self.first.get() + self.place.part.get() as u64
    }

    /// Does it have the context of those that ranks leave together? All ranks agree, for it depends on what is called; if that is not known yet, it does not.
    pub(super) fn is_at_home(&self) -> bool {
        self.prepared.get().is_some_and(|prepared| prepared.at_home)
    }
}

/// How far a task is.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) part: Cell<usize>,
    pub(super) step: Cell<usize>,
    /// This part has begun.
    pub(super) begun: Cell<bool>,
    /// The claim of a permutation has been made.
    pub(super) claimed: Cell<bool>,
}
