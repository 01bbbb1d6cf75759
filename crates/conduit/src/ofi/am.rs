//! Messages between nodes: short ones injected, longer ones sent from a bounce buffer, each received into a buffer of its
//! own. (Buffers that take many messages were tried: with libfabric 1.17 messages of several processes overwrite each other
//! in them, see docs/decisions.md.)
//!
//! # Credits, and what is kept
//! A message has credits (`ends`), so that a target is not asked to keep more than it has said it would; what finds no room
//! in the network, and may not wait for it, is kept (`kept`).
//!
//! # Order
//! libfabric begins to receive what one endpoint sends another in order, but long messages may be complete later than short
//! ones that came after them. So requests and calls are numbered by their sources. They are taken by the thread that has
//! read the completion queue, before another may read it: calls go into their rank's queue, and what came too early is
//! kept until the others have come. Handlers run after that, possibly at the same time as later ones.

mod buffers;
mod ends;
mod kept;
mod wire;

use super::endpoint::Posted;
use super::letters::FarLetter;
use super::{Net, Seat};
use crate::am::{ARGS, Arrival, Body, Way};
use crate::credits::{Cost, MOST, UNIT};
use crate::meeting::{Digest, ROUNDS};
use crate::pool::LARGE;
use crate::ranks::Ranks;
use crate::shm::Node;
use crate::shm::mail::{AM, CALL};
pub(super) use buffers::{BOUNCES, BUFFERS, Bounce, Buffer, OF_BOUNCE, OF_BUFFER, OF_OP, POSTING};
use bytemuck::bytes_of;
use ends::whose;
pub(super) use ends::{Account, Desk, UNTOLD};
pub use kept::KEPT;
pub(super) use kept::Kept;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::*;
use wire::{CALLED, CREDIT, ENDED, HELLO, HELLO_BACK, Head, MEET, REPLY, REQUEST, RESULT, Wire};
pub(super) use wire::{Message, RANKS};

/// The longest message.
pub const LONGEST: usize = size_of::<Wire>() + size_of::<u64>() + ARGS + LARGE;
const _: () = assert!(LONGEST - size_of::<u64>() <= UNIT * MOST as usize);
/// Longer ones are not injected whatever the provider takes.
const INJECTED: usize = 128;

/// More messages of a source cannot be under way to a process.
const MOST_EARLY: u32 = 1 << 24;

/// Messages that have come before others that were sent earlier, by source, net and number.
pub(super) type Early = BTreeMap<(u32, usize, u32), Vec<u8>>;

impl Net {
    fn head(&self, kind: u8, source: usize, target: usize, handler: u16) -> Head {
        let (source, target) = (source as u32, target as u32);
        Head { source, target, handler, kind, ..Head::default() }
    }

    /// Sends a message if there is room.
    fn post(&self, process: usize, head: Head, args: &[u8], payload: &[u8]) -> bool {
        assert!(args.len() <= ARGS && payload.len() <= LARGE, "{} bytes in a message", payload.len());
        let head = Head { args: args.len() as u8, payload: payload.len() as u32, ..head };
        let first = head.len();
        let from = first + args.len().next_multiple_of(8);
        let len = (from + payload.len()).next_multiple_of(8);
        let fill = |bytes: &mut [u8]| {
            bytes[..size_of::<Wire>()].copy_from_slice(bytes_of(&head.to_wire(self.nonce)));
            if let Some(ended) = head.ended {
                bytes[size_of::<Wire>()..first].copy_from_slice(bytes_of(&u64::from(ended)));
            }
            bytes[first..][..args.len()].copy_from_slice(args);
            bytes[from..][..payload.len()].copy_from_slice(payload);
        };
        let peer = self.peers[process].expect("a process of another node");
        let posted = if len <= self.endpoint.injects().min(INJECTED) {
            let mut bytes = [0; INJECTED];
            fill(&mut bytes);
            self.endpoint.inject(peer, &bytes[..len])
        } else {
            let Some(bounce) = self.take_bounce() else {
                self.hungry.store(true, Relaxed);
                return false;
            };
            bounce.process.store(process as u32, Relaxed);
            // SAFETY: taken just now: nobody else uses it, and the network only until `sent`, or not at all if it is not
            // accepted. It stays as long as the endpoint, as receive buffers do.
            let posted = unsafe {
                let memory: &mut [u64] = &mut *bounce.memory.get();
                let bytes: &mut [u8] = bytemuck::cast_slice_mut(memory);
                fill(bytes);
                self.endpoint.send(peer, bytes.as_ptr(), len, bounce.desc, bounce.context.get())
            };
            if posted != Posted::Done {
                bounce.taken.store(false, Release);
            }
            posted
        };
        match posted {
            Posted::Done => true,
            Posted::Again => {
                self.hungry.store(true, Relaxed);
                false
            }
            Posted::Failed(why) => {
                self.broke(&format!("a message to {} was refused: {why}", self.addresses[process]));
                false
            }
        }
    }

