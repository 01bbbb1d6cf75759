//! A shim between us and a provider, which demands what providers of real fabrics demand and tcp does not: for tests, and
//! for what must be measured without such a fabric.
//!
//! It lays functions of its own over the tables of the opened objects, says in the description that the provider asks for
//! more, refuses whatever does not obey with a line on stderr and `EINVAL`, and passes the rest on as the provider wants it.
//!
//! | demand | what is refused |
//! |---|---|
//! | `local` | memory without a description, with one that is closed, or outside of what it describes |
//! | `virt_addr` | places in memory of others that are no addresses; others' memory is named by its addresses |
//! | `prov_key` | keys that the shim did not choose |
//! | `endpoint` | registrations that are used before they were bound and enabled |
//! | `allocated` | memory for others without its pages |
//! | `context` | operations without a context, or with one that another has; it writes to contexts, and finds out who else does |
//! | `rx_cq_data` | nothing, but data of puts takes receive buffers: who does not post them again gets no more |
//! | `data4` | data that does not fit 4 bytes |
//! | `cost=NS` | nothing, but to register a page takes so many nanoseconds |
//! | `limit=BYTES` | registrations beyond so many bytes, with `ENOMEM` |
//! | `longest=BYTES` | operations of more bytes than that |
//! | `transfers=N` | more puts and gets under way than that |
//! | `sends=N` | nothing, but there is room for so many messages under way, and none is injected: who sends more finds none, and later ones may overtake them |
//!
//! Other than a fabric would it does not find out who writes to memory that is under way.

use super::super::fi::*;
use super::{Context, Entry, Opened};
use libc::{c_int, c_void, iovec};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ptr::null_mut;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a provider shall ask for beside what it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Demands {
    local: bool,
    virt_addr: bool,
    prov_key: bool,
    endpoint: bool,
    allocated: bool,
    context: bool,
    rx_cq_data: bool,
    data4: bool,
    cost: u64,
    limit: Option<u64>,
    longest: Option<u64>,
    transfers: Option<u64>,
    sends: Option<u64>,
}

impl Demands {
    /// How many messages may be under way, if that is demanded.
    pub fn sends(&self) -> Option<usize> {
        self.sends.map(|n| n as usize)
    }

    /// Is there any?
    pub fn any(&self) -> bool {
        *self != Demands::default()
    }

    fn mr_mode(&self) -> c_int {
        let bits = [
            (self.local, FI_MR_LOCAL),
            (self.virt_addr, FI_MR_VIRT_ADDR),
            (self.prov_key, FI_MR_PROV_KEY),
            (self.endpoint, FI_MR_ENDPOINT),
            (self.allocated, FI_MR_ALLOCATED),
        ];
        bits.into_iter().filter(|(is, _)| *is).fold(0, |all, (_, bit)| all | bit)
    }

    fn mode(&self) -> u64 {
        let context = if self.context { FI_CONTEXT | FI_CONTEXT2 } else { 0 };
        context | if self.rx_cq_data { FI_RX_CQ_DATA } else { 0 }
    }
}

/// Their names, with commas between them; `all` is all that are refused for.
impl FromStr for Demands {
    type Err = String;

    fn from_str(text: &str) -> Result<Demands, String> {
        let mut all = Demands::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            let number = || value.and_then(|value| value.parse::<u64>().ok()).ok_or(format!("{word}: no number"));
            let Demands { local, virt_addr, prov_key, endpoint, allocated, context, rx_cq_data, data4, .. } = &mut all;
            match name {
                "local" => *local = true,
                "virt_addr" => *virt_addr = true,
                "prov_key" => *prov_key = true,
                "endpoint" => *endpoint = true,
                "allocated" => *allocated = true,
                "context" => *context = true,
                "rx_cq_data" => *rx_cq_data = true,
                "data4" => *data4 = true,
                "all" => {
                    let every = [local, virt_addr, prov_key, endpoint, allocated, context, rx_cq_data, data4];
                    every.into_iter().for_each(|one| *one = true);
                }
                "cost" => all.cost = number()?,
                "limit" => all.limit = Some(number()?),
                "longest" => all.longest = Some(number()?),
                "transfers" => all.transfers = Some(number()?),
                "sends" => match number()? {
                    0 => return Err(format!("{word}: without room for one message there is no job")),
                    n => all.sends = Some(n),
                },
                _ => return Err(format!("{word}: no such demand")),
            }
        }
        Ok(all)
    }
}

