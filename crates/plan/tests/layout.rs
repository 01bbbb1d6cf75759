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
    check_pieces(spread, &places);
    // In a row: one part after the other is the array.
    let row =
        |i: usize| ((spread.layout().first() + i / spread.largest_part()) % parts.len(), i % spread.largest_part());
    let is_row = places.iter().enumerate().all(|(i, &place)| place == row(i));
    assert!(is_row || !spread.is_in_a_row(), "{spread:?}");
    assert!(!is_row || spread.is_in_a_row() || spread.block().is_none(), "{spread:?}");
}

/// What is left of a range after its first piece is a range itself; so the first piece is compared, of every range of a
/// short array and of those of a long one that are about as long as a piece, and
/// all pieces of two.
fn check_pieces(spread: &Spread, places: &[(usize, usize)]) {
    let n = places.len();
    for start in 0..=n {
        let together = |i: &usize| places[*i] == (places[start].0, places[start].1 + (*i - start));
        let stretch = (start..n).take_while(together).count();
        let near = if n <= 16 { n } else { n.min(start + 13) };
        for end in (start..=near).chain([n]) {
            let count = stretch.min(end - start);
            let piece = (count > 0).then(|| {
                let (member, k) = places[start];
                Piece { member, local: k..k + count, global: start..start + count }
            });
            assert_eq!(spread.pieces(start..end).next(), piece, "{start}..{end} of {spread:?}");
        }
    }
    for start in [0, n / 3] {
        let mut at = start;
        for piece in spread.pieces(start..n) {
            assert_eq!(Some(&piece), spread.pieces(at..n).next().as_ref(), "{start}.. of {spread:?}");
            at = piece.global.end;
        }
        assert_eq!(at, n, "{start}.. of {spread:?}");
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
    assert_eq!(Layout::on(2, 5), Layout::block_cyclic(5, 0).starting_at(2));
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
            for dims in boxes() {
                let first = (dims[1] + dims[2]) % members;
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
            let parts = cut(dims, grid, 0);
            assert!((0..members).all(|member| spread.indices(member).eq(parts[member].iter().copied())), "{spread:?}");
            let flat = [1, dims[0], dims[1]];
            let grid = chosen(flat, members, true);
            check(&Layout::tiles([dims[0], dims[1]]).over(members).unwrap(), &cut(flat, grid, 0));
        }
    }
}

/// Too many elements to deal out: what the answers have in common is compared, at the edges.
fn check_edges(spread: &Spread) {
    let (n, members) = (spread.len(), spread.members());
    let near = |x: usize| x.saturating_sub(2)..x.saturating_add(3).min(n);
    let block = spread.block().unwrap_or(n).min(n);
    let period = block.saturating_mul(members).min(n);
    let edges = [0, block, period, n / period * period, n / block * block, n / 3, n / 2, n - 1];
    for i in edges.into_iter().flat_map(near) {
        let (member, k) = spread.locate(i);
        assert!(member < members && k < spread.part_len(member), "{i} of {spread:?}");
        assert_eq!(spread.global(member, k), Some(i), "{spread:?}");
        let pieces: Vec<Piece> = spread.pieces(i..i.saturating_add(2).min(n)).collect();
        assert_eq!((pieces[0].member, pieces[0].local.start), (member, k), "{i} of {spread:?}");
        assert_eq!(pieces.iter().map(|piece| piece.global.len()).sum::<usize>(), 2.min(n - i));
    }
    for member in [0, 1, members / 2, members - 1, members] {
        let len = spread.part_len(member);
        assert!(len <= spread.largest_part(), "{spread:?}");
        assert_eq!(spread.global(member, len), None, "{spread:?}");
        assert_eq!(spread.indices(member).len(), len);
        if len > 0 {
            assert_eq!(spread.global(member, 0), spread.indices(member).next(), "{spread:?}");
            let last = spread.global(member, len - 1).unwrap();
            assert_eq!(spread.locate(last), (member, len - 1), "{spread:?}");
            assert_eq!(spread.runs(member).next().unwrap().global.start, spread.global(member, 0).unwrap());
        }
    }
}

