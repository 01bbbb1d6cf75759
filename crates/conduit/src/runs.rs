//! Runs of bytes as they travel: groups of runs of one length at one distance, in few bytes.
//!
//! A [`List`] is made by adding runs in order; neighbours become one run, and runs that go on where a group would have its
//! next one join it. [`groups`] reads it. Numbers are written in as many bytes as they need, seven bits in each; a group is
//! how far it begins after the group before (with its sign), the length of its runs, and, if there are several, how many
//! and at what distance.
//!
//! Guaranteed: whatever the bytes are, reading gives groups of which each ends before the end of all numbers, and which
//! have no more bytes together than the reader allows; or it refuses. Where they lie the reader must check.
//!
//! [`Packet`] is what a message carries: a list, with bytes for its runs if it is a put.

use crate::answers::Sink;
use crate::pool::LARGE;

/// Runs of one length at one distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Where the first begins.
    pub offset: u64,
    /// Bytes of each; one at least.
    pub len: usize,
    /// How many there are; one at least.
    pub count: usize,
    /// How far each begins after the one before.
    pub stride: usize,
}

impl Group {
    /// Bytes from the first of the first to the last of the last.
    pub fn span(&self) -> usize {
        (self.count - 1) * self.stride + self.len
    }

    /// Does the other go on where this ends? Then it is part of this now.
    fn takes(&mut self, next: &Group) -> bool {
        let Some(ahead) = next.offset.checked_sub(self.offset).and_then(|n| usize::try_from(n).ok()) else {
            return false;
        };
        match (self.count, next.count) {
            (1, 1) if ahead == self.len => self.len += next.len,
            _ if self.len != next.len => return false,
            (1, 1) => (self.count, self.stride) = (2, ahead),
            (1, n) if ahead == next.stride => (self.count, self.stride) = (n + 1, next.stride),
            (n, m) if n > 1 && (m == 1 || next.stride == self.stride) && self.stride.checked_mul(n) == Some(ahead) => {
                self.count += m;
            }
            _ => return false,
        }
        true
    }
}

/// Bytes that a number takes at most.
const NUMBER: usize = 10;
/// Bytes that a group takes at most.
pub const GROUP: usize = 4 * NUMBER;

fn write_number(mut n: u64, to: &mut Vec<u8>) {
    while n >= 0x80 {
        to.push(n as u8 | 0x80);
        n >>= 7;
    }
    to.push(n as u8);
}

fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut n = 0u64;
    for i in 0..NUMBER {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if i == NUMBER - 1 && bits > 1 {
            return None;
        }
        n |= bits << (7 * i);
        if byte & 0x80 == 0 {
            return Some(n);
        }
    }
    None
}

/// Runs in order, as groups, in bytes.
#[derive(Clone, Debug, Default)]
pub struct List {
    bytes: Vec<u8>,
    /// The last group, which may grow.
    last: Option<Group>,
    /// Where the last one that was written begins.
    before: u64,
    /// Bytes of all runs.
    total: usize,
}

impl List {
    /// Adds runs.
    pub fn add(&mut self, group: Group) {
        self.total += group.len * group.count;
        if !self.last.as_mut().is_some_and(|last| last.takes(&group)) {
            let last = self.last.replace(group);
            self.write(last);
        }
    }

    fn write(&mut self, group: Option<Group>) {
        let Some(Group { offset, len, count, stride }) = group else { return };
        let ahead = offset.wrapping_sub(self.before) as i64;
        self.before = offset;
        // The sign is the lowest bit, so that short ways are short numbers in either direction.
        write_number((ahead << 1 ^ ahead >> 63) as u64, &mut self.bytes);
        write_number((len as u64) << 1 | u64::from(count > 1), &mut self.bytes);
        if count > 1 {
            write_number(count as u64, &mut self.bytes);
            write_number(stride as u64, &mut self.bytes);
        }
    }

    /// All of it.
    pub fn finish(mut self) -> Vec<u8> {
        let last = self.last.take();
        self.write(last);
        self.bytes
    }
}

/// What is no list, or one of more bytes than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotRuns;

