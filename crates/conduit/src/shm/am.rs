//! Active messages between ranks of a node.
//!
//! (To ranks of other nodes everything goes by [`crate::ofi`]: the seat chooses, once per call.)
//!
//! To a rank of the same process a request runs in line, on the sender's thread; its reply too. To another process it goes
//! through the target's [ring](crate::ring), its payload through a buffer of the sender's [pool] unless both
//! fit into a slot ([`super::mail`] has both). Calls and results are messages too, by another net ([`super::letters`]).
//!
//! # Replies never wait
//! Their slots are certain (see [`crate::ring`]). If no buffer of the replier's pool is free, because those to whom it
//! has replied do not read, the payload is kept on the heap until one is. When a rank keeps 64 replies of handlers it takes
//! no requests until some have gone; it still takes replies, so those who wait for one get it.

use crate::am::{Arrival, BESIDE, Body, Handler, IN_BUFFER, INLINE, Landing, Way};
use crate::contract::{At, Conduit, Failure, Half};
use crate::copy;
use crate::ofi::{self, Net};
use crate::pool::{self, Pool};
use crate::ranks::{FAR, Ranks};
use crate::record::Site;
use crate::reference;
use crate::ring::{Credit, Got, Head, Ring, Shown, WORDS};
use crate::shm::mail::{AM, CALL, Kept, Letterbox, Mail, NETS};
use crate::shm::progress::{Helper, Rest};
use crate::shm::{Node, Seat};
use crate::signal::{NUMBER_BITS, Notice};
use crate::sync::{full_fence, ticks_per_us};
use crate::wait::{Aborted, Bell, Step};
use crate::word::Atomic;
use bytemuck::{Pod, bytes_of, bytes_of_mut};
use std::cell::{Cell, RefCell};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// Nothing, aligned.
const EMPTY: &[u8] = {
    const NOTHING: &[u64; 0] = &[];
    // SAFETY: no bytes.
    unsafe { std::slice::from_raw_parts(NOTHING.as_ptr().cast(), 0) }
};

/// A message as a slot, its payload in a buffer where it does not fit; `None` if there is no buffer.
#[inline(always)]
fn pack(
    (source, to): (usize, usize),
    handler: u16,
    args: &[u8],
    payload: &[u8],
    pool: &Pool,
) -> Option<(Head, [u64; WORDS], usize)> {
    let front = args.len().next_multiple_of(8);
    let all = front + payload.len();
    if all > INLINE {
        return pack_in_buffer((source, to), handler, args, payload, pool);
    }
    let mut words = [0; WORDS];
    let bytes = bytes_of_mut(&mut words);
    bytes[..args.len()].copy_from_slice(args);
    if payload.is_empty() {
        // Here everything is known when this is compiled.
        return Some((Head::new(source, handler, 0), words, front / 8));
    }
    bytes[front..all].copy_from_slice(payload);
    Some((Head::new(source, handler, payload.len()), words, all.div_ceil(8)))
}

fn pack_in_buffer(
    (source, to): (usize, usize),
    handler: u16,
    args: &[u8],
    payload: &[u8],
    pool: &Pool,
) -> Option<(Head, [u64; WORDS], usize)> {
    assert!(payload.len() <= pool::LARGE && args.len() <= crate::am::ARGS, "{} bytes in a message", payload.len());
    let (buffer, place) = pool.take(to, payload.len())?;
    let mut words = [0; WORDS];
    // SAFETY: the buffer was just taken: nobody else uses it; both lengths fit.
    unsafe {
        copy::write(buffer.payload(), payload.as_ptr(), payload.len());
        match args.len() <= BESIDE {
            true => bytes_of_mut(&mut words)[..args.len()].copy_from_slice(args),
            false => copy::write(buffer.args(), args.as_ptr(), args.len()),
        }
    }
    words[WORDS - 1] = u64::from(place) << 32 | payload.len() as u64;
    Some((Head::new(source, handler, IN_BUFFER), words, WORDS))
}

impl Node {
    /// Gives a handler its number in this process; false if another has it or there is no such number.
    pub fn set_handler(&self, number: u16, handler: &'static dyn Handler) -> bool {
        self.mail.table.set(number, handler)
    }

    /// Where answers to a rank of this process land.
    pub(crate) fn landing(&self, rank: usize) -> &Landing {
        &self.mail.letterbox(self.ranks.near(rank)).landing
    }

    /// Wakes a near rank if it sleeps.
    pub(crate) fn ring(&self, near: usize) {
        self.mail.peers[near].bell().ring();
    }

    /// Do all ranks of this process sleep?
    pub(crate) fn all_sleep(&self) -> bool {
        self.mine().all(|rank| self.mail.peers[self.ranks.near(rank)].bell().is_parked())
    }

    /// How many errands other threads have for a rank of this process: what it looks at whenever it looks at its messages.
    #[inline(always)]
    pub fn errands(&self, rank: usize) -> &AtomicUsize {
        &self.mail.letterbox(self.ranks.near(rank)).errands
    }

    /// Wakes a rank of this node if it sleeps; for what is not a message.
    pub fn wake(&self, rank: usize) {
        self.ring(self.ranks.near(rank));
    }

