//! Rank 0 deals out work to whoever asks, one piece at a time: a mailbox for those who ask, one for each who works. Nobody
//! knows beforehand how long a piece takes.
//!
//! `cargo run --release -p partage-examples --bin mailbox`

use partage::prelude::*;

/// Pieces of work.
const PIECES: u64 = 200;
/// What is dealt when there are no more.
const ENOUGH: u64 = u64::MAX;

/// Who asks says where it gets its work, and what came of the piece before.
#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Ask {
    reply: Address<u64>,
    result: u64,
}

fn main() {
    partage::run(|job| -> partage::Result {
        let (asked, work) = (job.mailbox::<Ask>(job.size())?, job.mailbox::<u64>(1)?);
        let desk = job.value(asked.address()).broadcast(TeamRank(0));

        // Everybody asks, rank 0 too.
        desk.send(job, Ask { reply: work.address(), result: 0 });
        if job.rank().0 == 0 {
            let (mut dealt, mut sum, mut done) = (0, 0, 0);
            while done < job.size() {
                // Its own work it does between the questions of others.
                if let Some((_, piece)) = work.try_receive().filter(|&(_, piece)| piece != ENOUGH) {
                    desk.send(job, Ask { reply: work.address(), result: solve(piece) });
                }
                let (_, Ask { reply, result }) = asked.receive();
                sum += result;
                let piece = if dealt < PIECES { dealt } else { ENOUGH };
                reply.send(job, piece);
                dealt += 1;
                done += usize::from(piece == ENOUGH);
            }
            assert_eq!(sum, (0..PIECES).map(solve).sum::<u64>());
        } else {
            let pieces = std::iter::from_fn(|| Some(work.receive().1).filter(|&piece| piece != ENOUGH));
            pieces.for_each(|piece| desk.send(job, Ask { reply: work.address(), result: solve(piece) }));
        }
        job.barrier(); // before mailboxes are dropped to which somebody sends
        Ok(())
    });
}

/// Steps until a number has come down to 1.
fn solve(piece: u64) -> u64 {
    let mut n = piece + 1;
    let mut steps = 0;
    while n != 1 {
        n = if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 };
        steps += 1;
    }
    steps
}
