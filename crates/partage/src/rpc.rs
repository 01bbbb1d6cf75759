//! Remote calls: a function runs on another rank's own thread, with any arguments and any result that serde knows.
//!
//! [`Job::rpc`] calls `fn(&Job, A) -> R`, [`Dist::rpc`] calls into an object that every rank has one of. The result is an
//! [`Event`]: wait for it, test it, or drop it, which detaches the call. [`Job::tell`] and [`Dist::tell`] want no result.
//!
//! * **What can be called**: a function or a closure without captures, of the program itself: it travels as its place in
//!   the image, which is the same in all processes because they were compared at the start.
//! * **When**: when the target waits in any call, or [polls](Job::poll). Calls from one rank to another run in the order
//!   in which they were made; those into a [`Dist`] that is in use wait until it is free.
//! * **What a function may do**: with its `&Job` it may put, get, allocate, send, call and tell. It may not wait: barriers,
//!   collectives, `quiet` and [`Event::wait`] panic in it. What it calls and tells beyond what the targets have room for is
//!   kept on its rank and sent later; active messages wait for room. A function of a [`Dist`] has the object only.
//! * **Failure**: a panic in a called function comes back, as a panic of whoever waits for the result; an object that it
//!   was changing stays as it left it. A panic in a told function, or in one whose event was dropped, ends the job.
//! * **Size**: any. What does not fit into a message (64 KiB) travels in pieces, and such arguments one call at a time:
//!   when the calls before have ended.
//! * **Types**: what serde serializes without asking the format for names: structs, enums, collections, strings. Not
//!   those that decide by what they find (`#[serde(untagged)]`, `flatten`, `skip_serializing_if`): the format is postcard.
//!
//! ```
//! use partage::prelude::*;
//!
//! partage::test(3, |job| {
//!     let right = job.neighbor(1);
//!     let there = job.rpc(right, |job, name: String| format!("{name} on {}", job.rank()), "hello".to_string());
//!     assert_eq!(there.wait(), format!("hello on {right}"));
//! });
//! ```
//!
//! # Safety
//! Two addresses travel with a call: the function's and that of the code that decodes its arguments, as offsets in the
//! main image. They are turned back into pointers only if they lie in its executable part. All processes run the same
//! image (its identity was compared when they attached), so what was a function of that type there is one here.

mod dist;
mod pend;

pub use dist::Dist;
pub(crate) use pend::Pend;

use crate::am::in_handler;
use crate::fail;
use crate::job::{Inner, Job};
use crate::ptr::GlobalPtr;
use crate::scope::Event;
use crate::team::{Rank, TeamRank};
use bytemuck::{Pod, Zeroable};
use partage_conduit::am::Piece;
use partage_conduit::contract::Conduit;
use partage_conduit::pool::LARGE;
use partage_conduit::record::Site;
use partage_conduit::reference::PIECE;
use partage_conduit::shm::letters::{Caller, Letter};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::any::{Any, type_name};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// What can travel.
pub trait Travels: Serialize + DeserializeOwned + 'static {}
impl<T: Serialize + DeserializeOwned + 'static> Travels for T {}

// Kinds of letters: calls.
const CALL: u16 = 1;
const TELL: u16 = 2;
const CALL_IN_PIECES: u16 = 3;
const TELL_IN_PIECES: u16 = 4;
const FREE: u16 = 5;
// Results.
const VALUE: u16 = 1;
const FAILED: u16 = 2;
const VALUE_IN_PIECES: u16 = 3;
// What pieces are of, besides their call's number.
const OF_ARGS: u64 = 0;
const OF_RESULT: u64 = 1 << 32;

/// What goes before the arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Head {
    /// The code that runs the call, and the function itself: offsets in the image.
    run: u32,
    function: u32,
    /// Which of the caller's calls this is.
    id: u32,
    /// Which object it goes into.
    dist: u32,
}

/// What came of an attempt to run a call.
enum Ran {
    /// It returned, and this is its result.
    Done,
    /// Its object is in use.
    Busy,
    /// It did not return.
    Failed(String),
}

