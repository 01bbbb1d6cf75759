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
mod rxd;

use super::fi::{self, *};
pub use atomics::{Atomics, Operands};
use demands::{Demands, Shim};
use libc::{c_char, c_int, c_void, iovec};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, PoisonError};
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
    /// Opens what was asked for. The memory of a process is not touched by others until something is
    /// [registered](Self::register).
    pub fn open(asked: &Asked) -> Result<Endpoint, String> {
        let library = fi::library()?;
        let mut o = Opened::describe(library, asked)?;
        let shim = asked.demands.any().then(|| Shim::new(asked.demands));
        let check = |what: &str, code: c_int| match code {
            0 => Ok(()),
            code => Err(format!("{what}: {}", library.error(code.into()))),
        };
        // SAFETY: throughout, objects that were opened before (not null: `check` returns) are used in the ways of fabric(3),
        // domain(3), av(3), cq(3) and endpoint(3): attributes are complete and live longer than the call, results go to
        // fields that are null until then, and binding and options come in the order that fi_endpoint(3) gives.
        unsafe {
            let domain_attr = (*o.info).domain_attr;
            check("fi_fabric", (library.fi_fabric)((*o.info).fabric_attr, &mut o.fabric, null_mut()))?;
            // So that there can be an endpoint with atomics beside the one without; memory is then known to both.
            let widest = if o.atomic_info.is_null() { o.info } else { o.atomic_info };
            check("fi_domain", ((*(*o.fabric).ops).domain)(o.fabric, widest, &mut o.domain, null_mut()))?;
            let mut av: fi_av_attr = std::mem::zeroed();
            av.r#type = (*domain_attr).av_type;
            check("fi_av_open", ((*(*o.domain).ops).av_open)(o.domain, &mut av, &mut o.av, null_mut()))?;
            let mut cq: fi_cq_attr = std::mem::zeroed();
            (cq.size, cq.format) = (asked.cq_size, FI_CQ_FORMAT_DATA);
            cq.wait_obj = if asked.never_waits { FI_WAIT_NONE } else { FI_WAIT_FD };
            let open_cq = (*(*o.domain).ops).cq_open;
            if open_cq(o.domain, &mut cq, &mut o.cq, null_mut()) != 0 {
                // It may be the descriptor that is not to be had.
                (cq.wait_obj, o.cq) = (FI_WAIT_NONE, null_mut());
                check("fi_cq_open", open_cq(o.domain, &mut cq, &mut o.cq, null_mut()))?;
            }
            check("fi_endpoint", ((*(*o.domain).ops).endpoint)(o.domain, o.info, &mut o.ep, null_mut()))?;
            let ops = (*o.ep).fid.ops;
            check("fi_ep_bind", ((*ops).bind)(o.ep.cast(), o.av.cast(), 0))?;
            check("fi_ep_bind", ((*ops).bind)(o.ep.cast(), o.cq.cast(), FI_TRANSMIT | FI_RECV))?;
            check("fi_enable", ((*ops).control)(o.ep.cast(), FI_ENABLE, null_mut()))?;
            if asked.min_multi_recv > 0 {
                // After fi_enable: shm of 1.17 follows a null pointer else.
                let (least, setopt) = (asked.min_multi_recv, (*(*o.ep).ops).setopt);
                let (level, name) = (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV);
                check("fi_setopt", setopt(o.ep.cast(), level, name, (&raw const least).cast(), size_of::<usize>()))?;
            }
            if cq.wait_obj == FI_WAIT_FD {
                let mut fd: RawFd = -1;
                let control = (*(*o.cq).fid.ops).control;
                // Some providers (udp;ofi_rxd, sockets) promise a descriptor and have none.
                o.wait_fd = (control(o.cq.cast(), FI_GETWAIT, (&raw mut fd).cast()) == 0).then_some(fd);
            }
        }
        let mut name = vec![0; 512];
        let mut len = name.len();
        // SAFETY: an endpoint that is enabled, and `len` bytes to write to.
        check("fi_getname", unsafe { ((*(*o.ep).cm).getname)(o.ep.cast(), name.as_mut_ptr().cast(), &mut len) })?;
        name.truncate(len);
        if let Some(shim) = shim {
            // SAFETY: enabled, and nobody else has them yet; they are closed before the shim, which is a field of theirs.
            unsafe { shim.wrap(&o) };
            o.shim = Some(shim);
        }
        // SAFETY: fi_getinfo fills in all attributes.
        let inject_size = unsafe { (*(*o.info).tx_attr).inject_size };
        let counts_sends = o.provider().contains(rxd::NAME) || asked.demands.sends().is_some();
        let takes_many = asked.min_multi_recv > 0;
        Ok(Endpoint { opened: Arc::new(o), name, inject_size, counts_sends, takes_many })
    }

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

    /// Makes memory reachable: others put into it and get from it, and local operations may use it. The provider may choose
    /// another key.
    ///
    /// # Safety
    /// `base..base + len` is mapped while the region exists, and no reference into it exists when others use it.
    pub unsafe fn register(&self, base: *mut u8, len: usize, key: u64) -> Result<Region, Unregistered> {
        let access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        // SAFETY: passed on to the caller.
        unsafe { self.register_for(base, len, access, key) }
    }

    /// The same under a key that nobody can guess.
    ///
    /// # Safety
    /// As for [`register`](Self::register).
    pub unsafe fn register_anew(&self, base: *mut u8, len: usize) -> Result<Region, Unregistered> {
        // SAFETY: passed on to the caller.
        self.with_key(|key| unsafe { self.register(base, len, key) })
    }

    /// Makes memory known for local operations only: for those that read it, or, if it is `written`, for all.
    ///
    /// # Safety
    /// `base..base + len` is mapped while the region exists.
    pub unsafe fn register_local(&self, base: *mut u8, len: usize, written: bool) -> Result<Region, Unregistered> {
        let access = if written { FI_SEND | FI_WRITE | FI_RECV | FI_READ } else { FI_SEND | FI_WRITE };
        // SAFETY: passed on to the caller.
        self.with_key(|key| unsafe { self.register_for(base, len, access, key) })
    }

    /// Tries keys until one is new.
    fn with_key(&self, register: impl Fn(u64) -> Result<Region, Unregistered>) -> Result<Region, Unregistered> {
        // SAFETY: the description and its parts live as long as `opened` and are not changed.
        let bytes = unsafe { (*(*self.opened.info).domain_attr).mr_key_size };
        let most = if bytes >= 8 { FI_KEY_NOTAVAIL } else { 1 << (8 * bytes) };
        let is_taken = |tried: &Result<Region, Unregistered>| tried.as_ref().is_err_and(|e| e.err == FI_ENOKEY);
        let mut tries = (0..TRIES).map(|_| register(random() % most));
        tries.find(|tried| !is_taken(tried)).unwrap_or_else(|| register(random() % most))
    }

    /// # Safety
    /// `base..base + len` is mapped while the region exists, and no reference into it exists when others use it.
    unsafe fn register_for(&self, base: *mut u8, len: usize, access: u64, key: u64) -> Result<Region, Unregistered> {
        let (domain, mut mr) = (self.opened.domain, null_mut::<fid_mr>());
        let failed = |what: &str, code: c_int| {
            let text = format!("{what} of {len} bytes: {}", self.opened.library.error(code.into()));
            Unregistered { err: code.wrapping_abs(), text }
        };
        // SAFETY: an open domain; the caller promises the memory; `mr` is written if it succeeds.
        let code = unsafe {
            let reg = (*(*domain).mr).reg;
            reg(domain.cast(), base.cast(), len, access, 0, key, 0, &mut mr, null_mut())
        };
        if code != 0 {
            return Err(failed("fi_mr_reg", code));
        }
        let region = Region {
            mr,
            base: if self.mr_mode() & FI_MR_VIRT_ADDR != 0 { base as u64 } else { 0 },
            _opened: self.opened.clone(),
        };
        if self.mr_mode() & FI_MR_ENDPOINT != 0 {
            // SAFETY: a registration that was just made, bound to an enabled endpoint of its domain before it is enabled, as
            // fi_mr(3) asks for.
            unsafe {
                let ops = (*mr).fid.ops;
                match ((*ops).bind)(mr.cast(), self.opened.ep.cast(), 0) {
                    0 => {}
                    code => return Err(failed("fi_mr_bind", code)),
                }
                match ((*ops).control)(mr.cast(), FI_ENABLE, null_mut()) {
                    0 => {}
                    code => return Err(failed("fi_mr_enable", code)),
                }
            }
        }
        Ok(region)
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

/// So many keys that are taken already are tried before another.
const TRIES: usize = 64;

/// A number that nobody can guess, of the kernel's random source.
pub(super) fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: so many bytes can be written to.
    let drawn = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(drawn, 8, "getrandom gives so few bytes at once");
    u64::from_ne_bytes(bytes)
}

