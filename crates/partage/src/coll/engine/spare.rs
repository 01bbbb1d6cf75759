//! Memory that collectives use one after the other.

use super::task::UnderWay;
use std::cell::{Cell, RefCell};

/// So many rooms for data are kept, and as many lists of transfers.
const ROOMS: usize = 8;

/// What was not needed when so many rooms had been asked for is not kept any longer.
const LATELY: u32 = 1024;

/// What collectives had that later ones have again, so that none but the first of its shape allocates. Those that are under way together have each their own; when they have
/// ended there are as many rooms, [`ROOMS`] at most, none more than twice as long as what was needed [`LATELY`]. They are given back with the team.
#[derive(Debug, Default)]
pub(in crate::coll) struct Spare {
    /// The shortest first.
    rooms: RefCell<Vec<Vec<u64>>>,
    /// How many were asked for since the last look at what is not needed any more, and how many words the longest had to have.
    asked: Cell<(u32, usize)>,
    under_way: RefCell<Vec<UnderWay>>,
}

impl Spare {
    /// Room for so many bytes, or more; there is something in it.
    pub(in crate::coll) fn room(&self, len: usize) -> Vec<u64> {
        let (words, mut rooms) = (len.div_ceil(8), self.rooms.borrow_mut());
        let (times, most) = self.asked.get();
        let (times, most) = (times + 1, most.max(words));
        self.asked.set(if times == LATELY { (0, 0) } else { (times, most) });
        if times == LATELY {
            rooms.retain(|room| room.len() / 2 <= most);
        }
        let first = rooms.partition_point(|room| room.len() < words);
        if first < rooms.len() {
            return rooms.remove(first);
        }
        // In place of the longest, which is too short.
        drop(rooms.pop());
        vec![0; words]
    }

    /// Nobody has it any more.
    pub(in crate::coll) fn keep(&self, room: Vec<u64>) {
        if room.is_empty() {
            return;
        }
        let mut rooms = self.rooms.borrow_mut();
        let place = rooms.partition_point(|other| other.len() < room.len());
        rooms.insert(place, room);
        if rooms.len() > ROOMS {
            rooms.remove(0);
        }
    }

    pub(super) fn under_way(&self) -> UnderWay {
        self.under_way.borrow_mut().pop().unwrap_or_default()
    }

    pub(super) fn keep_under_way(&self, mut one: UnderWay) {
        let mut all = self.under_way.borrow_mut();
        if all.len() < ROOMS {
            one.clear();
            all.push(one);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_had_again() {
        let spare = Spare::default();
        let places = |rooms: [&Vec<u64>; 2]| rooms.map(|room| room.as_ptr());
        let (short, long) = (spare.room(80), spare.room(800));
        assert_eq!((short.len(), long.len()), (10, 100));
        let before = places([&short, &long]);
        spare.keep(long);
        spare.keep(short);
        // Each is long enough, and none is longer than it must be.
        let (short, long) = (spare.room(73), spare.room(81));
        assert_eq!(places([&short, &long]), before);
        spare.keep(short);
        spare.keep(long);
        // One that is too short makes way for another.
        let longest = spare.room(808);
        assert_eq!((longest.len(), spare.rooms.borrow().len()), (101, 1));
        spare.keep(longest);
        (0..2 * ROOMS).for_each(|_| spare.keep(vec![0; 50]));
        assert_eq!(spare.rooms.borrow().len(), ROOMS);
        spare.keep(vec![]);
        assert!(spare.rooms.borrow().iter().all(|room| room.len() >= 50));
        // What was needed lately stays, and the rest does not.
        for (len, left) in [(400, ROOMS), (160, 0)] {
            for _ in 0..2 * LATELY {
                let room = spare.room(len);
                spare.keep(room);
            }
            let rooms = spare.rooms.borrow();
            assert!(rooms.iter().filter(|room| room.len() >= 50).count() <= left, "{len}: {rooms:?}");
            assert!(!rooms.is_empty() && rooms.iter().all(|room| room.len() / 2 <= len / 8), "{len}: {rooms:?}");
        }
    }
}
