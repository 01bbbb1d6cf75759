//! Everything that carries a job stays on its rank's thread.
#![allow(unused)]

use partage::prelude::*;
use std::sync::Mutex;

fn job(job: &Job) {
    std::thread::scope(|s| {
        s.spawn(|| job.barrier());
    });
}

fn team(job: &Job) {
    std::thread::scope(|s| {
        s.spawn(|| job.all().barrier());
    });
}

fn array(a: SharedArray<f64>) {
    std::thread::spawn(move || a.put(0, 1.0));
}

fn borrowed_array(a: &SharedArray<f64>) {
    std::thread::scope(|s| {
        s.spawn(|| a.put(0, 1.0));
    });
}

fn borrowed_mutably(a: &mut SharedArray<f64>) {
    std::thread::scope(|s| {
        s.spawn(|| a.own(|mine| mine.fill(1.0)));
    });
}

fn array_in_a_static() {
    static KEPT: Mutex<Option<SharedArray<f64>>> = Mutex::new(None);
}

fn view(a: &mut SharedArray<f64>) {
    a.freeze(|all| {
        std::thread::scope(|s| {
            s.spawn(|| all.get(0));
        });
    });
}

fn cells(a: &SharedArray<f64>) {
    let cells = a.cells();
    std::thread::scope(|s| {
        s.spawn(|| cells.set(0, 1.0));
    });
}

fn event(a: &SharedArray<f64>) {
    let event = a.fetch(..);
    std::thread::scope(|s| {
        s.spawn(|| event.wait());
    });
}

fn owned(a: &mut SharedArray<f64>) {
    let owned = a.owned();
    std::thread::scope(|s| {
        s.spawn(|| drop(owned));
    });
}

fn scope(job: &Job) {
    job.scope(|s| {
        std::thread::scope(|t| {
            t.spawn(|| s.wait_all());
        });
    });
}

fn object(job: &Job) {
    let object = job.dist(1u64);
    std::thread::scope(|s| {
        s.spawn(|| object.with(|x| *x += 1));
    });
}

fn result() {
    partage::test(2, |job| job.array::<f64>(8).unwrap());
}

fn main() {}
