//! What a call is: how it looks, whether its buffers fit, which algorithm it takes, and with that the task that does it. All that is wrong with it is said here, before
//! anything is sent; a call that looks like one that was right is not looked at again.

use super::again::Look;
use super::buffer::{Side, What};
use super::choice::{Call, Key, Prepared, UNKNOWN};
use super::engine::{Base, Task};
use super::reduce::Meets;
use super::{Collective, In, Ready, check};
use crate::array::SharedArray;
use crate::team::Team;
use bytemuck::Pod;
use partage_conduit::record::Site;
use partage_plan::coll::{Kind, OpKind};
use std::cell::OnceCell;
use std::ops::Range;
use std::rc::Rc;

/// Bytes of an element, and what it is called.
pub(super) fn element<T: Pod, M: Meets<T>>() -> (u32, &'static str) {
    (size_of::<T>() as u32, M::name())
}

/// A team's collectives know where its own arrays' parts are: those of others lie elsewhere, and have other lengths.
#[cold]
#[track_caller]
pub(super) fn is_of_others(team: &Team, site: Site) -> ! {
    panic!("{}: {}: this array is of another team; give one that this team has made", team.inner.rank, site.call)
}

impl<T: Pod, M: Meets<T>> Collective<'_, T, Ready, M> {
    /// Says what is to be done; false if that is nothing.
    #[track_caller]
    pub(super) fn describe(&self, task: &mut Task) -> bool {
        let engine = &self.team.group.engine;
        let look = self.look(|side, base| task.bases[side] = base);
        let Some(known) = look.and_then(|look| engine.known.borrow().find(&look).cloned()) else {
            return self.describe_new(task);
        };
        self.is_to_do(task, known.key, known.prepared.clone());
        true
    }

    /// What the call looks like; and where its buffers are. Nothing if one of them is a part of an array.
    #[inline(always)]
    pub(super) fn look(&self, mut side: impl FnMut(usize, Base)) -> Option<Look> {
        let mut see = |i: usize, what: &What<T>| match what {
            What::Private(p, len) => {
                side(i, Base::Private(p.cast()));
                Some((*len as u64) << 1)
            }
            What::Vec(vec) => {
                // SAFETY: borrowed, and nobody else has it.
                let vec = unsafe { &mut **vec };
                side(i, Base::Private(vec.as_mut_ptr().cast()));
                Some((vec.len() as u64) << 1)
            }
            What::Shared(array, range) => {
                // SAFETY: borrowed.
                let array = unsafe { &**array };
                side(i, Base::Same(array.start, array.own_place()));
                (range.start == 0 && range.end == array.spread.len()).then_some(array.number << 1 | 1)
            }
        };
        let from = see(0, &self.source.what)?;
        let to = match &self.dest {
            Some(to) => see(1, &to.what)?,
            None => {
                see(1, &self.source.what)?;
                u64::MAX
            }
        };
        let bits = u64::from(self.exclusive) | u64::from(M::ORDERED) << 1;
        let small = [self.op as u64, self.sync.0 as u64, self.sync.1 as u64, bits];
        let what = small.iter().fold(self.algorithm.into(), |all: u64, one| all << 8 | one);
        Some(Look { what, ends: u64::from(self.root.0) | (size_of::<T>() as u64) << 32, sides: [from, to] })
    }

    /// The same of one that was not made before, as far as is known: all is looked at.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn describe_new(&self, task: &mut Task) -> bool {
        let site = task.site;
        let engine = &self.team.group.engine;
        let (ranks, me, root) = (engine.desk.ranks(), engine.desk.rank(), self.root.index());
        if root >= ranks {
            self.no_such_root(site);
        }
        let in_place = self.dest.is_none();
        let is_root = me == root;
        let to_root = matches!(self.op, OpKind::Gather | OpKind::Reduce);
        let rooted = to_root || matches!(self.op, OpKind::Broadcast | OpKind::Scatter);
        // How many blocks a rank's buffers have.
        let (blocks_in, blocks_out) = match self.op {
            OpKind::Broadcast | OpKind::Permute | OpKind::Reduce | OpKind::AllReduce | OpKind::Prefix => (1, 1),
            OpKind::Scatter => (ranks, 1),
            OpKind::Gather | OpKind::GatherAll => (1, ranks),
            OpKind::Exchange => (ranks, ranks),
        };
        let (source, len) = self.part(&self.source.what, site, &mut task.bases[0]);
        let (n, dest) = match &self.dest {
            Some(dest) => {
                let resizes = !matches!(self.op, OpKind::Broadcast | OpKind::Scatter);
                let is_source = !rooted || to_root || is_root;
                let is_dest = !rooted || !to_root || is_root;
                let whole = if resizes { self.whole("source", len, blocks_in, site) } else { 0 };
                if let What::Vec(vec) = dest.what
                    && is_dest
                    && resizes
                {
                    // SAFETY: borrowed, and nobody else has it.
                    unsafe { (*vec).resize(whole * blocks_out, T::zeroed()) };
                }
                let (kind, there) = self.part(&dest.what, site, &mut task.bases[1]);
                let n = if resizes { whole } else { there };
                let root_only = |is: bool| (rooted && is).then_some(root);
                if is_source || source == Kind::Shared {
                    let root = root_only(!to_root);
                    self.fits(("source", &self.source.what), len, (n, blocks_in), root, site);
                }
                if is_dest || kind == Kind::Shared {
                    let root = root_only(to_root);
                    self.fits(("destination", &dest.what), there, (n, blocks_out), root, site);
                }
                self.apart(dest, site);
                (n, kind)
            }
            None => {
                let has_all = blocks_in.max(blocks_out) > 1 && (!rooted || is_root);
                task.bases[1] = task.bases[0].clone();
                let n = if has_all { self.whole("buffer", len, ranks, site) } else { len };
                if let What::Shared(array, range) = &self.source.what {
                    // SAFETY: borrowed.
                    let array = unsafe { &**array };
                    self.fits_in_place(array, range, n, site);
                }
                (n, source)
            }
        };
        // Blocks of no elements pass like others: one rank may have none by mistake.
        if size_of::<T>() == 0 {
            return false;
        }
        let call = Call {
            op: self.op,
            root: self.root.0,
            // Of two ranks who sends to the other hears from it.
            from: if self.op == OpKind::Permute && ranks == 2 && !is_root { self.root.0 } else { UNKNOWN },
            len: n * size_of::<T>(),
            sync: self.sync,
            source,
            dest,
            in_place,
            exclusive: self.exclusive,
            ordered: M::ORDERED,
            grain: if self.meets.combines().is_some() { size_of::<T>() as u32 } else { 1 },
            algorithm: self.algorithm,
        };
        let copies = in_place && matches!(self.op, OpKind::Exchange | OpKind::Permute);
        let call = if copies { of_a_copy(call) } else { call };
        // What was once prepared was right.
        if self.algorithm != 0 && !engine.is_prepared(&Key::new(call)) {
            self.check_algorithm(call, site);
        }
        if copies {
            self.with_a_copy(task, call, n * blocks_in);
            return true;
        }
        self.plan_for(task, call);
        // As it looks now that the destination has its length.
        if let Some(look) = self.look(|_, _| {})
            && let Some(prepared) = task.prepared.get()
        {
            engine.keep(&self.team.inner, look, task.key, prepared.clone(), &task.bases);
        }
        true
    }

    #[cold]
    #[track_caller]
    pub(super) fn no_such_root(&self, site: Site) -> ! {
        let (me, ranks, root) = (self.team.inner.rank, self.team.size(), self.root.0);
        let what = if self.op == OpKind::Permute { "to" } else { "from root" };
        panic!("{me}: {}: {what} {root}, where there are {ranks} ranks", site.call);
    }

    #[track_caller]
    fn plan_for(&self, task: &mut Task, call: Call) {
        let key = Key::new(call);
        let prepared = self.team.group.engine.prepared(&self.team.inner, &key);
        self.is_to_do(task, key, prepared);
    }

    #[inline(always)]
    #[track_caller]
    fn is_to_do(&self, task: &mut Task, key: Key, prepared: Rc<Prepared>) {
        task.key = key;
        task.element = element::<T, M>;
        if self.team.inner.check {
            task.besides = self.number();
        }
        task.combine = self.meets.combines().map(|combine| &raw const *combine);
        if let Some(fixed) = self.fixed
            && *fixed != key
        {
            self.is_not_planned(*fixed, key, task.site);
        }
        task.parts = prepared.parts;
        // Whose block comes here in a permutation may not be known yet.
        if self.op != OpKind::Permute || key.from() != UNKNOWN {
            task.prepared = OnceCell::from(prepared);
        }
    }

    /// What all must have alike besides: the algorithm that is asked for, and which elements of which arrays.
    #[cold]
    fn number(&self) -> u32 {
        let name = self.team.group.engine.asked.get(self.algorithm).map(|algorithm| algorithm.to_string());
        let sides = [Some(&self.source), self.dest.as_ref()].map(|side| match side.map(|side| &side.what) {
            Some(What::Shared(array, range)) => {
                // SAFETY: borrowed.
                let slot = unsafe { (**array).slot };
                [1 + u64::from(slot), range.start as u64, range.end as u64]
            }
            _ => [0; 3],
        });
        check::number(name.unwrap_or_default().bytes().chain(sides.into_iter().flatten().flat_map(u64::to_ne_bytes)))
    }

    #[cold]
    #[track_caller]
    fn is_not_planned(&self, fixed: Key, key: Key, site: Site) -> ! {
        let me = self.team.inner.rank;
        panic!("{me}: {}: the plan was made for {}, and this is {}", site.call, fixed.call(), key.call());
    }

    /// An algorithm that was asked for must be one for this call.
    #[cold]
    #[track_caller]
    fn check_algorithm(&self, call: Call, site: Site) {
        let (inner, engine) = (&self.team.inner, &self.team.group.engine);
        if let Some(asked) = engine.asked.get(call.algorithm)
            && let Some(why) = engine.refuses(inner, &call, &asked)
        {
            panic!("{}: {}: {asked} cannot be taken: {why}", inner.rank, site.call);
        }
    }

    /// Where the buffer is, of which kind, and how many elements it has on this rank.
    #[inline(always)]
    #[track_caller]
    pub(super) fn part(&self, what: &What<T>, site: Site, base: &mut Base) -> (Kind, usize) {
        match what {
            What::Private(p, len) => {
                *base = Base::Private(p.cast());
                (Kind::Private, *len)
            }
            What::Vec(vec) => {
                // SAFETY: borrowed, and nobody else has it.
                let vec = unsafe { &mut **vec };
                *base = Base::Private(vec.as_mut_ptr().cast());
                (Kind::Private, vec.len())
            }
            What::Shared(array, range) => {
                // SAFETY: borrowed.
                let array = unsafe { &**array };
                if array.is_empty() {
                    array.check_usable(site.call);
                }
                if !Rc::ptr_eq(&array.group, &self.team.group) {
                    is_of_others(self.team, site);
                }
                if range.start == 0 && range.end == array.spread.len() {
                    *base = Base::Same(array.start, array.own_place());
                    return (Kind::Shared, array.mine);
                }
                (Kind::Shared, self.share(array, range, base))
            }
        }
    }

    /// Some elements of an array.
    #[inline(never)]
    fn share(&self, array: &SharedArray<T>, range: &Range<usize>, base: &mut Base) -> usize {
        let (me, spread) = (self.team.rank().index(), &array.spread);
        *base = Base::Share { start: array.start, spread, size: size_of::<T>(), first: range.start };
        spread.part_before(me, range.end) - spread.part_before(me, range.start)
    }

    /// The length of a block, of which so many must be there.
    #[inline]
    #[track_caller]
    pub(super) fn whole(&self, what: &str, len: usize, blocks: usize, site: Site) -> usize {
        if !len.is_multiple_of(blocks) {
            let me = self.team.inner.rank;
            panic!(
                "{me}: {}: the {what} has {len} elements, which are not {blocks} blocks of one length: {} too many",
                site.call,
                len % blocks
            );
        }
        len / blocks
    }

    /// Of a shared buffer other ranks' parts must have the right length too, since they are touched: that of the root, or all.
    #[inline(always)]
    #[track_caller]
    fn fits(
        &self,
        (name, what): (&str, &What<T>),
        len: usize,
        (n, blocks): (usize, usize),
        root: Option<usize>,
        site: Site,
    ) {
        let needed = n * blocks;
        let is_right = match what {
            What::Shared(array, range) => {
                // SAFETY: borrowed.
                let array = unsafe { &**array };
                match root {
                    Some(root) => Self::share_of(array, range, root) == needed,
                    None => len == needed && self.all_have(array, range, needed),
                }
            }
            _ => len == needed,
        };
        if !is_right {
            self.does_not_fit((name, what), len, (n, blocks), root, site);
        }
    }

    /// The same of a shared buffer in which the result begins as the source.
    #[track_caller]
    fn fits_in_place(&self, array: &SharedArray<T>, range: &Range<usize>, n: usize, site: Site) {
        let (ranks, root) = (self.team.size(), self.root.index());
        let needed = |r: usize| match self.op {
            OpKind::Scatter | OpKind::Gather if r != root => n,
            OpKind::Scatter | OpKind::Gather | OpKind::GatherAll | OpKind::Exchange => n * ranks,
            _ => n,
        };
        if let Some(r) = (0..ranks).find(|&r| Self::share_of(array, range, r) != needed(r)) {
            let (me, len, needed) = (self.team.inner.rank, Self::share_of(array, range, r), needed(r));
            let r = self.team.group.engine.rank_of(r);
            panic!("{me}: {}: in place, {r} has {len} elements, where {needed} are needed", site.call);
        }
    }

    /// How many elements of these are of that rank.
    fn share_of(array: &SharedArray<T>, range: &Range<usize>, rank: usize) -> usize {
        let spread = &array.spread;
        match range.start == 0 && range.end == spread.len() {
            true => spread.part_len(rank),
            false => spread.part_before(rank, range.end) - spread.part_before(rank, range.start),
        }
    }

    /// Is this the share of each rank?
    #[inline(always)]
    fn all_have(&self, array: &SharedArray<T>, range: &Range<usize>, share: usize) -> bool {
        let ranks = self.team.size();
        // Who has fewer than the others is among those who have less than the most.
        let whole = range.start == 0 && range.end == array.spread.len();
        range.len() == ranks * share && (whole || (0..ranks).all(|r| Self::share_of(array, range, r) == share))
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn does_not_fit(
        &self,
        (name, what): (&str, &What<T>),
        mut len: usize,
        (n, blocks): (usize, usize),
        root: Option<usize>,
        site: Site,
    ) -> ! {
        let (rank, me, needed) = (self.team.inner.rank, self.team.rank().index(), n * blocks);
        let mut whose = String::new();
        if let What::Shared(array, range) = what {
            // SAFETY: borrowed.
            let array = unsafe { &**array };
            let wrong = |&r: &usize| Self::share_of(array, range, r) != needed;
            // My own is named first.
            let mine = Some(me).filter(|r| root.is_none() && wrong(r));
            if let Some(r) = mine.or(root).or((0..self.team.size()).find(wrong)) {
                len = Self::share_of(array, range, r);
                whose = if r == me { whose } else { format!(" of {}", self.team.group.engine.rank_of(r)) };
            }
        }
        let of = if blocks > 1 { format!(" ({blocks} blocks of {n})") } else { String::new() };
        let by = match len < needed {
            true => format!("{} are missing", needed - len),
            false => format!("{} are too many; give a slice of it", len - needed),
        };
        panic!("{rank}: {}: the {name}{whose} has {len} elements, and {needed} pass{of}: {by}", site.call);
    }

    /// Source and destination may be slices of one array, but not of the same elements.
    #[track_caller]
    pub(super) fn apart(&self, dest: &Side<'_, T>, site: Site) {
        if let (What::Shared(a, from), What::Shared(b, to)) = (&self.source.what, &dest.what)
            && a == b
            && from.start < to.end
            && to.start < from.end
        {
            let me = self.team.inner.rank;
            panic!("{me}: {}: elements {from:?} and {to:?} of one array overlap", site.call);
        }
    }

    /// What cannot be done in place is done with a copy of the source.
    #[cold]
    #[track_caller]
    fn with_a_copy(&self, task: &mut Task, call: Call, elements: usize) {
        let (len, engine) = (elements * size_of::<T>(), &self.team.group.engine);
        let from = match &task.bases[0] {
            Base::Private(p) => *p,
            shared => {
                let at = shared.at(engine, self.team.rank().index());
                self.team.inner.own_table().locate(at, len).expect("memory of this rank")
            }
        };
        let copy = task.set_source(engine.spare.room(len));
        // SAFETY: this rank's part of the buffer, and memory of its own that has room for it.
        unsafe { partage_conduit::copy::between(copy, from, len) };
        task.bases[0] = Base::Private(copy);
        self.plan_for(task, call);
    }
}

/// The call that is made with a copy of the source.
fn of_a_copy(call: Call) -> Call {
    let (before, after) = call.sync;
    // Nobody writes to what has not been copied yet.
    let before = if before == In::No { In::My } else { before };
    Call { source: Kind::Private, in_place: false, sync: (before, after), ..call }
}