    /// The handler with this number.
    pub(crate) fn handler(&self, number: u16) -> Option<&'static dyn Handler> {
        self.mail.table.get(number)
    }

    /// Runs a handler for `target`, a rank of this process, on this thread.
    #[inline]
    pub(crate) fn run_in_line(
        &self,
        target: usize,
        source: usize,
        handler: u16,
        args: &[u8],
        payload: &[u8],
        way: Way,
    ) {
        if !payload.as_ptr().addr().is_multiple_of(8) {
            return self.run_in_line_aligned(target, source, handler, args, payload, way);
        }
        let arrival = Arrival::new(self, target, source, Body::Here(args, payload), way);
        match self.mail.table.get(handler) {
            Some(handler) => handler.run(&arrival),
            None => arrival.bad(&format_args!("there is no handler {handler}")),
        }
    }

    /// The same for a payload that does not begin where handlers expect it.
    #[cold]
    fn run_in_line_aligned(&self, target: usize, source: usize, handler: u16, args: &[u8], payload: &[u8], way: Way) {
        let mut words = vec![0u64; payload.len().div_ceil(8)];
        let copy = &mut bytemuck::cast_slice_mut(&mut words)[..payload.len()];
        copy.copy_from_slice(payload);
        self.run_in_line(target, source, handler, args, if payload.is_empty() { EMPTY } else { copy }, way);
    }

    /// Replies to `to`, of another process, for `from`, a rank of this one.
    #[inline]
    pub(crate) fn reply_by_queue(&self, from: usize, to: usize, handler: u16, args: &[u8], payload: &[u8]) {
        self.answer(AM, self.ranks.near(from), self.ranks.near(to), handler, args, payload);
    }

    /// From a near rank to another.
    #[inline(always)]
    pub(super) fn answer(&self, net: usize, from: usize, to: usize, handler: u16, args: &[u8], payload: &[u8]) {
        let letterbox = self.mail.letterbox(from);
        match pack((from, to), handler, args, payload, &letterbox.pools[net]) {
            Some(packed) => {
                self.push_reply(net, to, packed);
                if packed.0.length() == IN_BUFFER {
                    letterbox.pools[net].prefetch(payload.len());
                }
            }
            None => {
                let (args, payload) = (args.to_vec(), payload.to_vec());
                let mut kept = letterbox.kept[net].lock().unwrap_or_else(PoisonError::into_inner);
                kept.push_back(Kept { to, handler, args, payload });
                letterbox.kept_count[net].store(kept.len(), Release);
            }
        }
    }

    #[inline(always)]
    fn push_reply(&self, net: usize, to: usize, (head, words, n): (Head, [u64; WORDS], usize)) {
        let peer = &self.mail.peers[to];
        peer.replies[net].push(head, &words, n);
        peer.bell().speak_after_fence();
    }

    /// Sends kept replies for which there are buffers now; those to one rank in order.
    #[cold]
    pub(super) fn send_kept(&self, net: usize, from: usize) -> bool {
        let letterbox = self.mail.letterbox(from);
        let Ok(mut kept) = letterbox.kept[net].try_lock() else { return false };
        let (before, mut full) = (kept.len(), vec![]);
        kept.retain(|k| {
            if full.contains(&k.to) {
                return true;
            }
            match pack((from, k.to), k.handler, &k.args, &k.payload, &letterbox.pools[net]) {
                Some(packed) => self.push_reply(net, k.to, packed),
                None => {
                    full.push(k.to);
                    return true;
                }
            }
            false
        });
        letterbox.kept_count[net].store(kept.len(), Release);
        kept.len() < before
    }
}

/// What sending to one rank touches, in one line.
#[repr(align(64))]
#[derive(Debug)]
pub(super) struct Route {
    ring: Ring,
    bell: *const Bell,
    shown: *const Shown,
    got: *const Got,
    pub(super) credit: Credit,
    /// Is it among those that are not quiet?
    listed: Cell<bool>,
    /// Is it of this process?
    here: bool,
}

impl Route {
    fn shown(&self) -> &Shown {
        // SAFETY: in the target's area, which the node keeps mapped.
        unsafe { &*self.shown }
    }

    pub(super) fn got(&self) -> &Got {
        // SAFETY: of a letterbox of the node, which does not move.
        unsafe { &*self.got }
    }

    fn bell(&self) -> &Bell {
        // SAFETY: as for `shown`.
        unsafe { &*self.bell }
    }
}

/// A rank's own side: what it has sent.
#[derive(Debug)]
pub(super) struct Outlet {
    pub(super) own: *const Letterbox,
    /// By rank of the job: its number on this node.
    pub(super) near: Box<[u32]>,
    /// By near rank.
    pub(super) routes: [Box<[Route]>; NETS],
    /// Net and target of all routes that may not be quiet.
    not_quiet: RefCell<Vec<(usize, usize)>>,
    pub(super) window: u32,
    pub(super) pools: [Pool; NETS],
    pub(super) helper: Helper,
    pub(super) rest: Rest,
    pub(super) can_help: bool,
    pub(super) ticks_per_us: u64,
    pub(super) total: Cell<u64>,
    pub(super) in_line: Cell<u64>,
}

/// How many messages a rank has sent, by their way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sent {
    /// Requests that ran in line.
    pub in_line: u64,
    /// Requests and calls through queues.
    pub queued: u64,
    /// Requests and calls to other nodes.
    pub far: u64,
}

