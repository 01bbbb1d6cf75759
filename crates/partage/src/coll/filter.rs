//! Collectives of which only some ranks take part: `job.scatter(&all).to(&mut mine).filter(&team).run()`.
//!
//! The layout is that of the whole job (of the team on which the collective is called), and so are the numbers of blocks, of the root and of where a permutation goes:
//! of a scatter, rank 5 has block 5, whichever number it has in the filter. Blocks of ranks that do not take part stay as they are. Only members call it.
//!
//! Each member packs its blocks, the team moves them, each unpacks: so every buffer is touched by its own rank, inside the call.

use super::buffer::{Side, What};
use super::check::{self, Whole};
use super::{Collective, Meets, Moves, NeedsTo, Out, Ready};
use crate::team::{Team, TeamRank};
use bytemuck::Pod;
use partage_conduit::barrier::Tag;
use partage_conduit::record::Site;
use partage_plan::coll::{Kind, OpKind};
use std::rc::Rc;

/// A collective of which a team's members take part: what [`Collective::filter`] gives.
#[must_use = "a collective does nothing until `run`"]
#[derive(Debug)]
pub struct Filtered<'a, T, M = Moves> {
    of: Collective<'a, T, Ready, M>,
    team: &'a Team,
}

impl<'a, T: Pod, M: Meets<T>> Collective<'a, T, Ready, M> {
    /// The same in which only the members of this team take part, with buffers, blocks and root as if all did.
    ///
    /// ```
    /// use partage::prelude::*;
    /// partage::test(4, |job| {
    ///     if let Some(team) = job.subset(|r| r.0 != 2) {
    ///         let (all, mut mine) = ([10, 11, 12, 13], [0]);
    ///         job.scatter(&all).to(&mut mine).filter(&team).run();
    ///         assert_eq!(mine, [10 + job.rank().0]);
    ///     }
    /// });
    /// ```
    pub fn filter(self, team: &'a Team) -> Filtered<'a, T, M> {
        Filtered { of: self, team }
    }
}

impl<T: Pod, M: Meets<T>> Filtered<'_, T, M> {
    /// Does it.
    #[track_caller]
    pub fn run(self) {
        let Filtered { of, team } = self;
        let (site, home, me) = (of.site(), of.team, of.team.inner.rank);
        if of.algorithm != 0 {
            panic!("{me}: {}: with a filter no algorithm can be named; set PARTAGE_COLL", site.call);
        }
        team.may_meet(|| site);
        let places: Vec<usize> = team
            .members()
            .map(|r| match home.member(r) {
                Some(place) => place.index(),
                None => panic!("{me}: {}: {r} of the filter is no member of the team of {}", site.call, home.size()),
            })
            .collect();
        let number = |member: TeamRank| match places.iter().position(|&place| place == member.index()) {
            Some(number) => TeamRank(number as u32),
            None => panic!("{me}: {}: member {} is not in the filter; take one that is", site.call, member.0),
        };
        let (op, mine) = (of.op, home.rank().index());
        if (op == OpKind::Prefix || M::ORDERED) && !places.is_sorted() {
            panic!(
                "{me}: {}: operands are in the order of ranks, which is not that of the filter's members",
                site.call
            );
        }
        // Where there is none, nobody has named one.
        let root = match op {
            OpKind::GatherAll | OpKind::Exchange | OpKind::AllReduce | OpKind::Prefix => TeamRank(0),
            OpKind::Broadcast | OpKind::Scatter | OpKind::Gather | OpKind::Reduce | OpKind::Permute => number(of.root),
        };
        let (is_root, all) = (of.root.index() == mine, home.size());
        let shared =
            [Some(&of.source), of.dest.as_ref()].map(|side| side.is_some_and(|side| is_shared(side, home, site)));
        let (meets, in_place) = (shared.contains(&true), of.dest.is_none());
        // What the team moves is memory of members' own.
        let besides = check::number([shared[0], shared[1], in_place].into_iter().map(u8::from));
        if meets {
            let kinds = [shared[0], shared[usize::from(!in_place)]];
            let kinds = kinds.map(|shared| if shared { Kind::Shared } else { Kind::Private });
            let (sync, element) = (of.sync, super::describe::element::<T, M>);
            Whole { site, op, root, sync, kinds, in_place, element, besides }.enter(team);
        }
        let source = read(&of.source);
        let has_all = match op {
            OpKind::Scatter | OpKind::Gather => is_root,
            OpKind::GatherAll | OpKind::Exchange => true,
            OpKind::Broadcast | OpKind::Permute | OpKind::Reduce | OpKind::AllReduce | OpKind::Prefix => false,
        };
        // Elements of a block.
        let n = match (op, &of.dest) {
            (OpKind::Exchange, _) => of.whole("source", source.len(), all, site),
            (OpKind::Broadcast | OpKind::Scatter, Some(dest)) => len(dest),
            (_, None) if has_all => of.whole("buffer", source.len(), all, site),
            _ => source.len(),
        };
        let packed =
            |which: &[usize]| which.iter().flat_map(|&b| source[b * n..][..n].iter().copied()).collect::<Vec<T>>();
        let blocks = match (op, of.dest.is_some()) {
            (OpKind::Scatter, _) if is_root => {
                check_len("source", source.len(), n * all, of.team, site);
                packed(&places)
            }
            (OpKind::Scatter, _) => vec![],
            (OpKind::Exchange, _) => packed(&places),
            (OpKind::Gather | OpKind::GatherAll, false) if has_all => packed(&[mine]),
            (OpKind::Broadcast, true) if is_root => {
                check_len("source", source.len(), n, of.team, site);
                source.clone()
            }
            _ => source.clone(),
        };
        let mut out = vec![T::zeroed(); n];
        let moved = Collective::<T, NeedsTo, M>::new(team, op, &blocks, of.meets);
        let moved = Collective { root, exclusive: of.exclusive, sync: of.sync, ..moved };
        moved.to(&mut out).run_as(site, besides);
        let to = of.dest.as_ref().unwrap_or(&of.source);
        match op {
            OpKind::Gather | OpKind::Reduce if !is_root => {}
            // Nothing comes before the first.
            OpKind::Prefix if of.exclusive && team.rank() == TeamRank(0) => {}
            // Its own block is there.
            OpKind::Scatter if is_root && of.dest.is_none() => {}
            OpKind::Gather | OpKind::GatherAll | OpKind::Exchange => {
                let there = resized(to, n * all, team, site);
                for (block, &place) in out.chunks_exact(n.max(1)).zip(&places) {
                    write(to, place * n, block, there);
                }
            }
            OpKind::Permute | OpKind::Reduce | OpKind::AllReduce | OpKind::Prefix => {
                let there = resized(to, n, team, site);
                write(to, 0, &out, there);
            }
            _ => write(to, 0, &out, len(to)),
        }
        if meets && of.sync.1 == Out::All {
            team.meet(Tag::Plain, u64::MAX, || site);
        }
    }
}