/// Memory that was not registered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unregistered {
    /// A number of `errno`, or of fi_errno(3).
    pub err: i32,
    text: String,
}

impl Unregistered {
    /// Might there be room if less were registered?
    pub fn wants_room(&self) -> bool {
        [libc::ENOMEM, libc::EAGAIN, libc::ENOSPC].contains(&self.err)
    }
}

/// In one line, with what limits it where that is known.
impl std::fmt::Display for Unregistered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)?;
        if !self.wants_room() {
            return Ok(());
        }
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a limit that there is, and room for it.
        let limit = match unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } {
            0 if limit.rlim_cur == libc::RLIM_INFINITY => "no limit".into(),
            0 => format!("{} KiB", limit.rlim_cur >> 10),
            _ => "unknown".into(),
        };
        write!(
            f,
            " (memory that a process may lock, RLIMIT_MEMLOCK, `ulimit -l`: {limit}); raise it in limits.conf or in the \
             service that starts jobs, or set PARTAGE_REGISTERED lower"
        )
    }
}

/// How long [`Endpoint::wait`] sleeps where the provider has nothing to sleep on.
const BLINK: Duration = Duration::from_micros(50);

/// Registered memory. It is closed before the rest when it is dropped.
#[derive(Debug)]
pub struct Region {
    mr: *mut fid_mr,
    base: u64,
    _opened: Arc<Opened>,
}

