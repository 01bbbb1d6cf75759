//! The floor of the network: libfabric by hand, between the two processes of a job.
//!
//! Each process opens an endpoint of its own beside the job's. The bytes lie in the job's segments, so that pages and cores
//! are those of what it is compared with. As in [`floor`] none of it is a runtime: no progress but by
//! whoever polls, and whatever fails is a panic. What the network may touch is never given back.

use super::floor;
use partage::prelude::*;
use partage_conduit::ofi::endpoint::{Asked, Context, Desc, Endpoint, Entry, Peer, Posted, Region, Remote};
use std::cell::{Cell, RefCell};

/// Bytes of each of two buffers for messages.
const BUFFER: usize = 64 << 10;

/// This process's end.
pub struct Wire {
    /// This process's part of the block.
    _region: Region,
    endpoint: Endpoint,
    peer: Peer,
    /// The other's part of the block.
    there: Remote,
    /// As many private bytes.
    private: *mut u8,
    /// Operations that may be posted; all of them are here when nothing is under way.
    free: RefCell<Vec<*mut Context>>,
    window: usize,
    buffers: [*mut u8; 2],
    received: Cell<u64>,
    awaited: Cell<u64>,
    longest: usize,
}

/// What the other must know.
#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "partage::bytemuck")]
#[repr(C)]
struct Card {
    name: [u8; 64],
    len: u64,
    addr: u64,
    key: u64,
}

impl Wire {
    /// Collective, of two ranks of one host: for puts and gets of at most `len` bytes, of which so many as `window` says may be
    /// under way, and messages of 64 bytes.
    pub fn new(job: &Job, len: usize, window: usize) -> Wire {
        Wire::between(job, job.neighbor(1), Some("127.0.0.1".into()), len, window, 64)
    }

    /// The same with that rank, by the interface with this address, with messages of at most `longest` bytes.
    pub fn between(job: &Job, with: Rank, source: Option<String>, len: usize, window: usize, longest: usize) -> Wire {
        let provider = std::env::var("PARTAGE_PROVIDER").ok().filter(|name| !name.is_empty());
        let asked = Asked { provider, source, min_multi_recv: longest, never_waits: true, ..Asked::default() };
        let endpoint = Endpoint::open(&asked).expect("an endpoint");
        let block = job.alloc_all::<u8>(len).expect("a block");
        let base = floor::raw(job, block.on(job.rank()), len);
        // SAFETY: the block is never freed, so it is mapped as long as the job, into which no reference exists; the region is
        // dropped within it.
        let region = unsafe { endpoint.register(base, len, 1) }.expect("registered memory");
        assert!(!endpoint.needs_local_registration(), "{} wants more than this floor does", endpoint.provider());
        let Remote { addr, key } = region.remote();
        let mut card = Card { name: [0; 64], len: endpoint.name().len() as u64, addr, key };
        card.name[..endpoint.name().len()].copy_from_slice(endpoint.name());
        let cards = job.alloc_all::<Card>(1).expect("a card");
        cards.on(job.rank()).put(job, card);
        job.barrier();
        let other = cards.on(with).get(job);
        let wire = Wire {
            peer: endpoint.insert(&other.name[..other.len as usize]).expect("an address"),
            there: Remote { addr: other.addr, key: other.key },
            _region: region,
            endpoint,
            private: vec![1; len.max(longest)].leak().as_mut_ptr(),
            free: RefCell::new(
                (2..2 + window as u64).map(|word| &raw mut *Box::leak(Context::new(word).into())).collect(),
            ),
            window,
            buffers: [(); 2].map(|()| vec![0; BUFFER].leak().as_mut_ptr()),
            received: Cell::new(0),
            awaited: Cell::new(0),
            longest,
        };
        for word in 0..2 {
            wire.post_buffer(Box::leak(Context::new(word).into()));
        }
        wire
    }

    /// Moves everything on.
    #[inline]
    pub fn poll(&self) {
        let mut entries = [Entry::EMPTY; 8];
        let n = self.endpoint.poll(&mut entries).unwrap_or_else(|broken| panic!("{broken}"));
        for entry in &entries[..n] {
            if entry.is_message() {
                self.received.set(self.received.get() + 1);
            }
            if entry.releases_buffer() {
                self.post_buffer(entry.context);
            } else if !entry.is_message() {
                self.free.borrow_mut().push(entry.context);
            }
        }
    }

    /// A put of `len` bytes, until they are there.
    pub fn put(&self, len: usize) {
        self.start_put(len);
        self.finish();
    }

    /// So many puts of `len` bytes, the window's worth of them at a time, until all are there.
    pub fn puts(&self, times: usize, len: usize) {
        (0..times).for_each(|_| self.start_put(len));
        self.finish();
    }

    fn start_put(&self, len: usize) {
        self.with_context(|context| {
            // SAFETY: `private` has so many bytes (`new`) that nobody writes to, and like the context it is never given back.
            unsafe { self.endpoint.write(self.peer, self.private, len, Desc::NONE, self.there, context, true) }
        });
    }

    /// A get of `len` bytes.
    pub fn get(&self, len: usize) {
        self.with_context(|context| {
            // SAFETY: as for a put, and nobody reads them.
            unsafe { self.endpoint.read(self.peer, self.private, len, Desc::NONE, self.there, context) }
        });
        self.finish();
    }

    /// A message of so many bytes.
    pub fn send(&self, len: usize) {
        assert!(len <= self.longest);
        if self.endpoint.inject_size() >= len {
            // SAFETY: `private` has so many bytes (`between`) that nobody writes to.
            let bytes = unsafe { std::slice::from_raw_parts(self.private, len) };
            return self.post(|| self.endpoint.inject(self.peer, bytes));
        }
        self.with_context(|context| {
            // SAFETY: as for a put.
            unsafe { self.endpoint.send(self.peer, self.private, len, Desc::NONE, context) }
        });
    }

    /// Polls until one more message has come than there were when this was called last.
    pub fn await_next(&self) {
        self.await_next_with(|| {});
    }

    /// The same, with this between two looks.
    pub fn await_next_with(&self, between: impl Fn()) {
        self.awaited.set(self.awaited.get() + 1);
        loop {
            self.poll();
            if self.received.get() >= self.awaited.get() {
                return;
            }
            between();
        }
    }

    /// How many messages have come.
    pub fn received(&self) -> u64 {
        self.received.get()
    }

    fn finish(&self) {
        while self.free.borrow().len() < self.window {
            self.poll();
        }
    }

    fn with_context(&self, what: impl Fn(*mut Context) -> Posted) {
        let context = loop {
            let free = self.free.borrow_mut().pop();
            match free {
                Some(context) => break context,
                None => self.poll(),
            }
        };
        self.post(|| what(context));
    }

    fn post(&self, what: impl Fn() -> Posted) {
        loop {
            match what() {
                Posted::Done => return,
                Posted::Again => self.poll(),
                Posted::Failed(why) => panic!("{why}"),
            }
        }
    }

    fn post_buffer(&self, context: *mut Context) {
        // SAFETY: a context of `new`, which is not given back; the network does not write to its word.
        let buffer = self.buffers[unsafe { (*context).word } as usize];
        // SAFETY: so many bytes, never given back, which nobody looks at.
        self.post(|| unsafe { self.endpoint.post_receive(buffer, BUFFER, Desc::NONE, context) });
    }
}
