//! The slices of a phase live in its closure.
#![allow(unused)]

use partage::prelude::*;

fn a_slice_is_returned(a: &mut SharedArray<f64>) {
    let slice: &mut [f64] = a.own(|mine| mine);
    slice[0] = 1.0;
}

fn a_view_is_returned(a: &mut SharedArray<f64>) {
    let view = a.freeze(|all| all);
    view.get(0);
}

fn a_part_is_returned(a: &mut SharedArray<f64>) {
    let part = a.freeze(|all| all.mine());
    println!("{part:?}");
}

fn another_part_is_returned(a: &mut SharedArray<f64>) {
    let part = a.freeze(|all| all.part(Rank(0)));
    println!("{part:?}");
}

fn slices_are_returned(job: &Job, arrays: &mut [SharedArray<f64>]) {
    let all: Vec<_> = arrays.iter_mut().map(|a| a.owned()).collect();
    let slices = job.phase(all, |slices| slices);
    println!("{slices:?}");
}

fn one_of_two_is_returned(job: &Job, a: &mut SharedArray<f64>, b: &mut SharedArray<u8>) {
    let slice = job.phase((a.owned(), b.frozen()), |(mine, _)| mine);
    slice[0] = 1.0;
}

fn a_slice_is_kept(a: &mut SharedArray<f64>) {
    let mut kept: Option<&mut [f64]> = None;
    a.own(|mine| kept = Some(mine));
    kept.unwrap()[0] = 1.0;
}

fn a_part_is_kept(a: &mut SharedArray<f64>) {
    let mut kept: &[f64] = &[];
    a.freeze(|all| kept = all.mine());
    println!("{kept:?}");
}

fn a_view_is_kept(a: &mut SharedArray<f64>) {
    let mut kept = vec![];
    a.freeze(|all| kept.push(all));
    kept[0].get(0);
}

fn an_inner_slice_is_kept(a: &mut SharedArray<f64>, b: &mut SharedArray<f64>) {
    a.own(|outer| {
        let mut kept = None;
        b.own(|inner| kept = Some(inner));
        outer.swap_with_slice(kept.unwrap());
    });
}

fn a_slice_in_a_thread_that_outlives_the_phase(a: &mut SharedArray<f64>) {
    a.own(|mine| std::thread::spawn(move || mine.fill(1.0)));
}

fn a_frozen_part_is_written(a: &mut SharedArray<f64>) {
    a.freeze(|all| all.mine()[0] = 1.0);
}

fn a_neighbours_part_is_written(a: &mut SharedArray<f64>) {
    a.freeze(|all| all.part(Rank(1)).unwrap()[0] = 1.0);
}

fn main() {}