// SAFETY: as for `Endpoint`.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Its start, as others name it.
    pub fn remote(&self) -> Remote {
        // SAFETY: a registration that is open.
        Remote { addr: self.base, key: unsafe { (*self.mr).key } }
    }

    /// For local operations on its memory.
    #[inline]
    pub fn desc(&self) -> Desc {
        // SAFETY: as above.
        Desc(unsafe { (*self.mr).mem_desc })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: open, and nobody else has it.
        unsafe { close(self.mr.cast()) };
    }
}

/// Room for what later versions append to an error.
#[repr(C)]
struct Error {
    entry: fi_cq_err_entry,
    more: [u64; 16],
}

/// What [`Endpoint::open`] has opened, or null.
#[derive(Debug)]
struct Opened {
    library: &'static Library,
    info: *mut fi_info,
    /// The same with atomics, or null.
    atomic_info: *mut fi_info,
    fabric: *mut fid_fabric,
    domain: *mut fid_domain,
    av: *mut fid_av,
    cq: *mut fid_cq,
    ep: *mut fid_ep,
    /// What the queue can be waited for by; it belongs to the queue.
    wait_fd: Option<RawFd>,
    /// An event descriptor: somebody is to wake up.
    woken: OwnedFd,
    /// Held while another endpoint is opened, and while the queue is asked whether one may sleep: that serves all endpoints of the
    /// queue, also one that is bound to it and not enabled yet (`tcp;ofi_rxm` of 1.17 then follows a null pointer). Who
    /// [polls](Endpoint::poll) while one is opened does so too, and sees to it himself.
    endpoints: Mutex<()>,
    /// What stands between us and the provider in some tests.
    shim: Option<Box<Shim>>,
}

// SAFETY: the objects behind the pointers were opened with FI_THREAD_SAFE: any thread may use them at any time, and close
// them when no other does, which the `Arc` around this sees to. The description is not changed after `open`.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Opened {
    /// Finds a provider.
    fn describe(library: &'static Library, asked: &Asked) -> Result<Opened, String> {
        let provider = asked.provider.as_deref().unwrap_or("tcp");
        let text =
            |what: &str, text: &str| CString::new(text).map_err(|_| format!("the {what} {text:?} has a zero byte"));
        let name = text("provider", provider)?;
        let source = asked.source.as_deref().map(|source| text("address", source)).transpose()?;
        let hints = Hints::new(library, asked)?;
        let found = hints.find(Some(&name), source.as_deref());
        let info = found.map_err(|why| {
            let on = asked.source.as_ref().map(|source| format!(" on {source}")).unwrap_or_default();
            let others = Hints::new(library, asked).map(|hints| hints.names()).unwrap_or_default();
            let others = if others.is_empty() { "none".into() } else { others.join(", ") };
            format!(
                "libfabric {} has no provider {provider}{on} that will do ({why}); there are: {others}",
                fi::text_of(library.version)
            )
        })?;
        // SAFETY: fi_getinfo fills in all attributes, and nobody else has them yet.
        unsafe {
            if self::provider(info).contains(rxd::NAME) {
                let (tx, rx) = rxd::sizes(asked.peers);
                (*(*info).tx_attr).size = (*(*info).tx_attr).size.min(tx);
                (*(*info).rx_attr).size = (*(*info).rx_attr).size.min(rx);
            }
        }
        let (fabric, domain, av, cq, ep) = (null_mut(), null_mut(), null_mut(), null_mut(), null_mut());
        let woken = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let woken = woken.map_err(|why| {
            // SAFETY: from fi_getinfo, and not used any more.
            unsafe { (library.fi_freeinfo)(info) };
            format!("eventfd: {why}")
        })?;
        let atomic_info = match asked.no_atomics {
            true => null_mut(),
            false => hints.with_atomics(info, &name, source.as_deref()),
        };
        Ok(Opened {
            library,
            info,
            atomic_info,
            fabric,
            domain,
            av,
            cq,
            ep,
            wait_fd: None,
            woken,
            endpoints: Mutex::new(()),
            shim: None,
        })
    }

    fn provider(&self) -> String {
        // SAFETY: fi_getinfo fills in the fabric's attributes.
        unsafe { provider(self.info) }
    }

    fn mr_mode(&self) -> i32 {
        // SAFETY: as above, those of the domain.
        unsafe { (*(*self.info).domain_attr).mr_mode }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the queue's own descriptor, which it closes when it is closed, that is with `self`.
        self.wait_fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let Opened { library, info, atomic_info, fabric, domain, av, cq, ep, .. } = *self;
        for fid in [ep.cast::<fid>(), cq.cast(), av.cast(), domain.cast(), fabric.cast()] {
            if !fid.is_null() {
                // SAFETY: open and not shared any more; objects come before those that they were made from or are bound to.
                unsafe { close(fid) };
            }
        }
        for info in [info, atomic_info] {
            if !info.is_null() {
                // SAFETY: from fi_getinfo, and not used any more.
                unsafe { (library.fi_freeinfo)(info) };
            }
        }
    }
}

