//! Barriers of teams that are not the job's.
//!
//! Members arrive in a hall ([`Hall`](partage_conduit::coll::Hall)) and wait until all have. Values that they came with are summed up there
//! ([`Sums`]): if they are all the same everybody knows it then. If they are not, or any came with another tag, or with a number to be
//! reduced, all know that, and tell each other theirs: a plain barrier costs nothing for what it does not have, and
//! the second half of one in two halves waits for nobody who has come, unless they disagree.
//!
//! On one node the last to arrive, who has acquired what all others did before, releases them by a word of its own: twice the number of barriers that are
//! over, and one more if somebody came with a tag. So who waits looks at a line that nobody writes meanwhile, and needs no other; it finds the word as it
//! was written for this barrier, since no other ends without it. Between nodes nobody is the last, and members look at the count of arrivals: at even or at odd barriers, since
//! a node may be ahead by one, and what it tells comes in any order.

use super::{Team, Unwound};
use crate::coll::Engine;
use crate::fail;
use crate::job::Inner;
use crate::team::Rank;
use partage_conduit::barrier::Tag;
use partage_conduit::coll::{Sums, Tags};
use partage_conduit::record::Site;
use partage_conduit::reference::ARRIVED;
use partage_conduit::shm::coll::BARRIERS;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

/// Bytes of a place in the program that are told.
const PLACE: usize = 128;

/// What a member knows of its team's barriers.
#[derive(Debug, Default)]
pub(super) struct Door {
    /// How many it has come to.
    times: Cell<u64>,
    /// What members came with to even and to odd ones: all, and those of this node.
    seen: [Cell<[Tags; 2]>; 2],
}

impl Door {
    pub fn times(&self) -> u64 {
        self.times.get()
    }
}

/// An arrival at a team's barrier.
#[derive(Debug, Clone, Copy)]
pub(super) struct Came {
    nth: u64,
    tag: Tag,
    aux: u64,
}

/// Tags of even and odd barriers are counted apart, so that who is late counts none of the next.
fn is_odd(nth: u64) -> bool {
    nth % 2 == 1
}

/// Where a member waits.
struct Waits<'a> {
    site: Site,
    engine: &'a Engine,
}

impl fmt::Display for Waits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (of a team of {}: for all to come)", self.site, self.engine.desk.ranks())
    }
}

impl Engine {
    /// Arrives in the hall for barriers with these; others were seen at barriers like this: of all, and of this node's.
    fn come(&self, inner: &Rc<Inner>, site: Site, nth: u64, tags: Tags, [seen, seen_here]: [Tags; 2]) {
        let (hall, n, odd) = (self.desk.hall(BARRIERS), self.desk.ranks() as u64, is_odd(nth));
        let (others, here) = self.elsewhere();
        if others.is_empty() {
            hall.tag(odd, tags);
            if (hall.arrive(1) + 1).is_multiple_of(n) {
                hall.release((nth + 1) << 1 | u64::from(hall.tags(odd)[0] != seen));
                self.desk.ring_all();
            }
            return;
        }
        hall.tag_here(odd, tags);
        if (hall.arrive_here() + 1).is_multiple_of(here) {
            let tags = hall.tags(odd)[1].since(seen_here);
            hall.tag(odd, tags);
            hall.arrive_at(odd, here);
            self.desk.ring_all();
            let what = [self.desk.barriers_offset(), here, tags.others, odd.into()];
            let values = if tags.values.count() > 0 { bytemuck::bytes_of(&tags.values) } else { &[] };
            for &first in others {
                inner.request(site, Rank(first), ARRIVED, bytemuck::bytes_of(&what), values);
            }
        }
    }

    #[inline(always)]
    fn have_come(&self, nth: u64) -> bool {
        let hall = self.desk.hall(BARRIERS);
        match self.elsewhere() {
            ([], _) => hall.released() >> 1 > nth,
            _ => hall.arrivals_at(is_odd(nth)) >= (nth / 2 + 1) * self.desk.ranks() as u64,
        }
    }

    /// May some have come with tags to a barrier to which all have come?
    fn may_have_tags(&self) -> bool {
        !self.elsewhere().0.is_empty() || self.desk.hall(BARRIERS).released() & 1 == 1
    }

    /// A member that will not come to this barrier any more.
    fn stays_away(&self, nth: u64) -> Option<usize> {
        if !self.desk.have_some_left_hall() {
            return None;
        }
        (0..self.desk.ranks()).find(|&m| (1..=nth + 1).contains(&self.desk.left(m).barriers.get()))
    }
}