/// Is it an array? Then it is one of this team.
#[track_caller]
fn is_shared<T: Pod>(side: &Side<'_, T>, home: &Team, site: Site) -> bool {
    let What::Shared(array, _) = &side.what else { return false };
    // SAFETY: borrowed.
    let array = unsafe { &**array };
    array.check_usable(site.call);
    if !Rc::ptr_eq(&array.group, &home.group) {
        panic!("{}: {}: this array is of another team than the collective", home.inner.rank, site.call);
    }
    true
}

#[track_caller]
fn check_len(what: &str, len: usize, needed: usize, team: &Team, site: Site) {
    if len != needed {
        let me = team.inner.rank;
        panic!("{me}: {}: the {what} has {len} elements, and {needed} pass: give as many", site.call);
    }
}

/// How many elements of it are this rank's.
fn len<T: Pod>(side: &Side<'_, T>) -> usize {
    match &side.what {
        What::Private(_, len) => *len,
        // SAFETY: borrowed.
        What::Vec(vec) => unsafe { (**vec).len() },
        What::Shared(..) => share(side).1,
    }
}

/// Where this rank's elements of an array begin in its part, and how many there are.
fn share<T: Pod>(side: &Side<'_, T>) -> (usize, usize) {
    let What::Shared(array, range) = &side.what else { unreachable!("an array") };
    // SAFETY: borrowed.
    let array = unsafe { &**array };
    let (spread, me) = (&array.spread, array.group.engine.desk.rank());
    let [start, end] = [range.start, range.end].map(|i| spread.part_before(me, i));
    (start, end - start)
}

/// This rank's elements of it.
fn read<T: Pod>(side: &Side<'_, T>) -> Vec<T> {
    let mut all = vec![T::zeroed(); len(side)];
    match &side.what {
        // SAFETY: borrowed, and as long.
        What::Private(p, _) => unsafe { std::ptr::copy_nonoverlapping(*p, all.as_mut_ptr(), all.len()) },
        // SAFETY: borrowed.
        What::Vec(vec) => all.copy_from_slice(unsafe { &**vec }),
        // SAFETY: borrowed.
        What::Shared(array, _) => unsafe { (**array).cells().read(share(side).0, &mut all) },
    }
    all
}

/// It has so many elements on this rank, or is made as long; how many.
#[track_caller]
fn resized<T: Pod>(side: &Side<'_, T>, needed: usize, team: &Team, site: Site) -> usize {
    if let What::Vec(vec) = side.what {
        // SAFETY: borrowed, and nobody else has it.
        unsafe { (*vec).resize(needed, T::zeroed()) };
    }
    check_len("destination", len(side), needed, team, site);
    needed
}

/// Writes some of this rank's elements, of which there are so many.
fn write<T: Pod>(side: &Side<'_, T>, at: usize, values: &[T], there: usize) {
    assert!(at + values.len() <= there, "inside of what was compared");
    match &side.what {
        // SAFETY: borrowed mutably, and as long.
        What::Private(p, _) => unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), p.add(at), values.len()) },
        // SAFETY: borrowed, and nobody else has it.
        What::Vec(vec) => unsafe { (&mut **vec)[at..][..values.len()].copy_from_slice(values) },
        // SAFETY: borrowed.
        What::Shared(array, _) => unsafe { (**array).cells().write(share(side).0 + at, values) },
    }
}
