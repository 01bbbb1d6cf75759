//! Which private memory is registered, of that which its owner keeps: the books of a cache of registrations.
//!
//! To register memory costs a system call and some time for each page, so memory that is used again stays registered (after
//! Bell and Bonachea, "A new DMA registration strategy for pinning-based high performance networks", 2003).
//!
//! * Only memory that is [kept](Cache::keep) is entered: nobody tells us when other memory is unmapped, and a registration of
//!   pages that are not there any more would send what is not there any more.
//! * Entries are whole pages, do not overlap, and have at most [`LARGEST`] bytes. A registration that would overlap or touch
//!   others takes them in, if the whole is not larger than that: few entries soon have all that is used.
//! * Bytes and entries have a bound. The entry that was used longest ago goes first; one that an operation has does
//!   not go. One that was taken in, or whose memory is not kept any more, is *retired*: nobody finds it, and it goes when the last
//!   operation that has it ends.
//!
//! It does not contain how memory is registered: an entry goes by being dropped.

use std::collections::BTreeMap;
use std::ops::Range;

/// The most bytes of one entry.
pub const LARGEST: usize = 16 << 20;
/// The most entries: adapters have tables of them.
pub const ENTRIES: usize = 1024;
const PAGE: usize = 4096;

/// What a cache has done, and what it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Memory that was found registered.
    pub hits: u64,
    /// Memory that was not, and was registered.
    pub misses: u64,
    /// Entries that went to make room.
    pub evictions: u64,
    /// Entries that others took in.
    pub merged: u64,
    /// Bytes that are registered now, also of retired entries.
    pub bytes: u64,
    /// Entries that there are now, also retired ones.
    pub entries: u64,
}

/// The books. `R` is a registration.
#[derive(Debug)]
pub struct Cache<R> {
    /// Memory that is kept, and how often: disjoint, by its start.
    kept: BTreeMap<usize, (usize, u32)>,
    /// Entries that can be found, by their start.
    found: BTreeMap<usize, usize>,
    entries: Vec<Option<Entry<R>>>,
    free: Vec<usize>,
    largest: usize,
    most_bytes: u64,
    most_entries: u64,
    clock: u64,
    counts: Counts,
}

#[derive(Debug)]
struct Entry<R> {
    range: Range<usize>,
    region: R,
    /// Operations that have it.
    users: u32,
    used: u64,
    retired: bool,
}

/// An entry that an operation has.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Taken(usize);

/// Why a provider registers nothing.
pub trait Why {
    /// Might it do so if less were registered?
    fn wants_room(&self) -> bool;
}

/// Why memory is not registered.
#[derive(Debug, PartialEq, Eq)]
pub enum Not<E> {
    /// It is not kept.
    Kept,
    /// There is no room beside what operations have.
    Room,
    /// It was refused, though nothing was left that could go.
    Accepted(E),
}

/// The whole pages that have these bytes.
pub fn pages(range: Range<usize>) -> Range<usize> {
    range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE)
}

impl<R> Cache<R> {
    /// An empty one with these bounds; at least one entry of the largest size fits.
    pub fn new(most_bytes: u64, most_entries: usize) -> Cache<R> {
        Cache {
            kept: BTreeMap::new(),
            found: BTreeMap::new(),
            entries: vec![],
            free: vec![],
            largest: LARGEST,
            most_bytes: most_bytes.max(LARGEST as u64),
            most_entries: most_entries.max(1) as u64,
            clock: 0,
            counts: Counts::default(),
        }
    }

    /// What it has done, and what it has.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The pages of this memory stay mapped until it is [forgotten](Self::forget), once for each time.
    pub fn keep(&mut self, memory: Range<usize>) {
        let all = pages(memory);
        self.cut(all.start);
        self.cut(all.end);
        let mut at = all.start;
        while at < all.end {
            at = match self.kept.get_mut(&at) {
                Some((end, times)) => {
                    *times += 1;
                    *end
                }
                None => {
                    let next = self.kept.range(at..all.end).next().map_or(all.end, |(&start, _)| start);
                    self.kept.insert(at, (next, 1));
                    next
                }
            };
        }
    }