impl Outlet {
    /// Of a near rank.
    pub fn new(mail: &Mail, ranks: &Ranks, rank: usize) -> Outlet {
        let n = mail.peers.len();
        assert!(!mail.letterbox(rank).seated.swap(true, AcqRel), "rank {rank} has its seat already");
        let own = mail.letterbox(rank);
        let route = |net: usize, to: usize| {
            let peer = &mail.peers[to];
            let (shown, got): (*const _, *const _) = (peer.shown(net, rank), &own.got[net][to]);
            let (credit, listed) = Default::default();
            Route { ring: peer.requests[net], bell: peer.bell, shown, got, credit, listed, here: peer.here }
        };
        Outlet {
            own,
            near: (0..ranks.count()).map(|r| ranks.near(r) as u32).collect(),
            routes: [AM, CALL].map(|net| (0..n).map(|to| route(net, to)).collect()),
            not_quiet: RefCell::default(),
            window: mail.window,
            // SAFETY: inside the rank's area, which is zeroed at first and stays mapped as long as the node, which the
            // seat keeps.
            pools: [AM, CALL].map(|net| unsafe { Pool::new(mail.peers[rank].pool(net), n) }),
            helper: Helper::new(),
            rest: Rest::default(),
            can_help: mail.can_help(),
            ticks_per_us: ticks_per_us(),
            total: Cell::new(0),
            in_line: Cell::new(0),
        }
    }
}

impl Seat {
    /// Sends a request if there is room; to a rank of this process it runs now.
    #[inline(always)]
    pub fn try_request(&self, to: usize, handler: u16, args: &[u8], payload: &[u8]) -> bool {
        let near = self.outlet.near[to] as usize;
        if self.outlet.routes[AM].get(near).is_some_and(|route| route.here) {
            let o = &self.outlet;
            o.in_line.set(o.in_line.get() + 1);
            self.node.run_in_line(to, self.rank, handler, args, payload, Way::InLine);
            // It may wait for what the handler did.
            if to != self.rank {
                self.node.ring(near);
            }
            return true;
        }
        self.try_send(AM, to, handler, args, payload)
    }

    #[inline(always)]
    pub(super) fn try_send(&self, net: usize, to: usize, handler: u16, args: &[u8], payload: &[u8]) -> bool {
        let outlet = &self.outlet;
        let near = outlet.near[to] as usize;
        let Some(route) = outlet.routes[net].get(near) else {
            return self.try_send_far(net, to, handler, args, payload);
        };
        if !route.credit.has_room(route.shown(), route.got(), outlet.window) {
            return false;
        }
        let Some((head, words, n)) = pack((self.near, near), handler, args, payload, &outlet.pools[net]) else {
            return false;
        };
        route.ring.push(head, &words, n);
        route.bell().speak_after_fence();
        // What only this thread looks at comes while the message is on its way.
        route.credit.spend();
        if !route.listed.replace(true) {
            outlet.not_quiet.borrow_mut().push((net, near));
        }
        outlet.total.set(outlet.total.get() + 1);
        self.waiter.spoke();
        if head.length() == IN_BUFFER {
            outlet.pools[net].prefetch(payload.len());
        }
        true
    }

    #[cold]
    #[inline(never)]
    fn try_send_far(&self, net: usize, to: usize, handler: u16, args: &[u8], payload: &[u8]) -> bool {
        let (far, there) = self.beyond();
        far.try_send(there, &self.node.ranks, (net, to), handler, args, payload)
    }

    /// This rank's side of the network, and the network.
    pub(crate) fn beyond(&self) -> (&ofi::Seat, &Net) {
        self.far.as_ref().zip(self.node.net()).expect("a rank that is not near is reached by a network")
    }

    #[inline(always)]
    pub(super) fn own_letterbox(&self) -> &Letterbox {
        // SAFETY: one of the node's, which this seat keeps; they do not move.
        unsafe { &*self.outlet.own }
    }

    /// How many messages this rank has sent.
    pub fn sent(&self) -> Sent {
        let far = self.far.as_ref().map_or(0, |far| far.sent());
        Sent { in_line: self.outlet.in_line.get(), queued: self.outlet.total.get(), far }
    }

    /// Waits until everything that this rank has sent has ended, and its replies and results have been handled here. Progress serves calls, too:
    /// others may have to run some of this rank's before they end, and only it takes its results.
    pub fn quiet(&self, site: Site, progress: impl Fn() -> bool + Copy) -> Result<(), Aborted> {
        self.quiet_of(site, |_| true, progress)
    }

    /// The same of messages; calls may be open, and are not waited for. Whoever may not run calls does not wait for others to.
    pub fn quiet_messages(&self, site: Site) -> Result<(), Aborted> {
        self.quiet_of(site, |net| net == AM, || Conduit::progress(self))
    }

    /// The same of messages to other nodes: ranks of this one, which may compute, are not waited for.
    pub fn quiet_far_messages(&self, site: Site) -> Result<(), Aborted> {
        self.quiet_far(site, |net| net == AM, || Conduit::progress(self))
    }

    fn quiet_of(
        &self,
        site: Site,
        is_meant: impl Fn(usize) -> bool + Copy,
        progress: impl Fn() -> bool + Copy,
    ) -> Result<(), Aborted> {
        let is_listed = || self.outlet.not_quiet.borrow().iter().any(|&(net, _)| is_meant(net));
        loop {
            self.quiet_near(site, |net, _| is_meant(net), progress)?;
            self.quiet_far(site, is_meant, progress)?;
            // What was served meanwhile may have sent more to ranks of this node.
            if self.far.is_none() || !is_listed() {
                return Ok(());
            }
        }
    }

