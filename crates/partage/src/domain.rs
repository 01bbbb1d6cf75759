//! Words on which the network itself may act: [`AtomicDomain`].
//!
//! Elsewhere an atomic is done by a CPU of the node that has the word. Some networks do atomics themselves, without a CPU
//! of the target; but then the CPU may not act on the same word at the same time, since neither sees the other's
//! operations as one. So words are put into a domain, by name, and everything that is done to them goes by it: by the network
//! for all ranks, those of the word's own node and process included, or by CPUs for all.
//!
//! [`is_native`](AtomicDomain::is_native) says which (UPC's `isfast`). It is the network if *every* process's network says
//! that it does every operation that was asked for; in a job on one node, and with `PARTAGE_REFERENCE=1`, it never is.
//! `PARTAGE_ATOMICS` decides otherwise. Programs are the same for both.
//!
//! # Rules
//! * What the words of a domain are is up to the program: those of which it makes places by [`at`](AtomicDomain::at).
//! * Words may be used otherwise (put, get, atomics, phases, another domain) while no rank uses the domain on them, with a
//!   barrier between. Whoever does both at a time finds values that mix; nothing else breaks.
//! * Orders are those of [`Place`]. What a rank has put before an operation of the domain is seen by whoever has read
//!   by the domain what it wrote; strict operations have one order with all other strict ones.
//! * A [batch](Job::batch) takes places of a domain; in a native one each is an operation of its own.
//! * In a native domain `min` and `max` of floats do what the network does where one of the two is not a number. All
//!   compare bits.
//!
//! ```
//! use partage::domain::Op;
//! use partage::prelude::*;
//! partage::test(4, |job| {
//!     let counts = job.array::<u64>(8).unwrap();
//!     let domain = job.atomic_domain::<u64>(&[Op::Add, Op::Load]).unwrap();
//!     domain.at(counts.at(5)).add(2);
//!     let mine = domain.at(counts.at(6)).start().fetch_add(1);  // meanwhile
//!     assert!(mine.wait() < 4);
//!     job.barrier();
//!     assert_eq!(domain.at(counts.at(5)).strict().load(), 8);
//!     job.barrier();                                            // from here on nobody uses the domain
//!     assert_eq!(counts.get(6), 4);
//!     # job.barrier();
//! });
//! ```

use crate::atomic::{Place, Word};
use crate::error::{Error, Result};
use crate::job::{Inner, Job};
use crate::team::Rank;
use partage_conduit::barrier::{Call, Tag};
use partage_conduit::contract::{At, Conduit};
use partage_conduit::ofi;
use partage_conduit::record::Site;
use partage_conduit::word::{Atomic, Kind};
use std::marker::PhantomData;

pub use partage_conduit::word::Op;

/// A set of words on which one arbiter acts, the network or CPUs, for some operations: what [`Job::atomic_domain`] gives.
#[derive(Debug)]
pub struct AtomicDomain<T> {
    rules: Rules,
    _t: PhantomData<fn() -> T>,
    _not_send: PhantomData<*mut ()>,
}

/// What a place of a domain must know.
#[derive(Debug)]
pub(crate) struct Rules {
    rank: Rank,
    /// By number of the operation.
    ops: u16,
    pub is_native: bool,
}

/// Who is to act on domains: `PARTAGE_ATOMICS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Arbiter {
    /// The network where it can.
    #[default]
    Auto,
    Cpu,
    Network,
}

/// What a rank votes for; the smallest vote counts.
const ERROR: u64 = 1;
const CPU: u64 = 2;
const NETWORK: u64 = 3;