/// With `virt_addr`, others' memory is registered from here on, so that its places are their addresses less this.
const FLOOR: u64 = 1 << 30;
/// So many receive buffers are held back for data.
const HELD_BACK: usize = 8;
const PAGE: usize = 4096;

/// What stands before the objects of an endpoint.
#[derive(Debug)]
pub(super) struct Shim {
    demands: Demands,
    reg: Mutex<Option<Real<fi_ops_mr>>>,
    cq: Mutex<Option<Real<fi_ops_cq>>>,
    #[expect(clippy::vec_box, reason = "endpoints have their addresses")]
    endpoints: Mutex<Vec<Box<Layer>>>,
    books: Mutex<Books>,
}

/// A table of the provider's, and the copy of it that is used instead.
struct Real<T> {
    table: *mut T,
    _copy: Box<[u64]>,
}

impl<T> std::fmt::Debug for Real<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.table.fmt(f)
    }
}

/// What an endpoint does behind the shim.
#[derive(Debug)]
struct Layer {
    shim: *const Shim,
    msg: Real<fi_ops_msg>,
    rma: Real<fi_ops_rma>,
    atomic: Option<Real<fi_ops_atomic>>,
}

/// A registration.
struct Registration {
    shim: *const Shim,
    ops: *mut fi_ops,
    own: fi_ops,
    key: u64,
    memory: (usize, usize),
    bound: bool,
}

#[derive(Debug, Default)]
struct Books {
    /// Where described memory begins and ends.
    described: HashMap<usize, (usize, usize)>,
    bytes: u64,
    busy: HashSet<usize>,
    /// Contexts of puts and gets under way, if those are bounded.
    transfers: HashSet<usize>,
    /// Receive buffers for data, by their contexts.
    held_back: VecDeque<*mut c_void>,
    /// Data that has found none.
    early: VecDeque<Entry>,
}

// SAFETY: behind the pointers are objects of libfabric, opened with FI_THREAD_SAFE, and tables that nobody writes to; entries
// hold addresses that are only passed on.
unsafe impl Send for Shim {}
// SAFETY: as above; the rest is behind locks.
unsafe impl Sync for Shim {}

/// The shim refuses: says why, and what the caller gets.
fn refused(call: &str, why: &str) -> isize {
    eprintln!("partage: the provider's shim refuses {call}: {why}");
    -(libc::EINVAL as isize)
}

impl<T> Real<T> {
    /// Takes the place of the table at `place`; the copy, to be changed.
    ///
    /// # Safety
    /// A table of libfabric, whose first word says how many bytes it has, and which nobody changes.
    unsafe fn lay_over(place: &mut *mut T) -> (Real<T>, *mut T) {
        let table = *place;
        // SAFETY: so many bytes can be read, and a table has at least those that we have declared.
        let copy = unsafe {
            let bytes = (*table.cast::<usize>()).max(size_of::<T>());
            let mut copy = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
            std::ptr::copy_nonoverlapping(
                table.cast::<u8>(),
                copy.as_mut_ptr().cast(),
                (*table.cast::<usize>()).min(bytes),
            );
            copy
        };
        let at = copy.as_ptr().cast_mut().cast::<T>();
        *place = at;
        (Real { table, _copy: copy }, at)
    }
}

impl Shim {
    pub(super) fn new(demands: Demands) -> Box<Shim> {
        let (reg, cq, endpoints, books) = Default::default();
        Box::new(Shim { demands, reg, cq, endpoints, books })
    }

    /// Stands before what was opened from here on.
    ///
    /// # Safety
    /// All of it is open and enabled, nobody uses it yet, and it is closed before this is dropped or moved.
    pub(super) unsafe fn wrap(&self, opened: &Opened) {
        // SAFETY: so the objects can be changed; that their context is ours is what their functions rely on. Nothing else
        // uses the contexts: all were opened with none.
        unsafe {
            let me = (&raw const *self).cast_mut().cast::<c_void>();
            (*opened.domain).fid.context = me;
            let (real, own) = Real::lay_over(&mut (*opened.domain).mr);
            (*own).reg = register;
            *self.reg.lock().unwrap_or_else(PoisonError::into_inner) = Some(real);
            (*opened.cq).fid.context = me;
            let (real, own) = Real::lay_over(&mut (*opened.cq).ops);
            ((*own).read, (*own).readerr) = (read_queue, read_error);
            *self.cq.lock().unwrap_or_else(PoisonError::into_inner) = Some(real);
            self.wrap_endpoint(opened.ep);
            let info = opened.info;
            (*(*info).domain_attr).mr_mode |= self.demands.mr_mode();
            (*info).mode |= self.demands.mode();
            if self.demands.data4 {
                (*(*info).domain_attr).cq_data_size = 4.min((*(*info).domain_attr).cq_data_size);
            }
            if let Some(longest) = self.demands.longest {
                (*(*info).ep_attr).max_msg_size = (longest as usize).min((*(*info).ep_attr).max_msg_size);
            }
        }
    }

