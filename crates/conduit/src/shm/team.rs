//! Making teams: what ranks tell each other before they have anything in common.
//!
//! A message ([`TEAM`](crate::reference::TEAM)) is kept where its target finds it, and nothing else: the target looks when it makes a team itself, which may
//! be much later. It names no memory.

use crate::am::{Arrival, Handler};
use bytemuck::{Pod, Zeroable};
use std::sync::{Mutex, PoisonError};

/// So many ranks of a list are told, for messages to users.
pub const NAMED: usize = 16;

/// What is told of a team.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Told {
    /// A hash of the ranks of the team, in their order.
    pub list: u64,
    /// Which team of this list it is.
    pub nth: u64,
    /// How many ranks it has.
    pub len: u64,
    /// How many teams with the target the source has made before.
    pub common: u64,
    /// What is said: whoever makes teams knows.
    pub kind: u64,
    /// Where its memory is to be.
    pub offset: u64,
}

/// What was told, by whom.
#[derive(Clone, Debug)]
pub struct Said {
    /// By this rank.
    pub from: u32,
    /// That.
    pub what: Told,
    /// The first ranks of the list.
    pub ranks: Vec<u32>,
}

/// What a rank was told of teams and has not used yet.
#[derive(Debug, Default)]
pub struct Heard(Mutex<Vec<Said>>);

impl Heard {
    /// Takes out what fits, in the order in which it came.
    pub fn take(&self, fits: impl Fn(&Said) -> bool) -> Vec<Said> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extract_if(.., |said| fits(said)).collect()
    }

    /// The first that fits, which stays.
    pub fn find(&self, fits: impl Fn(&Said) -> bool) -> Option<Said> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().find(|said| fits(said)).cloned()
    }

    /// How many of them fit.
    pub fn count(&self, fits: impl Fn(&Said) -> bool) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(|said| fits(said)).count()
    }
}

/// Keeps what is told.
pub(crate) struct OnTeam;
impl Handler for OnTeam {
    fn run(&self, arrival: &Arrival<'_>) {
        let (what, payload) = arrival.open::<Told>();
        let ranks = payload.chunks_exact(4).map(|r| u32::from_le_bytes(r.try_into().expect("four bytes"))).collect();
        let said = Said { from: arrival.source() as u32, what, ranks };
        arrival.landing().teams.0.lock().unwrap_or_else(PoisonError::into_inner).push(said);
    }
}
