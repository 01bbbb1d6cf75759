//! One endpoint of a process, and what can be done with it: messages, puts, gets, completions.
//!
//! This is libfabric's reliable datagram endpoint (`FI_EP_RDM`) with one completion queue and one table of addresses, with
//! types. It has no policy: no thread, no retry, no buffers, no matching of what completes with who waits for it.
//!
//! # Rules
//! 1. Any thread may call anything at any time: the endpoint is opened with `FI_THREAD_SAFE`.
//! 2. Nothing moves unless somebody calls [`poll`](Endpoint::poll), at the initiator *and* at the target. Who may have to
//!    wait must poll, and so must whoever is the target of others' puts.
//! 3. An operation that is [`Posted::Done`] has been accepted. Its memory and its [`Context`] belong to the network until
//!    `poll` returns that context, in an entry or in a [`Broken`]; those that are injected belong to it no longer.
//! 4. [`Posted::Again`] means that nothing happened: poll, then try again.
//! 5. Messages from one endpoint to another are received in the order in which they were sent. Puts and gets have no
//!    order. A message has at least one byte.
//!
//! # Failures
//! A peer that is not there, or not there any more, is *no* error here: while a connection is being made, and again when it
//! was refused, [`Posted::Again`] is all that comes (tcp does not give up). Operations that were under way when a connection
//! broke are [`Broken`], but for injected ones, which are lost without a word; the next operation connects anew if the peer
//! lives. A put or get that its target refuses, for its key or its place, breaks the connection too. So the first
//! `Broken` is the end of whatever relies on messages, and who waits has a deadline or another way to learn of a death.
//!
//! # Sleeping
//! A thread that serves others' puts while its process computes sleeps in [`wait`](Endpoint::wait): `fi_trywait`, then
//! `poll(2)` on the queue's descriptor. The alternative, `fi_cq_sread`, was measured too, on tcp of 1.17 and of 2.6: the same
//! latencies (a put to a sleeper takes one and a half times as long as to a poller where they follow each other, several
//! times as long after a pause), no wake-up lost in 120,000 puts and gets each against sleeps of 5 s while a third thread
//! polled and sent, and neither holds a lock while it sleeps. The descriptor was chosen because it can be slept on
//! together with an event of our own ([`wake`](Endpoint::wake)), and because what is read then goes through the one `poll`.
//!
//! A sleeper beside a thread that polls is woken for every other arrival or so and competes for it: puts take half as long
//! again, or twice as long. Who polls should keep sleepers away.

mod atomics;
pub mod demands;
mod opened;
mod regions;
mod rxd;
#[cfg(test)]
mod tests;

use super::fi::{self, *};
use crate::turn::came_back;
pub use atomics::{Atomics, Operands};
use demands::Demands;
use libc::{c_char, c_void, iovec};
use opened::Opened;
pub use regions::{Region, Unregistered};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::ffi::CStr;
use std::os::fd::AsFd;
use std::ptr::null_mut;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// What is asked of the network.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The provider's name; else `tcp`.
    pub provider: Option<String>,
    /// The address of the interface to use; else the provider's first one.
    pub source: Option<String>,
    /// Room for completions; 0: the provider's choice.
    pub cq_size: usize,
    /// Operations that may be under way; 0: the provider's choice.
    pub tx_size: usize,
    /// Other endpoints that this one may hear from at the same time.
    pub peers: usize,
    /// A receive buffer takes messages until it has less room than this; 0: it takes one. A message that is longer than the
    /// room that is left is an error, so this is the longest that anybody sends.
    pub min_multi_recv: usize,
    /// Nobody will call [`wait`](Endpoint::wait): on tcp of 1.17 that makes everything an eighth to a fifth faster. Whoever
    /// does call it then sleeps for a moment only.
    pub never_waits: bool,
    /// There will be no [`Atomics`].
    pub no_atomics: bool,
    /// What the provider shall ask for beside what it does: for tests.
    pub demands: Demands,
}

/// A process's access to the network. Everything is closed when it and its [`Region`]s are gone.
#[derive(Debug)]
pub struct Endpoint {
    opened: Arc<Opened>,
    name: Vec<u8>,
    inject_size: usize,
    /// Must it be known how many messages are under way, for instance because those that find no room are gone?
    counts_sends: bool,
    /// Do receive buffers take many messages?
    takes_many: bool,
}

/// Another endpoint, or this one, in this one's table of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer(u64);

/// What a provider may want to know of local memory: that of a [`Region`] around it, or [`Desc::NONE`] where
/// [`needs_local_registration`](Endpoint::needs_local_registration) says no.
#[derive(Clone, Copy, Debug)]
pub struct Desc(*mut c_void);

