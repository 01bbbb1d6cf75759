//! Every block straight to where it must be.
//!
//! Bytes: each block passes once, which is the least. Flat: one round. Pairwise: P − 1 rounds, in each of which every
//! rank sends one message and receives one. Exclusive-or: one less than the next power of two of P, in each of which
//! two ranks swap; a rank whose partner does not exist is idle.

use super::{List, Op, Shape};

pub fn flat(shape: &Shape, me: usize, list: &mut List) {
    let p = shape.ranks;
    let to = |d: usize| (me + d) % p;
    let from = |d: usize| (me + p - d) % p;
    match &shape.op {
        // One peer only, which need not be searched.
        Op::Permute { to } => {
            swap(shape, me, Some(to[me]), None, list);
            swap(shape, me, None, to.iter().position(|&t| t == me), list);
        }
        op if op.root().is_some_and(|root| root != me) => swap(shape, me, op.root(), op.root(), list),
        _ => {
            // What goes to other nodes goes first: it is on its way while the others' is copied.
            let is_near = |&r: &usize| shape.nodes.as_ref().is_some_and(|nodes| nodes.of(r) == nodes.of(me));
            let (near, far): (Vec<usize>, Vec<usize>) = (1..p).map(to).partition(is_near);
            far.into_iter().chain(near).for_each(|to| swap(shape, me, Some(to), None, list));
            (1..p).for_each(|d| swap(shape, me, None, Some(from(d)), list));
        }
    }
}

pub fn pairwise(shape: &Shape, me: usize, list: &mut List) {
    let p = shape.ranks;
    (1..p).for_each(|t| swap(shape, me, Some((me + t) % p), Some((me + p - t) % p), list));
}

pub fn xor(shape: &Shape, me: usize, list: &mut List) {
    let partners = (1..shape.ranks.next_power_of_two()).map(|t| me ^ t).filter(|&r| r < shape.ranks);
    partners.for_each(|r| swap(shape, me, Some(r), Some(r), list));
}

fn swap(shape: &Shape, me: usize, to: Option<usize>, from: Option<usize>, list: &mut List) {
    if let Some(to) = to.filter(|&to| to != me) {
        list.send(to, shape.between(me, to));
    }
    if let Some(from) = from.filter(|&from| from != me) {
        list.receive(from, shape.between(from, me));
    }
}