impl std::fmt::Display for NotRuns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("runs that nobody packs")
    }
}

/// Reads a list whose runs have at most so many bytes together: its groups, and how many bytes those are.
pub fn groups(bytes: &[u8], most: usize) -> Result<(usize, impl Iterator<Item = Group> + Clone + '_), NotRuns> {
    let (mut rest, mut before, mut total) = (bytes, 0, 0usize);
    while !rest.is_empty() {
        let group = read_group(&mut rest, &mut before).ok_or(NotRuns)?;
        total = group.len.checked_mul(group.count).and_then(|n| total.checked_add(n)).ok_or(NotRuns)?;
        if total > most {
            return Err(NotRuns);
        }
    }
    let (mut rest, mut before) = (bytes, 0);
    Ok((total, std::iter::from_fn(move || read_group(&mut rest, &mut before))))
}

fn read_group(rest: &mut &[u8], before: &mut u64) -> Option<Group> {
    let ahead = read_number(rest)?;
    let offset = before.checked_add_signed((ahead >> 1) as i64 ^ -((ahead & 1) as i64))?;
    let len = read_number(rest)?;
    let (count, stride) = if len & 1 == 1 { (read_number(rest)?, read_number(rest)?) } else { (1, 0) };
    let len = len >> 1;
    if len == 0 || count == 0 {
        return None;
    }
    // Everything ends before the end of all numbers, so that nobody needs to check again.
    offset.checked_add((count - 1).checked_mul(stride)?.checked_add(len)?)?;
    *before = offset;
    let [len, count, stride] = [len, count, stride].map(usize::try_from);
    Some(Group { offset, len: len.ok()?, count: count.ok()?, stride: stride.ok()? })
}

/// What one message asks for or brings: runs of one rank.
#[derive(Debug, Default)]
pub struct Packet {
    /// Where they are there.
    there: List,
    /// Where they are here, for a get.
    here: List,
    /// What they contain, for a put.
    data: Vec<u8>,
}

/// How many bytes of runs fit into a packet beside the list of a few groups.
const ROOM: usize = LARGE - 8 * GROUP;

impl Packet {
    /// How many of `count` runs of `len` bytes fit, and how long they are then: as they are, or a part of one. None if a
    /// packet that is sent first makes room for more.
    fn fit(&self, len: usize, count: usize) -> Option<(usize, usize)> {
        // Two groups may be added here: the one that could grow, and a new one.
        let list = self.there.bytes.len() + 2 * GROUP;
        let left = LARGE.saturating_sub(list + self.there.total);
        // Lists of what a get brings here are kept, not sent, and have room.
        match () {
            () if len <= left => Some((len, count.min(left / len))),
            () if len > ROOM && left >= ROOM / 2 => Some((left, 1)),
            () => None,
        }
    }

    /// Adds what fits of runs that are to be written: how many of them, and how many bytes of the next one.
    /// `src` begins with the first.
    pub fn put(&mut self, group: Group, src: &[u8], here: usize) -> (usize, usize) {
        let Some((len, count)) = self.fit(group.len, group.count) else { return (0, 0) };
        self.there.add(Group { len, count, ..group });
        (0..count).for_each(|i| self.data.extend_from_slice(&src[i * here..][..len]));
        if len == group.len { (count, 0) } else { (0, len) }
    }

    /// The same for runs that are to be read to runs at `to`, at this distance.
    pub fn get(&mut self, group: Group, to: u64, here: usize) -> (usize, usize) {
        let Some((len, count)) = self.fit(group.len, group.count) else { return (0, 0) };
        self.there.add(Group { len, count, ..group });
        self.here.add(Group { offset: to, len, count, stride: here });
        if len == group.len { (count, 0) } else { (0, len) }
    }

    /// As it is sent, and how many bytes of that, at the beginning, are what is to be written. The list follows.
    pub fn finish_put(self) -> (Vec<u8>, usize) {
        let (mut bytes, list) = (self.data, self.there.finish());
        let data = bytes.len();
        bytes.extend_from_slice(&list);
        (bytes, data)
    }

    /// As it is sent, and what says where the answer belongs.
    pub fn finish_get(self) -> (Vec<u8>, Vec<u8>) {
        (self.there.finish(), self.here.finish())
    }
}

