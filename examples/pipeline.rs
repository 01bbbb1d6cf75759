//! Every rank takes items from the one before it, works, and gives them to the one after it. A few of them may be under way
//! between two ranks; a rank that is slow makes those before it wait, and nobody else.
//!
//! `cargo run --release -p partage-examples --bin pipeline`

const DEPTH: usize = 8;
const ITEMS: u64 = 1000;

fn main() {
    partage::run(|job| -> partage::Result {
        let (me, last) = (job.rank().index(), job.size() - 1);
        let mut from = (me > 0).then(|| job.inbox::<[u64; 2]>(job.neighbor(-1), 1, DEPTH)).transpose()?;
        let mut to = (me < last).then(|| job.outbox::<[u64; 2]>(job.neighbor(1), 1, DEPTH)).transpose()?;
        for k in 0..ITEMS {
            // An item, and how many have worked on it; the first makes them.
            let [item, hands] = from.as_mut().map_or([k, 0], |from| from.wait()[0]);
            let done = [work(item), hands + 1];
            match &mut to {
                Some(to) => to.put_signal(&[done]),
                None => assert_eq!(done, [(0..=last).fold(k, |item, _| work(item)), job.size() as u64]),
            }
        }
        if me == last {
            println!("{ITEMS} items have gone through {} hands", job.size());
        }
        Ok(())
    });
}

fn work(item: u64) -> u64 {
    item.wrapping_mul(6364136223846793005).rotate_left(7)
}