impl Team {
    /// Says that this member has come.
    pub(super) fn come(&self, door: &Door, tag: Tag, aux: u64, site: Site) -> Came {
        let nth = door.times.get();
        let tags = match tag {
            Tag::Plain if aux == u64::MAX => Tags::default(),
            Tag::Value(v) if aux == u64::MAX => Tags { others: 0, values: Sums::of(v) },
            _ => Tags { others: 1, ..Tags::default() },
        };
        self.group.engine.come(&self.inner, site, nth, tags, door.seen[usize::from(is_odd(nth))].get());
        door.times.set(nth + 1);
        Came { nth, tag, aux }
    }

    /// Have all come, or will one never come?
    pub(super) fn have_come_or_stay_away(&self, came: &Came) -> bool {
        let engine = &self.group.engine;
        engine.have_come(came.nth) || engine.stays_away(came.nth).is_some()
    }

    /// Waits for all; the smallest `aux` and the value that was given, if anybody came with something.
    pub(super) fn leave(&self, door: &Door, came: Came, site: Site) -> Option<(u64, Option<u64>)> {
        let (inner, engine, nth) = (&self.inner, &self.group.engine, came.nth);
        let have_come = || engine.have_come(nth);
        if !have_come() && !inner.seat.waiter().after_a_turn(have_come) {
            let away = || engine.stays_away(nth);
            let unwound = Unwound { team: self, site: || site };
            let waited = inner.wait_saying(|| Waits { site, engine }, || engine.have_come(nth) || away().is_some());
            std::mem::forget(unwound);
            if waited.is_err() {
                inner.unless_over(waited);
                return None;
            }
            if let (false, Some(m)) = (engine.have_come(nth), away()) {
                inner.unless_over::<()>(Err(engine.is_left_by(inner, site, m)));
                return None;
            }
        }
        if !engine.may_have_tags() {
            return None;
        }
        let odd = is_odd(nth);
        let now = engine.desk.hall(BARRIERS).tags(odd);
        let before = door.seen[usize::from(odd)].replace(now);
        let tags = now[0].since(before[0]);
        match tags.values.same() {
            _ if !tags.any() => None,
            Some(value) if tags.others == 0 => Some((u64::MAX, Some(value))),
            _ => Some(self.compare_tags(came, site)),
        }
    }

    /// Some came with values that are not the same, with other tags, or with numbers: all tell all.
    #[cold]
    fn compare_tags(&self, Came { tag, aux, .. }: Came, site: Site) -> (u64, Option<u64>) {
        let (kind, value) = tag.encode();
        let all = self.gather_words(site, [kind, value, aux]);
        if self.inner.is_ending() {
            return (u64::MAX, None);
        }
        let tag = |m: usize| Tag::decode(all[m][0], all[m][1]);
        let all_members = 0..all.len();
        let first = all_members.clone().find(|&m| tag(m) != Tag::Plain).unwrap_or(0);
        if let Some(other) = all_members.clone().find(|&m| !tag(m).agrees(tag(first))) {
            let who = [first.min(other), first.max(other)];
            self.members_disagree(who.map(|m| (m, tag(m))), site);
        }
        let aux = all.iter().map(|words| words[2]).min().unwrap_or(u64::MAX);
        (aux, if let Tag::Value(v) = tag(first) { Some(v) } else { None })
    }

    /// All members come here with the same two, tell each other where they are, and say the same.
    #[cold]
    fn members_disagree(&self, who: [(usize, Tag); 2], site: Site) -> ! {
        let mut text = [0; PLACE / 8];
        let words = site.to_string();
        let end = &words.as_bytes()[words.len().saturating_sub(PLACE)..];
        bytemuck::cast_slice_mut(&mut text)[..end.len()].copy_from_slice(end);
        let places = self.gather_words(site, text);
        let [a, b] = who.map(|(m, tag)| {
            let place: &[u8] = bytemuck::cast_slice(&places[m]);
            let place = String::from_utf8_lossy(&place[..place.iter().position(|&b| b == 0).unwrap_or(PLACE)]);
            format!("{} came to {tag} ({place})", self.group.engine.rank_of(m))
        });
        fail::end_with(format!("the ranks disagree, in a team of {}: {a}, {b}", self.size()));
    }
}