// SAFETY: a name for a registration; only libfabric looks behind it, under rule 1.
unsafe impl Send for Desc {}
// SAFETY: as above.
unsafe impl Sync for Desc {}

impl Desc {
    /// Memory that is not registered.
    pub const NONE: Desc = Desc(null_mut());
}

/// A place in registered memory of another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Where: an address there, or bytes from the start of the region, as its provider wants it.
    pub addr: u64,
    /// The region's key.
    pub key: u64,
}

impl Remote {
    /// The place so many bytes further.
    #[inline]
    pub fn offset(self, bytes: u64) -> Remote {
        Remote { addr: self.addr + bytes, ..self }
    }
}

/// An operation under way: room for the provider, and a word for whoever posted it.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Context {
    room: [u64; 8],
    /// Not used here.
    pub word: u64,
}

impl Context {
    /// With a word.
    pub const fn new(word: u64) -> Context {
        Context { room: [0; 8], word }
    }
}

/// What became of an operation that was posted.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Posted {
    /// It was accepted.
    Done,
    /// There is no room now: nothing happened.
    Again,
    /// It was refused: nothing happened, and nothing will.
    Failed(String),
}

/// Something that has completed.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Entry {
    /// What was given to the operation.
    pub context: *mut Context,
    flags: u64,
    /// Bytes of a message that was received.
    pub len: usize,
    /// Where a message was received.
    pub buf: *mut u8,
    data: u64,
}

impl Entry {
    /// Room for one.
    pub const EMPTY: Entry = Entry { context: null_mut(), flags: 0, len: 0, buf: null_mut(), data: 0 };

    /// A message has come: it lies at `buf`, in the buffer that was posted with this context.
    #[inline]
    pub fn is_message(&self) -> bool {
        self.flags & FI_RECV != 0 && (self.len > 0 || self.flags & FI_MULTI_RECV == 0)
    }

    /// No more messages come into the buffer that was posted with this context. Those that came before it in the queue
    /// may still be in the hands of other threads.
    #[inline]
    pub fn releases_buffer(&self) -> bool {
        self.flags & FI_MULTI_RECV != 0
    }

    /// A put with data has come from another endpoint, and its bytes are in memory: the data. The context is that of the buffer
    /// which it has taken, where [that is so](Endpoint::data_takes_buffers), or none.
    #[inline]
    pub fn remote_data(&self) -> Option<u64> {
        let is_one = self.flags & (FI_REMOTE_CQ_DATA | FI_RECV | FI_WRITE) == FI_REMOTE_CQ_DATA;
        is_one.then_some(self.data)
    }
}

