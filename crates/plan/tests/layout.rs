//! Layouts against a model that deals the elements out one by one.

use partage_plan::layout::{Layout, Piece, Run, Spread};

/// The model: which elements each member has, in the order of its part.
type Parts = Vec<Vec<usize>>;

/// Hands whole blocks to one member after the other.
fn deal(n: usize, block: usize, members: usize, first: usize) -> Parts {
    let (mut parts, mut member, mut given) = (vec![vec![]; members], first, 0);
    for i in 0..n {
        if given == block && block > 0 {
            (member, given) = ((member + 1) % members, 0);
        }
        parts[member].push(i);
        given += 1;
    }
    parts
}

/// Asks of every element of a box in which cell of the grid it is.
fn cut(dims: [usize; 3], grid: [usize; 3], first: usize) -> Parts {
    let members = grid.iter().product();
    let mut parts = vec![vec![]; members];
    let cell = |d: usize, x: usize| (0..grid[d]).find(|c| x < (c + 1) * dims[d].div_ceil(grid[d])).unwrap();
    let mut i = 0;
    for x in 0..dims[0] {
        for y in 0..dims[1] {
            for z in 0..dims[2] {
                let owner = (cell(0, x) * grid[1] + cell(1, y)) * grid[2] + cell(2, z);
                parts[(first + owner) % members].push(i);
                i += 1;
            }
        }
    }
    parts
}

/// Everything that a spread answers is what the model says.
fn check(spread: &Spread, parts: &Parts) {
    let n = parts.iter().map(Vec::len).sum();
    assert_eq!((spread.len(), spread.is_empty(), spread.members()), (n, n == 0, parts.len()), "{spread:?}");
    assert_eq!(spread.largest_part(), parts.iter().map(Vec::len).max().unwrap(), "{spread:?}");
    let mut places = vec![(0, 0); n];
    for (member, part) in parts.iter().enumerate() {
        part.iter().enumerate().for_each(|(k, &i)| places[i] = (member, k));
        assert_eq!(spread.part_len(member), part.len(), "{spread:?}");
        assert_eq!(spread.global(member, part.len()), None, "{spread:?}");
        assert!(part.iter().enumerate().all(|(k, &i)| spread.global(member, k) == Some(i)), "{spread:?}");
        let mut indices = spread.indices(member);
        assert_eq!(indices.len(), part.len(), "{spread:?}");
        assert!(indices.clone().eq(part.iter().copied()), "{spread:?}");
        assert_eq!(indices.by_ref().next().is_some(), !part.is_empty());
        assert_eq!(indices.len(), part.len().saturating_sub(1), "{spread:?}");
        assert_eq!(indices.sum::<usize>(), part.iter().skip(1).sum(), "{spread:?}");
        let mut runs: Vec<Run> = vec![];
        for (k, &i) in part.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if run.global.end == i => (run.global.end, run.local.end) = (i + 1, k + 1),
                _ => runs.push(Run { global: i..i + 1, local: k..k + 1 }),
            }
        }
        assert!(spread.runs(member).eq(runs), "{spread:?} {:?}", spread.runs(member).collect::<Vec<_>>());
    }
    for beyond in [parts.len(), usize::MAX] {
        assert_eq!((spread.part_len(beyond), spread.global(beyond, 0)), (0, None));
        assert_eq!((spread.indices(beyond).count(), spread.runs(beyond).count()), (0, 0));
    }
    for (i, &place) in places.iter().enumerate() {
        assert_eq!((spread.locate(i), spread.affinity(i)), (place, place.0), "{i} in {spread:?}");
    }
    for start in 0..=n {
        // The pieces up to one end, and from them those up to the next.
        let mut pieces: Vec<Piece> = vec![];
        for end in start..=n {
            if end > start {
                let (i, (member, k)) = (end - 1, places[end - 1]);
                match pieces.last_mut() {
                    Some(piece) if piece.member == member && piece.local.end == k => {
                        (piece.global.end, piece.local.end) = (end, k + 1)
                    }
                    _ => pieces.push(Piece { member, local: k..k + 1, global: i..end }),
                }
            }
            assert!(spread.pieces(start..end).eq(pieces.iter().cloned()), "{start}..{end} of {spread:?}");
        }
    }
}