    /// The same for one more endpoint.
    ///
    /// # Safety
    /// As for [`wrap`](Self::wrap).
    pub(super) unsafe fn wrap_endpoint(&self, ep: *mut fid_ep) {
        // SAFETY: as above.
        unsafe {
            let (msg, own) = Real::lay_over(&mut (*ep).msg);
            ((*own).recvmsg, (*own).send) = (receive, send);
            let (rma, own) = Real::lay_over(&mut (*ep).rma);
            ((*own).read, (*own).writemsg, (*own).inject) = (read, write, inject_write);
            let atomic = (!(*ep).atomic.is_null()).then(|| {
                let (atomic, own) = Real::lay_over(&mut (*ep).atomic);
                ((*own).readwrite, (*own).compwrite) = (fetch, compare);
                atomic
            });
            let layer = Box::new(Layer { shim: &raw const *self, msg, rma, atomic });
            (*ep).fid.context = (&raw const *layer).cast_mut().cast();
            self.endpoints.lock().unwrap_or_else(PoisonError::into_inner).push(layer);
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is this memory described by that?
    fn check(&self, call: &str, memory: *const c_void, len: usize, desc: *mut c_void) -> Result<(), isize> {
        if self.demands.longest.is_some_and(|longest| len as u64 > longest) {
            return Err(refused(call, "more bytes than one operation may have"));
        }
        if !self.demands.local {
            return Ok(());
        }
        let (start, end) = (memory.addr(), memory.addr() + len);
        match self.books().described.get(&desc.addr()) {
            Some(&(from, to)) if from <= start && end <= to => Ok(()),
            Some(_) => Err(refused(call, "memory outside of what its description is of")),
            None if desc.is_null() => Err(refused(call, "memory without a description")),
            None => Err(refused(call, "memory with a description that is closed or not enabled")),
        }
    }

    /// A context is the operation's from here on.
    fn enter(&self, call: &str, context: *mut c_void) -> Result<(), isize> {
        if !self.demands.context {
            return Ok(());
        }
        if context.is_null() {
            return Err(refused(call, "no context"));
        }
        if !self.books().busy.insert(context.addr()) {
            return Err(refused(call, "a context that another operation has"));
        }
        // SAFETY: every context of ours is one, mapped and nobody else's while the operation is under way.
        unsafe { (*context.cast::<Context>()).room = mark(context) };
        Ok(())
    }

    /// And is not any more.
    fn leave(&self, context: *mut c_void) {
        if self.demands.transfers.is_some() {
            self.books().transfers.remove(&context.addr());
        }
        if !self.demands.context || context.is_null() || !self.books().busy.remove(&context.addr()) {
            return;
        }
        // SAFETY: as above; the operation has just ended.
        let room = unsafe { (*context.cast::<Context>()).room };
        if room != mark(context) {
            eprintln!("partage: the provider's shim: somebody has written to the context of an operation under way");
            std::process::abort();
        }
    }

    /// A place in others' memory, as the provider names it.
    fn place(&self, call: &str, addr: u64) -> Result<u64, isize> {
        match addr.checked_sub(FLOOR) {
            _ if !self.demands.virt_addr => Ok(addr),
            Some(place) => Ok(place),
            None => Err(refused(call, "a place that is no address of the target's")),
        }
    }

    /// What the provider is told of local memory: as without the shim, nothing.
    fn desc(&self, desc: *mut c_void) -> *mut c_void {
        if self.demands.local { null_mut() } else { desc }
    }
}

fn mark(context: *mut c_void) -> [u64; 8] {
    [!(context.addr() as u64); 8]
}

/// Passes an operation on whose checks are done.
fn posting(shim: &Shim, call: &str, context: *mut c_void, post: impl FnOnce() -> isize) -> isize {
    if let Err(code) = shim.enter(call, context) {
        return code;
    }
    let code = post();
    if code != 0 {
        shim.leave(context);
    }
    code
}

/// The same of a put or get.
fn transferring(shim: &Shim, call: &str, context: *mut c_void, post: impl FnOnce() -> isize) -> isize {
    if let Some(most) = shim.demands.transfers {
        let mut books = shim.books();
        if books.transfers.len() as u64 >= most {
            return refused(call, "more under way than there may be");
        }
        books.transfers.insert(context.addr());
    }
    let code = posting(shim, call, context, post);
    if code != 0 && shim.demands.transfers.is_some() {
        shim.books().transfers.remove(&context.addr());
    }
    code
}

/// # Safety
/// An endpoint that is wrapped.
unsafe fn layer<'a>(ep: *mut fid_ep) -> (&'a Layer, &'a Shim) {
    // SAFETY: its context was set by `wrap_endpoint`, and both stay until it is closed.
    unsafe {
        let layer = &*(*ep).fid.context.cast::<Layer>();
        (layer, &*layer.shim)
    }
}

macro_rules! checked {
    ($check:expr) => {
        match $check {
            Ok(value) => value,
            Err(code) => return code,
        }
    };
}

unsafe extern "C" fn receive(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: our endpoint calls it with itself and with a whole message, of one piece, as it would the provider's.
    unsafe {
        let (layer, shim) = layer(ep);
        let fi_msg { msg_iov, desc, iov_count, addr, context, data } = *msg;
        let iovec { iov_base, iov_len } = *msg_iov;
        checked!(shim.check("fi_recvmsg", iov_base, iov_len, *desc));
        posting(shim, "fi_recvmsg", context, || {
            if shim.demands.rx_cq_data {
                let mut books = shim.books();
                if books.held_back.len() < HELD_BACK {
                    books.held_back.push_back(context);
                    return 0;
                }
            }
            let mut desc = shim.desc(*desc);
            let msg = fi_msg { msg_iov, desc: &mut desc, iov_count, addr, context, data };
            ((*layer.msg.table).recvmsg)(ep, &msg, flags)
        })
    }
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    to: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as above.
    unsafe {
        let (layer, shim) = layer(ep);
        checked!(shim.check("fi_send", buf, len, desc));
        let post = || ((*layer.msg.table).send)(ep, buf, len, shim.desc(desc), to, context);
        posting(shim, "fi_send", context, post)
    }
}

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    to: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as above.
    unsafe {
        let (layer, shim) = layer(ep);
        checked!(shim.check("fi_read", buf, len, desc));
        let addr = checked!(shim.place("fi_read", addr));
        let post = || ((*layer.rma.table).read)(ep, buf, len, shim.desc(desc), to, addr, key, context);
        transferring(shim, "fi_read", context, post)
    }
}

