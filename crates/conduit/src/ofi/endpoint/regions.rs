//! Memory that the network may use: what was registered, and why it was not.

use super::super::cache::Why;
use super::super::fi::*;
use super::opened::{Opened, close};
use super::{Desc, Endpoint, Remote, random};
use libc::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

/// So many keys that are taken already are tried before another.
const TRIES: usize = 64;

/// Memory that was not registered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unregistered {
    /// A number of `errno`, or of fi_errno(3).
    pub err: i32,
    text: String,
}

impl Why for Unregistered {
    fn wants_room(&self) -> bool {
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

impl Endpoint {
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

    /// How many keys there are.
    pub(super) fn keys(&self) -> u64 {
        // SAFETY: the description and its parts live as long as `opened` and are not changed.
        let bytes = unsafe { (*(*self.opened.info).domain_attr).mr_key_size };
        if bytes >= 8 { FI_KEY_NOTAVAIL } else { 1 << (8 * bytes) }
    }

    /// Tries keys until one is new.
    fn with_key(&self, register: impl Fn(u64) -> Result<Region, Unregistered>) -> Result<Region, Unregistered> {
        let most = self.keys();
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
}