/// A sink that writes the runs of the k-th answer to memory, to where the k-th of these lists says.
///
/// # Safety
/// The memory can be written, and is not used, until the slot that has the sink is given back or has another.
pub unsafe fn sink_to(dst: *mut [u8], lists: Vec<Vec<u8>>) -> Sink {
    struct Memory(*mut [u8]);
    // SAFETY: whoever made it has promised that nobody else uses the memory.
    unsafe impl Send for Memory {}
    let dst = Memory(dst);
    Box::new(move |which, bytes| {
        let Memory(dst) = &dst;
        let list = usize::try_from(which).ok().and_then(|k| lists.get(k)).map_or(&[][..], Vec::as_slice);
        let Ok((total, groups)) = groups(list, LARGE) else { return };
        let mut rest = bytes;
        for Group { offset, len, count, stride } in groups.filter(|_| total == bytes.len()) {
            for i in 0..count {
                let (run, more) = rest.split_at(len);
                rest = more;
                let at = offset as usize + i * stride;
                if at <= dst.len() && len <= dst.len() - at {
                    // SAFETY: inside the memory.
                    unsafe { std::ptr::copy_nonoverlapping(run.as_ptr(), dst.cast::<u8>().add(at), len) };
                }
            }
        }
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn random(seed: &mut u64) -> u64 {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 7
    }

    fn bytes_of(groups: impl Iterator<Item = Group>) -> Vec<u64> {
        let runs = groups.flat_map(|g| (0..g.count).map(move |i| (g.offset + (i * g.stride) as u64, g.len)));
        runs.flat_map(|(start, len)| start..start + len as u64).collect()
    }

    #[test]
    fn what_is_added_is_what_is_read() {
        let mut seed = 0x9e37_79b9_7f4a_7c15;
        for _ in 0..3000 {
            let mut below = |n: u64| random(&mut seed) % n;
            let base = [0, 5000, 1 << 40, (1 << 45) - 9000][below(4) as usize];
            let (mut list, mut added) = (List::default(), vec![]);
            let mut at = below(1000);
            for _ in 0..below(40) {
                let len = 1 + below(9) as usize;
                let (count, stride) = (1 + below(4) as usize, below(20) as usize);
                // Often where the one before would go on.
                at = if below(2) == 0 { at } else { below(5000) };
                let group = Group { offset: base + at, len, count, stride };
                list.add(group);
                added.push(group);
                at += (count * stride) as u64 + if below(2) == 0 { 0 } else { len as u64 };
            }
            let wanted = bytes_of(added.into_iter());
            let bytes = list.finish();
            let (total, groups) = groups(&bytes, LARGE).unwrap();
            assert_eq!((total, bytes_of(groups)), (wanted.len(), wanted));
        }
    }

    #[test]
    fn runs_at_one_distance_are_one_group() {
        let mut list = List::default();
        (0..500).for_each(|i| list.add(Group { offset: 4096 + 100 * i, len: 8, count: 1, stride: 0 }));
        let bytes = list.finish();
        assert!(bytes.len() < 10);
        let all = Group { offset: 4096, len: 8, count: 500, stride: 100 };
        assert_eq!(groups(&bytes, 4000).unwrap().1.collect::<Vec<_>>(), [all]);
        assert!(groups(&bytes, 3999).is_err());
        let mut list = List::default();
        (0..500).for_each(|i| list.add(Group { offset: 4096 + 8 * i, len: 8, count: 1, stride: 0 }));
        let one = Group { offset: 4096, len: 4000, count: 1, stride: 0 };
        assert_eq!(groups(&list.finish(), 4000).unwrap().1.collect::<Vec<_>>(), [one]);
        assert_eq!(groups(&[], 0).unwrap().0, 0);
    }

    /// Any bytes are read as groups that end before the end of all numbers and have no more bytes than allowed, or refused.
    #[test]
    fn any_bytes_are_bounded_groups_or_refused() {
        let mut seed = 0xdead_beef_1234_5678;
        let (mut read, mut refused) = (0, 0);
        for round in 0..300_000 {
            let mut bytes: Vec<u8> = (0..random(&mut seed) % 24).map(|_| random(&mut seed) as u8).collect();
            if round % 2 == 0 {
                // Short numbers, so that more of them are lists.
                bytes.iter_mut().for_each(|b| *b &= 0x7f);
            }
            match groups(&bytes, LARGE) {
                Err(NotRuns) => refused += 1,
                Ok((total, groups)) => {
                    read += 1;
                    let mut sum = 0;
                    for group in groups {
                        assert!(group.len > 0 && group.count > 0);
                        assert!(group.offset.checked_add(group.span() as u64).is_some());
                        sum += group.len * group.count;
                    }
                    assert!(sum == total && total <= LARGE);
                }
            }
        }
        assert!(read > 1000 && refused > 1000, "{read} {refused}");
    }

    #[test]
    fn packets_have_room_for_all_and_sinks_put_it_where_it_belongs() {
        let mut seed = 77;
        for _ in 0..200 {
            let mut below = |n: u64| (random(&mut seed) % n) as usize;
            let len = [1, 8, 24, 700, 5000, 70_000, 200_000][below(7)];
            let count = 1 + below(if len > 1000 { 6 } else { 3000 });
            let (there, here) = (len + below(30), len + below(3));
            let memory: Vec<u8> = (0..count * there + len).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut wanted = vec![0; count * here + len];
            (0..count).for_each(|i| wanted[i * here..][..len].copy_from_slice(&memory[i * there..][..len]));
            // Puts and gets of the same runs, in as many packets as they take.
            let (mut puts, mut gets) = (vec![Packet::default()], vec![Packet::default()]);
            let (mut run, mut inside) = (0, 0);
            while run < count {
                let at = |stride: usize| run * stride + inside;
                let left = if inside > 0 { 1 } else { count - run };
                let group = Group { offset: at(there) as u64, len: len - inside, count: left, stride: there };
                let put = puts.last_mut().unwrap().put(
                    Group { offset: at(there) as u64, ..group },
                    &wanted[at(here)..],
                    here,
                );
                let get = gets.last_mut().unwrap().get(group, at(here) as u64, here);
                assert_eq!(put, get);
                match put {
                    (0, 0) => {
                        puts.push(Packet::default());
                        gets.push(Packet::default());
                    }
                    (0, part) => inside += part,
                    (runs, _) => (run, inside) = (run + runs, 0),
                }
            }
            let total = len * count;
            assert!(puts.len() <= total.div_ceil(LARGE / 2) + 1, "{len} x {count}: {} packets", puts.len());
            let mut written = vec![0; memory.len()];
            for packet in puts {
                let (bytes, data) = packet.finish_put();
                assert!(bytes.len() <= LARGE);
                let (mut data, list) = bytes.split_at(data);
                let (total, groups) = groups(list, LARGE).unwrap();
                assert_eq!(total, data.len());
                for g in groups {
                    for i in 0..g.count {
                        let (run, rest) = data.split_at(g.len);
                        written[g.offset as usize + i * g.stride..][..g.len].copy_from_slice(run);
                        data = rest;
                    }
                }
            }
            (0..count).for_each(|i| assert_eq!(written[i * there..][..len], memory[i * there..][..len]));
            let (asked, lists): (Vec<_>, Vec<_>) = gets.into_iter().map(Packet::finish_get).unzip();
            let mut back = vec![0; wanted.len()];
            // SAFETY: not used before the sink is dropped.
            let mut sink = unsafe { sink_to(&raw mut back[..], lists) };
            for (k, asked) in asked.iter().enumerate().rev() {
                assert!(asked.len() <= LARGE);
                let runs = groups(asked, LARGE).unwrap().1;
                let answer: Vec<u8> = bytes_of(runs).into_iter().map(|i| memory[i as usize]).collect();
                sink(k as u64, &answer);
            }
            // Answers to nothing, and too short ones, touch nothing.
            sink(asked.len() as u64, &[1; 100]);
            sink(0, &[]);
            drop(sink);
            assert_eq!(back, wanted, "{len} x {count}");
        }
    }
}