/// Runs a call: the function, its object, its arguments, room for the result.
type Run = fn(&Rc<Inner>, usize, u32, &[u8], &mut Vec<u8>) -> Ran;

/// A rank's calls: its own that are under way, and others' that are to be run here.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// My calls by number.
    mine: RefCell<Vec<Pending>>,
    free: RefCell<Vec<u32>>,
    /// Numbers for what no result comes back of.
    numbers: Cell<u32>,
    /// Calls that could not be sent yet, by target, and how many they are.
    outbox: RefCell<BTreeMap<Rank, VecDeque<Parcel>>>,
    kept: Cell<u64>,
    /// Results in pieces that have not all gone, in order, and how many bytes they are.
    results: RefCell<VecDeque<LongResult>>,
    results_bytes: Cell<usize>,
    /// Calls whose objects were in use, in order.
    waiting: RefCell<VecDeque<Waiting>>,
    /// Has an object become free since they were looked at, or may calls be run again?
    retry: Cell<bool>,
    /// Is there something to do that is not a call: collectives that were started?
    other: Cell<bool>,
    /// The next call, or the next result, whose pieces have not all come; nothing overtakes them.
    call_in_pieces: Cell<Option<(Caller, u16, Head)>>,
    result_in_pieces: Cell<Option<(usize, u32)>>,
    objects: RefCell<Vec<Option<Rc<dyn Any>>>>,
    /// Is a called function running?
    running: Cell<bool>,
    /// How many objects this rank itself has in use.
    in_use: Cell<u32>,
    over: Cell<bool>,
    served: Cell<u64>,
    /// Used again and again, so that small calls allocate nothing.
    scratch: RefCell<Vec<u8>>,
}

/// A call of mine.
#[derive(Debug)]
enum Pending {
    /// No such call.
    None,
    /// The result has not come.
    Waiting,
    /// Nobody will ask for it.
    Detached,
    /// It is here.
    Value(Bytes),
    Failed(String),
}

/// A few bytes, or many.
enum Bytes {
    Few(u8, [u8; 40]),
    Many(Vec<u8>),
}

impl Bytes {
    #[inline(always)]
    fn new(bytes: &[u8]) -> Bytes {
        let mut few = [0; 40];
        match few.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                Bytes::Few(bytes.len() as u8, few)
            }
            None => Bytes::Many(bytes.to_vec()),
        }
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Few(n, few) => &few[..*n as usize],
            Bytes::Many(many) => many,
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.as_slice().len())
    }
}

/// Something that waits for room at its target.
#[derive(Debug)]
struct Parcel {
    kind: u16,
    head: Head,
    bytes: Vec<u8>,
    /// How much of it has gone, in pieces.
    gone: usize,
}

/// A result on its way, in pieces.
#[derive(Debug)]
struct LongResult {
    caller: Caller,
    id: u32,
    bytes: Vec<u8>,
    gone: usize,
}

/// A rank that has more bytes of results to send runs no more calls until some have gone.
const MOST_RESULTS: usize = 1 << 20;

/// A call that waits for its object, or for results to go.
#[derive(Debug)]
struct Waiting {
    caller: Caller,
    kind: u16,
    head: Head,
    args: Vec<u8>,
}

impl Calls {
    /// How many calls of others have been run.
    pub fn served(&self) -> u64 {
        self.served.get()
    }

    /// Is a called function running, in which nothing may wait?
    #[inline(always)]
    pub fn is_running(&self) -> bool {
        self.running.get()
    }

    /// Is the job over?
    pub fn is_over(&self) -> bool {
        self.over.get()
    }

    /// How many calls are kept back.
    pub fn kept(&self) -> u64 {
        self.kept.get()
    }

    /// Is there something to do besides what arrives?
    #[inline(always)]
    pub fn has_more(&self) -> bool {
        let waits = self.kept.get() | self.results_bytes.get() as u64 | u64::from(self.retry.get() | self.other.get());
        waits != 0 || self.call_in_pieces.get().is_some() || self.result_in_pieces.get().is_some()
    }