    fn quiet_far(
        &self,
        site: Site,
        is_meant: impl Fn(usize) -> bool + Copy,
        progress: impl Fn() -> bool + Copy,
    ) -> Result<(), Aborted> {
        self.far.as_ref().map_or(Ok(()), |far| far.quiet(self, site, is_meant, progress))
    }

    /// Waits until what went by these nets to these near ranks has ended.
    fn quiet_near(
        &self,
        site: Site,
        is_meant: impl Fn(usize, usize) -> bool + Copy,
        progress: impl Fn() -> bool + Copy,
    ) -> Result<(), Aborted> {
        let mail = &self.node.mail;
        let next = || self.outlet.not_quiet.borrow().iter().rfind(|&&(net, to)| is_meant(net, to)).copied();
        // What is served meanwhile may send more; it is waited for too. And it may wait for the same: so nothing leaves the list before it is quiet.
        while let Some((net, to)) = next() {
            let route = &self.outlet.routes[net][to];
            let is_quiet = || {
                route.listed.set(false);
                let mut all = self.outlet.not_quiet.borrow_mut();
                all.iter().rposition(|&one| one == (net, to)).map(|i| all.swap_remove(i));
            };
            let account = mail.peers[to].account(net, self.near);
            if route.credit.is_still_quiet() || route.credit.is_quiet_at_first(account, route.got()) {
                is_quiet();
                continue;
            }
            let (looked, eager, asked) = (Cell::new(false), Cell::new(false), Cell::new(false));
            // Answers first, of which this rank knows by itself. The first look is never the last before a sleep, so the
            // target is not troubled by it.
            let look = || {
                let first = !looked.replace(true);
                if route.credit.is_answered(route.got()) {
                    return Step::Done;
                }
                if progress() {
                    // What was served may have waited for the same, and asked no more.
                    eager.set(false);
                    return Step::Busy;
                }
                if first {
                    return Step::Idle;
                }
                if !eager.replace(true) {
                    asked.set(true);
                    account.set_eager(true);
                    full_fence();
                }
                Step::done(route.credit.is_quiet(account, route.got()))
            };
            let waited = self.waiter.until(|| site, look);
            if asked.get() {
                account.set_eager(false);
            }
            waited?;
            is_quiet();
        }
        Ok(())
    }

    /// Is it known, without a look at others, that there is nothing to be waited for?
    #[inline(always)]
    pub fn is_quiet(&self) -> bool {
        self.far.is_none() && self.outlet.not_quiet.borrow().is_empty()
    }

    /// This rank's side of the network, if there is one.
    pub(crate) fn far(&self) -> Option<&ofi::Seat> {
        self.far.as_ref()
    }

    /// Puts and gets that went to other nodes.
    pub fn far_transfers(&self) -> (u64, u64) {
        self.far.as_ref().map_or((0, 0), |far| far.transfers())
    }

    /// How often messages to other nodes found too few credits, and how often some were asked for.
    pub fn far_stalls(&self) -> (u64, u64) {
        self.far.as_ref().map_or((0, 0), |far| far.stalls())
    }

    /// Signals to other nodes, by their way.
    pub fn far_signals(&self) -> ofi::signal::Counts {
        self.far.as_ref().map_or_else(Default::default, |far| far.signals())
    }

    /// Is this place on another node?
    #[inline]
    pub fn is_far(&self, at: At) -> bool {
        self.outlet.near.get(at.rank as usize).is_some_and(|&near| near == FAR)
    }
}

impl Node {
    /// Bytes that messages of other nodes may take in this process, the most that they have, and how many came that were not of this job.
    pub fn far_memory(&self) -> (u64, u64, u64) {
        self.net().map_or((0, 0, 0), |net| (net.memory().0, net.memory().1, net.strays()))
    }
}

impl Conduit for Seat {
    fn ranks(&self) -> usize {
        self.node.ranks.count()
    }

    fn half_len(&self, half: Half) -> u64 {
        self.node.table(half).len()
    }

    #[inline(always)]
    fn request<A: Pod>(&self, site: Site, to: u32, handler: u16, args: &A, payload: &[u8]) -> Result<(), Aborted> {
        let args = bytes_of(args);
        if self.try_request(to as usize, handler, args, payload) {
            return Ok(());
        }
        let sent = || self.try_request(to as usize, handler, args, payload);
        self.wait(site, sent)
    }

    #[inline(always)]
    fn progress(&self) -> bool {
        self.serve_messages()
    }

    fn wait(&self, site: Site, done: impl Fn() -> bool + Copy) -> Result<(), Aborted> {
        let look = || match done() {
            true => Step::Done,
            false if self.serve_messages() => Step::Busy,
            false => Step::Idle,
        };
        self.waiter.until(|| site, look)
    }

    fn landing(&self) -> &Landing {
        self.node.landing(self.rank)
    }

    fn quiet_to(&self, site: Site, rank: u32) -> Result<(), Aborted> {
        match self.node.ranks().near(rank as usize) {
            near if near == FAR as usize => self.quiet_far_messages(site),
            near => self.quiet_near(site, |net, to| net == AM && to == near, || Conduit::progress(self)),
        }
    }