    /// This memory is not kept any more; entries with pages that nobody keeps retire.
    pub fn forget(&mut self, memory: Range<usize>) {
        let all = pages(memory);
        self.cut(all.start);
        self.cut(all.end);
        let inside: Vec<usize> = self.kept.range(all).map(|(&start, _)| start).collect();
        for start in inside {
            let Some((end, times)) = self.kept.get_mut(&start) else { continue };
            *times -= 1;
            if *times == 0 {
                let gone = start..*end;
                self.kept.remove(&start);
                self.touching(&gone).into_iter().for_each(|i| {
                    if overlap(&self.entry(i).range, &gone) {
                        self.retire(i);
                    }
                });
            }
        }
    }

    /// Is all of it kept?
    pub fn is_kept(&self, memory: Range<usize>) -> bool {
        self.kept_until(memory.start).is_some_and(|end| end >= memory.end)
    }

    /// The registration of the memory that begins at `at`, for an operation, and how many of its `len` bytes it has:
    /// one at least. It is made if there is none. It stays until it is [given back](Self::give).
    pub fn take<E: Why>(
        &mut self,
        at: usize,
        len: usize,
        mut register: impl FnMut(Range<usize>) -> Result<R, E>,
    ) -> Result<(Taken, usize), Not<E>> {
        self.clock += 1;
        let known = self.covering(at);
        let range = match known.map(|i| self.entry(i).range.clone()) {
            Some(range) if range.end >= at + len => return Ok(self.hit(at, len)),
            _ => self.to_register(at, len)?,
        };
        let Some(range) = range else { return Ok(self.hit(at, len)) };
        let (own, whole) = (pages(at..at + len), range.clone());
        let alone = own.start.max(range.start)..own.end.min(range.end);
        let i = match self.enter(range, &mut register) {
            // What it was to take in is gone already.
            Err(_) if alone != whole => self.enter(alone, register)?,
            tried => tried?,
        };
        self.counts.misses += 1;
        let entry = self.entry_mut(i);
        entry.users += 1;
        Ok((Taken(i), len.min(entry.range.end - at)))
    }

    /// An operation has ended.
    pub fn give(&mut self, Taken(i): Taken) {
        let entry = self.entry_mut(i);
        entry.users -= 1;
        if entry.users == 0 && entry.retired {
            self.drop_entry(i);
        }
    }

    /// The registration itself.
    pub fn region(&self, Taken(i): &Taken) -> &R {
        &self.entry(*i).region
    }

    /// The entry that was used longest ago goes; false if none can.
    pub fn evict(&mut self) -> bool {
        let unused = self.found.values().copied().filter(|&i| self.entry(i).users == 0);
        let Some(oldest) = unused.min_by_key(|&i| self.entry(i).used) else { return false };
        self.retire(oldest);
        self.counts.evictions += 1;
        true
    }

    /// The entry with this byte.
    fn covering(&self, at: usize) -> Option<usize> {
        let (_, &i) = self.found.range(..=at).next_back()?;
        (self.entry(i).range.end > at).then_some(i)
    }

    fn hit(&mut self, at: usize, len: usize) -> (Taken, usize) {
        let i = self.covering(at).expect("just found");
        self.counts.hits += 1;
        let clock = self.clock;
        let entry = self.entry_mut(i);
        (entry.users, entry.used) = (entry.users + 1, clock);
        let covered = len.min(entry.range.end - at);
        (Taken(i), covered)
    }

    /// What is to be registered for this memory, with those that it takes in; none if its first byte is in an entry that
    /// cannot grow.
    fn to_register<E>(&self, at: usize, len: usize) -> Result<Option<Range<usize>>, Not<E>> {
        let kept = self.kept_until(at).ok_or(Not::Kept)?;
        let mut range = pages(at..at + len);
        range.end = range.end.min(kept).min(range.start + self.largest);
        for i in self.touching(&range) {
            let other = &self.entry(i).range;
            let both = range.start.min(other.start)..range.end.max(other.end);
            if both.len() <= self.largest {
                range = both;
            } else if overlap(other, &range) && other.start > at {
                range.end = other.start;
                break;
            }
        }
        // The entry with the first byte is not taken in if it is too large for that, or if nothing would be gained.
        let stays = |i: usize| self.entry(i).range.start < range.start || self.entry(i).range.end >= range.end;
        Ok((!self.covering(at).is_some_and(stays)).then_some(range))
    }

