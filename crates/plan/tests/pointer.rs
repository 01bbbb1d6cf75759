//! Pointers against walking, and against the places of an array's elements.

use std::cmp::Ordering;

use partage_plan::{
    layout::Layout,
    pointer::{Place, compare, distance, step},
};

const BASE: u64 = 4096;

fn parts(place: Place) -> (usize, u64, u64) {
    (place.member, place.addr, place.phase)
}

/// The next element, and the one before, by the rules of dealing rather than by formula.
fn walk(p: Place, forward: bool, block: u64, elem_size: u64, members: usize) -> Place {
    let Place { member, addr, phase } = p;
    match (forward, block) {
        (true, 0) => Place { addr: addr + elem_size, ..p },
        (false, 0) => Place { addr: addr - elem_size, ..p },
        (true, _) if phase + 1 < block => Place { addr: addr + elem_size, phase: phase + 1, ..p },
        (true, _) if member + 1 < members => Place { member: member + 1, addr: addr - phase * elem_size, phase: 0 },
        (true, _) => Place { member: 0, addr: addr + elem_size, phase: 0 },
        (false, _) if phase > 0 => Place { addr: addr - elem_size, phase: phase - 1, ..p },
        (false, _) if member > 0 => {
            Place { member: member - 1, addr: addr + (block - 1) * elem_size, phase: block - 1 }
        }
        (false, _) => Place { member: members - 1, addr: addr - elem_size, phase: block - 1 },
    }
}

#[test]
fn a_step_is_a_walk() {
    for (block, elem_size, members) in
        (0..=6).flat_map(|b| [1, 3, 8].map(|es| (1..=5).map(move |t| (b, es, t)))).flatten()
    {
        for member in 0..members {
            for phase in 0..block.max(1) as u64 {
                let start = Place { member, addr: BASE, phase };
                for forward in [true, false] {
                    let mut place = start;
                    for i in 0..=60 {
                        let i = if forward { i } else { -i };
                        let stepped = step(start, i, block, elem_size, members).unwrap();
                        assert_eq!(parts(stepped), parts(place), "{start:?} {i} [{block}] {elem_size} {members}");
                        assert_eq!(
                            distance(stepped, start, block, elem_size, members),
                            i,
                            "{start:?} [{block}] {members}"
                        );
                        assert_eq!(
                            distance(start, stepped, block, elem_size, members),
                            -i,
                            "{start:?} [{block}] {members}"
                        );
                        assert_eq!(compare(stepped, start, block, elem_size, members), i.cmp(&0));
                        for j in [-7, -1, 1, 5] {
                            let further = step(stepped, j, block, elem_size, members).unwrap();
                            assert_eq!(parts(further), parts(step(start, i + j, block, elem_size, members).unwrap()));
                        }
                        place = walk(place, forward, block as u64, elem_size as u64, members);
                    }
                }
            }
        }
    }
}

#[test]
fn a_step_from_the_first_element_is_where_the_layout_has_it() {
    for (block, members) in (0..=9).flat_map(|block| (1..=7).map(move |members| (block, members))) {
        let spread = Layout::block_cyclic(200, block).over(members).unwrap();
        for i in 0..spread.len() {
            let place = step(Place { member: 0, addr: BASE, phase: 0 }, i as i64, block, 8, members).unwrap();
            let (member, k) = spread.locate(i);
            assert_eq!((place.member, place.addr), (member, BASE + 8 * k as u64));
            assert_eq!(
                (place.member, place.phase),
                i.checked_div(block).map_or((0, 0), |q| (q % members, (i % block) as u64))
            );
        }
    }
}

#[test]
fn equality_does_not_look_at_the_phase() {
    let place = Place { member: 1, addr: 64, phase: 3 };
    assert_eq!(place, Place { phase: 0, ..place });
    assert_ne!(place, Place { addr: 72, ..place });
    assert_ne!(place, Place { member: 2, ..place });
}

#[test]
fn there_is_nothing_before_the_first_address_or_after_the_last() {
    let first = Place { member: 0, addr: 0, phase: 0 };
    assert_eq!(step(first, -1, 4, 8, 3), None);
    assert_eq!(step(first, -1, 0, 8, 3), None);
    let last = Place { member: 2, addr: u64::MAX - 7, phase: 3 };
    assert_eq!(step(last, 1, 4, 8, 3), None);
    assert_eq!(step(last, 1, 0, 8, 3), None);
    assert_eq!(step(first, i64::MAX, usize::MAX, usize::MAX, 1), None);
    assert_eq!(step(first, i64::MIN, 1, usize::MAX, usize::MAX), None);
    let far = step(first, i64::MAX, 5, 1, 3).unwrap();
    assert_eq!(distance(far, first, 5, 1, 3), i64::MAX);
    assert_eq!(compare(first, far, 5, 1, 3), Ordering::Less);
}