impl Job {
    /// Collective: a domain of atomics on words of this type, for these operations (`&Op::ALL`: all that the type has). It may
    /// be dropped at any time, by each rank for itself. Fails, on all ranks, if `PARTAGE_ATOMICS=network` asks for
    /// what a process's network does not do.
    ///
    /// [`Op::Add`] is for `add`, `sub` and those that fetch, and so on.
    #[track_caller]
    pub fn atomic_domain<T: Word>(&self, ops: &[Op]) -> Result<AtomicDomain<T>> {
        let site = Site::here("atomic_domain");
        self.all().may_meet(|| site);
        let ops: Vec<Op> = Op::ALL.into_iter().filter(|op| ops.contains(op) && has::<T>(*op)).collect();
        let (inner, width) = (&self.all().inner, size_of::<T>() as u8);
        let mask = ops.iter().fold(0, |mask, &op| mask | bit(op));
        let can = match inner.atomics {
            Arbiter::Cpu => Err("PARTAGE_ATOMICS=cpu".into()),
            _ if inner.reference.is_forced() => Err("PARTAGE_REFERENCE=1".into()),
            _ => ofi::atomic::is_valid(&inner.seat, &ops, T::KIND, width),
        };
        let vote = match (&can, inner.atomics) {
            (Ok(()), _) => NETWORK,
            (Err(_), Arbiter::Network) => ERROR,
            (Err(_), _) => CPU,
        };
        let what = u64::from(mask) | u64::from(width) << 16 | (T::KIND as u64) << 24;
        let agreed = self.all().meet(Tag::Call(Call::AtomicDomain, what), vote, move || site);
        if agreed == ERROR || agreed == CPU && inner.atomics == Arbiter::Network {
            let why = can.err().unwrap_or_else(|| "another process's network does not do them".into());
            let (me, setting) = (inner.rank, "PARTAGE_ATOMICS=network");
            return Err(Error::config(format!("{me}: atomic_domain: {setting}: {why}; auto lets CPUs do them")));
        }
        let is_native = agreed == NETWORK;
        if is_native {
            // What it fails with is the end of the job, which the wait for all finds, too.
            let _ = ofi::atomic::meet_neighbors(&inner.seat, site);
            self.all().meet(Tag::Call(Call::AtomicDomain, what), NETWORK, move || site);
        }
        let rules = Rules { rank: inner.rank, ops: mask, is_native };
        Ok(AtomicDomain { rules, _t: PhantomData, _not_send: PhantomData })
    }
}

/// Does the type have this operation?
fn has<T: Word>(op: Op) -> bool {
    match op {
        Op::Load | Op::Store | Op::Swap | Op::CompareExchange => true,
        Op::Add | Op::Mul | Op::Min | Op::Max => T::IS_NUMBER,
        Op::And | Op::Or | Op::Xor => T::IS_NUMBER && T::KIND != Kind::Float,
    }
}

fn bit(op: Op) -> u16 {
    1 << op as u8
}

impl<T: Word> AtomicDomain<T> {
    /// Does the network itself act on these words, and no CPU?
    pub fn is_native(&self) -> bool {
        self.rules.is_native
    }

    /// The same word, for operations of this domain. Those that it was not asked for panic.
    #[inline(always)]
    #[track_caller]
    pub fn at<'j>(&'j self, place: Place<'j, T>) -> Place<'j, T> {
        place.within(&self.rules)
    }
}

impl Rules {
    /// An operation that was not asked for may be one that the network does not do.
    #[inline(always)]
    #[track_caller]
    pub fn check(&self, call: &'static str, op: Op) {
        if self.ops & bit(op) == 0 {
            self.refuse(call, op);
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn refuse(&self, call: &str, op: Op) -> ! {
        panic!("{}: {call} in a domain that was not asked for it: give Op::{op:?} to atomic_domain", self.rank)
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    pub fn refuse_handler(&self) -> ! {
        panic!(
            "{}: a domain in a handler, which does not wait: use `target.at` there, on words of no domain",
            self.rank
        )
    }
}

impl Inner {
    /// An atomic of the network; `None` if the place is not one.
    pub fn atomic_native(&self, site: Site, at: At, what: Atomic) -> Option<u64> {
        let slot = self.start_atomic_native(site, at, what)?;
        let answers = &self.seat.landing().answers;
        self.unless_over(self.seat.wait(site, || answers.is_done(slot)));
        let old = answers.value(slot);
        answers.give(slot);
        Some(old)
    }

    /// Starts one: the slot to which its value comes.
    pub fn start_atomic_native(&self, site: Site, at: At, what: Atomic) -> Option<u32> {
        let answers = &self.seat.landing().answers;
        let slot = answers.take(1);
        let started = self.start_native(site, at, what, slot);
        if started.is_none() {
            // No answer comes.
            let answered = answers.answer(slot, 0);
            debug_assert!(answered);
            answers.give(slot);
        }
        started.map(|()| slot)
    }

    /// Starts one whose value comes to this slot.
    pub fn start_native(&self, site: Site, at: At, what: Atomic, slot: u32) -> Option<()> {
        self.is_not_over(site);
        self.unless_outside(ofi::atomic::start(&self.seat, site, at, what, slot))
    }
}
