//! Atomics that the network does itself: for domains of words on which nobody else acts.
//!
//! They have an endpoint of their own ([`Atomics`]), opened when a domain is first made, with the memory and the completion
//! queue of the other: puts, gets and messages are what they are without. A process's own words and those of its node go by
//! that endpoint too, so that each word has one arbiter. Where the endpoint of another process is, is asked of that process by
//! a message, once: of those of the node when the domain is made and all ranks wait ([`meet_neighbors`]), since messages
//! between them are taken by ranks, and a rank may compute for long; of others at the first operation, since the network's
//! thread answers. What a neighbour's memory is called is read where it is written ([`crate::ledger`]).
//!
//! An operation has a token as puts and gets have; its operands and the old value lie in the token, which outlives it. When
//! it completes, whoever reads that answers a slot of the rank's [`Answers`](crate::answers::Answers) with the old value.
//! All fetch: those complete when they have been done, and others earlier.
//!
//! # Memory ordering
//! What its rank wrote to memory of its node is seen before the operation: a full fence comes before it is posted, unless it
//! is relaxed. The old value is written by the provider before the completion is read; the answer releases it, and the rank
//! acquires it. A strict one is posted when all that its rank has started is complete (its caller sees to that), and is
//! complete before the rank goes on, so strict ones have one order.
//!
//! It does not contain who decides that a domain is one of the network, and what becomes of the others.

use super::Net;
use super::endpoint::{Atomics, Operands, Peer};
use super::segment;
use crate::am::{Arrival, Handler};
use crate::contract::{At, Conduit, Failure};
use crate::record::Site;
use crate::reference::{DATA, NATIVE, Question};
use crate::shm;
use crate::sync::full_fence;
use crate::word::{Atomic, Kind, Op, Order};
use std::sync::{OnceLock, PoisonError};

/// The longest name of an endpoint.
const NAME: usize = 512;

/// The endpoint for atomics, when it has been asked for, and those of others, when they have been.
#[derive(Debug)]
pub(super) struct Native {
    own: OnceLock<Result<Atomics, String>>,
    /// By process.
    peers: Box<[OnceLock<Peer>]>,
}

impl Native {
    pub fn new(processes: usize) -> Native {
        Native { own: OnceLock::new(), peers: (0..processes).map(|_| OnceLock::new()).collect() }
    }
}

/// Can this process's network do these on words of this kind? From then on it serves others'. Says why not.
pub fn is_valid(seat: &shm::Seat, ops: &[Op], kind: Kind, width: u8) -> Result<(), String> {
    let net = seat.node().net().ok_or("the job has one node, and no network")?;
    let open = || {
        // Nobody reads the queue meanwhile: that would serve an endpoint that is not open yet.
        let _reading = net.reading.lock().unwrap_or_else(PoisonError::into_inner);
        Atomics::open(&net.endpoint)
    };
    let own = net.native.own.get_or_init(open).as_ref().map_err(String::clone)?;
    match ops.iter().find(|&&op| !own.is_valid(op, kind, width)) {
        None => Ok(()),
        Some(op) => Err(format!("{} does not do {op:?} on {width} bytes", net.endpoint.provider())),
    }
}

/// Starts an atomic of the network; its old value answers the slot, which was taken for it. [`is_valid`] has said that all
/// processes can.
pub fn start(seat: &shm::Seat, site: Site, at: At, what: Atomic, slot: u32) -> Result<(), Failure> {
    if !at.offset.is_multiple_of(what.width.into()) {
        return Err(Failure::NotAWord);
    }
    segment::check(seat, site, at, what.width.into())?;
    let (far, net) = seat.beyond();
    let ranks = seat.node().ranks();
    let process = ranks.place(at.rank as usize).0;
    let peer = peer(seat, site, net, at.rank, process)?;
    let Some(Ok(own)) = net.native.own.get() else { unreachable!("a domain of the network has opened it") };
    let (remote, desc) = (net.remote(at).0, net.ops[far.i].words_desc());
    let word = |value: u64| match what.width {
        4 => {
            let [a, b, c, d] = (value as u32).to_ne_bytes();
            [a, b, c, d, 0, 0, 0, 0]
        }
        _ => value.to_ne_bytes(),
    };
    let words = Operands { operand: word(what.operand), expected: word(what.expected), old: [0; 8] };
    if what.order != Order::Relaxed {
        full_fence();
    }
    let post = || {
        far.try_post(net, process, what.width.into(), |op| {
            // SAFETY: an operation that is busy and not posted: context and words are ours, and the network's until it has
            // completed.
            unsafe { own.start(peer, remote, &what, (op.answers(slot, what.width, words), desc), op.context()) }
        })
    };
    if !post() {
        seat.wait(site, post)?;
    }
    Ok(())
}

/// The endpoint for atomics of the process that has this rank.
fn peer(seat: &shm::Seat, site: Site, net: &Net, rank: u32, process: usize) -> Result<Peer, Failure> {
    match net.native.peers[process].get() {
        Some(&peer) => Ok(peer),
        None => ask_for_peer(seat, site, net, rank, process),
    }
}

/// Asks the other processes of this node where their endpoints are, as far as that is not known. All ranks are in the call
/// that makes a domain, and wait for all once more after this.
pub fn meet_neighbors(seat: &shm::Seat, site: Site) -> Result<(), Failure> {
    let ranks = seat.node().ranks();
    let (far, net) = seat.beyond();
    // One rank of a process asks for all of it, itself included.
    if far.i == 0 {
        for &rank in ranks.members() {
            if let (process, 0) = ranks.place(rank as usize) {
                peer(seat, site, net, rank, process)?;
            }
        }
    }
    Ok(())
}

#[cold]
fn ask_for_peer(seat: &shm::Seat, site: Site, net: &Net, rank: u32, process: usize) -> Result<Peer, Failure> {
    let mut name = [0; NAME];
    // SAFETY: dropped before the name is read.
    let asked = unsafe { Question::with_bytes(seat, 1, &raw mut name[..]) };
    seat.request(site, rank, NATIVE, &u64::from(asked.slot), &[])?;
    asked.wait(seat, site)?;
    let len = (asked.value() as usize).min(NAME);
    drop(asked);
    // Two ranks may ask at a time; either's will do.
    let peer = net.endpoint.insert(&name[..len]);
    let me = seat.beyond().0.rank;
    let peer = peer.unwrap_or_else(|why| panic!("rank {me}: {site}: atomics with rank {rank}: {why}"));
    Ok(*net.native.peers[process].get_or_init(|| peer))
}

pub(crate) struct OnNative;
impl Handler for OnNative {
    fn run(&self, arrival: &Arrival<'_>) {
        let (slot, _) = arrival.open::<u64>();
        let own = arrival.node().net().and_then(|net| net.native.own.get()).and_then(|own| own.as_ref().ok());
        arrival.reply(DATA, &[slot, 0], own.map_or(&[], Atomics::name));
    }
}
