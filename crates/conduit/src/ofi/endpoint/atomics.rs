//! The endpoint for the network's own atomics, which is opened when it is first needed.

use super::super::fi::*;
use super::opened::{Opened, close};
use super::{Context, Desc, Endpoint, Peer, Posted, Remote};
use crate::word::{Atomic, Kind, Op};
use libc::c_int;
use std::ptr::null_mut;
use std::sync::{Arc, PoisonError};

/// A second endpoint of the process, for atomics: it has the domain, the addresses and the completion queue of the first.
#[derive(Debug)]
pub struct Atomics {
    ep: *mut fid_ep,
    name: Vec<u8>,
    opened: Arc<Opened>,
}

// SAFETY: as for `Endpoint`.
unsafe impl Send for Atomics {}
// SAFETY: as above.
unsafe impl Sync for Atomics {}

/// Where an atomic finds its operand and what is expected, and leaves the old value: one word of the operation's width each,
/// at the start of eight bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Operands {
    /// The operand.
    pub operand: [u8; 8],
    /// The value that [`Op::CompareExchange`] expects.
    pub expected: [u8; 8],
    /// The old value, when it has completed.
    pub old: [u8; 8],
}

impl Atomics {
    /// Opens it, or says why there is none.
    pub fn open(endpoint: &Endpoint) -> Result<Atomics, String> {
        let opened = endpoint.opened.clone();
        let (library, provider) = (opened.library, opened.provider());
        if opened.atomic_info.is_null() {
            return Err(format!("{provider} has no atomics"));
        }
        if opened.mr_mode() & FI_MR_ENDPOINT != 0 {
            return Err(format!("{provider} has memory known to one endpoint only"));
        }
        if provider.contains(super::rxd::NAME) {
            // Of 1.17 it says that they are valid, and follows a null pointer at the first one.
            return Err(format!("{provider} has atomics that fail"));
        }
        let check = |what: &str, code: c_int| match code {
            0 => Ok(()),
            code => Err(format!("{provider}: {what} for atomics: {}", library.error(code.into()))),
        };
        // Also while what was opened in vain is closed: it is dropped before.
        let _whole = endpoint.opened.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let mut this = Atomics { ep: null_mut(), name: vec![0; 512], opened };
        let Opened { domain, atomic_info, av, cq, .. } = *this.opened;
        let mut len = this.name.len();
        // SAFETY: objects that are open as long as `opened`, used in the order that fi_endpoint(3) gives; the domain was
        // opened with this description; `len` bytes to write the name to.
        unsafe {
            check("fi_endpoint", ((*(*domain).ops).endpoint)(domain, atomic_info, &mut this.ep, null_mut()))?;
            let ops = (*this.ep).fid.ops;
            check("fi_ep_bind", ((*ops).bind)(this.ep.cast(), av.cast(), 0))?;
            check("fi_ep_bind", ((*ops).bind)(this.ep.cast(), cq.cast(), FI_TRANSMIT | FI_RECV))?;
            check("fi_enable", ((*ops).control)(this.ep.cast(), FI_ENABLE, null_mut()))?;
            check("fi_getname", ((*(*this.ep).cm).getname)(this.ep.cast(), this.name.as_mut_ptr().cast(), &mut len))?;
            if (*this.ep).atomic.is_null() {
                return Err(format!("{provider} has no atomics"));
            }
        }
        this.name.truncate(len);
        if let Some(shim) = &this.opened.shim {
            // SAFETY: enabled, and nobody else has it yet; it is closed before the shim, which `opened` keeps.
            unsafe { shim.wrap_endpoint(this.ep) };
        }
        Ok(this)
    }

    /// Where it is, for others to [insert](Endpoint::insert).
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Does the provider say that it does this, on one word? Whether or not its old value is wanted it is asked for:
    /// those that fetch complete when they have been done, the others earlier.
    pub fn is_valid(&self, op: Op, kind: Kind, width: u8) -> bool {
        let (datatype, code) = names_of(op, kind, width);
        let mut count = 0;
        // SAFETY: an enabled endpoint with a table of atomics, which has these entries since 1.0, and room for a number.
        let answer = unsafe {
            let table = (*self.ep).atomic;
            let ask = if op == Op::CompareExchange { (*table).compwritevalid } else { (*table).readwritevalid };
            ask(self.ep, datatype, code, &mut count)
        };
        answer == 0 && count > 0
    }

    /// Starts an atomic that [is valid](Self::is_valid). It has been done when it completes.
    ///
    /// # Safety
    /// Until it has completed or everything is closed, `words` and `context` are mapped, and nobody uses them. The words are
    /// described by `desc`.
    #[inline]
    pub unsafe fn start(
        &self,
        to: Peer,
        at: Remote,
        what: &Atomic,
        (words, desc): (*mut Operands, Desc),
        context: *mut Context,
    ) -> Posted {
        let (datatype, op) = names_of(what.op, what.kind, what.width);
        let (desc, ep) = (desc.0, self.ep);
        // SAFETY: an enabled endpoint with a table of atomics; the caller's promise; the three lie apart.
        let code = unsafe {
            let (operand, old) = (&raw const (*words).operand, &raw mut (*words).old);
            let table = (*ep).atomic;
            if what.op == Op::CompareExchange {
                let expected = &raw const (*words).expected;
                ((*table).compwrite)(
                    ep,
                    operand.cast(),
                    1,
                    desc,
                    expected.cast(),
                    desc,
                    old.cast(),
                    desc,
                    to.0,
                    at.addr,
                    at.key,
                    datatype,
                    op,
                    context.cast(),
                )
            } else {
                ((*table).readwrite)(
                    ep,
                    operand.cast(),
                    1,
                    desc,
                    old.cast(),
                    desc,
                    to.0,
                    at.addr,
                    at.key,
                    datatype,
                    op,
                    context.cast(),
                )
            }
        };
        match code {
            0 => Posted::Done,
            code if code == -FI_EAGAIN => Posted::Again,
            code => Posted::Failed(self.opened.library.error(code as i64)),
        }
    }
}

impl Drop for Atomics {
    fn drop(&mut self) {
        if !self.ep.is_null() {
            // SAFETY: open, and nobody else has it.
            unsafe { close(self.ep.cast()) };
        }
    }
}

/// libfabric's type and operation. Where signs make no difference it is bits, so that sums wrap around and floats are
/// compared by their bits.
fn names_of(op: Op, kind: Kind, width: u8) -> (c_int, c_int) {
    let code = match op {
        Op::Load => FI_ATOMIC_READ,
        Op::Store | Op::Swap => FI_ATOMIC_WRITE,
        Op::CompareExchange => FI_CSWAP,
        Op::Add => FI_SUM,
        Op::Mul => FI_PROD,
        Op::Min => FI_MIN,
        Op::Max => FI_MAX,
        Op::And => FI_BAND,
        Op::Or => FI_BOR,
        Op::Xor => FI_BXOR,
    };
    let datatype = match (op, kind) {
        (Op::Add | Op::Mul | Op::Min | Op::Max, Kind::Float) => [FI_FLOAT, FI_DOUBLE],
        (Op::Min | Op::Max, Kind::Signed) => [FI_INT32, FI_INT64],
        _ => [FI_UINT32, FI_UINT64],
    };
    (datatype[usize::from(width == 8)], code)
}