    /// Something that is not a call is to be done whenever others are served, or is no longer.
    pub fn set_other(&self, is: bool) {
        self.other.set(is);
    }

    /// Is there such a thing?
    #[inline(always)]
    pub fn has_other(&self) -> bool {
        self.other.get()
    }

    /// Is no call kept back?
    #[inline(always)]
    pub fn is_flushed(&self) -> bool {
        self.kept.get() == 0
    }

    /// Is no call to this rank kept back?
    #[inline(always)]
    fn is_flushed_to(&self, to: Rank) -> bool {
        self.is_flushed() || !self.outbox.borrow().contains_key(&to)
    }

    /// Are there so many results to send that no more calls are run?
    fn is_choked(&self) -> bool {
        self.results_bytes.get() > MOST_RESULTS
    }

    /// The job is over: objects go, handles that somebody kept are refused.
    pub fn end(&self) {
        self.over.set(true);
        // Nothing waits any more, as in a called function.
        self.running.set(true);
        let objects = self.objects.take();
        drop(objects);
    }

    fn begin(&self) -> u32 {
        if let Some(id) = self.free.borrow_mut().pop() {
            self.mine.borrow_mut()[id as usize] = Pending::Waiting;
            return id;
        }
        let mut mine = self.mine.borrow_mut();
        mine.push(Pending::Waiting);
        mine.len() as u32 - 1
    }

    /// A number for a call of which no result comes back.
    fn number(&self) -> u32 {
        self.numbers.set(self.numbers.get().wrapping_add(1));
        self.numbers.get() | 1 << 31
    }

    #[inline(always)]
    fn is_done(&self, id: u32) -> bool {
        matches!(self.mine.borrow()[id as usize], Pending::Value(_) | Pending::Failed(_))
    }

    /// The result of a call that is done; the number may be used again.
    fn finish(&self, id: u32) -> Result<Bytes, String> {
        self.free.borrow_mut().push(id);
        match std::mem::replace(&mut self.mine.borrow_mut()[id as usize], Pending::None) {
            Pending::Value(bytes) => Ok(bytes),
            Pending::Failed(why) => Err(why),
            other => unreachable!("call {id}: {other:?}"),
        }
    }

    /// Nobody will ask for this one.
    fn detach(&self, id: u32) -> Option<String> {
        let mut mine = self.mine.borrow_mut();
        let pending = mine.get_mut(id as usize)?;
        match pending {
            Pending::Waiting => *pending = Pending::Detached,
            Pending::Value(_) | Pending::Failed(_) => {
                drop(mine);
                return self.finish(id).err();
            }
            _ => {}
        }
        None
    }
}

/// Appends to a vector whatever serde writes.
struct Append<'v>(&'v mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Append<'_> {
    type Output = ();
    #[inline(always)]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }
    #[inline(always)]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

fn encode<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), String> {
    out.clear();
    postcard::serialize_with_flavor(value, Append(out))
        .map_err(|e| format!("a value of type {} cannot be serialized: {e}", type_name::<T>()))
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let cannot = |why: &dyn fmt::Display| format!("{} bytes are no {}: {why}", bytes.len(), type_name::<T>());
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(cannot(&format_args!("{} too many", rest.len()))),
        Err(e) => Err(cannot(&e)),
    }
}

/// Runs a function of a rank.
fn run<A: Travels, R: Travels>(inner: &Rc<Inner>, f: usize, _: u32, args: &[u8], out: &mut Vec<u8>) -> Ran {
    // SAFETY: a pointer of this type was turned into its offset by `rpc`, which sent it together with the offset of this
    // instance of this function; see the module's docs.
    let f = unsafe { std::mem::transmute::<*const (), fn(&Job, A) -> R>(std::ptr::with_exposed_provenance(f)) };
    attempt(|| {
        let job = Job::of(inner.clone());
        inner.awake();
        encode(&f(&job, arguments(args)?), out)
    })
}