/// # Safety
/// An open object that nobody will use again.
unsafe fn close(fid: *mut fid) {
    // SAFETY: the caller's promise. That it may fail changes nothing: nobody can do more.
    unsafe { ((*(*fid).ops).close)(fid) };
}

/// # Safety
/// From fi_getinfo.
unsafe fn provider(info: *const fi_info) -> String {
    // SAFETY: not null, with a name that is a C string or null.
    let name = unsafe { (*(*info).fabric_attr).prov_name };
    match name.is_null() {
        true => String::new(),
        // SAFETY: not null.
        false => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
    }
}

/// What a provider must be able to do.
struct Hints {
    library: &'static Library,
    info: *mut fi_info,
}

impl Hints {
    fn new(library: &'static Library, asked: &Asked) -> Result<Hints, String> {
        // SAFETY: with null it gives an empty description with all its parts, or null.
        let info = unsafe { (library.fi_dupinfo)(null()) };
        if info.is_null() {
            return Err("no memory for libfabric".into());
        }
        // SAFETY: not null, and neither are its parts: fi_getinfo(3) says so of fi_allocinfo, which this is.
        unsafe {
            (*info).caps = FI_MSG | FI_RMA | FI_MULTI_RECV;
            (*info).mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
            (*(*info).ep_attr).r#type = FI_EP_RDM;
            (*(*info).tx_attr).size = asked.tx_size;
            (*(*info).tx_attr).msg_order = FI_ORDER_SAS;
            (*(*info).rx_attr).msg_order = FI_ORDER_SAS;
            let domain = (*info).domain_attr;
            (*domain).threading = FI_THREAD_SAFE;
            (*domain).data_progress = FI_PROGRESS_MANUAL;
            (*domain).resource_mgmt = FI_RM_ENABLED;
            (*domain).mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
        }
        Ok(Hints { library, info })
    }

    /// The first description that fits; whoever gets it frees it.
    fn find(&self, provider: Option<&CStr>, source: Option<&CStr>) -> Result<*mut fi_info, String> {
        // SAFETY: a description of ours; the name is a copy that fi_freeinfo frees, as `drop` does.
        unsafe {
            let fabric = (*self.info).fabric_attr;
            libc::free((*fabric).prov_name.cast());
            (*fabric).prov_name = provider.map_or(null_mut(), |name| libc::strdup(name.as_ptr()));
        }
        let (node, flags) = source.map_or((null(), 0), |source| (source.as_ptr(), FI_SOURCE));
        let mut found = null_mut();
        // SAFETY: C strings or null, a complete description, and room for a pointer.
        let code = unsafe { (self.library.fi_getinfo)(API, node, null(), flags, self.info, &mut found) };
        match code {
            0 if !found.is_null() => Ok(found),
            0 => Err("nothing found".into()),
            code => Err(self.library.error(code.into())),
        }
    }

    /// A description of the same domain with atomics beside the rest, or null. Whoever asks for atomics may get
    /// another endpoint (tcp of 1.17 promises less order), so puts, gets and messages have one without.
    fn with_atomics(&self, plain: *mut fi_info, provider: &CStr, source: Option<&CStr>) -> *mut fi_info {
        // SAFETY: a description of ours, with all its parts.
        unsafe { (*self.info).caps |= FI_ATOMIC };
        let Ok(found) = self.find(Some(provider), source) else { return null_mut() };
        // SAFETY: two descriptions of fi_getinfo, which fills in names and attributes.
        let same = unsafe {
            let (a, b) = (&*(*plain).domain_attr, &*(*found).domain_attr);
            let name = |name: *mut c_char| (!name.is_null()).then(|| CStr::from_ptr(name));
            self::provider(plain) == self::provider(found)
                && name(a.name) == name(b.name)
                && (a.mr_mode, a.av_type, a.threading) == (b.mr_mode, b.av_type, b.threading)
        };
        if !same {
            // SAFETY: from fi_getinfo, and not used any more.
            unsafe { (self.library.fi_freeinfo)(found) };
            return null_mut();
        }
        found
    }

