//! What ranks of a node know of each other while they wait: how many sleep, until when none yields because others' programs run on a core, and how
//! long ranks were busy with work of this library, which is no such load.

use crate::sync::{AtomicU32, AtomicU64, Ordering::*, ticks_per_us};

/// What ranks themselves do for longer than this is none.
const TOIL_US: u64 = 20;
/// How long ranks that met a foreign load do not yield, at first and at most. A short one is met once, and parking is three times slower than yielding.
const FOREIGN_FIRST_US: u64 = 2_000;
const FOREIGN_MOST_US: u64 = 50_000;

/// What a node's ranks know of each other's waits.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(C))]
pub struct Sleepers {
    /// How many are parked, or about to be.
    pub(super) count: AtomicU32,
    /// For how long those who met a foreign load last did not yield, in microseconds.
    hold: AtomicU32,
    /// When they yield again, in ticks.
    no_yield_before: AtomicU64,
}

impl Default for Sleepers {
    fn default() -> Self {
        Sleepers { count: AtomicU32::new(0), hold: AtomicU32::new(0), no_yield_before: AtomicU64::new(0) }
    }
}

impl Sleepers {
    /// Are there any? After a [`light_fence`](crate::sync::light_fence) that follows the publication.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// A rank has met a foreign load: until when does it not yield? The same time for all who meet one before that, and
    /// twice as long if it is met again soon.
    #[cold]
    #[inline(never)]
    pub(super) fn met_foreign_load(&self, now: u64, ticks_per_us: u64) -> u64 {
        let (told, last) = (self.no_yield_before.load(Relaxed), u64::from(self.hold.load(Relaxed)));
        // Nobody means more than the longest, unless the counter has gone back.
        if told.wrapping_sub(now) <= FOREIGN_MOST_US * ticks_per_us {
            return told;
        }
        let again = now.wrapping_sub(told) <= last * ticks_per_us;
        let hold = if again { (2 * last).min(FOREIGN_MOST_US) } else { FOREIGN_FIRST_US };
        let until = now + hold * ticks_per_us;
        match self.no_yield_before.compare_exchange(told, until, Relaxed, Relaxed) {
            Ok(_) => {
                self.hold.store(hold as u32, Relaxed);
                until
            }
            Err(other) => other.min(until),
        }
    }
}

/// How long the ranks of a node, and the threads that relieve them, have been busy with long copies and with the network, in ticks. Who yields to one that
/// copies, posts or receives a megabyte is away for long, but has met no foreign load.
#[derive(Debug, Default)]
pub struct Toil(pub(super) AtomicU64);

impl Toil {
    /// So many ticks of it. Short ones do not count: others look at that line.
    #[inline(always)]
    pub fn add(&self, time: u64) {
        if time > TOIL_US * ticks_per_us() {
            self.0.fetch_add(time, Relaxed);
        }
    }
}

/// How long nobody toiled between two moments, of each of which the time and the [`Toil`] until then are given.
#[inline(always)]
pub(super) fn idle((now, toiled): (u64, u64), (then, before): (u64, u64)) -> u64 {
    now.wrapping_sub(then).saturating_sub(toiled.wrapping_sub(before))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn those_who_met_a_foreign_load_yield_again_together() {
        let (node, now) = (Sleepers::default(), 1_000_000);
        let first = node.met_foreign_load(now, 1);
        assert_eq!(first, now + FOREIGN_FIRST_US);
        assert_eq!(node.met_foreign_load(now + FOREIGN_FIRST_US / 2, 1), first);
        // Again and again: twice as long each time, up to the most.
        let (mut until, mut hold) = (first, FOREIGN_FIRST_US);
        for _ in 0..8 {
            let (now, next) = (until + hold / 2, (2 * hold).min(FOREIGN_MOST_US));
            (until, hold) = (node.met_foreign_load(now, 1), next);
            assert_eq!(until, now + hold);
        }
        // After a while it is another one, also for a counter that has gone back.
        let later = until + FOREIGN_MOST_US + 1;
        assert_eq!(node.met_foreign_load(later, 1), later + FOREIGN_FIRST_US);
        assert_eq!(node.met_foreign_load(7, 1), 7 + FOREIGN_FIRST_US);
    }

    #[test]
    fn what_ranks_do_themselves_is_no_foreign_load() {
        let toil = Toil::default();
        let at = |now: u64| (now, toil.0.load(Relaxed));
        let begun = at(100);
        toil.add(TOIL_US * ticks_per_us());
        assert_eq!(idle(at(150), begun), 50, "that was short");
        let long = TOIL_US * ticks_per_us() + 1;
        toil.add(long);
        assert_eq!(idle(at(100 + long + 7), begun), 7);
        // On two cores at once.
        toil.add(long);
        assert_eq!(idle(at(100 + long + 7), begun), 0);
    }
}
