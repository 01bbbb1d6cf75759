//! Finding a provider and opening its objects, which are closed together.

use super::super::fi::{self, *};
use super::demands::Shim;
use super::{Asked, Endpoint, rxd};
use libc::{c_char, c_int};
use rustix::event::EventfdFlags;
use std::ffi::{CStr, CString};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex};

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
}

/// What [`Endpoint::open`] has opened, or null.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) library: &'static Library,
    pub(super) info: *mut fi_info,
    /// The same with atomics, or null.
    pub(super) atomic_info: *mut fi_info,
    pub(super) fabric: *mut fid_fabric,
    pub(super) domain: *mut fid_domain,
    pub(super) av: *mut fid_av,
    pub(super) cq: *mut fid_cq,
    pub(super) ep: *mut fid_ep,
    /// What the queue can be waited for by; it belongs to the queue.
    pub(super) wait_fd: Option<RawFd>,
    /// An event descriptor: somebody is to wake up.
    pub(super) woken: OwnedFd,
    /// Held while another endpoint is opened, and while the queue is asked whether one may sleep: that serves all endpoints of the
    /// queue, also one that is bound to it and not enabled yet (`tcp;ofi_rxm` of 1.17 then follows a null pointer). Who
    /// [polls](Endpoint::poll) while one is opened does so too, and sees to it himself.
    pub(super) endpoints: Mutex<()>,
    /// What stands between us and the provider in some tests.
    pub(super) shim: Option<Box<Shim>>,
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

    pub(super) fn provider(&self) -> String {
        // SAFETY: fi_getinfo fills in the fabric's attributes.
        unsafe { provider(self.info) }
    }

    pub(super) fn mr_mode(&self) -> i32 {
        // SAFETY: as above, those of the domain.
        unsafe { (*(*self.info).domain_attr).mr_mode }
    }

    pub(super) fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
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
pub(super) unsafe fn close(fid: *mut fid) {
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
