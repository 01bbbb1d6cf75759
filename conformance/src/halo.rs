//! Halo exchange over lanes.

use crate::{Case, mixed, refusal};
use partage::halo::{Edge, Grid, Halo, Halos, Stencil};
use partage::prelude::*;

/// The cases.
pub const CASES: [Case; 3] = [
    ("halos over lanes: rows come from above and below, and around", rows),
    ("halos over lanes: every ghost cell of every block is its neighbour's cell", ghosts),
    ("halos over lanes: mistakes are said", mistakes),
];

fn rows(job: &Job) {
    let (n, me) = (job.size() as u64, u64::from(job.rank().0));
    for edge in [Edge::Open, Edge::Wrap] {
        for len in [0, 1, 7, 1000] {
            let mut halo = Halo::<u64>::new(job, len, edge).unwrap();
            let row = |rank: u64, which: u64, step: u64| vec![mixed([rank, which, step]); len];
            for step in 0..20 {
                halo.send(&row(me, 0, step), &row(me, 1, step));
                let (above, below) = halo.recv();
                let wrap = edge == Edge::Wrap;
                assert_eq!((above.is_some(), below.is_some()), (wrap || me > 0, wrap || me + 1 < n));
                assert!(above.is_none_or(|got| *got == row((me + n - 1) % n, 1, step)), "{}: above", job.rank());
                assert!(below.is_none_or(|got| *got == row((me + 1) % n, 0, step)), "{}: below", job.rank());
            }
        }
    }
}

fn ghosts(job: &Job) {
    use Edge::{Open, Wrap};
    use Stencil::{Full, Star};
    for (width, stencil) in [(1, Star), (1, Full), (2, Full), (3, Star)] {
        let least = 3 * job.size();
        around(job, [least + 5], [Open], width, stencil);
        around(job, [least + 2], [Wrap], width, stencil);
        around(job, [least + 1, least + 4], [Open, Open], width, stencil);
        around(job, [least + 1, least], [Wrap, Open], width, stencil);
        around(job, [least, least + 3], [Wrap, Wrap], width, stencil);
        if job.size() <= 8 {
            around(job, [least, least + 1, least + 2], [Open, Wrap, Open], width, stencil);
            around(job, [least + 1, least, least], [Wrap, Wrap, Wrap], width, stencil);
        }
    }
}

/// Cells know where they are; so every ghost cell says whether it is the right one.
fn around<const D: usize>(job: &Job, all: [usize; D], edges: [Edge; D], width: usize, stencil: Stencil) {
    const NOTHING: u64 = u64::MAX;
    let grid = Grid::new(job, edges);
    assert_eq!(grid.dims().iter().product::<usize>(), job.size());
    assert_eq!(grid.rank_at(grid.coordinates()), job.rank());
    let block = grid.block(all);
    let cells = std::array::from_fn(|d| block[d].len());
    let mut halos = Halos::<u64, D>::new(job, &grid, cells, width, stencil).unwrap();
    let mut now = vec![NOTHING; halos.len()];
    for step in 0..4 {
        for (i, cell) in now.iter_mut().enumerate() {
            let (at, ghost) = place(i, halos.padded(), width, cells);
            let there: [usize; D] = std::array::from_fn(|d| (block[d].start as i64 + at[d]) as usize);
            *cell = if ghost == 0 { named(there, step) } else { NOTHING };
        }
        if step % 2 == 0 {
            halos.exchange(&mut now);
        } else {
            halos.start(&now);
            halos.finish(&mut now);
        }
        for (i, &cell) in now.iter().enumerate() {
            let (at, ghost) = place(i, halos.padded(), width, cells);
            let mut beyond = stencil == Stencil::Star && ghost > 1;
            let there: [usize; D] = std::array::from_fn(|d| {
                let x = block[d].start as i64 + at[d];
                beyond |= edges[d] == Edge::Open && !(0..all[d] as i64).contains(&x);
                x.rem_euclid(all[d] as i64) as usize
            });
            let right = if beyond { NOTHING } else { named(there, step) };
            assert_eq!(cell, right, "{}: {at:?} of {cells:?}, {width} wide, {edges:?}, {stencil:?}", job.rank());
        }
    }
}

/// Where a cell of a padded block is, seen from the block's first, and in how many dimensions it is outside.
fn place<const D: usize>(i: usize, padded: [usize; D], width: usize, cells: [usize; D]) -> ([i64; D], usize) {
    let (mut rest, mut at) = (i, [0; D]);
    for d in (0..D).rev() {
        (at[d], rest) = ((rest % padded[d]) as i64 - width as i64, rest / padded[d]);
    }
    (at, (0..D).filter(|&d| !(0..cells[d] as i64).contains(&at[d])).count())
}

fn named<const D: usize>(at: [usize; D], step: u64) -> u64 {
    at.iter().fold(step, |all, &x| mixed([all, x as u64])) >> 1
}

fn mistakes(job: &Job) {
    let me = job.rank();
    let said = |line: String, part: &str| {
        assert!(line.starts_with(&format!("{me}: ")) && line.contains(part) && !line.contains('\n'), "{line}");
    };
    let grid = Grid::new(job, [Edge::Wrap]);
    said(
        refusal("thin", || Halos::<u8, 1>::new(job, &grid, [2], 3, Stencil::Star)),
        "2 cells in dimension 0 are fewer",
    );
    said(refusal("dims", || Grid::with_dims(job, [job.size() + 1], [Edge::Open])), "are not the");
    let mut halos = Halos::<u8, 1>::new(job, &grid, [4], 1, Stencil::Star).unwrap();
    said(refusal("finish", || halos.finish(&mut [0; 6])), "it was not started");
    said(refusal("length", || halos.start(&[0; 5])), "a block of 5 cells");
    halos.start(&[7; 6]);
    said(refusal("twice", || halos.start(&[0; 6])), "it was started already");
    let mut block = [0; 6];
    halos.finish(&mut block);
    assert_eq!(block, [7, 0, 0, 0, 0, 7]);
}
