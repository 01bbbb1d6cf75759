//! Blocks of different lengths, which only their two ends know.
//!
//! They pass through the sender's scratch, piece by piece: it copies a piece there and says so, the receiver gets it and says that it has. So each rank
//! touches its own buffers only, and nobody needs to know where blocks lie elsewhere. All pieces that a rank sends in a *round* go before it
//! receives that round's, and those of the round before have been got by then: no two ranks wait for each other.

use super::{Buffer, Plan, Signal, Span, Step, Totals};

/// What one rank knows of such a collective. Its blocks lie one behind the other, in the order of ranks.
///
/// ```
/// use partage_plan::coll::Ragged;
///
/// // This rank has 3 bytes for rank 0 and 10 for itself; 100 come from rank 0, in pieces of 8.
/// let plan = Ragged { me: 1, sent: vec![3, 10], come: vec![100, 10], same: false, room: 16 }.plan();
/// assert_eq!(plan.totals.signals.iter().map(|(_, _, n)| n).sum::<usize>(), 13 + 1);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ragged {
    /// This rank.
    pub me: usize,
    /// Bytes for each rank.
    pub sent: Vec<usize>,
    /// Bytes from each rank.
    pub come: Vec<usize>,
    /// All get the same, which lies in the source once.
    pub same: bool,
    /// Bytes of scratch that there are.
    pub room: usize,
}

impl Ragged {
    /// The steps of this rank.
    ///
    /// # Panics
    /// If there is not a byte of scratch for each rank.
    pub fn plan(&self) -> Plan {
        let Ragged { me, ref sent, ref come, same, room } = *self;
        let ranks = sent.len();
        assert!(room >= ranks, "ragged: a byte of scratch for each rank");
        // What is not the same for all has a place for each rank.
        let piece = match if same { room } else { room / ranks } {
            few @ ..64 => few,
            many => many & !63,
        };
        let place = |to: usize| if same { 0 } else { to * piece };
        let begins = |lens: &[usize]| -> Vec<usize> {
            lens.iter().scan(0, |at, len| Some(std::mem::replace(at, *at + len))).collect()
        };
        let (starts, ends) = (begins(sent), begins(come));
        let from = |r: usize| if same { 0 } else { starts[r] };
        let len = |all: usize, round: usize| all.saturating_sub(round * piece).min(piece);
        let span = |buffer, at, len| Span { buffer, at, len };
        let others = || (1..ranks).map(|k| (me + k) % ranks);
        let rounds = |all: usize| all.div_ceil(piece);
        let most = others().map(|r| rounds(sent[r].max(come[r]))).max().unwrap_or(0);

        let mut steps = vec![];
        if come[me] > 0 {
            let (src, dst) = (span(Buffer::Source, from(me), come[me]), span(Buffer::Dest, ends[me], come[me]));
            steps.push(Step::Copy { src, dst });
        }
        for round in 0..most {
            let sends: Vec<(usize, usize)> =
                others().map(|to| (to, len(sent[to], round))).filter(|s| s.1 > 0).collect();
            for &(from, _) in sends.iter().filter(|_| round > 0) {
                steps.push(Step::Wait { from, signal: Signal::Done, n: round });
            }
            for (i, &(to, n)) in sends.iter().enumerate() {
                if !same || i == 0 {
                    let src = span(Buffer::Source, from(to) + round * piece, n);
                    steps.push(Step::Copy { src, dst: span(Buffer::Scratch, place(to), n) });
                }
            }
            steps.extend(sends.iter().map(|&(to, _)| Step::Signal { to, signal: Signal::Data }));
            // From the one before first, since it sends to this one first.
            for from in (1..ranks).map(|k| (me + ranks - k) % ranks) {
                let n = len(come[from], round);
                if n > 0 {
                    steps.push(Step::Wait { from, signal: Signal::Data, n: round + 1 });
                    let dst = span(Buffer::Dest, ends[from] + round * piece, n);
                    steps.push(Step::Get { from, src: span(Buffer::Scratch, place(me), n), dst });
                    steps.push(Step::Signal { to: from, signal: Signal::Done });
                }
            }
        }
        let mut signals = vec![];
        for r in others() {
            let (done, data) = (rounds(sent[r]), rounds(come[r]));
            if done > 0 {
                steps.push(Step::Wait { from: r, signal: Signal::Done, n: done });
                signals.push((r, Signal::Done, done));
            }
            if data > 0 {
                signals.push((r, Signal::Data, data));
            }
        }
        Plan { steps, scratch: room, totals: Totals { signals, ..Totals::default() } }
    }
}