/// Runs a function of an object.
fn run_into<T: 'static, A: Travels, R: Travels>(
    inner: &Rc<Inner>,
    f: usize,
    dist: u32,
    args: &[u8],
    out: &mut Vec<u8>,
) -> Ran {
    // SAFETY: as for `run`.
    let f = unsafe { std::mem::transmute::<*const (), fn(&mut T, A) -> R>(std::ptr::with_exposed_provenance(f)) };
    let mut busy = false;
    let ran = attempt(|| {
        let object = inner.calls.objects.borrow().get(dist as usize).cloned().flatten();
        let Some(object) = object.and_then(|o| o.downcast::<RefCell<T>>().ok()) else {
            let (me, name) = (inner.rank, type_name::<T>());
            return Err(format!(
                "{me} has dropped its Dist<{name}> (or has another type there); `quiet` and a barrier before its end keep it"
            ));
        };
        let Ok(mut object) = object.try_borrow_mut() else {
            busy = true;
            return Ok(());
        };
        inner.awake();
        encode(&f(&mut object, arguments(args)?), out)
    });
    if busy { Ran::Busy } else { ran }
}

fn arguments<A: Travels>(bytes: &[u8]) -> Result<A, String> {
    decode(bytes).map_err(|why| format!("the arguments cannot be decoded: {why}"))
}

/// Runs all that is the user's: decoding, the function, encoding, and dropping what they leave.
#[inline(always)]
fn attempt(run: impl FnOnce() -> Result<(), String>) -> Ran {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(ran) => ran.map_or_else(Ran::Failed, |()| Ran::Done),
        Err(payload) => Ran::Failed(fail::caught(payload)),
    }
}

impl Inner {
    /// Sends a call. Ordinary code waits until there is room; where nothing may wait, inside a called function, or would
    /// wait for itself, with an object in use, it is kept and sent later.
    #[inline(always)]
    #[track_caller]
    fn send_call(self: &Rc<Self>, call: &'static str, to: Rank, kind: u16, head: Head, bytes: &[u8]) {
        let direct = bytes.len() <= LARGE && self.calls.is_flushed_to(to);
        if !(direct && self.seat.try_call(to.index(), kind, &head, bytes)) {
            self.send_call_slowly(Site::here(call), to, kind, head, bytes);
        }
    }

    #[cold]
    fn send_call_slowly(self: &Rc<Self>, site: Site, to: Rank, kind: u16, head: Head, bytes: &[u8]) {
        let parcel = Parcel { kind, head, bytes: bytes.to_vec(), gone: 0 };
        self.calls.outbox.borrow_mut().entry(to).or_default().push_back(parcel);
        self.calls.kept.set(self.calls.kept.get() + 1);
        if !self.calls.running.get() && self.calls.in_use.get() == 0 {
            self.wait(site, || self.calls.is_flushed_to(to));
        }
    }

    /// This rank may have been asleep in a call of its own; now it works for another.
    #[inline(always)]
    fn awake(&self) {
        self.seat.node().record(self.rank.index()).awake();
    }

    /// Waits until no call is kept back.
    pub(crate) fn flush(self: &Rc<Self>, site: Site) {
        if !self.calls.is_flushed() {
            self.wait(site, || self.calls.is_flushed());
        }
    }

    /// Sends pieces while there is room; true when all have gone. They go by active messages, which are always served.
    fn send_pieces(&self, to: Rank, key: u64, bytes: &[u8], gone: &mut usize) -> bool {
        while *gone < bytes.len() {
            let piece = &bytes[*gone..bytes.len().min(*gone + LARGE)];
            let head = Piece { key, offset: *gone as u64, total: bytes.len() as u64 };
            if !self.seat.try_request(to.index(), PIECE, bytemuck::bytes_of(&head), piece) {
                return false;
            }
            *gone += piece.len();
        }
        true
    }

