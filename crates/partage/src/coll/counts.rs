//! Blocks of different lengths: `job.exchange(&keys).counts(&counts).to(&mut mine).run()`.
//!
//! Ranks first tell each other how long what comes is; then blocks pass through scratch, piece by piece. Each rank touches its own
//! buffers only, so of shared ones, too, nobody needs to know where another's blocks lie.

use super::buffer::{Ready, Side, What};
use super::check::{Whole, number};
use super::choice::{Call, Key, Prepared, UNKNOWN};
use super::engine::Base;
use super::{Collective, In, Moves, Out, Task};
use bytemuck::Pod;
use partage_conduit::barrier::Tag;
use partage_conduit::record::Site;
use partage_plan::coll::{Kind, OpKind, Ragged};
use std::cell::OnceCell;
use std::rc::Rc;

/// A collective whose blocks have different lengths: what [`Collective::counts`] and [`Collective::varying`] give.
#[must_use = "a collective does nothing until `run`"]
#[derive(Debug)]
pub struct Counted<'a, T, State> {
    all: Collective<'a, T, State>,
    /// Elements that go to each rank, or come from each; nothing if they are to be asked for.
    counts: Option<&'a [usize]>,
}

impl<'a, T: Pod, State> Collective<'a, T, State> {
    /// Blocks have these lengths: of an exchange, and at the root of a scatter, those that go to each rank; of a gather and gather_all
    /// those of each rank's source, the same on all ranks. They lie one behind the other, in the order of ranks.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     // One element to rank 0, two to rank 1, three to rank 2.
    ///     let (me, mut mine) = (job.rank().0, vec![]);
    ///     let came = job.exchange(&[me; 6]).counts(&[1, 2, 3]).to(&mut mine).run();
    ///     let n = job.rank().index() + 1;
    ///     assert_eq!((mine, came), ([vec![0; n], vec![1; n], vec![2; n]].concat(), vec![n; 3]));
    /// });
    /// ```
    pub fn counts(self, counts: &'a [usize]) -> Counted<'a, T, State> {
        Counted { all: self, counts: Some(counts) }
    }

    /// Of a gather or gather_all: ranks' blocks have different lengths, which they tell each other.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(3, |job| {
    ///     let (mine, mut all) = (vec![job.rank().0; job.rank().index()], vec![]);
    ///     assert_eq!(job.gather_all(&mine).varying().to(&mut all).run(), [0, 1, 2]);
    ///     assert_eq!(all, [1, 2, 2]);
    /// });
    /// ```
    pub fn varying(self) -> Counted<'a, T, State> {
        Counted { all: self, counts: None }
    }
}

impl<'a, T: Pod, State> Counted<'a, T, State> {
    /// Where the blocks go. A `Vec` is made as long as what comes.
    pub fn to<D: super::Dest<'a, Item = T>>(self, dest: D) -> Counted<'a, T, Ready> {
        Counted { all: self.all.to(dest), counts: self.counts }
    }

    /// The rank from which, or to which, all blocks go.
    pub fn root(self, root: crate::team::TeamRank) -> Self {
        Counted { all: self.all.root(root), ..self }
    }

    /// When data may be touched, and when a rank may return.
    pub fn sync(self, before: In, after: Out) -> Self {
        Counted { all: self.all.sync(before, after), ..self }
    }
}

impl<T: Pod> Counted<'_, T, Ready> {
    /// Does it; how many elements have come from each rank.
    #[track_caller]
    pub fn run(self) -> Vec<usize> {
        let Counted { all, counts } = self;
        let site = all.site();
        let team = all.team;
        team.may_meet(|| site);
        if all.algorithm != 0 {
            all.not_counted(site, "no algorithm can be named: there is one");
        }
        if all.fixed.is_some() {
            all.not_counted(site, "there is nothing to plan; use the collective itself, not its plan");
        }
        let mut task = Task::new(site.call, site.at);
        let (source, len) = all.part(&all.source.what, site, &mut task.bases[0]);
        let Some(dest) = &all.dest else { all.not_counted(site, "is not in place; give a destination") };
        all.apart(dest, site);
        let (sent, come) = all.lengths(counts, len, site);
        // What only the root has is ignored elsewhere.
        if all.op != OpKind::Gather || team.rank() == all.root {
            all.make_room(dest, all.total(&come, site), site);
        }
        let (kind, _) = all.part(&dest.what, site, &mut task.bases[1]);
        if let (OpKind::Gather | OpKind::GatherAll, Some(counts)) = (all.op, counts) {
            task.besides = number(counts.iter().flat_map(|n| n.to_ne_bytes()));
        }
        // Each touches its own data only.
        let shared = source == Kind::Shared || kind == Kind::Shared;
        if shared {
            let (op, root, sync, kinds) = (all.op, all.root, all.sync, [source, kind]);
            let (element, besides) = (super::describe::element::<T, Moves>, task.besides);
            Whole { site, op, root, sync, kinds, in_place: false, element, besides }.enter(team);
        }
        all.pass(task, [source, kind], &sent, &come);
        if shared && all.sync.1 == Out::All {
            team.meet(Tag::Plain, u64::MAX, || site);
        }
        come
    }
}

