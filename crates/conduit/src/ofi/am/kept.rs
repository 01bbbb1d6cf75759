//! Messages that cannot go or run yet: those for which there is no room in the network, and requests that are put aside
//! because nothing may reply.
//!
//! # What a process has to keep for others
//! Of requests and calls, what their credits stand for: at most [`Settings::am_memory`](super::super::Settings::am_memory),
//! besides the receive buffers, however little the process serves them. Of replies that find no room in the network, [`KEPT`]
//! bytes and one reply for each thread: while there are more, requests are put aside (they have their credits) and calls are
//! not taken. Replies and results to its own ranks are what these have asked for. Long arguments and results of calls come in
//! pieces, and are joined outside: one at a time of a rank.
//!
//! # Replies never wait
//! What finds no room in the network is kept and sent later, by whoever makes progress. Reading never stops meanwhile,
//! whatever is kept: replies, and what is told of ends and loans, are always taken, and taking them sends nothing that has to
//! be waited for. So what a process keeps goes as soon as its target reads, which does not depend on whether anything else
//! goes.

use super::super::Net;
use super::wire::{Head, Message, REQUEST};
use crate::sync::full_fence;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::*;

/// Bytes of replies that are kept before requests are put aside.
pub const KEPT: usize = 4 << 20;

/// A message for which there was no room.
#[derive(Debug)]
pub(in crate::ofi) struct Kept {
    process: usize,
    head: Head,
    args: Box<[u8]>,
    payload: Box<[u8]>,
}

impl Net {
    /// Sends a message now or when there is room.
    pub(super) fn post_or_keep(&self, process: usize, head: Head, args: &[u8], payload: &[u8]) {
        if self.post(process, head, args, payload) {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        self.kept_bytes.fetch_add(payload.len(), Relaxed);
        kept.push_back(Kept { process, head, args: args.into(), payload: payload.into() });
        self.kept_count.store(kept.len(), Release);
        drop(kept);
        full_fence();
        self.rouse();
    }

    /// Is so much kept that nothing may run that might reply?
    #[inline]
    pub(in crate::ofi) fn is_choked(&self) -> bool {
        self.kept_bytes.load(Relaxed) > KEPT
    }

    /// Sends what was kept; true if any of it went.
    pub(in crate::ofi) fn send_kept(&self) -> bool {
        if self.kept_count.load(Acquire) == 0 {
            return false;
        }
        let Ok(mut kept) = self.kept.try_lock() else { return false };
        let (before, mut full) = (kept.len(), vec![]);
        for _ in 0..before {
            let Some(k) = kept.pop_front() else { break };
            if full.contains(&k.process) {
                kept.push_back(k);
            } else if self.post(k.process, k.head, &k.args, &k.payload) {
                self.kept_bytes.fetch_sub(k.payload.len(), Relaxed);
            } else {
                full.push(k.process);
                kept.push_back(k);
            }
        }
        self.kept_count.store(kept.len(), Release);
        kept.len() < before
    }

    /// Puts a request aside while nothing may reply, or others lie there that came before it; false if it may run.
    pub(in crate::ofi) fn put_aside(&self, message: &Message<'_>) -> bool {
        if message.head.kind != REQUEST || (!self.is_choked() && self.aside_count.load(Acquire) == 0) {
            return false;
        }
        let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        aside.push_back(message.to_bytes(self.nonce));
        self.aside_count.store(aside.len(), Release);
        true
    }

    /// One that was put aside, if it may run now.
    pub(in crate::ofi) fn next_aside(&self) -> Option<Vec<u8>> {
        if self.aside_count.load(Acquire) == 0 || self.is_choked() {
            return None;
        }
        let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        let next = aside.pop_front();
        self.aside_count.store(aside.len(), Release);
        next
    }
}