    /// Sends of the calls that were kept back all that there is room for; what goes to one rank stays in order.
    #[cold]
    fn send_kept(&self) -> bool {
        let calls = &self.calls;
        let mut moved = false;
        calls.outbox.borrow_mut().retain(|&to, parcels| {
            while let Some(p) = parcels.front_mut() {
                let before = p.gone;
                let sent = match p.bytes.len() <= LARGE {
                    true => self.seat.try_call(to.index(), p.kind, &p.head, &p.bytes),
                    false => {
                        let kind = if p.kind == CALL { CALL_IN_PIECES } else { TELL_IN_PIECES };
                        // Long arguments are kept by their target until the call runs: one of them at a time.
                        (p.gone > 0 || self.seat.is_quiet_to(to.index()))
                            && self.send_pieces(to, OF_ARGS | u64::from(p.head.id), &p.bytes, &mut p.gone)
                            && self.seat.try_call(to.index(), kind, &p.head, &[])
                    }
                };
                moved |= sent || p.gone > before;
                if !sent {
                    return true;
                }
                parcels.pop_front();
                calls.kept.set(calls.kept.get() - 1);
            }
            false
        });
        moved
    }

    /// Sends of the long results all that there is room for; those to one rank stay in order.
    #[cold]
    fn send_results(&self) -> bool {
        let calls = &self.calls;
        let (mut moved, mut full) = (false, vec![]);
        calls.results.borrow_mut().retain_mut(|r| {
            let (before, to) = (r.gone, Rank(r.caller.rank as u32));
            let sent = !full.contains(&to) && self.send_pieces(to, OF_RESULT | u64::from(r.id), &r.bytes, &mut r.gone);
            moved |= r.gone > before;
            if !sent {
                full.push(to);
                return true;
            }
            self.seat.send_result(r.caller, VALUE_IN_PIECES, &u64::from(r.id), &[]);
            calls.results_bytes.set(calls.results_bytes.get() - r.bytes.len());
            calls.retry.set(true);
            false
        });
        moved
    }

    /// Runs calls whose objects have become free, in order.
    #[cold]
    fn run_waiting(self: &Rc<Self>) -> bool {
        let mut ran = false;
        for w in self.calls.waiting.take() {
            match !self.calls.is_choked() && self.run_call(w.caller, w.kind, w.head, &w.args) {
                true => ran = true,
                false => self.calls.waiting.borrow_mut().push_back(w),
            }
        }
        ran
    }

    /// Looks for calls and results; says whether there were any. Not inside a called function.
    #[inline(always)]
    pub(crate) fn serve_calls(self: &Rc<Self>) -> bool {
        let calls = &self.calls;
        let mut served = false;
        while calls.result_in_pieces.get().is_none() || self.join_result() {
            let Some(letter) = self.seat.next_letter(true) else { break };
            self.result_arrived(letter);
            served = true;
        }
        if calls.running.get() {
            return served;
        }
        if !calls.is_flushed() {
            served |= self.send_kept();
        }
        if calls.results_bytes.get() > 0 {
            served |= self.send_results();
        }
        if calls.retry.replace(false) {
            served |= self.run_waiting();
        }
        if calls.call_in_pieces.get().is_some() {
            self.join_call();
            // Its pieces are on their way to here, and the last of them wakes this rank; nothing overtakes it.
            return served | calls.call_in_pieces.get().is_none();
        }
        // One at a time: whoever waits looks at what it waits for in between.
        if let Some(letter) = self.seat.next_letter(false) {
            self.call_arrived(letter);
            served = true;
        }
        served
    }

    #[inline]
    fn result_arrived(self: &Rc<Self>, letter: Letter<'_>) {
        let (id, bytes) = letter.open::<u64>();
        let (caller, id) = (letter.caller(), id as u32);
        let result = match letter.kind() {
            VALUE => Ok(Bytes::new(bytes)),
            FAILED => Err(String::from_utf8_lossy(bytes).into_owned()),
            _ => {
                drop(letter);
                self.seat.result_ended(caller);
                self.calls.result_in_pieces.set(Some((caller.rank, id)));
                return;
            }
        };
        drop(letter);
        self.seat.result_ended(caller);
        self.settle(caller.rank, id, result);
    }

