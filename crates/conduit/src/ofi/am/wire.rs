//! What messages consist of on the wire: a head, what has ended where it is said, arguments, payload.

use crate::am::ARGS;
use crate::credits::Cost;
use crate::shm::mail::{AM, CALL};
use bytemuck::bytes_of;

/// What goes before a message: the job's secret, and its [`Head`]; then the word of what has ended, if it has one.
pub(super) type Wire = [u64; 3];

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Head {
    pub(super) source: u32,
    /// Of a request or call: its source found too few credits before.
    pub(super) wants: bool,
    pub(super) target: u32,
    pub(super) handler: u16,
    /// Of a request or call: its number among those of its source and net to this process. Of an answer: so many credits of the
    /// target's messages to the source's process have ended without a reply.
    pub(super) number: u32,
    pub(super) payload: u32,
    pub(super) args: u8,
    pub(super) kind: u8,
    /// Of a request or call, and of its answer.
    pub(super) cost: Cost,
    /// Of a request or call: so many credits of the target's requests to the source's process have ended without a reply.
    pub(super) ended: Option<u32>,
}

/// Ranks have numbers below this.
pub(in crate::ofi) const RANKS: u32 = 1 << 23;

impl Head {
    pub(super) fn to_wire(self, nonce: u64) -> Wire {
        let ranks = u64::from(self.source) | u64::from(self.wants) << 23 | u64::from(self.target) << 24;
        let ranks = ranks | u64::from(self.ended.is_some()) << 47;
        let lengths = u64::from(self.payload) | u64::from(self.args) << 17;
        let what = u64::from(self.kind) << 24 | u64::from(self.cost.class()) << 28;
        [nonce, ranks | u64::from(self.handler) << 48, (lengths | what) << 32 | u64::from(self.number)]
    }

    /// Bytes before the arguments.
    pub(super) fn len(&self) -> usize {
        size_of::<Wire>() + self.ended.map_or(0, |_| size_of::<u64>())
    }

    /// None if the cost is none. What has ended, if it says so, is in the next word.
    pub(super) fn from_wire([_, ranks, rest]: Wire) -> Option<Head> {
        let what = (rest >> 32) as u32;
        Some(Head {
            source: ranks as u32 % RANKS,
            wants: ranks >> 23 & 1 == 1,
            target: (ranks >> 24) as u32 % RANKS,
            handler: (ranks >> 48) as u16,
            number: rest as u32,
            payload: what & 0x1_ffff,
            args: (what >> 17) as u8 & 0x7f,
            kind: (what >> 24) as u8 & 0xf,
            cost: Cost::from_class((what >> 28) as u8)?,
            ended: (ranks >> 47 & 1 == 1).then_some(0),
        })
    }
}

pub(super) const REQUEST: u8 = 0;
pub(super) const REPLY: u8 = 1;
pub(super) const CALLED: u8 = 2;
pub(super) const RESULT: u8 = 3;
pub(super) const ENDED: u8 = 4;
pub(super) const MEET: u8 = 5;
pub(super) const HELLO: u8 = 6;
pub(super) const HELLO_BACK: u8 = 7;
/// A source tells of what it has returned, and needs.
pub(super) const CREDIT: u8 = 8;

/// A message that has been received.
#[derive(Clone, Copy)]
pub(in crate::ofi) struct Message<'m> {
    pub(super) head: Head,
    pub(super) args: &'m [u8],
    pub(super) payload: &'m [u8],
}