unsafe extern "C" fn write(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: as above.
    unsafe {
        let (layer, shim) = layer(ep);
        let fi_msg_rma { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data } = *msg;
        let (here, there) = (&*msg_iov, &*rma_iov);
        checked!(shim.check("fi_writemsg", here.iov_base, here.iov_len, *desc));
        if flags & FI_REMOTE_CQ_DATA != 0 && shim.demands.data4 && data > u64::from(u32::MAX) {
            return refused("fi_writemsg", "data of more than 4 bytes");
        }
        let there = fi_rma_iov { addr: checked!(shim.place("fi_writemsg", there.addr)), ..*there };
        let mut desc = shim.desc(*desc);
        let desc = &raw mut desc;
        let msg = fi_msg_rma { msg_iov, desc, iov_count, addr, rma_iov: &there, rma_iov_count, context, data };
        transferring(shim, "fi_writemsg", context, || ((*layer.rma.table).writemsg)(ep, &msg, flags))
    }
}

unsafe extern "C" fn inject_write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    to: u64,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: as above.
    unsafe {
        let (layer, shim) = layer(ep);
        let addr = checked!(shim.place("fi_inject_write", addr));
        ((*layer.rma.table).inject)(ep, buf, len, to, addr, key)
    }
}

/// Bytes of a word of this type.
fn width(datatype: c_int) -> usize {
    if [FI_INT32, FI_UINT32, FI_FLOAT].contains(&datatype) { 4 } else { 8 }
}