    fn signal_bits(&self) -> u32 {
        self.node.net().map_or(NUMBER_BITS, |net| net.signal_bits())
    }

    fn put(&self, site: Site, at: At, src: &[u8]) -> Result<(), Failure> {
        match self.is_far(at) {
            true => ofi::rma::put(self, site, at, src),
            false => {
                let (reach, at) = self.node.half(at);
                Ok(reach.write(at, src)?)
            }
        }
    }

    fn get(&self, site: Site, at: At, dst: &mut [u8]) -> Result<(), Failure> {
        match self.is_far(at) {
            true => ofi::rma::get(self, site, at, dst),
            false => {
                let (reach, at) = self.node.half(at);
                Ok(reach.read(at, dst)?)
            }
        }
    }

    /// Elsewhere by a message: a word has one arbiter, a CPU of its node.
    fn atomic(&self, site: Site, at: At, what: Atomic) -> Result<u64, Failure> {
        if self.is_far(at) {
            return reference::atomic(self, site, at, what);
        }
        let (reach, at) = self.node.half(at);
        let outside = || reach.check(at, what.width.into()).err();
        reach.atomic(at, what).ok_or_else(|| outside().map_or(Failure::NotAWord, Failure::Outside))
    }

    fn signal(&self, site: Site, at: At, src: &[u8], notice: Notice) -> Result<(), Failure> {
        match self.is_far(at) {
            true => ofi::signal::signal(self, site, at, src, notice),
            false => reference::signal(self, site, at, src, notice),
        }
    }
}

/// The same rank with the Core of its conduit only: everything else goes by messages.
#[derive(Debug, Clone, Copy)]
pub struct Reference<'s>(pub &'s Seat);

