//! [`Dist`]: an object of every rank, for others to call into.

use super::{Calls, TELL, Travels, run_into};
use crate::job::Inner;
use crate::scope::Event;
use crate::team::{Rank, Team};
use partage_conduit::barrier::{Call, Tag};
use partage_conduit::record::Site;
use std::any::type_name;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// One `T` on every rank under one name. Functions that others call get the rank's own as `&mut T`.
///
/// ```
/// use partage::prelude::*;
/// use std::collections::HashMap;
///
/// partage::test(4, |job| {
///     let table = job.dist(HashMap::<String, u64>::new());
///     let home = |key: &str| Rank(key.len() as u32 % 4);
///     let key = format!("from {}", job.rank());
///     table.rpc(home(&key), |mine, (key, value)| mine.insert(key, value), (key.clone(), 7)).wait();
///     assert_eq!(table.rpc(home(&key), |mine, key: String| mine.get(&key).copied(), key).wait(), Some(7));
///     job.barrier();                             // nobody ends while others still call (after tells: quiet first)
/// });
/// ```
pub struct Dist<T: 'static> {
    inner: Rc<Inner>,
    id: u32,
    mine: Rc<RefCell<T>>,
    /// The ranks that have one, in order, if not all do.
    members: Option<Box<[u32]>>,
}

impl<T> fmt::Debug for Dist<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dist<{}>({})", type_name::<T>(), self.id)
    }
}

impl Team {
    /// Collective: one `T` of each rank, for others to call into. All ranks give the same type.
    #[track_caller]
    pub fn dist<T: 'static>(&self, mine: T) -> Dist<T> {
        let site = Site::here("dist");
        let (inner, mine) = (self.inner.clone(), Rc::new(RefCell::new(mine)));
        self.may_meet(move || site);
        let hash = type_name::<T>()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        // Ranks of other teams may have had more of them: the highest number is free on all members.
        let next = inner.calls.objects.borrow().len() as u64;
        let id = (!self.meet(Tag::Call(Call::Dist, hash >> 32), !next, move || site)).max(next) as u32;
        let mut objects = inner.calls.objects.borrow_mut();
        objects.resize_with(id as usize, || None);
        objects.push(Some(mine.clone()));
        drop(objects);
        self.meet(Tag::Call(Call::Dist, u64::from(id) << 32 | hash >> 32), u64::MAX, move || site);
        let members = self.group.own.is_some().then(|| {
            let mut members: Box<[u32]> = (0..self.size()).map(|m| self.group.engine.rank_of(m).0).collect();
            members.sort_unstable();
            members
        });
        Dist { inner, id, mine, members }
    }
}

impl<T: 'static> Dist<T> {
    /// My own `T`. Calls that come for it meanwhile run when this has ended. Nesting panics.
    #[track_caller]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        match self.mine.try_borrow_mut() {
            Ok(mut mine) => {
                // Given back before the calls that wait for it are told.
                let _in_use = InUse::begin(&self.inner.calls);
                let result = f(&mut mine);
                drop(mine);
                result
            }
            Err(_) => {
                panic!("{}: with: this {self:?} is in use already, by a `with` around it or a call", self.inner.rank)
            }
        }
    }

    /// Runs `f(&mut T, args)` on `to`, on its own thread, when it makes progress; the event gives the result. Dropping
    /// the event detaches the call.
    #[inline]
    #[track_caller]
    pub fn rpc<A: Travels, R: Travels>(&self, to: Rank, f: fn(&mut T, A) -> R, args: A) -> Event<'_, R> {
        self.check("rpc", to);
        self.inner.call(to, (run_into::<T, A, R>, f as usize), self.id, &args)
    }

    /// The same without a result. [`quiet`](crate::Job::quiet) waits until it has run; a panic in it ends the job.
    #[inline]
    #[track_caller]
    pub fn tell<A: Travels>(&self, to: Rank, f: fn(&mut T, A), args: A) {
        self.check("tell", to);
        self.inner.send(("tell", TELL), to, (run_into::<T, A, ()>, f as usize), self.id, &args);
    }

    #[inline(always)]
    #[track_caller]
    fn check(&self, call: &str, to: Rank) {
        if let Some(members) = &self.members
            && members.binary_search(&to.0).is_err()
        {
            panic!("{}: {call}: {to} is no member of the team of this {self:?}", self.inner.rank);
        }
    }

    /// My own `T` back; calls that still come for it fail, so [`quiet`](crate::Job::quiet) and a barrier go before.
    #[track_caller]
    pub fn into_inner(self) -> T {
        let (me, mine) = (self.inner.rank, self.mine.clone());
        drop(self);
        match Rc::try_unwrap(mine) {
            Ok(mine) => mine.into_inner(),
            Err(_) => panic!("{me}: into_inner: this Dist is in use"),
        }
    }
}

impl<T> Drop for Dist<T> {
    fn drop(&mut self) {
        let object = self.inner.calls.objects.borrow_mut().get_mut(self.id as usize).and_then(Option::take);
        self.inner.calls.retry.set(true);
        drop(object);
    }
}

/// While this rank itself has an object in use.
struct InUse<'c>(&'c Calls);

impl<'c> InUse<'c> {
    fn begin(calls: &'c Calls) -> Self {
        calls.in_use.set(calls.in_use.get() + 1);
        InUse(calls)
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.0.in_use.set(self.0.in_use.get() - 1);
        self.0.retry.set(true);
    }
}