#[test]
fn long_arrays_and_many_members() {
    const LONGEST: usize = usize::MAX / 2;
    for members in [1, 2, 3, 7, 8, 1000, (1 << 20) - 1, 1 << 20] {
        for n in [LONGEST, LONGEST - 1, LONGEST / 3, (1 << 40) + 7, 1 << 20, (1 << 20) + 1, 5] {
            for block in [0, 1, 2, 3, 8, 1000, 1 << 33, (1 << 33) + 1, LONGEST, LONGEST + 1, usize::MAX] {
                check_edges(&Layout::block_cyclic(n, block).over(members).unwrap());
                check_edges(&Layout::block_cyclic(n, block).starting_at(members - 1).over(members).unwrap());
            }
            let spread = Layout::blocked(n).over(members).unwrap();
            assert_eq!((spread.len(), spread.largest_part()), (n, n.div_ceil(members)));
            check_edges(&spread);
            check_edges(&Layout::rows(n / 5, 5).over(members).unwrap());
            check_edges(&Layout::per_rank(n / members + 1).over(members).unwrap_or(spread));
            check_edges(&Layout::tiles([n, 1]).over(members).unwrap());
            check_edges(&Layout::tiles([3, n / 3]).over(members).unwrap());
            check_edges(&Layout::bricks([1 << 10, 1 << 10, 1 << 10]).over(members).unwrap());
            check_edges(&Layout::bricks([n / 5, 5, 1]).starting_at(members / 2).over(members).unwrap());
        }
    }
}

/// Every element is on one member only, also where there are too many to ask for each.
#[test]
fn parts_add_up() {
    for members in [1, 5, 12, 64, 1000] {
        for n in [usize::MAX / 2, 1 << 40, 12345, 0] {
            for layout in [
                Layout::blocked(n),
                Layout::cyclic(n),
                Layout::block_cyclic(n, 12).starting_at(members / 2),
                Layout::tiles([n / 7, 7]),
                Layout::bricks([3, n / 6, 2]),
            ] {
                let spread = layout.over(members).unwrap();
                assert_eq!(
                    (0..members).map(|member| spread.part_len(member)).sum::<usize>(),
                    spread.len(),
                    "{spread:?}"
                );
            }
        }
    }
}

#[test]
fn what_cannot_be_bound_says_why() {
    let says = |layout: Layout, members, what: &str| assert_eq!(layout.over(members).unwrap_err().to_string(), what);
    let longest = usize::MAX / 2;
    let too_long = format!("the array is too long: it can have at most {longest} elements");
    says(Layout::blocked(4), 0, "an array needs at least one member to live on");
    says(Layout::on(4, 9), 4, "the layout names member 4, but the last one is member 3");
    says(Layout::tiles([2, 2]).starting_at(1), 1, "the layout names member 1, but the last one is member 0");
    says(Layout::blocked(longest + 1), 2, &too_long);
    says(Layout::rows(usize::MAX, 2), 2, &too_long);
    says(Layout::per_rank(usize::MAX / 4), 5, &too_long);
    says(Layout::tiles([1 << 40, 1 << 40]), 5, &too_long);
    says(Layout::bricks([1 << 30, 1 << 30, 1 << 30]), 5, &too_long);
    says(Layout::tiles([8, 8]).grid([2, 3]), 7, "a grid of 6 cells does not fit 7 members");
    says(Layout::tiles([8, 8]).grid([0, 3]), 7, "a grid of 0 cells does not fit 7 members");
    says(Layout::cyclic(8).grid([6]), 7, "a grid of 6 cells does not fit 7 members");
    says(Layout::bricks([8, 8, 8]).grid([2, 3]), 6, "a grid of 2 dimensions does not fit an array of 3");
    says(Layout::rows(8, 8).grid([2, 3]), 6, "a grid of 2 dimensions does not fit an array of 1");
    assert!(Layout::bricks([usize::MAX, usize::MAX, 0]).over(3).is_ok_and(|spread| spread.is_empty()));
    assert!(Layout::cyclic(8).grid([7]).over(7).is_ok());
}