    /// A call of mine has ended.
    #[inline]
    fn settle(&self, source: usize, id: u32, result: Result<Bytes, String>) {
        let mut mine = self.calls.mine.borrow_mut();
        let Some(pending) = mine.get_mut(id as usize) else { return };
        if !matches!(pending, Pending::Detached) {
            *pending = result.map_or_else(Pending::Failed, Pending::Value);
            return;
        }
        *pending = Pending::None;
        drop(mine);
        self.calls.free.borrow_mut().push(id);
        if let Err(why) = result {
            fail::end_with(format!("{}: a call to rank {source} whose event was dropped failed: {why}", self.rank));
        }
    }

    /// The result in pieces that has been announced: is it whole?
    #[cold]
    fn join_result(&self) -> bool {
        let Some((source, id)) = self.calls.result_in_pieces.get() else { return true };
        let whole = self.seat.landing().take_whole(source, OF_RESULT | u64::from(id));
        let Some(bytes) = whole else { return false };
        self.calls.result_in_pieces.set(None);
        self.settle(source, id, Ok(Bytes::Many(bytes)));
        true
    }

    /// The call in pieces that is next: are its arguments whole?
    #[cold]
    fn join_call(self: &Rc<Self>) {
        let Some((caller, kind, head)) = self.calls.call_in_pieces.get() else { return };
        let Some(args) = self.seat.landing().take_whole(caller.rank, OF_ARGS | u64::from(head.id)) else { return };
        self.calls.call_in_pieces.set(None);
        if self.calls.is_choked() || !self.run_call(caller, kind, head, &args) {
            self.keep_waiting(caller, kind, head, args);
        }
    }

    #[inline]
    fn call_arrived(self: &Rc<Self>, letter: Letter<'_>) {
        let (caller, kind) = (letter.caller(), letter.kind());
        match kind {
            CALL | TELL => {
                let (head, args) = letter.open::<Head>();
                if self.calls.is_choked() || !self.run_call(caller, kind, head, args) {
                    self.keep_waiting(caller, kind, head, args.to_vec());
                }
            }
            CALL_IN_PIECES | TELL_IN_PIECES => {
                let (head, _) = letter.open::<Head>();
                drop(letter);
                let kind = if kind == CALL_IN_PIECES { CALL } else { TELL };
                self.calls.call_in_pieces.set(Some((caller, kind, head)));
                self.join_call();
            }
            FREE => {
                let (Head { run, function, .. }, _) = letter.open::<Head>();
                drop(letter);
                let offset = u64::from(function) << 32 | u64::from(run);
                if let Err(why) = self.free_here(offset) {
                    fail::end_with(format!("rank {}: free: {why}, says {}", caller.rank, self.rank));
                }
                self.seat.call_ended(caller);
            }
            _ => fail::end_with(format!(
                "{}: a call of kind {kind} from rank {}, which there is not",
                self.rank, caller.rank
            )),
        }
    }

    fn keep_waiting(&self, caller: Caller, kind: u16, head: Head, args: Vec<u8>) {
        self.calls.waiting.borrow_mut().push_back(Waiting { caller, kind, head, args });
    }

    /// Runs a call and sends its result; false if its object is in use.
    #[inline(always)]
    fn run_call(self: &Rc<Self>, caller: Caller, kind: u16, head: Head, args: &[u8]) -> bool {
        let mut out = self.calls.scratch.take();
        let run = self.image.address(head.run).zip(self.image.address(head.function));
        let ran = match run {
            Some((run, f)) => {
                // SAFETY: the offset of an instance of `run` or `run_into` in the same image; see the module's docs.
                let run = unsafe { std::mem::transmute::<*const (), Run>(std::ptr::with_exposed_provenance(run)) };
                let _running = Running::begin(&self.calls.running);
                run(self, f, head.dist, args, &mut out)
            }
            None => Ran::Failed("the function is not in the program's image".into()),
        };
        let busy = matches!(ran, Ran::Busy);
        if !busy {
            self.calls.served.set(self.calls.served.get() + 1);
            self.answer_call(caller, kind, head.id, ran, &out);
        }
        // What a large result needed is not kept.
        if out.capacity() <= LARGE {
            self.calls.scratch.replace(out);
        }
        !busy
    }

