//! A call whose result has not come yet, as its event holds it.

use crate::fail;
use crate::job::Inner;
use crate::team::Rank;
use partage_conduit::record::Site;
use std::fmt;
use std::rc::Rc;

/// A call under way, as its event holds it.
pub(crate) struct Pend<R> {
    held: Held,
    to: Rank,
    site: Site,
    decode: fn(&[u8]) -> Result<R, String>,
}

/// Detaches the call when dropped, unless its result was taken.
struct Held {
    inner: Rc<Inner>,
    id: u32,
}

const TAKEN: u32 = u32::MAX;

impl Drop for Held {
    fn drop(&mut self) {
        if self.id == TAKEN || self.inner.calls.over.get() {
            return;
        }
        if let Some(why) = self.inner.calls.detach(self.id)
            && !std::thread::panicking()
        {
            fail::end_with(format!("{}: a remote call whose event was dropped failed: {why}", self.inner.rank));
        }
    }
}

impl<R> Pend<R> {
    /// The call with this number.
    pub fn new(inner: Rc<Inner>, id: u32, to: Rank, site: Site, decode: fn(&[u8]) -> Result<R, String>) -> Self {
        Pend { held: Held { inner, id }, to, site, decode }
    }

    /// Has the result come?
    pub fn is_done(&self) -> bool {
        self.held.inner.calls.is_done(self.held.id)
    }

    /// Has the result come? Makes progress.
    #[track_caller]
    pub fn test(&self) -> bool {
        let Held { inner, id } = &self.held;
        self.check_over();
        inner.calls.is_done(*id) || (inner.look() && inner.calls.is_done(*id))
    }

    /// Waits for the result.
    #[track_caller]
    pub fn wait(self) -> R {
        let Held { inner, id } = &self.held;
        self.check_over();
        inner.may_wait(|| Site { call: "wait for a remote call", ..self.site });
        inner.wait(self.site, || inner.calls.is_done(*id));
        if !inner.calls.is_done(*id) {
            inner.no_result(self.site);
        }
        self.take()
    }

    #[track_caller]
    fn check_over(&self) {
        if self.held.inner.calls.over.get() {
            panic!("{}: {}: the job is over", self.held.inner.rank, self.site);
        }
    }

    /// The result, which has come.
    #[track_caller]
    pub fn take(mut self) -> R {
        let id = std::mem::replace(&mut self.held.id, TAKEN);
        let inner = &self.held.inner;
        match inner.calls.finish(id).and_then(|bytes| (self.decode)(bytes.as_slice())) {
            Ok(value) => value,
            Err(why) => panic!("{}: {}: {}: {why}", inner.rank, self.site, self.to),
        }
    }
}

impl<R> fmt::Debug for Pend<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.site, self.to)
    }
}