unsafe extern "C" fn fetch(
    ep: *mut fid_ep,
    operand: *const c_void,
    count: usize,
    desc: *mut c_void,
    old: *mut c_void,
    old_desc: *mut c_void,
    to: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    // SAFETY: as above; who calls it has found a table of atomics.
    unsafe {
        let (layer, shim) = layer(ep);
        let Some(atomic) = &layer.atomic else { return refused("fi_fetch_atomic", "no atomics") };
        for (memory, desc) in [(operand, desc), (old.cast_const(), old_desc)] {
            checked!(shim.check("fi_fetch_atomic", memory, count * width(datatype), desc));
        }
        let addr = checked!(shim.place("fi_fetch_atomic", addr));
        let (desc, old_desc) = (shim.desc(desc), shim.desc(old_desc));
        let real = (*atomic.table).readwrite;
        let post = || real(ep, operand, count, desc, old, old_desc, to, addr, key, datatype, op, context);
        posting(shim, "fi_fetch_atomic", context, post)
    }
}

unsafe extern "C" fn compare(
    ep: *mut fid_ep,
    operand: *const c_void,
    count: usize,
    desc: *mut c_void,
    expected: *const c_void,
    expected_desc: *mut c_void,
    old: *mut c_void,
    old_desc: *mut c_void,
    to: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    // SAFETY: as above.
    unsafe {
        let (layer, shim) = layer(ep);
        let Some(atomic) = &layer.atomic else { return refused("fi_compare_atomic", "no atomics") };
        for (memory, desc) in [(operand, desc), (expected, expected_desc), (old.cast_const(), old_desc)] {
            checked!(shim.check("fi_compare_atomic", memory, count * width(datatype), desc));
        }
        let addr = checked!(shim.place("fi_compare_atomic", addr));
        let [desc, expected_desc, old_desc] = [desc, expected_desc, old_desc].map(|desc| shim.desc(desc));
        let real = (*atomic.table).compwrite;
        let post = || {
            real(ep, operand, count, desc, expected, expected_desc, old, old_desc, to, addr, key, datatype, op, context)
        };
        posting(shim, "fi_compare_atomic", context, post)
    }
}

unsafe extern "C" fn register(
    domain: *mut fid,
    base: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: our domain is called with itself, and as it would be by whoever has memory to register.
    unsafe {
        let shim = &*(*domain).context.cast::<Shim>();
        let demands = shim.demands;
        let for_others = access & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0;
        if demands.allocated && for_others && !has_pages(base.addr(), len) {
            return refused("fi_mr_reg", "memory without pages") as c_int;
        }
        let is_full = |books: &mut Books| {
            let is_full = demands.limit.is_some_and(|limit| books.bytes + len as u64 > limit);
            books.bytes += if is_full { 0 } else { len as u64 };
            is_full
        };
        if is_full(&mut shim.books()) {
            return -libc::ENOMEM;
        }
        spend(len.div_ceil(PAGE) as u64 * demands.cost);
        let key = if demands.prov_key { super::random() % FI_KEY_NOTAVAIL } else { key };
        let (real_base, real_len) = match demands.virt_addr {
            true => (std::ptr::without_provenance(FLOOR as usize), base.addr() + len - FLOOR as usize),
            false => (base, len),
        };
        let reg = shim.reg.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|reg| (*reg.table).reg);
        let reg = reg.expect("it is wrapped");
        let code = reg(domain, real_base, real_len, access, offset, key, flags, out, context);
        if code != 0 {
            shim.books().bytes -= len as u64;
            return code;
        }
        let mr = *out;
        let real_ops = (*mr).fid.ops;
        let own = fi_ops { size: (*real_ops).size, close: unregister, bind: bind_region, control: enable_region };
        let memory = (base.addr(), base.addr() + len);
        let it = Registration { shim, ops: real_ops, own, key: (*mr).key, memory, bound: false };
        let it = Box::leak(Box::new(it));
        ((*mr).fid.ops, (*mr).fid.context) = (&raw mut it.own, (&raw mut *it).cast());
        if demands.local {
            (*mr).mem_desc = mr.cast();
        }
        match demands.endpoint {
            true => (*mr).key = FI_KEY_NOTAVAIL,
            false => _ = shim.books().described.insert(mr.addr(), memory),
        }
        0
    }
}

unsafe extern "C" fn bind_region(mr: *mut fid, _ep: *mut fid, _: u64) -> c_int {
    // SAFETY: a registration that `register` has given.
    unsafe {
        let it = &mut *(*mr).context.cast::<Registration>();
        if !(*it.shim).demands.endpoint {
            return refused("fi_mr_bind", "nobody asked for it") as c_int;
        }
        it.bound = true;
        0
    }
}