impl Conduit for Reference<'_> {
    fn ranks(&self) -> usize {
        self.0.ranks()
    }
    fn quiet_to(&self, site: Site, rank: u32) -> Result<(), Aborted> {
        self.0.quiet_to(site, rank)
    }
    fn signal_bits(&self) -> u32 {
        self.0.signal_bits()
    }
    fn half_len(&self, half: Half) -> u64 {
        self.0.half_len(half)
    }
    fn request<A: Pod>(&self, site: Site, to: u32, handler: u16, args: &A, payload: &[u8]) -> Result<(), Aborted> {
        self.0.request(site, to, handler, args, payload)
    }
    fn progress(&self) -> bool {
        self.0.progress()
    }
    fn wait(&self, site: Site, done: impl Fn() -> bool + Copy) -> Result<(), Aborted> {
        self.0.wait(site, done)
    }
    fn landing(&self) -> &Landing {
        self.0.landing()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shm::progress::{DRAIN, MOST_KEPT};
    use crate::shm::tests::{Alone, config};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicU64;
    use std::sync::{Arc, Mutex};

    /// Counts what it gets in the target's memory at 4096, and replies where it is asked to.
    struct Count;
    impl Handler for Count {
        fn run(&self, arrival: &Arrival<'_>) {
            let ([n, reply], payload) = arrival.open::<[u64; 2]>();
            let at = At { rank: arrival.target() as u32, offset: 4096 };
            let sum = n + payload.iter().map(|&b| u64::from(b)).sum::<u64>();
            arrival.reach().atomic(at, Atomic::on_u64(crate::word::Op::Add, sum)).unwrap();
            if reply != 0 {
                arrival.reply(OURS + 1, &[n, 0], payload);
            }
        }
    }
    static COUNT: Count = Count;
    const OURS: u16 = reference::HANDLERS;
    const SITE: fn() -> Site = || Site::here("test");

    fn pair() -> (Arc<Node>, Seat, Seat) {
        let node = Arc::new(Node::attach(&config(2), &mut Alone).unwrap());
        let set = |number| node.set_handler(number, &COUNT);
        assert!(set(OURS) && set(OURS + 1) && set(OURS));
        let (a, b) = (node.seat(0), node.seat(1));
        (node, a, b)
    }

    fn counted(node: &Node, rank: u32) -> u64 {
        node.reach().get(At { rank, offset: 4096 }).unwrap()
    }

    /// Both ranks are of one process here, so that what goes through queues is sent by hand.
    fn send(seat: &Seat, to: usize, n: u64, reply: bool, payload: &[u8]) -> bool {
        seat.try_send(AM, to, OURS, bytes_of(&[n, u64::from(reply)]), payload)
    }

    #[test]
    fn messages_go_through_queues_and_in_line() {
        let (node, a, b) = pair();
        let mut want = [0, 0];
        for len in [0, 1, 8, 40, 41, 48, 56, 57, 4096, 4097, pool::LARGE] {
            let payload = vec![1; len];
            for reply in [false, true] {
                assert!(a.try_request(1, OURS, bytes_of(&[5, u64::from(reply)]), &payload));
                assert!(send(&a, 1, 7, reply, &payload) && node.serve(1, true) > 0);
                assert_eq!(node.serve(0, true) > 0, reply);
                want[1] += 12 + 2 * len as u64;
                want[0] += if reply { 12 + 2 * len as u64 } else { 0 };
                assert_eq!([counted(&node, 0), counted(&node, 1)], want, "{len} bytes");
            }
        }
        assert!(a.quiet(SITE(), || false).is_ok() && b.quiet(SITE(), || false).is_ok());
        assert_eq!(a.sent(), Sent { in_line: 22, queued: 22, far: 0 });
    }

    #[test]
    fn a_flood_stops_at_the_window_and_goes_on() {
        let (node, a, _b) = pair();
        let mut sent = 0;
        while send(&a, 1, 1, false, &[]) {
            sent += 1;
        }
        assert_eq!(sent, 512);
        while node.serve(1, true) > 0 {}
        assert!(send(&a, 1, 1, false, &[]));
        // Payloads stop at the buffers, which come back.
        let mut with = 0;
        while send(&a, 1, 0, true, &[1; 1000]) {
            with += 1;
        }
        assert_eq!(with, 40);
        // As many replies as there are buffers for, and the rest kept; then all of them.
        while node.serve(1, true) > 0 {}
        for _ in 0..20 {
            while send(&a, 1, 0, true, &[1; 1000]) {
                with += 1;
            }
            while node.serve(1, true) > 0 {}
        }
        let kept = node.mail.letterbox(1).kept_count[AM].load(Relaxed);
        assert!((1..=MOST_KEPT + DRAIN).contains(&kept), "{kept} replies are kept");
        while node.serve(0, true) + node.serve(1, true) > 0 {}
        assert_eq!(node.mail.letterbox(1).kept_count[AM].load(Relaxed), 0);
        assert!(a.quiet(SITE(), || false).is_ok());
        assert_eq!([counted(&node, 0), counted(&node, 1)], [1000 * with, 513 + 1000 * with]);
    }

    /// What is served meanwhile waits for the same if it has to, and is not told that there is nothing.
    #[test]
    fn what_is_waited_for_is_not_quiet() {
        let (node, a, _b) = pair();
        assert!(send(&a, 1, 1, false, &[]) && !a.is_quiet());
        let (times, inner) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        let serve = || {
            times.set(times.get() + 1);
            if times.get() == 3 {
                assert!(!a.is_quiet() && counted(&node, 1) == 0);
                let nested = || {
                    inner.set(inner.get() + 1);
                    inner.get() == 2 && node.serve(1, true) > 0
                };
                assert!(a.quiet(SITE(), nested).is_ok() && counted(&node, 1) == 1 && a.is_quiet());
                assert!(send(&a, 1, 1, false, &[]) && !a.is_quiet());
            }
            times.get() == 6 && node.serve(1, true) > 0
        };
        assert!(a.quiet(SITE(), serve).is_ok() && a.is_quiet());
        assert!(counted(&node, 1) == 2 && inner.get() >= 2);
    }

    /// What every conduit promises of memory, by copies and by messages.
    fn memory(c: &impl Conduit) {
        use crate::word::{Kind, Op, Order};
        let at = |rank, offset| At { rank, offset };
        for (len, offset) in [(0, 4096), (1, 5001), (2, 5002), (8, 5008), (9, 5003), (70_000, 8192), (200_001, 300_001)]
        {
            for rank in 0..c.ranks() as u32 {
                let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + rank as usize) as u8).collect();
                let mut back = vec![0; len];
                assert_eq!(c.put(SITE(), at(rank, offset), &bytes), Ok(()));
                assert_eq!(c.get(SITE(), at(rank, offset), &mut back), Ok(()));
                assert!(bytes == back, "{len} bytes");
            }
        }
        for bad in [at(9, 4096), at(0, 0), at(0, 4095), at(1, c.half_len(Half::Open) - 7), at(1, u64::MAX)] {
            assert!(matches!(c.put(SITE(), bad, &[1; 8]), Err(Failure::Outside(_))), "{bad:?}");
            assert!(matches!(c.get(SITE(), bad, &mut [1; 8]), Err(Failure::Outside(_))), "{bad:?}");
            let load = Atomic::on_u64(Op::Load, 0);
            assert!(matches!(c.atomic(SITE(), bad, load), Err(Failure::Outside(_))), "{bad:?}");
        }
        let mut word = u64::MAX - 4;
        assert_eq!(c.put(SITE(), at(1, 4104), &word.to_ne_bytes()), Ok(()));
        let mut expect = |op, kind, x, expected, new: u64| {
            for order in [Order::Relaxed, Order::Both, Order::Strict] {
                let what = Atomic { op, kind, width: 8, order, operand: x, expected };
                // Without a change first, so that all orders find the same.
                let load = Atomic { op: Op::Load, ..what };
                assert_eq!(c.atomic(SITE(), at(1, 4104), load), Ok(word), "{op:?}");
                let old = if op == Op::Store { 0 } else { word };
                assert_eq!(c.atomic(SITE(), at(1, 4104), what), Ok(old), "{op:?}");
                assert_eq!(c.atomic(SITE(), at(1, 4104), load), Ok(new), "{op:?}");
                assert_eq!(c.put(SITE(), at(1, 4104), &word.to_ne_bytes()), Ok(()));
            }
            assert_eq!(c.put(SITE(), at(1, 4104), &new.to_ne_bytes()), Ok(()));
            word = new;
        };
        let (unsigned, signed, float) = (Kind::Unsigned, Kind::Signed, Kind::Float);
        expect(Op::Add, unsigned, 10, 0, 5);
        expect(Op::Swap, unsigned, 12, 0, 12);
        expect(Op::CompareExchange, unsigned, 1, 2, 12);
        expect(Op::CompareExchange, unsigned, 6, 12, 6);
        expect(Op::And, unsigned, 3, 0, 2);
        expect(Op::Or, unsigned, 8, 0, 10);
        expect(Op::Xor, unsigned, 2, 0, 8);
        expect(Op::Min, unsigned, 9, 0, 8);
        expect(Op::Max, unsigned, 9, 0, 9);
        expect(Op::Mul, unsigned, 1 << 63 | 3, 0, 1 << 63 | 27);
        expect(Op::Store, unsigned, 9, 0, 9);
        expect(Op::Min, signed, -3i64 as u64, 0, -3i64 as u64);
        expect(Op::Mul, signed, -7i64 as u64, 0, 21);
        expect(Op::Max, signed, -4i64 as u64, 0, 21);
        let f = f64::to_bits;
        expect(Op::Store, float, f(-1.5), 0, f(-1.5));
        expect(Op::Add, float, f(4.0), 0, f(2.5));
        expect(Op::Mul, float, f(-2.0), 0, f(-5.0));
        expect(Op::Min, float, f(-4.0), 0, f(-5.0));
        expect(Op::Max, float, f(f64::NAN), 0, f(-5.0));
        expect(Op::Max, float, f(0.5), 0, f(0.5));
        expect(Op::CompareExchange, float, f(0.0), f(0.5), f(0.0));
        expect(Op::CompareExchange, float, f(1.0), f(-0.0), f(0.0));
        let narrow = |op, kind, operand: u32| {
            let what = Atomic { op, kind, width: 4, order: Order::Both, operand: operand.into(), expected: 0 };
            c.atomic(SITE(), at(1, 4104), what)
        };
        assert_eq!(narrow(Op::Store, unsigned, 4), Ok(0));
        assert_eq!(narrow(Op::Add, unsigned, u32::MAX), Ok(4));
        assert_eq!(narrow(Op::Mul, signed, -2i32 as u32), Ok(3));
        assert_eq!(narrow(Op::Min, unsigned, 7), Ok(-6i32 as u32 as u64));
        assert_eq!(narrow(Op::Swap, float, 1.5f32.to_bits()), Ok(7));
        assert_eq!(narrow(Op::Add, float, 0.5f32.to_bits()), Ok(1.5f32.to_bits().into()));
        assert_eq!(narrow(Op::Load, float, 0), Ok(2.0f32.to_bits().into()));
        let crooked = Atomic { width: 4, ..Atomic::on_u64(Op::Load, 0) };
        assert_eq!(c.atomic(SITE(), at(1, 4105), crooked), Err(Failure::NotAWord));
    }

    #[test]
    fn only_atomics_that_there_are_travel() {
        use crate::word::Op;
        let good = Atomic::on_u64(Op::Xor, 3).encode();
        assert_eq!(Atomic::decode(good), Some(Atomic::on_u64(Op::Xor, 3)));
        for byte in 0..8 {
            let bad = [good[0] | 0xf0 << (8 * byte), good[1], good[2]];
            assert_eq!(Atomic::decode(bad), None, "{byte}");
        }
        assert_eq!(Atomic::decode([good[0] | 2 << 8, 0, 0]), None, "bits of floats");
    }

    #[test]
    fn memory_by_copies_and_by_messages() {
        let (_node, a, _b) = pair();
        memory(&a);
        assert_eq!(a.sent(), Sent::default());
        memory(&Reference(&a));
        assert!(a.sent().in_line > 50);
    }

    #[test]
    fn letters_are_for_their_rank() {
        let (node, a, b) = pair();
        assert!(
            a.try_call(1, 3, &[1u64, 2], b"hello") && a.try_call(1, 4, &(), &[7; 5000]) && a.try_call(0, 5, &(), &[])
        );
        assert!(a.next_letter(true).is_none() && b.next_letter(true).is_none());
        let first = b.next_letter(false).unwrap();
        let (caller, kind) = (first.caller(), first.kind());
        assert_eq!((caller.rank, kind, first.open::<[u64; 2]>()), (0, 3, ([1, 2], &b"hello"[..])));
        drop(first);
        b.send_result(caller, 9, &77u64, b"done");
        let second = b.next_letter(false).unwrap();
        assert_eq!((second.kind(), second.open::<()>().1), (4, &[7; 5000][..]));
        let caller = second.caller();
        drop(second);
        b.call_ended(caller);
        let own = a.next_letter(false).unwrap();
        assert_eq!((own.caller().rank, own.kind()), (0, 5));
        a.call_ended(own.caller());
        let result = a.next_letter(true).unwrap();
        let caller = result.caller();
        assert_eq!((caller.rank, result.kind(), result.open::<u64>()), (1, 9, (77, &b"done"[..])));
        drop(result);
        assert!(!a.is_quiet_to(1) && node.mail.letterbox(0).got[CALL][1].count() == 0);
        a.result_ended(caller);
        assert!(a.quiet(SITE(), || false).is_ok() && b.next_letter(false).is_none());
    }

    #[test]
    fn pieces_arrive_in_any_order_and_only_whole() {
        let landing = Landing::default();
        let piece = |offset, total| crate::am::Piece { key: 3, offset, total };
        assert!(landing.add_piece(1, piece(4, 6), b"ef") && landing.take_whole(1, 3).is_none());
        assert!(landing.add_piece(1, piece(0, 6), b"abcd") && landing.take_whole(2, 3).is_none());
        assert!(!landing.add_piece(1, piece(5, 6), b"xy") && !landing.add_piece(1, piece(0, 7), b"x"));
        assert_eq!(landing.take_whole(1, 3).as_deref(), Some(&b"abcdef"[..]));
        assert!(
            !landing.add_piece(1, piece(u64::MAX, u64::MAX), b"x")
                && !landing.add_piece(1, piece(1 << 40, 1 << 41), b"x")
        );
    }

    /// Lists of runs from nowhere are written or refused whole.
    #[test]
    fn runs_that_lie_outside_are_refused_and_nothing_is_written() {
        use crate::runs::{Group, List};
        let (node, a, _b) = pair();
        let run = |offset, len, count, stride| Group { offset, len, count, stride };
        let send = |half: u64, groups: &[Group], data: usize, extra: &[u8]| {
            let mut list = List::default();
            groups.iter().for_each(|&group| list.add(group));
            let payload = [&vec![7; data][..], &list.finish(), extra].concat();
            let slot = a.landing().answers.take(1);
            let args = [half, u64::from(slot), data as u64];
            let put = || a.try_request(1, reference::PUT_RUNS, bytes_of(&args), &payload);
            let sent = catch_unwind(AssertUnwindSafe(put));
            let why = sent.map_err(|why| why.downcast_ref::<String>().cloned().unwrap_or_default());
            assert!(why.as_ref().is_ok_and(|&sent| sent) == a.landing().answers.is_done(slot));
            why
        };
        let place = |offset| node.reach().get::<u8>(At { rank: 1, offset }).unwrap();
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let (good, end) = (run(5000, 2, 3, 10), node.table(Half::Open).len());
        let refused = [
            send(0, &[good, run(100, 1, 1, 0)], 7, &[]),
            send(0, &[good, run(end - 10, 2, 2, 9)], 10, &[]),
            send(0, &[good, run(crate::contract::GUARDED + 5000, 1, 1, 0)], 7, &[]),
            send(1 << 50, &[good], 6, &[]),
            send(0, &[good], 5, &[]),
            send(0, &[good], 7, &[]),
            send(0, &[good], 6, &[0x80]),
            send(0, &[good], 6, &[0, 0]),
        ];
        let far = [u64::MAX; 3];
        let beyond = catch_unwind(AssertUnwindSafe(|| a.try_request(1, reference::PUT_RUNS, bytes_of(&far), &[1, 2])));
        let asked = |list: &[u8]| a.try_request(1, reference::GET_RUNS, bytes_of(&[0u64; 3]), list);
        // 100,000 bytes, which are more than an answer has.
        let mut list = List::default();
        list.add(run(5000, 1000, 100, 10));
        let much = catch_unwind(AssertUnwindSafe(|| asked(&list.finish())));
        std::panic::set_hook(hook);
        for why in refused {
            assert!(why.is_err_and(|why| why.contains("cannot be understood")));
        }
        assert!(beyond.is_err() && much.is_err());
        assert!((5000..5030).all(|offset| place(offset) == 0), "nothing was written");
        assert_eq!(send(0, &[good], 6, &[]), Ok(true));
        assert!((5000..5030).all(|offset| place(offset) == if offset % 10 < 2 { 7 } else { 0 }));
    }

    /// Whatever bits a slot has, serving it runs a handler or panics with words; nothing else breaks.
    #[test]
    fn slots_of_any_bits_are_understood_or_refused() {
        static SEED: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
        let random = || {
            let mut x = SEED.load(Relaxed);
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            SEED.store(x, Relaxed);
            x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 7
        };
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let mut refused = 0;
        for i in 0..if cfg!(debug_assertions) { 3_000 } else { 100_000 } {
            // A new node now and then: a message with a forged source leaves counts behind.
            static NODE: Mutex<Option<(Arc<Node>, u64)>> = Mutex::new(None);
            let mut held = NODE.lock().unwrap_or_else(PoisonError::into_inner);
            if held.as_ref().is_none_or(|h| h.1 + 500 < i) {
                *held = Some((pair().0, i));
            }
            let node = held.as_ref().unwrap().0.clone();
            drop(held);
            let small = |n: u64| if random() % 4 == 0 { random() } else { random() % n };
            let (source, handler) = (small(3) as usize & 0xffff, small(28) as u16 & 1023);
            let length = (random() % 64) as usize;
            let words = std::array::from_fn(|_| match random() % 4 {
                0 => random() << 7,
                1 => random() % 70_000,
                2 => ((random() % 800_000) << 32) | (random() % 70_000),
                _ => 4096 + random() % 5000,
            });
            let ring = &node.mail.peers[0];
            let ring = if random() % 2 == 0 { &ring.requests[AM] } else { &ring.replies[AM] };
            ring.push(Head::new(source, handler, length), &words, WORDS);
            let served = catch_unwind(AssertUnwindSafe(|| node.serve(0, true)));
            if let Err(why) = served {
                let text = why.downcast_ref::<String>().cloned().unwrap_or_default();
                assert!(text.contains("rank ") || text.contains("answered once"), "{text:?}");
                refused += 1;
            }
        }
        std::panic::set_hook(hook);
        assert!(refused > 100, "{refused} were refused");
    }
}