    /// Registers it, in the place of entries that it takes in, and makes room for it.
    fn enter<E: Why>(
        &mut self,
        range: Range<usize>,
        mut register: impl FnMut(Range<usize>) -> Result<R, E>,
    ) -> Result<usize, Not<E>> {
        for i in self.touching(&range) {
            if overlap(&self.entry(i).range, &range) {
                self.retire(i);
                self.counts.merged += 1;
            }
        }
        let len = range.len() as u64;
        while self.counts.bytes + len > self.most_bytes || self.counts.entries + 1 > self.most_entries {
            if !self.evict() {
                return Err(Not::Room);
            }
        }
        let region = loop {
            match register(range.clone()) {
                Ok(region) => break region,
                Err(why) if why.wants_room() && self.evict() => {}
                Err(why) => return Err(Not::Accepted(why)),
            }
        };
        let entry = Entry { range: range.clone(), region, users: 0, used: self.clock, retired: false };
        let i = self.free.pop().unwrap_or(self.entries.len());
        match self.entries.get_mut(i) {
            Some(place) => *place = Some(entry),
            None => self.entries.push(Some(entry)),
        }
        self.found.insert(range.start, i);
        self.counts.bytes += len;
        self.counts.entries += 1;
        Ok(i)
    }

    /// Nobody finds it any more; it goes if no operation has it.
    fn retire(&mut self, i: usize) {
        let entry = self.entry_mut(i);
        entry.retired = true;
        let (start, unused) = (entry.range.start, entry.users == 0);
        self.found.remove(&start);
        if unused {
            self.drop_entry(i);
        }
    }

    fn drop_entry(&mut self, i: usize) {
        let entry = self.entries[i].take().expect("an entry");
        self.counts.bytes -= entry.range.len() as u64;
        self.counts.entries -= 1;
        self.free.push(i);
    }

    /// Entries that overlap these pages or touch them, in their order.
    fn touching(&self, range: &Range<usize>) -> Vec<usize> {
        let before =
            self.found.range(..range.start).next_back().filter(|&(_, &i)| self.entry(i).range.end >= range.start);
        before.into_iter().chain(self.found.range(range.start..=range.end)).map(|(_, &i)| i).collect()
    }

    /// Where kept memory that has this byte ends.
    fn kept_until(&self, at: usize) -> Option<usize> {
        let (_, &(mut end, _)) = self.kept.range(..=at).next_back().filter(|(_, (end, _))| *end > at)?;
        while let Some(&(next, _)) = self.kept.get(&end) {
            end = next;
        }
        Some(end)
    }

    /// Makes kept memory begin or end here.
    fn cut(&mut self, at: usize) {
        if let Some((_, (end, times))) = self.kept.range_mut(..at).next_back()
            && *end > at
        {
            let rest = (*end, *times);
            *end = at;
            self.kept.insert(at, rest);
        }
    }

    fn entry(&self, i: usize) -> &Entry<R> {
        self.entries[i].as_ref().expect("an entry")
    }

    fn entry_mut(&mut self, i: usize) -> &mut Entry<R> {
        self.entries[i].as_mut().expect("an entry")
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::rc::Rc;

    /// What is registered, as a provider sees it.
    #[derive(Default)]
    struct Provider {
        open: RefCell<Vec<Range<usize>>>,
        /// It takes no more bytes than this.
        limit: RefCell<Option<usize>>,
    }

    struct Token(Rc<Provider>, Range<usize>);

    impl Drop for Token {
        fn drop(&mut self) {
            let mut open = self.0.open.borrow_mut();
            let at = open.iter().position(|range| *range == self.1).expect("closed once");
            open.swap_remove(at);
        }
    }

    impl Provider {
        /// The one that is open.
        fn only(&self) -> Range<usize> {
            let open = self.open.borrow();
            assert_eq!(open.len(), 1);
            open[0].clone()
        }

        fn register(self: &Rc<Self>, range: Range<usize>) -> Result<Token, &'static str> {
            let bytes: usize = self.open.borrow().iter().map(Range::len).sum();
            if self.limit.borrow().is_some_and(|limit| bytes + range.len() > limit) {
                return Err("full");
            }
            self.open.borrow_mut().push(range.clone());
            Ok(Token(self.clone(), range))
        }
    }

    impl Why for &str {
        fn wants_room(&self) -> bool {
            *self == "full"
        }
    }