unsafe extern "C" fn enable_region(mr: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe {
        let it = &*(*mr).context.cast::<Registration>();
        if command != FI_ENABLE || !it.bound {
            return refused("fi_mr_enable", "a registration that is not bound") as c_int;
        }
        (*mr.cast::<fid_mr>()).key = it.key;
        (*it.shim).books().described.insert(mr.addr(), it.memory);
        0
    }
}

unsafe extern "C" fn unregister(mr: *mut fid) -> c_int {
    // SAFETY: as above, and nobody uses it any more.
    unsafe {
        let it = Box::from_raw((*mr).context.cast::<Registration>());
        let mut books = (*it.shim).books();
        books.described.remove(&mr.addr());
        books.bytes -= (it.memory.1 - it.memory.0) as u64;
        drop(books);
        (*mr).ops = it.ops;
        ((*it.ops).close)(mr)
    }
}

unsafe extern "C" fn read_queue(cq: *mut fid_cq, entries: *mut c_void, room: usize) -> isize {
    // SAFETY: our queue calls it with itself and with room for so many entries.
    unsafe {
        let shim = &*(*cq).fid.context.cast::<Shim>();
        let real = shim.cq.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|cq| (*cq.table).read);
        let real = real.expect("it is wrapped");
        let entries = entries.cast::<Entry>();
        if let Some(entry) = shim.data_that_waited(room) {
            entries.write(entry);
            return 1;
        }
        let n = real(cq, entries.cast(), room);
        let mut kept = 0;
        for i in 0..n.max(0) as usize {
            let mut entry = entries.add(i).read();
            if shim.demands.rx_cq_data && entry.remote_data().is_some() && !shim.take_buffer(&mut entry) {
                continue;
            }
            shim.leave(entry.context.cast());
            entries.add(kept).write(entry);
            kept += 1;
        }
        match n > 0 {
            true if kept == 0 => -FI_EAGAIN,
            true => kept as isize,
            false => n,
        }
    }
}

impl Shim {
    /// Data takes a buffer that was held back; it waits if there is none.
    fn take_buffer(&self, entry: &mut Entry) -> bool {
        let mut books = self.books();
        match books.held_back.pop_front() {
            Some(context) => entry.context = context.cast(),
            None => books.early.push_back(*entry),
        }
        !entry.context.is_null()
    }

    /// Data that has waited, if there is a buffer for it, and room.
    fn data_that_waited(&self, room: usize) -> Option<Entry> {
        let mut books = self.books();
        if room == 0 || books.early.is_empty() || books.held_back.is_empty() {
            return None;
        }
        let mut entry = books.early.pop_front()?;
        drop(books);
        self.take_buffer(&mut entry);
        self.leave(entry.context.cast());
        Some(entry)
    }
}

unsafe extern "C" fn read_error(cq: *mut fid_cq, error: *mut fi_cq_err_entry, flags: u64) -> isize {
    // SAFETY: our queue calls it with itself and room for an error.
    unsafe {
        let shim = &*(*cq).fid.context.cast::<Shim>();
        let real = shim.cq.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|cq| (*cq.table).readerr);
        let n = real.expect("it is wrapped")(cq, error, flags);
        if n > 0 {
            shim.leave((*error).op_context);
        }
        n
    }
}

/// Has all of this memory its pages?
fn has_pages(base: usize, len: usize) -> bool {
    let (from, to) = (base / PAGE * PAGE, (base + len).next_multiple_of(PAGE));
    let mut pages = vec![0u8; (to - from) / PAGE];
    // SAFETY: whole pages, which are mapped, and a byte for each.
    let code = unsafe { libc::mincore(std::ptr::without_provenance_mut(from), to - from, pages.as_mut_ptr()) };
    code == 0 && pages.iter().all(|page| page & 1 == 1)
}