    /// The providers that would do.
    fn names(&self) -> Vec<String> {
        let Ok(all) = self.find(None, None) else { return vec![] };
        let (mut names, mut next) = (vec![], all);
        while !next.is_null() {
            // SAFETY: one of the list, which is freed below.
            let name = unsafe { provider(next) };
            if !names.contains(&name) {
                names.push(name);
            }
            // SAFETY: as above.
            next = unsafe { (*next).next };
        }
        // SAFETY: from fi_getinfo, and not used any more.
        unsafe { (self.library.fi_freeinfo)(all) };
        names
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        // SAFETY: from fi_dupinfo, and not used any more.
        unsafe { (self.library.fi_freeinfo)(self.info) };
    }
}

const _: () = assert!(size_of::<Entry>() == size_of::<fi_cq_data_entry>());
const _: () = assert!(std::mem::offset_of!(Entry, data) == std::mem::offset_of!(fi_cq_data_entry, data));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::word::{Atomic, Kind, Op};
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::time::Instant;

    /// Nothing here takes this long.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// An endpoint on the loopback interface with a posted receive buffer and a registered segment; what comes is kept.
    struct Side {
        // Closed before the memory that it uses.
        segment: Option<Region>,
        endpoint: Option<Endpoint>,
        memory: Vec<u8>,
        buffers: [Vec<u8>; 2],
        contexts: Vec<Context>,
        messages: RefCell<Vec<Vec<u8>>>,
        data: RefCell<Vec<u64>>,
        released: RefCell<Vec<u64>>,
        done: RefCell<Vec<u64>>,
        broken: RefCell<Vec<Broken>>,
    }

    const SEGMENT: usize = 2 << 20;
    const BUFFER: usize = 4096;

    impl Side {
        fn new() -> Result<Side, String> {
            let provider = std::env::var("PARTAGE_PROVIDER").ok();
            let source = Some("127.0.0.1".into());
            let asked = Asked { provider, source, min_multi_recv: 1024, ..Asked::default() };
            let endpoint = Endpoint::open(&asked)?;
            let mut memory = vec![0; SEGMENT];
            // SAFETY: the region is dropped before the memory, and the memory is looked at when nothing is under way.
            let segment =
                unsafe { endpoint.register(memory.as_mut_ptr(), SEGMENT, 7) }.map_err(|why| why.to_string())?;
            Ok(Side {
                segment: Some(segment),
                endpoint: Some(endpoint),
                memory,
                buffers: [vec![0; BUFFER], vec![0; BUFFER]],
                contexts: (0..16).map(Context::new).collect(),
                messages: RefCell::default(),
                data: RefCell::default(),
                released: RefCell::default(),
                done: RefCell::default(),
                broken: RefCell::default(),
            })
        }

        fn ep(&self) -> &Endpoint {
            self.endpoint.as_ref().unwrap()
        }

        fn remote(&self) -> Remote {
            self.segment.as_ref().unwrap().remote()
        }

        fn context(&mut self, which: usize) -> *mut Context {
            &mut self.contexts[which]
        }

        fn post_buffer(&mut self, which: usize) {
            let (buf, context) = (self.buffers[which].as_mut_ptr(), self.context(which));
            // SAFETY: both live longer than the endpoint, and nobody else uses them until they come back.
            let posted = unsafe { self.ep().post_receive(buf, BUFFER, Desc::NONE, context) };
            assert_eq!(posted, Posted::Done);
        }

        fn poll(&self) {
            let mut entries = [Entry::EMPTY; 8];
            let n = match self.ep().poll(&mut entries) {
                Ok(n) => n,
                Err(broken) => return self.broken.borrow_mut().push(*broken),
            };
            for entry in &entries[..n] {
                if let Some(data) = entry.remote_data() {
                    self.data.borrow_mut().push(data);
                    continue;
                }
                // SAFETY: contexts live as long as the side.
                let word = unsafe { (*entry.context).word };
                if entry.is_message() {
                    // SAFETY: in a buffer of ours, which is not posted again before this.
                    let bytes = unsafe { std::slice::from_raw_parts(entry.buf, entry.len) };
                    self.messages.borrow_mut().push(bytes.to_vec());
                }
                if entry.releases_buffer() {
                    self.released.borrow_mut().push(word);
                } else if !entry.is_message() {
                    self.done.borrow_mut().push(word);
                }
            }
        }
    }

    impl Drop for Side {
        fn drop(&mut self) {
            self.segment = None;
            self.endpoint = None;
        }
    }

    /// Polls both until `is_over`.
    fn until(what: &str, sides: &[&Side], mut is_over: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_over() {
            assert!(start.elapsed() < PATIENCE, "{what}: nothing comes");
            sides.iter().for_each(|side| side.poll());
        }
    }

    fn accepted(sides: &[&Side], mut post: impl FnMut() -> Posted) {
        until("posting", sides, || match post() {
            Posted::Done => true,
            Posted::Again => false,
            Posted::Failed(why) => panic!("{why}"),
        });
    }

    /// Ends the process if a call of the library never returns.
    struct Watchdog(#[expect(dead_code, reason = "dropping it disarms")] std::sync::mpsc::Sender<()>);

    impl Watchdog {
        fn new() -> Watchdog {
            let (disarm, armed) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                if armed.recv_timeout(2 * PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    eprintln!("a call of libfabric does not return");
                    std::process::abort();
                }
            });
            Watchdog(disarm)
        }
    }

    fn two() -> Option<(Side, Side, Watchdog)> {
        if let Err(why) = Endpoint::version() {
            println!("SKIPPED: {why}");
            return None;
        }
        let watchdog = Watchdog::new();
        Some((Side::new().unwrap(), Side::new().unwrap(), watchdog))
    }

    fn pattern(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
    }

    #[test]
    fn puts_and_gets_of_all_sizes() {
        let Some((mut a, mut b, _watchdog)) = two() else { return };
        let peer = a.ep().insert(b.ep().name()).unwrap();
        for len in [1, 8, 64, 4096, 65536, 65537, 1 << 20] {
            let (src, offset, at) = (pattern(len, len), 4096 + len % 5, b.remote());
            let mut back = vec![0; len];
            for delivery in [false, true] {
                let (context, at) = (a.context(3), at.offset(offset as u64));
                a.done.borrow_mut().clear();
                // SAFETY: `src` and the context outlive the completion, for which `until` waits.
                let put = || unsafe { a.ep().write(peer, src.as_ptr(), len, Desc::NONE, at, context, delivery) };
                accepted(&[&a, &b], put);
                until("a put", &[&a, &b], || *a.done.borrow() == [3]);
            }
            assert_eq!(b.memory[offset..offset + len], src, "{len} bytes");
            assert_eq!(b.memory[offset + len], 0, "past {len} bytes");
            let (context, at) = (a.context(4), at.offset(offset as u64));
            a.done.borrow_mut().clear();
            let to = back.as_mut_ptr();
            // SAFETY: as above.
            accepted(&[&a, &b], || unsafe { a.ep().read(peer, to, len, Desc::NONE, at, context) });
            until("a get", &[&a, &b], || *a.done.borrow() == [4]);
            assert_eq!(back, src, "{len} bytes back");
            b.memory[..offset + len].fill(0);
        }
        assert!(a.ep().inject_size() >= 8);
        accepted(&[&a, &b], || a.ep().inject_write(peer, &[5; 8], b.remote().offset(16)));
        // SAFETY: polled until it is there; the provider writes it whole or in parts.
        until("an injected put", &[&a, &b], || unsafe { b.memory.as_ptr().add(23).read_volatile() } == 5);
        assert_eq!(b.memory[16..25], [5, 5, 5, 5, 5, 5, 5, 5, 0]);
    }

    /// Every operation on every type, to another endpoint and to its own process's.
    #[test]
    fn the_data_of_a_put_comes_when_its_bytes_have() {
        let Some((mut a, mut b, _watchdog)) = two() else { return };
        if a.ep().cq_data_size() < 4 {
            return println!("SKIPPED: puts with {} bring no data", a.ep().provider());
        }
        let peer = a.ep().insert(b.ep().name()).unwrap();
        a.post_buffer(0);
        b.post_buffer(0);
        for (n, len) in [1, 8, 64, 4096, 16384, 65537, 1 << 20, 8].into_iter().enumerate() {
            let (src, context) = (pattern(len, n), a.context(3));
            let data = u64::from(u32::MAX) - n as u64;
            a.done.borrow_mut().clear();
            // SAFETY: `src` and the context outlive the completion, for which `until` waits.
            let put = || unsafe {
                a.ep().write_data(peer, src.as_ptr(), len, Desc::NONE, b.remote().offset(4096), context, data)
            };
            accepted(&[&a, &b], put);
            until("the data", &[&a, &b], || !b.data.borrow().is_empty());
            assert_eq!(b.memory[4096..4096 + len], src, "{len} bytes");
            assert_eq!(b.data.take(), [data], "{len} bytes");
            until("a put", &[&a, &b], || *a.done.borrow() == [3]);
            b.memory.fill(0);
        }
        assert!(a.data.borrow().is_empty() && b.done.borrow().is_empty() && b.messages.borrow().is_empty());
    }

    #[test]
    fn atomics_that_are_valid_do_what_they_say() {
        let Some((mut a, b, _watchdog)) = two() else { return };
        let [from, to] = match [Atomics::open(a.ep()), Atomics::open(b.ep())] {
            [Ok(from), Ok(to)] => [from, to],
            [Err(why), _] | [_, Err(why)] => return println!("SKIPPED: no atomics of the network: {why}"),
        };
        let mut done = 0;
        for (peer, at) in [(&to, b.remote()), (&from, a.remote())] {
            let peer = a.ep().insert(peer.name()).unwrap();
            for (op, kind, width) in Op::ALL.iter().flat_map(|&op| {
                let kinds = [Kind::Unsigned, Kind::Signed, Kind::Float];
                kinds.into_iter().flat_map(move |kind| [4, 8].map(|width| (op, kind, width)))
            }) {
                if Atomic::decode(Atomic { op, kind, width, ..Atomic::on_u64(op, 0) }.encode()).is_none() {
                    continue;
                }
                assert!(from.is_valid(op, kind, width), "{op:?} {kind:?} {width}");
                let float = |x: f64| if width == 4 { (x as f32).to_bits().into() } else { x.to_bits() };
                let value = |x: i64| match kind {
                    Kind::Float => float(x as f64),
                    _ if width == 4 => u64::from(x as u32),
                    _ => x as u64,
                };
                let mut run = |op: Op, operand: u64, expected: u64| {
                    let what = Atomic { op, kind, width, order: crate::word::Order::Relaxed, operand, expected };
                    let words =
                        Operands { operand: operand.to_le_bytes(), expected: expected.to_le_bytes(), old: [0; 8] };
                    let (mut words, context) = (Box::new(words), a.context(7));
                    a.done.borrow_mut().clear();
                    let words_at = &raw mut *words;
                    // SAFETY: both outlive the completion, for which `until` waits.
                    let post = || unsafe { from.start(peer, at.offset(64), &what, (words_at, Desc::NONE), context) };
                    accepted(&[&a, &b], post);
                    until("an atomic", &[&a, &b], || *a.done.borrow() == [7]);
                    // SAFETY: it has completed.
                    u64::from_le_bytes(unsafe { (*words_at).old })
                };
                run(Op::Store, value(-6), 0);
                assert_eq!(run(op, value(3), value(-6)), value(-6), "{op:?} {kind:?} {width}");
                let (bits, unsigned) = ((-6i64) as u64, kind == Kind::Unsigned);
                let now = match op {
                    Op::Load => value(-6),
                    Op::Store | Op::Swap | Op::CompareExchange => value(3),
                    Op::Add => value(-3),
                    Op::Mul => value(-18),
                    Op::Min => value(if unsigned { 3 } else { -6 }),
                    Op::Max => value(if unsigned { -6 } else { 3 }),
                    Op::And => value((bits & 3) as i64),
                    Op::Or => value((bits | 3) as i64),
                    Op::Xor => value((bits ^ 3) as i64),
                };
                assert_eq!(run(Op::Load, 0, 0), now, "{op:?} {kind:?} {width}");
                assert_eq!(run(Op::CompareExchange, 0, now ^ 1), now, "another value");
                assert_eq!(run(Op::Load, 0, 0), now, "nothing was written");
                done += 1;
            }
        }
        assert_eq!(done, 2 * (8 * 6 + 3 * 4));
    }

    #[test]
    fn messages_come_in_order_and_buffers_come_back() {
        let Some((mut a, mut b, _watchdog)) = two() else { return };
        let peer = a.ep().insert(b.ep().name()).unwrap();
        b.post_buffer(0);
        b.post_buffer(1);
        let inject = a.ep().inject_size().min(64);
        let sent: Vec<Vec<u8>> = (0..200).map(|i| pattern(1 + (i * 37) % 900, i)).collect();
        for (i, message) in sent.iter().enumerate() {
            if message.len() <= inject {
                accepted(&[&a, &b], || a.ep().inject(peer, message));
            } else {
                a.done.borrow_mut().clear();
                let context = a.context(5);
                // SAFETY: the message and the context outlive the completion, for which `until` waits.
                let send = || unsafe { a.ep().send(peer, message.as_ptr(), message.len(), Desc::NONE, context) };
                accepted(&[&a, &b], send);
                until("a message", &[&a, &b], || *a.done.borrow() == [5]);
            }
            until("a receive", &[&a, &b], || b.messages.borrow().len() == i + 1);
            let released = b.released.take();
            released.into_iter().for_each(|which| b.post_buffer(which as usize));
        }
        assert_eq!(*b.messages.borrow(), sent);
        assert!(b.broken.borrow().is_empty() && a.broken.borrow().is_empty());
    }

    #[test]
    fn a_bad_key_is_an_error() {
        let Some((mut a, b, _watchdog)) = two() else { return };
        if a.ep().provider().starts_with("udp") {
            return println!("SKIPPED: {} leaves a bad key unanswered", a.ep().provider());
        }
        let peer = a.ep().insert(b.ep().name()).unwrap();
        let (src, context) = ([1u8; 8], a.context(6));
        let at = Remote { key: 4711, ..b.remote() };
        // SAFETY: both outlive the completion.
        accepted(&[&a, &b], || unsafe { a.ep().write(peer, src.as_ptr(), 8, Desc::NONE, at, context, true) });
        until("an error", &[&a, &b], || !a.broken.borrow().is_empty());
        let broken = a.broken.take();
        println!("{}: {broken:?}", a.ep().provider());
        assert_eq!((broken.len(), broken[0].context, broken[0].is_receive), (1, context, false));
        assert!(!broken[0].text.is_empty() && !broken[0].text.contains('\n'));
        // The connection is gone, and made anew; what was posted before that was noticed breaks as well.
        until("a good put", &[&a, &b], || {
            a.broken.take();
            // SAFETY: both outlive the completion.
            accepted(&[&a, &b], || unsafe {
                a.ep().write(peer, src.as_ptr(), 8, Desc::NONE, b.remote(), context, true)
            });
            until("an end", &[&a, &b], || !a.broken.borrow().is_empty() || !a.done.borrow().is_empty());
            !a.done.borrow().is_empty()
        });
        assert_eq!(b.memory[..9], [1, 1, 1, 1, 1, 1, 1, 1, 0]);
    }

    #[test]
    fn whatever_is_under_way_ends_when_it_is_closed() {
        let Some((mut a, mut b, _watchdog)) = two() else { return };
        let peer = a.ep().insert(b.ep().name()).unwrap();
        b.post_buffer(0);
        a.post_buffer(0);
        let (src, context) = (pattern(1 << 20, 0), a.context(2));
        // SAFETY: `src` is dropped after both sides, and the context with its own.
        accepted(&[&a, &b], || unsafe {
            a.ep().write(peer, src.as_ptr(), src.len(), Desc::NONE, b.remote(), context, true)
        });
        drop(a);
        b.poll();
    }

    #[test]
    fn waiting_ends_when_something_comes() {
        let Some((mut a, b, _watchdog)) = two() else { return };
        let peer = a.ep().insert(b.ep().name()).unwrap();
        let (src, context) = ([9u8; 8], a.context(6));
        let at = b.remote();
        let over = &AtomicBool::new(false);
        std::thread::scope(|s| {
            let target = &b.endpoint;
            s.spawn(move || {
                let ep = target.as_ref().unwrap();
                while !over.load(Relaxed) {
                    ep.wait(PATIENCE);
                    ep.poll(&mut [Entry::EMPTY; 4]).unwrap();
                }
            });
            for i in 0..100 {
                a.done.borrow_mut().clear();
                // SAFETY: both outlive the completion.
                accepted(&[&a], || unsafe { a.ep().write(peer, src.as_ptr(), 8, Desc::NONE, at, context, true) });
                until("a put", &[&a], || *a.done.borrow() == [6]);
                std::thread::sleep(Duration::from_micros(10 * i));
            }
            over.store(true, Relaxed);
            b.ep().wake();
        });
        assert_eq!(b.memory[..9], [9, 9, 9, 9, 9, 9, 9, 9, 0]);
    }

    #[test]
    fn who_has_no_provider_is_told_which_there_are() {
        if let Err(why) = Endpoint::version() {
            return println!("SKIPPED: {why}");
        }
        let asked = Asked { provider: Some("carrier-pigeon".into()), ..Asked::default() };
        let why = Endpoint::open(&asked).unwrap_err();
        assert!(why.contains("has no provider carrier-pigeon") && why.contains("tcp") && !why.contains('\n'), "{why}");
        let here = Side::new().unwrap();
        assert!(here.ep().address_text().starts_with("127.0.0.1:"), "{}", here.ep().address_text());
        println!(
            "{} {} inject {} cq data {} mr mode {:#x} longest {}",
            here.ep().provider(),
            Endpoint::version().unwrap(),
            here.ep().inject_size(),
            here.ep().cq_data_size(),
            here.ep().mr_mode(),
            here.ep().max_message_size()
        );
    }
}
