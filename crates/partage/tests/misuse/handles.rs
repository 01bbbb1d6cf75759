//! While an array is in a phase, or something of it is under way, nobody else has its handle.
#![allow(unused)]

use partage::prelude::*;

fn get_in_the_own_phase(a: &mut SharedArray<f64>) {
    a.own(|mine| mine[0] = a.get(3));
}

fn put_in_the_own_phase(a: &mut SharedArray<f64>) {
    a.own(|_| a.put(3, 1.0));
}

fn get_in_a_read_phase(a: &mut SharedArray<f64>) {
    a.freeze(|_| a.get(3));
}

fn the_same_phase_in_it(a: &mut SharedArray<f64>) {
    a.own(|outer| a.own(|inner| outer[0] = inner[0]));
}

fn the_handle_is_dropped_in_it(mut a: SharedArray<f64>) {
    a.own(|_| drop(a));
}

fn the_handle_is_exchanged_in_it(a: &mut SharedArray<f64>, b: &mut SharedArray<f64>) {
    a.own(|_| std::mem::swap(a, b));
}

fn twice_in_one_phase(job: &Job, a: &mut SharedArray<f64>) {
    job.phase((a.owned(), a.frozen()), |(mine, all)| mine[0] = all.get(0));
}

fn twice_in_a_vector(job: &Job, a: &mut SharedArray<f64>) {
    job.phase(vec![a.owned(), a.owned()], |_| ());
}

fn get_between_owned_and_the_phase(job: &Job, a: &mut SharedArray<f64>) {
    let owned = a.owned();
    a.get(0);
    job.phase(owned, |_| ());
}

fn a_phase_while_fetching(a: &mut SharedArray<f64>) {
    let event = a.fetch(0..8);
    a.own(|_| ());
    event.wait();
}

fn a_phase_while_storing(a: &mut SharedArray<f64>) {
    let event = a.store(0, vec![1.0]);
    a.freeze(|_| ());
    event.wait();
}

fn a_phase_while_a_get_is_under_way(job: &Job, a: &mut SharedArray<f64>) {
    let mut buffer = [0.0; 8];
    job.scope(|s| {
        std::mem::forget(s.get(a, 0, &mut buffer));
        a.own(|_| ());
    });
}

fn a_phase_while_a_put_is_under_way(job: &Job, a: &mut SharedArray<f64>) {
    job.scope(|s| {
        std::mem::forget(s.put(a, 0, &[1.0]));
        a.own(|_| ());
    });
}

fn a_phase_while_somebody_has_a_word(a: &mut SharedArray<u64>) {
    let word = a.at(3);
    a.own(|_| ());
    word.fetch_add(1);
}

fn a_phase_while_somebody_has_cells(a: &mut SharedArray<u64>) {
    let cells = a.cells();
    a.own(|_| ());
    cells.set(0, 1);
}

fn an_event_that_outlives_the_array(job: &Job) {
    let event = {
        let a = job.array::<f64>(8).unwrap();
        a.fetch(..)
    };
    event.wait();
}

fn an_array_is_dropped_while_it_is_read(job: &Job, a: SharedArray<f64>) {
    let event = a.fetch(..);
    drop(a);
    event.wait();
}

fn an_array_is_dropped_in_a_scope_that_reads_it(job: &Job, a: SharedArray<f64>) {
    let mut buffer = [0.0; 8];
    job.scope(|s| {
        let _ = s.get(&a, 0, &mut buffer);
        drop(a);
    });
}

fn main() {}
