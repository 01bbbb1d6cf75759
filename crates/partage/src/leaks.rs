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

    #[inline]
    pub fn note(&self, offset: u64, len: u64, site: Site) {
        if let Some(all) = &self.0 {
            all.borrow_mut().insert(offset, (len, site));
        }
    }

    #[inline]
    pub fn forget(&self, offset: u64) {
        if let Some(all) = &self.0 {
            all.borrow_mut().remove(&offset);
        }
    }
}

impl Job {
    /// Says what was not freed: the rank has come to its end.
    pub(crate) fn report_leaks(&self) {
        let (inner, me) = (&self.all().inner, self.rank());
        let Some(all) = &inner.leaks.0 else { return };
        let all = all.borrow();
        for (len, site) in all.values().take(MOST) {
            fail::say(&format!("{me} has not freed {} of {site}", bytes(*len)));
        }
        if all.len() > MOST {
            fail::say(&format!("{me} has not freed {} more", all.len() - MOST));
        }
        // Blocks over all ranks may be freed by any of them; rank 0 keeps the book.
        let blocks = inner.seat.blocks_in_use();
        if me.0 == 0 && blocks > 0 {
            fail::say(&format!("nobody has freed {} on every rank of alloc_blocks", bytes(blocks)));
        }
        for slot in inner.arrays.not_dropped() {
            fail::say(&format!("{me} has not dropped array {slot}"));
        }
    }
}