    /// Is there anything that nobody has been able to send yet?
    pub(super) fn owes(&self) -> bool {
        let kept = self.kept_count.load(Relaxed) | self.aside_count.load(Relaxed);
        self.owing.is_any() || kept | self.idle_count.load(Relaxed) != 0
    }

    /// Tells the first process of another node of a barrier.
    pub(crate) fn tell_of_meeting(&self, process: usize, epoch: u64, round: usize, known: Digest) {
        // A rank without a tag goes with the round: it is all there is to say of most barriers.
        let args = [epoch, (round as u64) << 32 | u64::from(known.plain.map_or(0, |rank| rank + 1))];
        let words = known.to_words();
        let payload = if known.is_bare() { &[] } else { bytes_of(&words) };
        self.post_or_keep(process, self.head(MEET, self.first, 0, 0), bytes_of(&args), payload);
    }

    /// Greets a process; false if there is no room yet.
    pub(super) fn say_hello(&self, ranks: &Ranks, process: usize) -> bool {
        self.post(process, self.head(HELLO, ranks.mine().start, 0, 0), &[], &[])
    }

    /// A message in a receive buffer, taken apart; none if it is not of this job.
    pub(super) fn read_message<'m>(&self, ranks: &Ranks, bytes: &'m [u8]) -> Option<Message<'m>> {
        let message = Message::read(self.nonce, bytes).filter(|Message { head, .. }| {
            let far = |rank: u32| (rank as usize) < ranks.count() && !ranks.is_near(rank as usize);
            let for_one = head.kind <= ENDED || head.kind == CREDIT;
            far(head.source) && (!for_one || ranks.mine().contains(&(head.target as usize)))
        });
        match &message {
            Some(message) => self.heard.from(message.head.source as usize),
            None => _ = self.strays.fetch_add(1, Relaxed),
        }
        message
    }

    /// Is it this message's turn? If not it is kept.
    pub(super) fn is_next(&self, early: &mut Early, message: &Message<'_>) -> bool {
        let Some(net) = message.net() else { return true };
        let Head { source, number, .. } = message.head;
        let next = &self.accounts[source as usize].next[net];
        if next.load(Relaxed) != number {
            if number.wrapping_sub(next.load(Relaxed)) > MOST_EARLY {
                self.broke(&format!("a message of rank {source} has the number {number}, which is not its turn"));
                return false;
            }
            early.insert((source, net, number), message.to_bytes(self.nonce));
            return false;
        }
        next.store(number.wrapping_add(1), Relaxed);
        true
    }

    /// The message after this one, if it came early.
    pub(super) fn next_early(&self, early: &mut Early, message: &Message<'_>) -> Option<Vec<u8>> {
        if early.is_empty() {
            return None;
        }
        let net = message.net()?;
        let next = &self.accounts[message.head.source as usize].next[net];
        let bytes = early.remove(&(message.head.source, net, next.load(Relaxed)))?;
        next.store(next.load(Relaxed).wrapping_add(1), Relaxed);
        Some(bytes)
    }

    /// What must be done with a message before others may read the queue; the rest of it, if there is more to do.
    pub(super) fn take<'m>(&self, node: &Node, message: Message<'m>) -> Option<Message<'m>> {
        let Message { head, args, payload } = message;
        let (source, target) = (head.source as usize, head.target as usize);
        if let Some(net) = message.net() {
            self.was_sent(net, head);
        }
        match head.kind {
            CALLED | RESULT => {
                if head.kind == RESULT {
                    self.was_told(node.ranks(), CALL, target, source, head.number);
                }
                let (args, payload) = (args.to_vec(), payload.to_vec());
                let letter = FarLetter { source, cost: head.cost, kind: head.handler, args, payload };
                self.leave_letter(node, target, head.kind == RESULT, letter);
                None
            }
            _ => Some(message),
        }
    }

    /// Does what a message asks for.
    pub(super) fn handle(&self, node: &Node, Message { head, args, payload }: Message<'_>) {
        let ranks = node.ranks();
        let (source, target) = (head.source as usize, head.target as usize);
        match head.kind {
            REQUEST => {
                if !run(node, target, source, head.handler, args, payload, Way::Far(head.cost)) {
                    self.ended(AM, target, source, head.cost);
                }
                node.ring(ranks.near(target));
            }
            REPLY => {
                run(node, target, source, head.handler, args, payload, Way::None);
                self.was_told(ranks, AM, target, source, head.number);
                self.got(ranks, AM, target, (source, head.cost));
                node.ring(ranks.near(target));
            }
            ENDED => {
                self.hear_of_ends(ranks, head, args);
                node.ring(ranks.near(target));
            }
            CREDIT => self.hear_of_needs(head, args),
            MEET => {
                let Ok([epoch, round]) = bytemuck::try_pod_read_unaligned::<[u64; 2]>(args) else { return };
                let (round, plain) = ((round >> 32) as usize, (round as u32).checked_sub(1));
                let bare = Digest { aux: u64::MAX, plain, first: None, odd: None };
                let digest = match bytemuck::try_pod_read_unaligned::<[u64; 6]>(payload) {
                    Ok(words) => Digest::from_words(words),
                    Err(_) => bare,
                };
                if round < ROUNDS {
                    node.heard_of_meeting(epoch, round, digest);
                }
            }
            HELLO => {
                let head = self.head(HELLO_BACK, ranks.mine().start, 0, 0);
                self.post_or_keep(ranks.place(source).0, head, &[], &[]);
            }
            HELLO_BACK => self.greeted[ranks.place(source).0].store(true, Release),
            _ => {}
        }
    }

    /// What a request or call says besides, which is done as soon as it has come; the message without it.
    pub(super) fn hear<'m>(&self, node: &Node, mut message: Message<'m>) -> Message<'m> {
        let said = message.head.ended.take();
        // Of other kinds it is not known that their ranks are ones.
        if let Some(ended) = said.filter(|_| message.net().is_some()) {
            let (source, target) = (message.head.source as usize, message.head.target as usize);
            self.was_told(node.ranks(), AM, target, source, ended);
            node.ring(node.ranks().near(target));
        }
        message
    }
}

