//! A token goes round; every rank adds its number.
//!
//! `cargo run --release -p partage-examples --bin ring`

fn main() {
    partage::run(|job| -> partage::Result {
        let mut to = job.outbox::<u64>(job.neighbor(1), 1, 1)?;
        let mut from = job.inbox::<u64>(job.neighbor(-1), 1, 1)?;
        let (me, n) = (u64::from(job.rank().0), job.size() as u64);
        for round in 0..10 {
            if me == 0 {
                to.put_signal(&[round]);
            }
            let token = from.wait()[0];
            match me {
                0 => assert_eq!(token, round + n * (n - 1) / 2),
                _ => to.put_signal(&[token + me]),
            }
        }
        if me == 0 {
            println!("the ranks' numbers add up to {}", n * (n - 1) / 2);
        }
        Ok(())
    });
}