impl<'m> Message<'m> {
    /// Out of any bytes; none unless they begin with the secret and are as long as they say.
    pub(super) fn read(nonce: u64, bytes: &'m [u8]) -> Option<Message<'m>> {
        let (wire, rest) = bytes.split_first_chunk::<{ size_of::<Wire>() }>()?;
        let wire: Wire = bytemuck::pod_read_unaligned(wire);
        let mut head = Head::from_wire(wire).filter(|_| wire[0] == nonce)?;
        let mut rest = rest;
        if let Some(ended) = &mut head.ended {
            let (word, after) = rest.split_first_chunk::<{ size_of::<u64>() }>()?;
            (*ended, rest) = (u64::from_ne_bytes(*word) as u32, after);
        }
        let args = rest.get(..head.args.into()).filter(|args| args.len() <= ARGS)?;
        let payload = rest.get(args.len().next_multiple_of(8)..)?.get(..head.payload as usize)?;
        Some(Message { head, args, payload })
    }

    /// The net of a message that is taken in its turn.
    pub(in crate::ofi) fn net(&self) -> Option<usize> {
        match self.head.kind {
            REQUEST => Some(AM),
            CALLED => Some(CALL),
            _ => None,
        }
    }

    /// What it costs.
    pub(in crate::ofi) fn cost(&self) -> Cost {
        self.head.cost
    }

    /// As it was received.
    pub(super) fn to_bytes(self, nonce: u64) -> Vec<u8> {
        let ended = self.head.ended.map(u64::from);
        let mut bytes = [bytes_of(&self.head.to_wire(nonce)), ended.as_ref().map_or(&[], bytes_of), self.args].concat();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.extend(self.payload);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credits::{MOST, UNIT};
    use crate::pool::LARGE;

    /// What bytes say, they have; whatever they are.
    #[test]
    fn messages_of_any_bytes_are_understood_or_refused() {
        const SECRET: u64 = 0x0123_4567_89ab_cdef;
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
        };
        let (mut read, mut refused) = (0, 0);
        for _ in 0..100_000 {
            let mut words: Vec<u64> = (0..random() % 20).map(|_| random()).collect();
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
            if bytes.len() >= size_of::<Wire>() && random() % 4 > 0 {
                // Lengths that may fit, and mostly a cost.
                let lengths =
                    (random() % 100) | ((random() % 80) << 17) | ((random() % 16) << 24) | ((random() % 11) << 28);
                bytes[20..24].copy_from_slice(&(lengths as u32).to_le_bytes());
            }
            if bytes.len() >= size_of::<Wire>() && random() % 8 > 0 {
                bytes[..8].copy_from_slice(bytes_of(&SECRET));
            }
            let bytes = &bytes[..bytes.len() - (random() as usize % 8).min(bytes.len())];
            match Message::read(SECRET, bytes) {
                Some(message) => {
                    assert_eq!(bytes[..8], SECRET.to_ne_bytes());
                    assert!(Message::read(SECRET ^ 1 << (random() % 64), bytes).is_none(), "another's is not ours");
                    let again = message.to_bytes(SECRET);
                    let again = Message::read(SECRET, &again).expect("as it was received");
                    assert_eq!((again.head, again.args, again.payload), (message.head, message.args, message.payload));
                    assert!(message.args.len() <= ARGS && message.payload.len() <= bytes.len());
                    read += 1;
                }
                None => refused += 1,
            }
        }
        assert!(read > 1000 && refused > 1000, "{read} were read, {refused} refused");
    }

    #[test]
    fn a_short_message_with_usual_arguments_can_be_injected() {
        assert_eq!(size_of::<Wire>(), 24);
        // 64 bytes is what tcp of 1.17 injects.
        assert!(size_of::<Wire>() + 40 <= 64);
    }

    #[test]
    fn heads_arrive_as_they_were() {
        let most = Head {
            source: RANKS - 1,
            wants: true,
            target: RANKS - 1,
            handler: u16::MAX,
            number: u32::MAX,
            payload: LARGE as u32,
            args: ARGS as u8,
            kind: 15,
            cost: Cost::of(UNIT * MOST as usize),
            ended: None,
        };
        let told = Head { ended: Some(0), ..most };
        for head in [most, told, Head::default(), Head { wants: false, ..most }, Head { source: 0, args: 0, ..most }] {
            let wire = head.to_wire(7);
            assert_eq!((wire[0], Head::from_wire(wire)), (7, Some(head)));
        }
        assert_eq!(Head::from_wire([0, 0, 15 << 60]), None, "no message costs that");
    }
}