    #[inline(always)]
    fn answer_call(self: &Rc<Self>, caller: Caller, kind: u16, id: u32, ran: Ran, out: &[u8]) {
        let call = u64::from(id);
        match ran {
            _ if kind == TELL => {
                self.seat.call_ended(caller);
                if let Ran::Failed(why) = ran {
                    let (me, source) = (self.rank, caller.rank);
                    fail::end_with(format!("{me}: a function that rank {source} told it to run failed: {why}"));
                }
            }
            Ran::Failed(why) => {
                let text = &why.as_bytes()[..why.len().min(LARGE)];
                self.seat.send_result(caller, FAILED, &call, text);
            }
            _ if out.len() <= LARGE => self.seat.send_result(caller, VALUE, &call, out),
            _ => {
                let result = LongResult { caller, id, bytes: out.to_vec(), gone: 0 };
                self.calls.results_bytes.set(self.calls.results_bytes.get() + out.len());
                self.calls.results.borrow_mut().push_back(result);
            }
        }
    }

    /// Frees memory of another rank, there.
    #[track_caller]
    pub(crate) fn free_there(self: &Rc<Self>, to: Rank, offset: u64) {
        let head = Head { run: offset as u32, function: (offset >> 32) as u32, id: 0, dist: 0 };
        self.send_call("free", to, FREE, head, &[]);
    }

    /// Prepares and sends a call or, with [`TELL`], one that wants no result; its number.
    #[inline(always)]
    #[track_caller]
    fn send<A: Travels>(
        self: &Rc<Self>,
        (name, kind): (&'static str, u16),
        to: Rank,
        (run, function): (Run, usize),
        dist: u32,
        args: &A,
    ) -> u32 {
        let calls = &self.calls;
        self.check_rank(name, to);
        let (run, function) = self.places(name, run, function);
        let mut bytes = calls.scratch.take();
        if let Err(why) = encode(args, &mut bytes) {
            panic!("{}: {name}: {why}", self.rank);
        }
        let id = if kind == CALL { calls.begin() } else { calls.number() };
        self.send_call(name, to, kind, Head { run, function, id, dist }, &bytes);
        if bytes.capacity() <= LARGE {
            calls.scratch.replace(bytes);
        }
        id
    }

    #[inline(always)]
    #[track_caller]
    fn call<A: Travels, R: Travels>(
        self: &Rc<Self>,
        to: Rank,
        code: (Run, usize),
        dist: u32,
        args: &A,
    ) -> Event<'_, R> {
        let id = self.send(("rpc", CALL), to, code, dist, args);
        Event::call(Pend::new(self.clone(), id, to, Site::here("rpc"), decode::<R>))
    }

    #[inline(always)]
    #[track_caller]
    fn places(&self, name: &'static str, run: Run, function: usize) -> (u32, u32) {
        if self.calls.over.get() {
            panic!("{}: {name}: the job is over", self.rank);
        }
        if in_handler() {
            panic!(
                "{}: {name} in a handler, which replies, or in the operation of a reduction; neither calls anybody",
                self.rank
            );
        }
        let place = |address: usize| self.image.place(address);
        match place(run as usize).zip(place(function)) {
            Some(places) => places,
            None => panic!(
                "{}: {name}: the function is not part of the program's own image (it is in a shared library?); wrap it in \
                 one that is",
                self.rank
            ),
        }
    }
}

/// While a called function runs.
struct Running<'c>(&'c Cell<bool>);