    #[test]
    fn what_cannot_be_registered_costs_nobody_his_place() {
        let (mut cache, provider) = new(10);
        cache.keep(0..100 * P);
        used(&mut cache, &provider, 0, 8).unwrap();
        let bad = cache.take(50 * P, 8, |_| Err::<Token, _>("bad address"));
        assert_eq!(bad.err(), Some(Not::Accepted("bad address")));
        assert_eq!((provider.only(), cache.counts().evictions), (0..P, 0));
        cache.forget(0..100 * P);
    }

    const P: usize = PAGE;

    fn new(most_entries: usize) -> (Cache<Token>, Rc<Provider>) {
        (Cache::new(4 * LARGEST as u64, most_entries), Rc::default())
    }

    fn used(
        cache: &mut Cache<Token>,
        provider: &Rc<Provider>,
        at: usize,
        len: usize,
    ) -> Result<usize, Not<&'static str>> {
        let (taken, covered) = cache.take(at, len, |range| provider.register(range))?;
        let range = &cache.region(&taken).1;
        assert!(range.start <= at && at + covered <= range.end);
        cache.give(taken);
        Ok(covered)
    }

    #[test]
    fn memory_that_is_used_again_is_registered_once() {
        let (mut cache, provider) = new(10);
        assert_eq!(used(&mut cache, &provider, 10 * P, 100), Err(Not::Kept));
        cache.keep(10 * P + 8..12 * P + 8);
        assert_eq!(used(&mut cache, &provider, 10 * P + 8, 100), Ok(100));
        assert_eq!(used(&mut cache, &provider, 10 * P + 100, 3000), Ok(3000));
        assert_eq!(provider.only(), 10 * P..11 * P, "whole pages");
        let counts = cache.counts();
        assert_eq!((counts.hits, counts.misses, counts.bytes, counts.entries), (1, 1, P as u64, 1));
        // What touches it takes it in.
        assert_eq!(used(&mut cache, &provider, 11 * P, P + 8), Ok(P + 8));
        assert_eq!(provider.only(), 10 * P..13 * P);
        assert_eq!(cache.counts().merged, 1);
        assert!(cache.is_kept(10 * P..13 * P) && !cache.is_kept(10 * P..13 * P + 1));
        cache.forget(10 * P + 8..12 * P + 8);
        assert!(provider.open.borrow().is_empty());
        assert_eq!(used(&mut cache, &provider, 10 * P + 8, 100), Err(Not::Kept));
    }

    #[test]
    fn the_one_that_was_used_longest_ago_goes() {
        let (mut cache, provider) = new(3);
        cache.keep(0..100 * P);
        for page in [10, 20, 30, 10, 40] {
            used(&mut cache, &provider, page * P, 8).unwrap();
        }
        let open = |page: usize| provider.open.borrow().contains(&(page * P..(page + 1) * P));
        assert!(open(10) && !open(20) && open(30) && open(40));
        assert_eq!(cache.counts().evictions, 1);
        // What an operation has stays, and without anything that can go there is no room.
        let register = |range| provider.register(range);
        let all = [10, 30, 40].map(|page| cache.take(page * P, 8, register).unwrap().0);
        assert_eq!(used(&mut cache, &provider, 50 * P, 8), Err(Not::Room));
        let [first, second, third] = all;
        cache.give(second);
        assert_eq!(used(&mut cache, &provider, 50 * P, 8), Ok(8));
        assert!(open(10) && !open(30) && open(40) && open(50));
        cache.forget(0..100 * P);
        assert!(open(10) && open(40) && !open(50), "operations have two of them");
        cache.give(first);
        cache.give(third);
        assert!(provider.open.borrow().is_empty());
        assert_eq!((cache.counts().bytes, cache.counts().entries), (0, 0));
    }

    #[test]
    fn a_limit_that_the_provider_has_is_met_by_evictions() {
        let (mut cache, provider) = new(100);
        *provider.limit.borrow_mut() = Some(3 * P);
        cache.keep(0..100 * P);
        for page in 0..20 {
            used(&mut cache, &provider, 2 * page * P, 8).unwrap();
            assert!(provider.open.borrow().len() <= 3);
        }
        assert_eq!(cache.counts().evictions, 17);
        let (taken, _) = cache.take(0, 3 * P, |range| provider.register(range)).unwrap();
        assert_eq!(used(&mut cache, &provider, 50 * P, 8), Err(Not::Accepted("full")));
        cache.give(taken);
        assert_eq!(used(&mut cache, &provider, 0, 4 * P), Err(Not::Accepted("full")));
        assert_eq!(used(&mut cache, &provider, 0, 8), Ok(8));
        // Neighbours that are too large together go one after the other.
        for at in [0, 2 * P, 0, 2 * P] {
            assert_eq!(used(&mut cache, &provider, at, 2 * P), Ok(2 * P));
            assert_eq!(provider.only(), at..at + 2 * P);
        }
    }

    #[test]
    fn long_memory_is_taken_in_parts() {
        let (mut cache, provider) = new(100);
        cache.keep(0..3 * LARGEST);
        let mut at = 8;
        let mut parts = 0;
        while at < 3 * LARGEST {
            at += used(&mut cache, &provider, at, 3 * LARGEST - at).unwrap();
            parts += 1;
        }
        assert_eq!((at, parts, cache.counts().entries), (3 * LARGEST, 3, 3));
        // Across two entries that are too large for one.
        assert_eq!(used(&mut cache, &provider, LARGEST - 8, 16), Ok(8));
        assert_eq!(cache.counts().misses, 3);
    }

    /// Beside a model that has a count for each page.
    #[test]
    fn whatever_is_done_it_agrees_with_a_model() {
        const PAGES: usize = 64;
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move |n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize % n
        };
        for round in 0..200 {
            let provider: Rc<Provider> = Rc::default();
            let mut cache = Cache::<Token>::new(0, 1 + random(8));
            cache.largest = (1 + random(16)) * P;
            cache.most_bytes = (cache.largest + random(40) * P) as u64;
            *provider.limit.borrow_mut() = (round % 3 == 0).then(|| (4 + random(20)) * P);
            let (mut guards, mut taken) = (vec![], HashMap::new());
            let mut kept = [0; PAGES];
            for step in 0..400 {
                let start = random(PAGES * P - 1);
                let end = start + 1 + random((PAGES * P - start).min(12 * P));
                match random(6) {
                    0 => {
                        cache.keep(start..end);
                        pages(start..end).step_by(P).for_each(|at| kept[at / P] += 1);
                        guards.push(start..end);
                    }
                    1 if !guards.is_empty() => {
                        let guard = guards.swap_remove(random(guards.len()));
                        pages(guard.clone()).step_by(P).for_each(|at| kept[at / P] -= 1);
                        cache.forget(guard);
                    }
                    2 if !taken.is_empty() => {
                        let key = *taken.keys().next().unwrap();
                        let (one, _): (Taken, Range<usize>) = taken.remove(&key).unwrap();
                        cache.give(one);
                    }
                    _ => match cache.take(start, end - start, |range| provider.register(range)) {
                        Ok((one, covered)) => {
                            assert!(covered > 0 && covered <= end - start);
                            assert!(pages(start..start + covered).step_by(P).all(|at| kept[at / P] > 0));
                            let range = cache.region(&one).1.clone();
                            assert!(range.start <= start && start + covered <= range.end);
                            taken.insert(step, (one, range));
                        }
                        Err(Not::Kept) => assert_eq!(kept[start / P], 0),
                        Err(Not::Room) => assert!(!taken.is_empty()),
                        Err(Not::Accepted(_)) => assert!(provider.limit.borrow().is_some()),
                    },
                }
                let open = provider.open.borrow();
                let bytes: usize = open.iter().map(Range::len).sum();
                assert_eq!((cache.counts().bytes, cache.counts().entries), (bytes as u64, open.len() as u64));
                assert!(bytes as u64 <= cache.most_bytes && open.len() as u64 <= cache.most_entries);
                // What operations have is open; what can be found is kept, and apart from the rest.
                taken.values().for_each(|(_, range)| assert!(open.contains(range)));
                let mut last = 0;
                for (&start, &i) in &cache.found {
                    let range = cache.entry(i).range.clone();
                    assert!(start == range.start && start >= last && range.len() <= cache.largest);
                    assert!(range.clone().step_by(P).all(|at| kept[at / P] > 0));
                    last = range.end;
                }
                for (page, &times) in kept.iter().enumerate() {
                    assert_eq!(cache.is_kept(page * P..(page + 1) * P), times > 0);
                }
            }
            taken.into_values().for_each(|(one, _)| cache.give(one));
            guards.into_iter().for_each(|guard| cache.forget(guard));
            assert!(provider.open.borrow().is_empty());
        }
    }
}