#[test]
fn blocks_are_dealt_in_turns() {
    for members in 1..=9 {
        for n in 0..=40 {
            for first in 0..members {
                for block in 0..=12 {
                    let spread = Layout::block_cyclic(n, block).starting_at(first).over(members).unwrap();
                    assert_eq!(spread.block(), (block > 0).then_some(block));
                    check(&spread, &deal(n, block, members, first));
                }
            }
        }
    }
}

#[test]
fn the_other_lines_are_blocks_of_a_certain_size() {
    for members in 1..=9 {
        for n in 0..=40 {
            for first in [0, members / 2, members - 1] {
                let by = |layout: Layout, block| {
                    let spread = layout.starting_at(first).over(members).unwrap();
                    check(&spread, &deal(spread.len(), block, members, first));
                    spread
                };
                assert_eq!(by(Layout::blocked(n), n.div_ceil(members)).len(), n);
                assert_eq!(by(Layout::cyclic(n), 1).block(), Some(1));
                assert_eq!(by(Layout::on(first, n), 0).part_len(first), n);
                if n <= 8 {
                    assert_eq!(by(Layout::per_rank(n), n).len(), n * members);
                    for cols in 0..=5 {
                        assert_eq!(by(Layout::rows(n, cols), n.div_ceil(members) * cols).len(), n * cols);
                    }
                }
            }
        }
    }
}

#[test]
fn a_number_is_a_blocked_array() {
    assert_eq!(Layout::from(10), Layout::blocked(10));
    assert_eq!(Layout::from(10).over(3).unwrap().layout(), Layout::blocked(10));
    assert_eq!(Layout::on(2_usize, 5), Layout::block_cyclic(5, 0).starting_at(2_usize));
}

/// Every way to write a number as a product of three.
fn grids(members: usize) -> impl Iterator<Item = [usize; 3]> {
    (1..=members)
        .flat_map(move |a| (1..=members).flat_map(move |b| (1..=members).map(move |c| [a, b, c])))
        .filter(move |[a, b, c]| a * b * c == members)
}

fn boxes() -> impl Iterator<Item = [usize; 3]> {
    (0..=6).flat_map(|a| (0..=6).flat_map(move |b| (0..=4).map(move |c| [a, b, c])))
}

#[test]
fn tiles_and_bricks_are_cut_along_the_grid() {
    for members in 1..=12 {
        for grid in grids(members) {
            for dims in boxes().filter(|dims| dims.iter().product::<usize>() <= 40) {
                for first in [0, members - 1] {
                    let spread = Layout::bricks(dims).grid(grid).starting_at(first).over(members).unwrap();
                    assert_eq!(spread.block(), None);
                    check(&spread, &cut(dims, grid, first));
                    if dims[0] == 1 && grid[0] == 1 {
                        let tiles = Layout::tiles([dims[1], dims[2]]).grid([grid[1], grid[2]]).starting_at(first);
                        check(&tiles.over(members).unwrap(), &cut(dims, grid, first));
                    }
                }
            }
        }
    }
}

#[test]
fn the_grid_that_is_chosen_has_the_least_surface() {
    // Counts the pairs of neighbours that a grid separates when every cut is a full one.
    let surface = |dims: [usize; 3], grid: [usize; 3]| -> usize {
        (0..3).map(|d| (grid[d] - 1) * (0..3).filter(|&o| o != d).map(|o| dims[o]).product::<usize>()).sum()
    };
    let chosen = |dims: [usize; 3], members, flat: bool| -> [usize; 3] {
        let all = grids(members).filter(|grid| !flat || grid[0] == 1);
        all.reduce(|best, grid| if surface(dims, grid) <= surface(dims, best) { grid } else { best }).unwrap()
    };
    for members in 1..=12 {
        for dims in boxes().chain([[6, 6, 6], [4, 9, 2]]).filter(|dims| !dims.contains(&0)) {
            let grid = chosen(dims, members, false);
            let spread = Layout::bricks(dims).over(members).unwrap();
            assert!(
                (0..spread.len()).all(|i| cut(dims, grid, 0)[spread.affinity(i)].contains(&i)),
                "{spread:?} {grid:?}"
            );
            let flat = [1, dims[0], dims[1]];
            let grid = chosen(flat, members, true);
            check(&Layout::tiles([dims[0], dims[1]]).over(members).unwrap(), &cut(flat, grid, 0));
        }
    }
}