/// An operation that has failed, or the queue itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// What was given to the operation; null where that is not known.
    pub context: *mut Context,
    /// Was it a receive buffer?
    pub is_receive: bool,
    /// A number of `errno`, or of fi_errno(3).
    pub err: i32,
    /// The provider's own number.
    pub prov_errno: i32,
    /// What both mean, in one line.
    pub text: String,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Endpoint {
    /// From here on there is no room for any receive buffer.
    #[cfg(test)]
    pub(super) fn refuse_receives(&mut self) {
        unsafe extern "C" fn refuse(_: *mut fid_ep, _: *const fi_msg, _: u64) -> isize {
            -FI_EAGAIN
        }
        // SAFETY: an open endpoint that nobody else uses; what it calls from here on is the same but for one function, and
        // stays.
        unsafe {
            let ops = Box::leak(Box::new((*self.opened.ep).msg.read()));
            ops.recvmsg = refuse;
            (*self.opened.ep).msg = ops;
        }
    }

    /// The version of the library that was found.
    pub fn version() -> Result<String, String> {
        fi::library().map(|library| fi::text_of(library.version))
    }

    /// The provider that answered; it may be a layer over the one that was asked for.
    pub fn provider(&self) -> String {
        self.opened.provider()
    }

    /// Where this endpoint is, for others to [insert](Self::insert).
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Where this endpoint is, as people write it: `10.0.0.1:4711`.
    pub fn address_text(&self) -> String {
        self.text_of(&self.name)
    }

    /// A name as people write it.
    pub fn text_of(&self, name: &[u8]) -> String {
        if name.len() != self.name.len() {
            return format!("a name of {} bytes", name.len());
        }
        let (av, mut text) = (self.opened.av, [0u8; 256]);
        let mut len = text.len();
        // SAFETY: an open address vector, a name as long as those of its provider are, and `len` bytes to write to.
        unsafe { ((*(*av).ops).straddr)(av, name.as_ptr().cast(), text.as_mut_ptr().cast(), &mut len) };
        let text = CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy).unwrap_or_default();
        text.split_once("://").map_or(&*text, |(_, rest)| rest).to_string()
    }

    /// Another endpoint by its [name](Self::name). Nothing is sent: connecting is left to the first operation.
    pub fn insert(&self, name: &[u8]) -> Result<Peer, String> {
        let foreign = || format!("{} is no address for {}", self.text_of(name), self.provider());
        if name.len() != self.name.len() {
            return Err(foreign());
        }
        let (av, mut peer) = (self.opened.av, 0);
        // SAFETY: an open address vector, one name as long as those of its provider are, and room for one address.
        match unsafe { ((*(*av).ops).insert)(av, name.as_ptr().cast(), 1, &mut peer, 0, null_mut()) } {
            1 => Ok(Peer(peer)),
            code if code < 0 => Err(format!("fi_av_insert: {}", self.opened.library.error(code.into()))),
            _ => Err(foreign()),
        }
    }

    /// The most bytes that can be injected.
    #[inline]
    pub fn inject_size(&self) -> usize {
        self.inject_size
    }

    /// The most bytes of messages that may be injected beside others that are sent: none where it matters how many messages are under way, since nobody
    /// knows that of injected ones.
    #[inline]
    pub fn injects(&self) -> usize {
        if self.counts_sends { 0 } else { self.inject_size }
    }

    /// The most bytes of one operation.
    pub fn max_message_size(&self) -> usize {
        // SAFETY: the description and its parts live as long as `opened` and are not changed.
        unsafe { (*(*self.opened.info).ep_attr).max_msg_size }
    }

    /// Bytes that can travel with a message or put beside its own.
    pub fn cq_data_size(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*(*self.opened.info).domain_attr).cq_data_size }
    }

    /// What the provider wants of registration, as fi_mr(3) says.
    pub fn mr_mode(&self) -> i32 {
        self.opened.mr_mode()
    }

    /// Must local memory be registered too?
    pub fn needs_local_registration(&self) -> bool {
        self.mr_mode() & FI_MR_LOCAL != 0
    }

    /// Must memory have its pages when it is registered?
    pub fn needs_pages(&self) -> bool {
        self.mr_mode() & FI_MR_ALLOCATED != 0
    }

    /// Does the data of a put take the place of a message, in the buffer that was posted with the entry's context?
    #[inline]
    pub fn data_takes_buffers(&self) -> bool {
        // SAFETY: as above.
        unsafe { (*self.opened.info).mode & FI_RX_CQ_DATA != 0 }
    }

    /// Messages may be received at `buf`: one, or, with [`min_multi_recv`](Asked::min_multi_recv), one after another until it
    /// has less room than that.
    ///
    /// # Safety
    /// Until the message has been received, or an entry [releases](Entry::releases_buffer) the buffer of many, or everything is closed, `buf..buf + len` and `context`
    /// are mapped, nobody else writes to them, and nobody reads what `poll` has not yet returned.
    #[inline]
    pub unsafe fn post_receive(&self, buf: *mut u8, len: usize, desc: Desc, context: *mut Context) -> Posted {
        let iov = iovec { iov_base: buf.cast(), iov_len: len };
        let mut desc = desc.0;
        let msg = fi_msg {
            msg_iov: &iov,
            desc: &mut desc,
            iov_count: 1,
            addr: FI_ADDR_UNSPEC,
            context: context.cast(),
            data: 0,
        };
        let flags = if self.takes_many { FI_MULTI_RECV | FI_COMPLETION } else { FI_COMPLETION };
        // SAFETY: an enabled endpoint; the description lives as long as the call, and what it describes as long as the
        // caller promises.
        self.posted(unsafe { ((*(*self.opened.ep).msg).recvmsg)(self.opened.ep, &msg, flags) })
    }

    /// A message of at most [`inject_size`](Self::inject_size) bytes. It may be overwritten at once and has no completion.
    #[inline]
    pub fn inject(&self, to: Peer, bytes: &[u8]) -> Posted {
        assert!(bytes.len() <= self.inject_size);
        // SAFETY: an enabled endpoint, no more bytes than may be injected (not all providers look), which can be read during
        // the call and are not needed after it.
        self.posted(unsafe {
            ((*(*self.opened.ep).msg).inject)(self.opened.ep, bytes.as_ptr().cast(), bytes.len(), to.0)
        })
    }

    /// A message. It completes when its memory may be used again, which says nothing about the receiver.
    ///
    /// # Safety
    /// Until it has completed or everything is closed, `buf..buf + len` and `context` are mapped, and nobody writes to them.
    #[inline]
    pub unsafe fn send(&self, to: Peer, buf: *const u8, len: usize, desc: Desc, context: *mut Context) -> Posted {
        // SAFETY: an enabled endpoint, and the caller's promise.
        self.posted(unsafe {
            ((*(*self.opened.ep).msg).send)(self.opened.ep, buf.cast(), len, desc.0, to.0, context.cast())
        })
    }

    /// A put. With `delivery` it completes when the bytes are where any process's get finds them; without, when its memory
    /// may be used again.
    ///
    /// # Safety
    /// Until it has completed or everything is closed, `buf..buf + len` and `context` are mapped, and nobody writes to them.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "what a put consists of")]
    pub unsafe fn write(
        &self,
        to: Peer,
        buf: *const u8,
        len: usize,
        desc: Desc,
        at: Remote,
        context: *mut Context,
        delivery: bool,
    ) -> Posted {
        let flags = if delivery { FI_COMPLETION | FI_DELIVERY_COMPLETE } else { FI_COMPLETION };
        // SAFETY: passed on to the caller.
        unsafe { self.write_msg(to, (buf, len), desc, at, context, 0, flags) }
    }

    /// A put that brings data of [`cq_data_size`](Self::cq_data_size) bytes beside its own: [`poll`](Self::poll) at the target
    /// gives it ([`Entry::remote_data`]) when the put's bytes are in memory there. It completes here when its memory may be used
    /// again.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "what a put consists of")]
    pub unsafe fn write_data(
        &self,
        to: Peer,
        buf: *const u8,
        len: usize,
        desc: Desc,
        at: Remote,
        context: *mut Context,
        data: u64,
    ) -> Posted {
        // SAFETY: passed on to the caller.
        unsafe { self.write_msg(to, (buf, len), desc, at, context, data, FI_COMPLETION | FI_REMOTE_CQ_DATA) }
    }

    /// # Safety
    /// As for [`write`](Self::write).
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "what a put consists of")]
    unsafe fn write_msg(
        &self,
        to: Peer,
        (buf, len): (*const u8, usize),
        desc: Desc,
        at: Remote,
        context: *mut Context,
        data: u64,
        flags: u64,
    ) -> Posted {
        let iov = iovec { iov_base: buf.cast_mut().cast(), iov_len: len };
        let there = fi_rma_iov { addr: at.addr, len, key: at.key };
        let mut desc = desc.0;
        let msg = fi_msg_rma {
            msg_iov: &iov,
            desc: &mut desc,
            iov_count: 1,
            addr: to.0,
            rma_iov: &there,
            rma_iov_count: 1,
            context: context.cast(),
            data,
        };
        // SAFETY: an enabled endpoint; the description lives as long as the call, and what it describes as long as the
        // caller promises; a put does not write to its source.
        self.posted(unsafe { ((*(*self.opened.ep).rma).writemsg)(self.opened.ep, &msg, flags) })
    }

    /// A put of at most [`inject_size`](Self::inject_size) bytes. They may be overwritten at once, and it has no completion.
    #[inline]
    pub fn inject_write(&self, to: Peer, bytes: &[u8], at: Remote) -> Posted {
        assert!(bytes.len() <= self.inject_size);
        // SAFETY: as for `inject`.
        self.posted(unsafe {
            ((*(*self.opened.ep).rma).inject)(self.opened.ep, bytes.as_ptr().cast(), bytes.len(), to.0, at.addr, at.key)
        })
    }

    /// A get. It completes when the bytes are at `buf`.
    ///
    /// # Safety
    /// Until it has completed or everything is closed, `buf..buf + len` and `context` are mapped, and nobody reads or writes
    /// them.
    #[inline]
    pub unsafe fn read(
        &self,
        to: Peer,
        buf: *mut u8,
        len: usize,
        desc: Desc,
        at: Remote,
        context: *mut Context,
    ) -> Posted {
        // SAFETY: an enabled endpoint, and the caller's promise.
        self.posted(unsafe {
            ((*(*self.opened.ep).rma).read)(
                self.opened.ep,
                buf.cast(),
                len,
                desc.0,
                to.0,
                at.addr,
                at.key,
                context.cast(),
            )
        })
    }

    #[inline]
    fn posted(&self, code: isize) -> Posted {
        match code {
            0 => Posted::Done,
            code if code == -FI_EAGAIN => Posted::Again,
            code => self.refused(code),
        }
    }

    #[cold]
    fn refused(&self, code: isize) -> Posted {
        Posted::Failed(self.opened.library.error(code as i64))
    }

    /// Moves everything on, and gives what has completed: so many of `entries` were filled.
    #[inline]
    pub fn poll(&self, entries: &mut [Entry]) -> Result<usize, Box<Broken>> {
        // SAFETY: an open queue of FI_CQ_FORMAT_DATA, whose entries an `Entry` has the layout of, and room for so many.
        let read =
            unsafe { ((*(*self.opened.cq).ops).read)(self.opened.cq, entries.as_mut_ptr().cast(), entries.len()) };
        match read {
            n if n >= 0 => Ok(n as usize),
            code if code == -FI_EAGAIN => Ok(0),
            code => self.broken(code),
        }
    }

    #[cold]
    fn broken(&self, code: isize) -> Result<usize, Box<Broken>> {
        let library = self.opened.library;
        if code != -FI_EAVAIL {
            let text = library.error(code as i64);
            let broken = Broken { context: null_mut(), is_receive: false, err: -code as i32, prov_errno: 0, text };
            return Err(Box::new(broken));
        }
        // SAFETY: zeros are a null pointer and numbers.
        let mut error: Error = unsafe { std::mem::zeroed() };
        // SAFETY: an open queue, and room for what any version writes.
        let read = unsafe { ((*(*self.opened.cq).ops).readerr)(self.opened.cq, &mut error.entry, 0) };
        if read == -FI_EAGAIN {
            // Another thread has taken it.
            return Ok(0);
        }
        let e = &error.entry;
        let mut text = library.error(e.err.into());
        let mut room = [0u8; 256];
        // SAFETY: an open queue, numbers that it gave with what belongs to them (valid until the next read of an error,
        // and else never looked at), and room for so many bytes.
        let words = unsafe {
            let words = (*(*self.opened.cq).ops).strerror;
            words(self.opened.cq, e.prov_errno, e.err_data, room.as_mut_ptr().cast::<c_char>(), room.len())
        };
        if !words.is_null() {
            // SAFETY: not null, so a C string: a constant, or in `room`.
            let words = unsafe { CStr::from_ptr(words) }.to_string_lossy();
            if !words.is_empty() && *words != *text {
                text = format!("{text}: {words}");
            }
        }
        Err(Box::new(Broken {
            context: e.op_context.cast(),
            is_receive: e.flags & FI_RECV != 0,
            err: e.err,
            prov_errno: e.prov_errno,
            text,
        }))
    }

    /// Sleeps until there may be something for [`poll`](Self::poll), until [`wake`](Self::wake) is called, or for `most`. It
    /// may return earlier. No lock is held meanwhile; see [Sleeping](self#sleeping). True if something has come, be it nothing
    /// that [`poll`](Self::poll) would tell of.
    pub fn wait(&self, most: Duration) -> bool {
        let Opened { fabric, cq, ref woken, .. } = *self.opened;
        let queue = self.opened.wait_fd();
        if queue.is_some() {
            let _whole = self.opened.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: an open fabric, and one queue of it that has a descriptor.
            if unsafe { ((*(*fabric).ops).trywait)(fabric, [cq.cast::<fid>()].as_mut_ptr(), 1) } != 0 {
                return true;
            }
        }
        let most = if queue.is_some() { most } else { most.min(BLINK) };
        let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let mut fds =
            [woken.as_fd(), queue.unwrap_or(woken.as_fd())].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // Whatever these two return, the caller polls.
        let _ = rustix::event::poll(&mut fds, Some(&most));
        came_back();
        if fds[0].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(woken, &mut [0; 8]);
        }
        queue.is_some() && fds[1].revents().contains(PollFlags::IN)
    }

    /// Ends the [`wait`](Self::wait) of one thread, or the next one.
    pub fn wake(&self) {
        // It cannot fail but by being full, and then somebody is woken anyway.
        let _ = rustix::io::write(&self.opened.woken, &1u64.to_ne_bytes());
    }
}

/// A number that nobody can guess, of the kernel's random source.
pub(super) fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: so many bytes can be written to.
    let drawn = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(drawn, 8, "getrandom gives so few bytes at once");
    u64::from_ne_bytes(bytes)
}

/// How long [`Endpoint::wait`] sleeps where the provider has nothing to sleep on.
const BLINK: Duration = Duration::from_micros(50);

/// Room for what later versions append to an error.
#[repr(C)]
struct Error {
    entry: fi_cq_err_entry,
    more: [u64; 16],
}

const _: () = assert!(size_of::<Entry>() == size_of::<fi_cq_data_entry>());
const _: () = assert!(std::mem::offset_of!(Entry, data) == std::mem::offset_of!(fi_cq_data_entry, data));