/// Runs a handler; true if it has replied.
pub(super) fn run(
    node: &Node,
    target: usize,
    source: usize,
    handler: u16,
    args: &[u8],
    payload: &[u8],
    way: Way,
) -> bool {
    // Payloads begin at a multiple of eight, as far as the provider keeps to what buffers and lengths suggest.
    let mut copy = vec![];
    let payload = match payload.as_ptr().addr().is_multiple_of(8) {
        true => payload,
        false => {
            copy.resize(payload.len().div_ceil(8), 0u64);
            let bytes = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut copy)[..payload.len()];
            bytes.copy_from_slice(payload);
            bytes
        }
    };
    let arrival = Arrival::new(node, target, source, Body::Here(args, payload), way);
    match node.handler(handler) {
        Some(handler) => handler.run(&arrival),
        None => arrival.bad(&format_args!("there is no handler {handler}")),
    }
    arrival.is_answered()
}

impl Node {
    /// Replies to a rank of another node.
    pub(crate) fn reply_far(&self, from: usize, to: (usize, Cost), handler: u16, args: &[u8], payload: &[u8]) {
        let net = self.net().expect("the request came by it");
        net.answer(self.ranks(), AM, from, to, handler, args, payload);
    }
}

impl Seat {
    /// Sends a request or a call to a rank of another node, if there is room.
    pub(crate) fn try_send(
        &self,
        net: &Net,
        ranks: &Ranks,
        (lane, to): (usize, usize),
        handler: u16,
        args: &[u8],
        payload: &[u8],
    ) -> bool {
        let (process, whose) = (ranks.place(to).0, whose(ranks, lane, to));
        let number = &self.numbers[lane][process];
        let cost = Cost::of(size_of::<Wire>() + args.len().next_multiple_of(8) + payload.len());
        if !self.takes(net, ranks, (lane, to), cost) {
            return false;
        }
        let (kind, wants) = (if lane == AM { REQUEST } else { CALLED }, self.wants[lane][whose].get());
        let head = Head { number: number.get(), wants, cost, ..net.head(kind, self.rank, to, handler) };
        if !net.post_with_ended(process, head, args, payload) {
            self.gives(net, ranks, (lane, to), cost);
            return false;
        }
        self.is_at_it(net);
        number.set(number.get().wrapping_add(1));
        self.wants[lane][whose].set(false);
        self.has_sent(net, ranks, (lane, to), cost);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::endpoint::{Asked, Endpoint};
    use super::super::{Hello, Settings};
    use super::*;

    /// Alone among two processes; the other is not there.
    pub(super) fn alone() -> Option<Net> {
        if let Err(why) = Endpoint::version() {
            println!("SKIPPED: {why}");
            return None;
        }
        let provider = std::env::var("PARTAGE_PROVIDER").ok();
        let asked = Asked { provider, source: Some("127.0.0.1".into()), ..Asked::default() };
        let hello = Hello { nonce: 1, serves: 1, memory: super::super::AM_MEMORY, lends: 1 };
        let ranks = Ranks::new(&[1, 1], &[0, 1], 0);
        let (peers, addresses) = (vec![None; 2], vec![String::new(); 2].into());
        Some(Net::new(
            Endpoint::open(&asked).unwrap(),
            peers,
            addresses,
            &[hello; 2],
            (&ranks, 1 << 30),
            Settings::default(),
        ))
    }

    /// Long messages may be complete after short ones that were sent later: whatever the order, each is taken in its turn, and once.
    #[test]
    fn messages_are_taken_in_the_order_in_which_they_were_sent() {
        let Some(net) = alone() else { return };
        let (ranks, mut seed) = (Ranks::new(&[1, 1], &[0, 1], 0), 99u64);
        let mut random = move |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % n
        };
        const EACH: u32 = 40;
        let mut early = Early::new();
        for round in 0..50 {
            let numbers = round * EACH..(round + 1) * EACH;
            let mut arriving: Vec<(u8, u32)> = numbers.clone().flat_map(|n| [(REQUEST, n), (CALLED, n)]).collect();
            let mut taken = [vec![], vec![]];
            while !arriving.is_empty() {
                let (kind, number) = arriving.swap_remove(random(arriving.len()));
                let payload = vec![number as u8; random(3000)];
                let head = Head { number, payload: payload.len() as u32, ..net.head(kind, 1, 0, 5) };
                let bytes = Message { head, args: &[], payload: &payload }.to_bytes(net.nonce);
                let message = net.read_message(&ranks, &bytes).unwrap();
                let mut take = |message: &Message<'_>| {
                    assert!(message.payload.iter().all(|&b| b == message.head.number as u8));
                    taken[message.net().unwrap()].push(message.head.number);
                };
                if net.is_next(&mut early, &message) {
                    take(&message);
                    while let Some(bytes) = net.next_early(&mut early, &message) {
                        take(&net.read_message(&ranks, &bytes).unwrap());
                    }
                }
            }
            assert!(early.is_empty());
            assert!(taken.iter().all(|t| t.iter().copied().eq(numbers.clone())), "{taken:?}");
        }
        // One that was taken before comes again.
        let bytes = Message { head: net.head(REQUEST, 1, 0, 5), args: &[], payload: &[] }.to_bytes(net.nonce);
        assert!(!net.is_next(&mut early, &net.read_message(&ranks, &bytes).unwrap()) && early.is_empty());
        assert!(net.why_broken().unwrap().contains("rank 1 has the number 0, which is not its turn"));
    }

    /// Nothing is read of what has not the secret, or is not between ranks that send each other messages.
    #[test]
    fn what_is_not_of_the_job_is_counted_and_dropped() {
        let Some(net) = alone() else { return };
        let ranks = Ranks::new(&[1, 1], &[0, 1], 0);
        let read = |nonce: u64, head: Head| {
            let bytes = Message { head, args: &[], payload: &[] }.to_bytes(nonce);
            net.read_message(&ranks, &bytes).is_some()
        };
        let good = net.head(REQUEST, 1, 0, 5);
        assert!(read(net.nonce, good) && net.strays() == 0);
        (0..64).for_each(|bit| assert!(!read(net.nonce ^ 1 << bit, good), "bit {bit}"));
        assert!(!read(net.nonce, Head { source: 0, ..good }) && !read(net.nonce, Head { source: 2, ..good }));
        assert!(!read(net.nonce, Head { target: 1, ..good }) && !read(net.nonce, Head { target: RANKS, ..good }));
        assert!(!read(net.nonce, Head { kind: CREDIT, target: 7, ..good }));
        assert_eq!(net.strays(), 69);
    }
}