/// Takes this long.
fn spend(ns: u64) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_nanos(ns) {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Asked, Desc, Endpoint, Peer, Posted, Region, Remote};
    use super::*;

    /// Nothing here takes this long.
    const PATIENCE: Duration = Duration::from_secs(30);
    const LEN: usize = 1 << 16;

    #[test]
    fn demands_are_read() {
        assert!(!"".parse::<Demands>().unwrap().any());
        let some = "local,cost=300,limit=4096".parse::<Demands>().unwrap();
        assert_eq!(some, Demands { local: true, cost: 300, limit: Some(4096), ..Demands::default() });
        let all = "all".parse::<Demands>().unwrap();
        assert_eq!(all.mode(), FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA);
        assert_eq!(all.mr_mode().count_ones(), 5);
        for (wrong, why) in
            [("locals", "no such demand"), ("cost=", "no number"), ("limit", "no number"), ("sends=0", "room for one")]
        {
            assert!(wrong.parse::<Demands>().unwrap_err().contains(why), "{wrong}");
        }
    }

    /// An endpoint on the loopback interface that puts to itself, with memory for others and memory of its own.
    struct Alone {
        // Closed before the memory.
        theirs: Region,
        mine: Region,
        endpoint: Endpoint,
        peer: Peer,
        memory: [Box<[u8]>; 2],
        contexts: Box<[Context]>,
    }

    impl Alone {
        fn new(demands: &str) -> Option<Alone> {
            if let Err(why) = Endpoint::version() {
                println!("SKIPPED: {why}");
                return None;
            }
            let demands = demands.parse().unwrap();
            let endpoint = Endpoint::open(&Asked { source: Some("127.0.0.1".into()), demands, ..Asked::default() });
            let endpoint = endpoint.unwrap();
            let mut memory = [(); 2].map(|()| vec![1u8; LEN].into_boxed_slice());
            let [theirs, mine] = &mut memory;
            // SAFETY: the regions are dropped before the memory, which is looked at when nothing is under way.
            let (theirs, mine) = unsafe {
                (
                    endpoint.register_anew(theirs.as_mut_ptr(), LEN),
                    endpoint.register_local(mine.as_mut_ptr(), LEN, true),
                )
            };
            let (theirs, mine, peer) = (theirs.unwrap(), mine.unwrap(), endpoint.insert(endpoint.name()).unwrap());
            let contexts = (0..40).map(|_| Context::default()).collect();
            Some(Alone { theirs, mine, endpoint, peer, memory, contexts })
        }

        fn put(&mut self, desc: Desc, at: Remote, context: *mut Context) -> Posted {
            // SAFETY: both outlive the endpoint.
            unsafe { self.endpoint.write(self.peer, self.memory[1].as_ptr(), 8, desc, at, context, true) }
        }

        fn context(&mut self, i: usize) -> *mut Context {
            &raw mut self.contexts[i]
        }

        /// What completes next.
        fn next(&self) -> Entry {
            let (start, mut entries) = (Instant::now(), [Entry::EMPTY]);
            while self.endpoint.poll(&mut entries).unwrap() == 0 {
                assert!(start.elapsed() < PATIENCE, "nothing comes");
            }
            entries[0]
        }

        fn accepted(&mut self, mut post: impl FnMut(&mut Alone) -> Posted) {
            let start = Instant::now();
            loop {
                match post(self) {
                    Posted::Done => return,
                    Posted::Again => _ = self.endpoint.poll(&mut []),
                    Posted::Failed(why) => panic!("{why}"),
                }
                assert!(start.elapsed() < PATIENCE, "it is never accepted");
            }
        }
    }

    fn is_refused(posted: Posted) -> bool {
        matches!(posted, Posted::Failed(why) if why.contains("Invalid argument"))
    }

    #[test]
    fn what_obeys_passes_and_the_rest_is_refused() {
        for demands in ["local", "virt_addr", "prov_key", "endpoint", "context", "all"] {
            let Some(mut a) = Alone::new(demands) else { return };
            let (desc, at, context) = (a.mine.desc(), a.theirs.remote(), a.context(0));
            a.memory[1][..8].fill(7);
            a.accepted(|a| a.put(desc, at.offset(64), context));
            assert_eq!(a.next().context, context);
            assert_eq!(a.memory[0][63..73], [1, 7, 7, 7, 7, 7, 7, 7, 7, 1], "{demands}");
            let demands: Demands = demands.parse().unwrap();
            assert_eq!(a.endpoint.mr_mode() & demands.mr_mode(), demands.mr_mode());
            if demands.local {
                assert!(is_refused(a.put(Desc::NONE, at, context)), "no description");
                assert!(is_refused(a.put(a.theirs.desc(), at, context)), "that of other memory");
                // SAFETY: closed at once; the memory is there.
                let gone = unsafe { a.endpoint.register_local(a.memory[1].as_mut_ptr(), LEN, true) }.unwrap().desc();
                assert!(is_refused(a.put(gone, at, context)), "a closed one");
            }
            if demands.virt_addr {
                assert_eq!(at.addr, a.memory[0].as_ptr().addr() as u64);
                assert!(is_refused(a.put(desc, Remote { addr: 64, ..at }, context)), "an offset");
            }
            if demands.context {
                assert!(is_refused(a.put(desc, at, null_mut())), "no context");
                a.accepted(|a| a.put(desc, at, context));
                assert!(is_refused(a.put(desc, at, context)), "one that is in use");
                a.next();
            }
        }
    }

    #[test]
    fn keys_are_those_that_the_provider_chose() {
        let Some(mut a) = Alone::new("prov_key") else { return };
        // SAFETY: dropped before the memory.
        let asked = unsafe { a.endpoint.register(a.memory[0].as_mut_ptr(), LEN, 4711) }.unwrap();
        assert_ne!(asked.remote().key, 4711);
        let keys: HashSet<u64> = [a.mine.remote().key, a.theirs.remote().key, asked.remote().key].into();
        assert_eq!(keys.len(), 3);
        drop(asked);
        let (desc, at, context) = (a.mine.desc(), Remote { key: 4711, ..a.theirs.remote() }, a.context(0));
        a.accepted(|a| a.put(desc, at, context));
        let start = Instant::now();
        while a.endpoint.poll(&mut [Entry::EMPTY]).is_ok() {
            assert!(start.elapsed() < PATIENCE, "no error comes");
        }
    }

    #[test]
    fn data_takes_buffers_until_there_are_none() {
        let Some(mut a) = Alone::new("rx_cq_data,data4,local,context") else { return };
        assert!(a.endpoint.data_takes_buffers() && a.endpoint.cq_data_size() == 4);
        let (desc, at) = (a.mine.desc(), a.theirs.remote());
        let post = |a: &mut Alone, i: usize| {
            let context = a.context(i);
            let room = a.memory[1].as_mut_ptr().wrapping_add(1024 * (1 + i));
            // SAFETY: room of its own, which stays, and the context that belongs to it.
            a.accepted(|a| unsafe { a.endpoint.post_receive(room, 1024, desc, context) });
        };
        let put = |a: &mut Alone, data: u64| {
            let (context, src) = (a.context(39), a.memory[1].as_ptr());
            // SAFETY: both outlive the endpoint.
            unsafe { a.endpoint.write_data(a.peer, src, 8, desc, at, context, data) }
        };
        for i in 0..HELD_BACK + 2 {
            post(&mut a, i);
        }
        for i in 0..HELD_BACK {
            a.accepted(|a| put(a, i as u64));
            // Its own completion and the data, in any order.
            let both = [a.next(), a.next()];
            let data = both.iter().find(|entry| entry.remote_data().is_some()).expect("the data");
            assert_eq!((data.remote_data(), data.context), (Some(i as u64), a.context(i)));
        }
        // The next finds none, until one is posted.
        a.accepted(|a| put(a, HELD_BACK as u64));
        assert_eq!(a.next().remote_data(), None, "its own completion");
        let start = Instant::now();
        while a.endpoint.poll(&mut [Entry::EMPTY]).unwrap() == 0 && start.elapsed() < Duration::from_millis(20) {}
        post(&mut a, 3);
        let entry = a.next();
        assert_eq!((entry.remote_data(), entry.context), (Some(HELD_BACK as u64), a.context(3)));
        assert!(is_refused(put(&mut a, 1 << 32)), "five bytes");
    }

    #[test]
    fn what_is_registered_has_pages_and_a_limit() {
        let Some(a) = Alone::new(&format!("allocated,limit={}", 3 * LEN)) else { return };
        let len = 16 * PAGE;
        // SAFETY: new memory.
        let base = unsafe {
            let (kind, access) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
            libc::mmap(null_mut(), len, access, kind, -1, 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        let base = base.cast::<u8>();
        // SAFETY: mapped until the end of the process.
        let register = |len| unsafe { a.endpoint.register_anew(base, len) };
        assert_eq!(register(len).unwrap_err().err, libc::EINVAL);
        // SAFETY: so many bytes of its own.
        unsafe { base.write_bytes(1, len) };
        let all = register(len).unwrap();
        let why = register(PAGE).unwrap_err();
        assert!(crate::ofi::cache::Why::wants_room(&why));
        let why = why.to_string();
        assert!(why.contains("fi_mr_reg of 4096 bytes") && why.contains("RLIMIT_MEMLOCK, `ulimit -l`: "), "{why}");
        assert!(why.contains("PARTAGE_REGISTERED") && !why.contains('\n'), "{why}");
        drop(all);
        register(PAGE).unwrap();
    }
}
