//! What `ofi_rxd`, the layer that makes datagrams reliable (as over `udp`), needs us to keep to. Its faults of libfabric 1.17 are those of
//! all versions before 2.4; what is done here costs later ones little, and so is done for all.
//!
//! # Its queue overflows
//! Below `ofi_rxd` is a completion queue for packets that were sent or received, and `udp` puts received ones into it without a look
//! whether it is full. It is a ring: what was not read yet is overwritten, one packet is dealt with twice, and others never. Both
//! sides had counted them as received, so a message is lost for ever (whoever waits for it waits until its host seems lost), or has another's
//! bytes ("Truncation error"). The more packets wait, the more are sent again, after a millisecond at first; so a flood of small
//! messages fills it, once the two sides are about equally fast.
//!
//! [`sizes`] keeps that from happening. In the queue are at most
//! * as many received packets as there are buffers for them, `rx`, since each is posted again only when its packet is dealt with;
//! * as many acknowledgements and one: between the times when the oldest of them was sent and now, only packets that were in the queue at that
//!   time, which are at most `rx`, were dealt with, and each is acknowledged once;
//! * [`WINDOW`] others to each peer: one that waits in the queue is not sent again, and more are not under way.
//!
//! It has room for `tx + rx`, rounded up to a power of two. With 1024 each, which is what it has by itself, that is too
//! little for even one peer.
//!
//! # It drops what it has no room for
//! A message that is sent when `tx` messages are under way is taken as if there were room, and is gone. (Injected ones, puts and gets are
//! refused, as they should be.) So nothing is [injected](super::Endpoint::injects): of messages with a completion we know how many
//! are under way, and have far fewer.
//!
//! # It sends again too soon, and then too late
//! A packet that is not acknowledged within a millisecond is sent again with all that follow, and the next time after twice as long, four seconds at
//! most, until one is. What a process has not dealt with in a millisecond comes twice, then; the kernel drops what its socket has no
//! room for (a few hundred small packets), and of several that flood one process the unlucky one may not be heard for many seconds, which looks
//! like a lost host. Nothing is done about that. (With fewer messages under way, 8 to 10 of each process instead of 64, nothing is dropped and floods take a third of
//! the time.)

/// In the names of providers.
pub(super) const NAME: &str = "ofi_rxd";
/// Packets to a peer that were sent and not acknowledged, at most.
const WINDOW: usize = 128;
/// Room in the queue for packets.
const ROOM: usize = 2048;
/// Operations that may be under way, at least.
const LEAST_TX: usize = 256;
/// Buffers for packets: at most, so that the queue has its room with so few operations,
const MOST_RX: usize = 800;
/// and at least: a message takes one of as many from when its buffer was posted.
const LEAST_RX: usize = 96;

/// How many operations may be under way, and how many packets may have been received, with so many peers. From 15 peers on, it is not sure that
/// the queue has room for all; that takes as many that all send as much as they can at the same time.
pub(super) fn sizes(peers: usize) -> (usize, usize) {
    let rx = (ROOM - 1).saturating_sub(WINDOW * peers) / 2;
    let rx = rx.clamp(LEAST_RX, MOST_RX);
    ((ROOM / 2 + 1 - rx).max(LEAST_TX), rx)
}

#[cfg(test)]
mod tests {
    use super::super::{Asked, Endpoint};
    use super::*;

    #[test]
    fn the_queue_has_room_for_all_packets() {
        for peers in 0..100 {
            let (tx, rx) = sizes(peers);
            assert_eq!((tx + rx).next_power_of_two(), ROOM, "{peers} peers");
            // It takes no more of either.
            assert!(tx <= 1024 && rx <= 1024, "{peers} peers");
            assert!(tx > crate::ofi::am::BOUNCES && rx > crate::ofi::am::BUFFERS, "{peers} peers");
            assert!(2 * rx + 1 + WINDOW * peers <= ROOM || peers >= 15, "{peers} peers");
            // Those of a get last until its bytes have been acknowledged, and there must be one for each.
            assert!(tx * peers <= rx || peers > 3, "{peers} peers");
        }
    }

    #[test]
    fn it_is_asked_for_that() {
        let (provider, source) = (Some("udp".into()), Some("127.0.0.1".into()));
        let asked = Asked { provider, source, peers: 5, no_atomics: true, ..Asked::default() };
        let endpoint = match Endpoint::open(&asked) {
            Ok(endpoint) => endpoint,
            Err(why) => return println!("SKIPPED: {why}"),
        };
        assert!(endpoint.provider().contains(NAME), "{}", endpoint.provider());
        // SAFETY: a description that fi_getinfo has filled in, which is not changed any more.
        let found = unsafe { ((*(*endpoint.opened.info).tx_attr).size, (*(*endpoint.opened.info).rx_attr).size) };
        assert_eq!((found, endpoint.injects()), (sizes(5), 0));
    }
}
