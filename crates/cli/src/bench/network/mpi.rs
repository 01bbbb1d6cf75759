//! A put that is complete there beside a message that is answered, and a stream of puts beside one of messages, of an MPI whose
//! processes share no memory either. The value is what a put takes, the floor what the MPI does.

use super::pair::{put_8, put_bandwidth};
use crate::bench::measure::Measured;
use crate::bench::mpi::Way::{PingAck, Stream};
use crate::bench::mpi::{Library, MPICH, OPEN_MPI, Way};
use crate::bench::ranks::Bench;
use crate::bench::{Figure, How, Limit};

/// Those of this kind.
pub static FIGURES: [Figure; 6] = [
    of("net_put_8_beside_openmpi", put_8, &OPEN_MPI, PingAck, 8),
    of("net_put_64k_bw_beside_openmpi", put_bandwidth::<{ 64 << 10 }>, &OPEN_MPI, Stream, 64 << 10),
    of("net_put_1m_bw_beside_openmpi", put_bandwidth::<{ 1 << 20 }>, &OPEN_MPI, Stream, 1 << 20),
    of("net_put_8_beside_mpich", put_8, &MPICH, PingAck, 8),
    of("net_put_64k_bw_beside_mpich", put_bandwidth::<{ 64 << 10 }>, &MPICH, Stream, 64 << 10),
    of("net_put_1m_bw_beside_mpich", put_bandwidth::<{ 1 << 20 }>, &MPICH, Stream, 1 << 20),
];

const fn of(
    name: &'static str,
    what: fn(&Bench) -> Measured,
    library: &'static Library,
    way: Way,
    len: usize,
) -> Figure {
    let how = How::Mpi { library, way, len, read: false, beside: Some(what) };
    Figure { name, unit: "us", limit: Limit::None, most: 5, how }
}
