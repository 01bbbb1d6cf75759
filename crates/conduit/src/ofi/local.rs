//! Memory of this process that operations use, for networks that want all of it registered (`FI_MR_LOCAL`). Where the network
//! does not, all of it has no description, and nothing here costs anything.
//!
//! * *Segments* and what the conduit has for itself (buffers of messages, operands of atomics, FIFOs) are registered for good.
//! * Of *private* memory, up to [`COPIED`] bytes go by a copy, in room that each operation has.
//! * Longer memory that its owner [keeps](Net::keep) is registered at its first use and stays so, in a [`Cache`].
//! * Other memory is registered for the one operation: nobody tells us when it is unmapped.
//! * What cannot be registered, because a limit was reached and nothing is left that could go, goes by copies piece by piece.
//!
//! It does not contain when an operation has ended: [`rma`](super::rma) gives back what it has had.

use super::Net;
use super::cache::{Cache, Counts, ENTRIES, LARGEST, Not, Taken, Why};
use super::endpoint::{Desc, Endpoint, Region, Unregistered};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// Up to so many bytes are copied: that takes half a microsecond or less, and to register a page takes adapters several.
pub const COPIED: usize = 8 << 10;

/// What is registered of this process's memory for its own operations.
#[derive(Debug)]
pub(super) struct Local {
    needed: bool,
    /// Parts of segments, by where they begin: where they end, and their description.
    known: RwLock<BTreeMap<usize, (usize, Desc)>>,
    for_good: Mutex<Vec<Region>>,
    cache: Mutex<Cache<Region>>,
    /// Memory that its owner keeps and nobody may write to: it is not in the cache, and registered when it is read.
    read_only: Mutex<Vec<Range<usize>>>,
    once: AtomicU64,
    copied: AtomicU64,
}

/// Registers memory that is used as long as there is a network.
pub(super) type Describe<'a> = dyn FnMut(*mut u8, usize) -> Result<Desc, String> + 'a;

/// How an operation has memory of this process.
#[derive(Debug)]
pub(super) enum Mine {
    /// By this description.
    Described(Desc),
    /// By a copy.
    Copied,
    /// By a registration of its own.
    Once(Region),
    /// By one that others may have too.
    Cached(Taken, Desc),
}

/// How private memory of a process has gone to its network and come from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registrations {
    /// Memory that is kept.
    pub cache: Counts,
    /// Memory that was registered for one operation.
    pub once: u64,
    /// Operations by copies.
    pub copied: u64,
}

impl Local {
    /// With a cache of at most so many bytes.
    pub fn new(endpoint: &Endpoint, most: u64) -> Local {
        let (known, for_good, read_only, once, copied) = Default::default();
        let cache = Mutex::new(Cache::new(most, ENTRIES));
        Local { needed: endpoint.needs_local_registration(), known, for_good, cache, read_only, once, copied }
    }

    /// Must memory be registered?
    #[inline]
    pub fn is_needed(&self) -> bool {
        self.needed
    }

    /// Memory that is used as long as there is a network.
    ///
    /// # Safety
    /// It stays mapped until this value is dropped.
    pub unsafe fn describe(&self, endpoint: &Endpoint, at: *mut u8, len: usize) -> Result<Desc, String> {
        if !self.needed {
            return Ok(Desc::NONE);
        }
        // SAFETY: the caller's promise.
        let region = self.making_room(|| unsafe { endpoint.register_local(at, len, true) });
        let region = region.map_err(|why| why.to_string())?;
        let desc = region.desc();
        self.hold(region);
        Ok(desc)
    }

    /// It is closed with the network.
    pub fn hold(&self, region: Region) {
        self.for_good.lock().unwrap_or_else(PoisonError::into_inner).push(region);
    }

    /// A part of a segment has this description.
    pub fn knows(&self, at: *mut u8, len: usize, desc: Desc) {
        if self.needed {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            known.insert(at.addr(), (at.addr() + len, desc));
        }
    }

    /// Registers something; what is only cached goes if there is no room.
    pub fn making_room(&self, register: impl Fn() -> Result<Region, Unregistered>) -> Result<Region, Unregistered> {
        loop {
            match register() {
                Err(why) if why.wants_room() && self.cache().evict() => {}
                tried => return tried,
            }
        }
    }

    fn read_only(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.read_only.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cache(&self) -> MutexGuard<'_, Cache<Region>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of a segment: the description, and where what it is of ends.
    fn find(&self, at: usize) -> Option<(Desc, usize)> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let (_, &(end, desc)) = known.range(..=at).next_back()?;
        (at < end).then_some((desc, end))
    }
}