impl<'c> Running<'c> {
    fn begin(running: &'c Cell<bool>) -> Self {
        running.set(true);
        Running(running)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Job {
    /// Runs `f(&job, args)` on `to`, on its own thread, when it makes progress; the event gives the result. Dropping the
    /// event detaches the call.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(2, |job| {
    ///     let p = job.rpc(job.neighbor(1), |job, n| job.alloc(n).unwrap(), 41u64).wait();   // memory over there
    ///     assert_eq!((p.rank(), p.get(job)), (job.neighbor(1), 41));
    ///     job.free(p);
    /// });
    /// ```
    #[inline]
    #[track_caller]
    pub fn rpc<A: Travels, R: Travels>(&self, to: Rank, f: fn(&Job, A) -> R, args: A) -> Event<'_, R> {
        self.all().inner.call(to, (run::<A, R>, f as usize), 0, &args)
    }

    /// The same without a result. [`quiet`](Job::quiet) waits until it has run; a panic in it ends the job.
    #[inline]
    #[track_caller]
    pub fn tell<A: Travels>(&self, to: Rank, f: fn(&Job, A), args: A) {
        self.all().inner.send(("tell", TELL), to, (run::<A, ()>, f as usize), 0, &args);
    }
}

impl<T> Serialize for GlobalPtr<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.bits().serialize(s)
    }
}

impl<'de, T> Deserialize<'de> for GlobalPtr<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        u64::deserialize(d).map(GlobalPtr::from_bits)
    }
}

macro_rules! travels {
    ($($t:ident),*) => {$(
        impl Serialize for $t {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                self.0.serialize(s)
            }
        }
        impl<'de> Deserialize<'de> for $t {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                u32::deserialize(d).map($t)
            }
        }
    )*};
}
travels!(Rank, TeamRank);

#[cfg(test)]
mod tests {
    use super::*;

    type Args = (String, Vec<u64>, Option<(bool, i32)>, Result<char, Vec<u8>>);

    /// Arguments that come out of any bytes are values of their type, or refused with words.
    #[test]
    fn arguments_of_any_bytes_are_decoded_or_refused() {
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
        };
        let good: Args = ("partage".into(), vec![1, 300, u64::MAX], Some((true, -5)), Ok('é'));
        let mut bytes = vec![];
        encode(&good, &mut bytes).unwrap();
        assert_eq!(decode::<Args>(&bytes).unwrap(), good);
        let (mut out, mut done, mut failed) = (vec![], 0, 0);
        for _ in 0..20_000 {
            let mut bytes = bytes.clone();
            match random() % 4 {
                0 => bytes.truncate(random() as usize % (bytes.len() + 1)),
                1 => bytes.push(random() as u8),
                2 => bytes = (0..random() % 40).map(|_| random() as u8).collect(),
                _ => {
                    let i = random() as usize % bytes.len();
                    bytes[i] = random() as u8;
                }
            }
            let ran = attempt(|| {
                let args: Args = arguments(&bytes)?;
                encode(&(args.0.len() + args.1.len()), &mut out)
            });
            match ran {
                Ran::Done => done += 1,
                Ran::Failed(why) => {
                    assert!(why.starts_with("the arguments cannot be decoded: "), "{why}");
                    failed += 1;
                }
                Ran::Busy => panic!("nothing is busy"),
            }
        }
        assert!(done > 100 && failed > 5_000, "{done} {failed}");
    }

    #[test]
    fn a_call_outside_the_image_is_refused() {
        crate::test(1, |job| {
            let inner = &job.all().inner;
            let head = Head { run: u32::MAX, function: 1, id: inner.calls.begin(), dist: 0 };
            assert!(inner.seat.try_call(0, CALL, &head, &[]));
            let caller = inner.seat.next_letter(false).unwrap().caller();
            assert!(inner.run_call(caller, CALL, head, &[]));
            let letter = inner.seat.next_letter(true).unwrap();
            assert_eq!(
                (letter.kind(), letter.open::<u64>().1),
                (FAILED, &b"the function is not in the program's image"[..])
            );
            drop(letter);
            inner.seat.result_ended(caller);
        });
    }
}
