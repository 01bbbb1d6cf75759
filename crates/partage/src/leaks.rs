//! What a rank has allocated and not freed, if it is asked for (`PARTAGE_LEAKS=1`).

use crate::Job;
use crate::fail;
use partage_conduit::record::Site;
use partage_conduit::shm::bytes;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Lines that one rank says at most.
const MOST: usize = 20;

/// Open memory by its offset: how long, and where it was allocated. Nothing is kept unless asked for.
#[derive(Debug)]
pub(crate) struct Leaks(Option<RefCell<BTreeMap<u64, (u64, Site)>>>);

impl Leaks {
    pub fn new(asked: bool) -> Leaks {
        Leaks(asked.then(RefCell::default))
    }

    #[inline(always)]
    pub fn note(&self, offset: u64, len: u64, site: impl Fn() -> Site) {
        if self.0.is_some() {
            self.change(offset, Some((len, site())));
        }
    }

    #[inline(always)]
    pub fn forget(&self, offset: u64) {
        if self.0.is_some() {
            self.change(offset, None);
        }
    }

    #[cold]
    fn change(&self, offset: u64, now: Option<(u64, Site)>) {
        let mut all = self.0.as_ref().expect("asked for").borrow_mut();
        match now {
            Some(block) => all.insert(offset, block),
            None => all.remove(&offset),
        };
    }
}

impl Job {
    /// Says what was not freed: the rank has come to its end.
    pub(crate) fn report_leaks(&self) {
        let (inner, me) = (&self.all().inner, self.rank());
        let Some(all) = &inner.leaks.0 else { return };
        let mut by_site: BTreeMap<String, (usize, u64)> = BTreeMap::new();
        for (len, site) in all.borrow().values() {
            let (blocks, sum) = by_site.entry(site.to_string()).or_default();
            (*blocks, *sum) = (*blocks + 1, *sum + len);
        }
        for (site, (blocks, sum)) in by_site.iter().take(MOST) {
            let blocks = if *blocks == 1 { String::new() } else { format!(" in {blocks} blocks") };
            fail::say(&format!("{me} has not freed {}{blocks} of {site}", bytes(*sum)));
        }
        if by_site.len() > MOST {
            fail::say(&format!("{me} has not freed what was allocated at {} more places", by_site.len() - MOST));
        }
        // Blocks over all ranks may be freed by any of them; rank 0 keeps the book.
        let blocks = inner.seat.blocks_in_use();
        if me.0 == 0 && blocks > 0 {
            fail::say(&format!("nobody has freed {} of alloc_blocks, on each rank that has a part", bytes(blocks)));
        }
        for slot in inner.all.arrays.not_dropped() {
            fail::say(&format!("{me} has not dropped array {slot}"));
        }
    }
}