impl Net {
    /// How an operation shall have memory that is mapped until it has completed, and how many bytes of it, at least one;
    /// `written` if it is to be written to.
    #[inline]
    pub(super) fn describe(&self, at: *const u8, len: usize, written: bool) -> (Mine, usize) {
        match self.local.needed {
            true => self.describe_mine(at, len, written),
            false => (Mine::Described(Desc::NONE), len),
        }
    }

    /// The same for an operation that must have all of it; none if it cannot.
    pub(super) fn describe_whole(&self, at: *const u8, len: usize) -> Option<Mine> {
        let (mine, covered) = self.describe(at, len, false);
        if covered == len {
            return Some(mine);
        }
        self.leave(mine);
        self.register_once(at, len, false)
    }

    fn describe_mine(&self, at: *const u8, len: usize, written: bool) -> (Mine, usize) {
        let local = &self.local;
        if let Some((desc, end)) = local.find(at.addr()) {
            return (Mine::Described(desc), len.min(end - at.addr()));
        }
        if len <= COPIED {
            return (Mine::Copied, len);
        }
        // SAFETY: kept memory is mapped as long as it is kept, and an operation's until it has completed. (Of a keeper who
        // never says that it ended, the network has the pages that were there, which nobody else gets.)
        let register = |range: Range<usize>| unsafe {
            let base = at.cast_mut().wrapping_sub(at.addr() - range.start);
            self.endpoint.register_local(base, range.len(), true)
        };
        let mut cache = local.cache();
        match cache.take(at.addr(), len, register) {
            Ok((taken, covered)) => {
                let desc = cache.region(&taken).desc();
                return (Mine::Cached(taken, desc), covered);
            }
            Err(Not::Kept | Not::Room) => {}
            Err(Not::Accepted(_)) => return (Mine::Copied, COPIED),
        }
        drop(cache);
        match self.register_once(at, len, written) {
            Some(mine) => (mine, len),
            None => (Mine::Copied, COPIED),
        }
    }

    fn register_once(&self, at: *const u8, len: usize, written: bool) -> Option<Mine> {
        // SAFETY: mapped until the operation has completed, which has the registration.
        let register = || unsafe { self.endpoint.register_local(at.cast_mut(), len, written) };
        let region = self.local.making_room(register).ok()?;
        self.local.once.fetch_add(1, Relaxed);
        Some(Mine::Once(region))
    }

    /// An operation has gone by a copy.
    pub(super) fn was_copied(&self) {
        self.local.copied.fetch_add(1, Relaxed);
    }

    /// An operation has had it.
    pub(super) fn leave(&self, mine: Mine) {
        if let Mine::Cached(taken, _) = mine {
            self.local.cache().give(taken);
        }
    }

    /// Registers memory that is mapped until it is [forgotten](Self::forget), as far as there is room for it: longer memory is
    /// registered when it is used.
    ///
    /// # Errors
    /// If none of it can be registered: why, in one line.
    pub fn keep(&self, memory: &[u8]) -> Result<(), String> {
        if !self.local.needed || memory.is_empty() {
            return Ok(());
        }
        let range = memory.as_ptr_range();
        let (start, end) = (range.start.addr(), range.end.addr());
        self.local.cache().keep(start..end);
        if memory.len() <= COPIED {
            return Ok(());
        }
        let (mine, _) = self.describe(range.start, memory.len().min(LARGEST), true);
        let registered = !matches!(mine, Mine::Copied);
        self.leave(mine);
        if registered {
            return Ok(());
        }
        self.local.cache().forget(start..end);
        // SAFETY: mapped, and closed at once.
        let again = |written| unsafe {
            self.endpoint.register_local(range.start.cast_mut(), memory.len().min(LARGEST), written)
        };
        let again_to_be_written = again(true);
        if again_to_be_written.as_ref().is_err_and(|why| !why.wants_room()) && again(false).is_ok() {
            self.local.read_only().push(start..end);
            return Ok(());
        }
        Err(again_to_be_written.err().map_or_else(|| "there was no room for it".into(), |why| why.to_string()))
    }

    /// This memory is not kept any more.
    pub fn forget(&self, memory: &[u8]) {
        if self.local.needed && !memory.is_empty() {
            let range = memory.as_ptr_range();
            let range = range.start.addr()..range.end.addr();
            // Others may keep the same pages: what the cache does not have is not taken from it.
            let mut read_only = self.local.read_only();
            match read_only.iter().position(|other| *other == range) {
                Some(i) => _ = read_only.swap_remove(i),
                None => self.local.cache().forget(range),
            }
        }
    }

    /// What has become of private memory so far.
    pub fn registrations(&self) -> Registrations {
        let Local { once, copied, .. } = &self.local;
        Registrations { cache: self.local.cache().counts(), once: once.load(Relaxed), copied: copied.load(Relaxed) }
    }
}