impl<T: Pod> Collective<'_, T, Ready> {
    #[cold]
    #[track_caller]
    fn not_counted(&self, site: Site, why: &str) -> ! {
        panic!("{}: {}: with blocks of different lengths {why}", self.team.inner.rank, site.call);
    }

    /// How many elements this rank sends to each, and gets from each.
    #[track_caller]
    fn lengths(&self, counts: Option<&[usize]>, len: usize, site: Site) -> (Vec<usize>, Vec<usize>) {
        let (team, root) = (self.team, self.root.index());
        let (me, size) = (team.rank().index(), team.size());
        let is_root = me == root;
        if root >= size {
            self.no_such_root(site);
        }
        let of_root = |n: usize| (0..size).map(|r| if r == root { n } else { 0 }).collect::<Vec<_>>();
        let gives = matches!(self.op, OpKind::Exchange) || (self.op == OpKind::Scatter && is_root);
        let named = match (self.op, counts) {
            (OpKind::Exchange | OpKind::Scatter, None) => {
                self.not_counted(site, "say what goes to each rank: `.counts(…)`")
            }
            (OpKind::Scatter, Some(_)) if !is_root => None,
            (_, counts) => counts,
        };
        if let Some(counts) = named {
            if counts.len() != size {
                self.not_counted(site, &format!("there must be one count for each rank: {size}, not {}", counts.len()));
            }
            let (said, what) =
                if gives { (self.total(counts, site), "the counts make") } else { (counts[me], "its count is") };
            if said != len {
                self.not_counted(site, &format!("the source has {len} elements, where {what} {said}"));
            }
        }
        let mut come = vec![];
        // They say what was asked for, and ranks that differ are found.
        let (before, after) = self.sync;
        match self.op {
            OpKind::Exchange => {
                let sent = named.unwrap_or_default().to_vec();
                team.exchange(&sent).to(&mut come).sync(before, after).run_at(site);
                (sent, come)
            }
            OpKind::Scatter => {
                let sent = named.map_or(vec![], <[usize]>::to_vec);
                let mut mine = [0];
                team.scatter(&sent).root(self.root).to(&mut mine).sync(before, after).run_at(site);
                (if is_root { sent } else { vec![0; size] }, of_root(mine[0]))
            }
            OpKind::Gather | OpKind::GatherAll => {
                let to_all = self.op == OpKind::GatherAll;
                match named {
                    Some(counts) => come = counts.to_vec(),
                    None if to_all => team.gather_all(&[len]).to(&mut come).sync(before, after).run_at(site),
                    None => team.gather(&[len]).root(self.root).to(&mut come).sync(before, after).run_at(site),
                }
                match to_all {
                    true => (vec![len; size], come),
                    false => (of_root(len), if is_root { come } else { vec![0; size] }),
                }
            }
            _ => self.not_counted(site, "there are exchange, gather_all, gather and scatter"),
        }
    }

    /// All of them together. (A sum that wraps could be the buffer's length, and blocks would lie outside of it.)
    #[track_caller]
    fn total(&self, counts: &[usize], site: Site) -> usize {
        let sum = counts.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
        sum.unwrap_or_else(|| self.not_counted(site, "the counts make more than any memory has"))
    }

    /// What comes must have room.
    #[track_caller]
    fn make_room(&self, dest: &Side<'_, T>, come: usize, site: Site) {
        if let What::Vec(vec) = dest.what {
            // SAFETY: borrowed, and nobody else has it.
            unsafe { (*vec).resize(come, T::zeroed()) };
        }
        let (_, room) = self.part(&dest.what, site, &mut Base::Private(std::ptr::null_mut()));
        if room < come {
            let me = self.team.inner.rank;
            panic!("{me}: {}: {come} elements come, and the destination has room for {room}", site.call);
        }
    }

    fn pass(&self, mut task: Task, [source, dest]: [Kind; 2], sent: &[usize], come: &[usize]) {
        let (inner, engine) = (&self.team.inner, &self.team.group.engine);
        let bytes = |counts: &[usize]| counts.iter().map(|n| n * size_of::<T>()).collect::<Vec<_>>();
        let same = self.op == OpKind::GatherAll;
        let (room, me) = (engine.desk.scratch_len(), self.team.rank().index());
        let ragged = Ragged { me, sent: bytes(sent), come: bytes(come), same, room };
        task.key = Key::new(Call {
            op: self.op,
            root: self.root.0,
            from: UNKNOWN,
            // Of the others ranks know different sums.
            len: if same { come.iter().sum::<usize>() * size_of::<T>() } else { 0 },
            // The plan asks for none of these, but ranks must have them alike.
            sync: self.sync,
            source,
            dest,
            in_place: false,
            exclusive: false,
            ordered: false,
            grain: 1,
            algorithm: 0,
        });
        task.element = super::describe::element::<T, Moves>;
        task.prepared = OnceCell::from(Rc::new(Prepared::once(ragged.plan())));
        engine.run(inner, &task);
    }
}
