//! What happens when a rank fails: who says it, who hears it, with which code the process ends.
//!
//! A job that is one process of its caller's ([`partage::test`](crate::test), [`Launch`](crate::Launch)) unwinds: the
//! abort word is set, every waiting rank is woken and unwinds quietly, and the first failure reaches the caller as a panic.
//! Any other failure ends the process, after telling the launcher, which says the line once and ends the others.

use partage_boot::Boot;
use partage_conduit::sync::now_ns;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, Location, PanicHookInfo, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The exit code of a process in which a rank panicked.
pub(crate) const PANICKED: i32 = 101;

thread_local! {
    /// The rank whose thread this is.
    static RANK: Cell<Option<u32>> = const { Cell::new(None) };
    /// The host that it is on.
    static HOST: RefCell<String> = const { RefCell::new(String::new()) };
    /// Does a failure of this rank end the process? Then the panic hook keeps its line instead of printing it.
    static QUIET: Cell<bool> = const { Cell::new(false) };
    /// What ends the job of this rank, if not the end of the process.
    static END: RefCell<Option<End>> = const { RefCell::new(None) };
    static LINE: RefCell<Option<String>> = const { RefCell::new(None) };
    /// When it panicked last, by `now_ns`, for its other threads; it may have been caught since.
    static PANICKED_AT: Arc<AtomicU64> = Arc::default();
    /// The panic before that one, which it may have interrupted.
    static BEFORE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Ends a job that is not all of its process, with a line.
type End = Box<dyn Fn(&str)>;

/// This process's connection to the others, kept from the first job to the end of the process.
static BOOT: Mutex<Option<Boot>> = Mutex::new(None);

/// Set when this process is ended by us, and has said why.
pub(crate) static ENDING: AtomicBool = AtomicBool::new(false);

/// The connection. Never held while waiting for other ranks, but for the exchange at the start and the fence at the end.
pub(crate) fn boot() -> MutexGuard<'static, Option<Boot>> {
    BOOT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same if nobody holds it.
pub(crate) fn try_boot() -> Option<MutexGuard<'static, Option<Boot>>> {
    match BOOT.try_lock() {
        Ok(boot) => Some(boot),
        Err(TryLockError::Poisoned(boot)) => Some(boot.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Unwinds this rank because the job was aborted by another.
pub(crate) fn job_is_over() -> ! {
    resume_unwind(Box::new(JobIsOver))
}

/// Ends the job with this line: where a failure ends the process, at once; else all waits end, and this rank unwinds. That
/// it may be caught on its way changes nothing any more.
pub(crate) fn end_with(line: String) -> ! {
    if QUIET.get() {
        die(PANICKED, Some(&line));
    }
    END.with_borrow(|end| end.iter().for_each(|end| end(&line)));
    resume_unwind(Box::new(Line(line)))
}

/// Ends the job of a rank that unwinds, and has found in a destructor that others wait for it: what it panicked with is said, now
/// or when it has unwound.
pub(crate) fn end_unwinding() {
    if QUIET.get() {
        let why = LINE.take().unwrap_or_else(|| "panicked".into());
        die(PANICKED, Some(&format!("rank {} on {} {why}", RANK.get().unwrap_or_default(), HOST.take())));
    }
    END.with_borrow(|end| end.iter().for_each(|end| end("")));
}

/// Runs what a user has given, where others wait for what comes of it: a panic ends the job, whoever would catch it.
pub(crate) fn or_end<R>(what: &str, f: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result,
        Err(payload) => {
            let (why, me) = (caught(payload), this_rank().unwrap_or_default());
            end_with(format!("rank {me}: {what} {why}"))
        }
    }
}

/// This thread serves others for a process of several: a failure on it ends the process.
pub(crate) fn enter_service() {
    QUIET.set(true);
}

/// A handler of an active message panicked; that ends the job, on whichever rank's thread it ran.
#[cold]
pub(crate) fn handler_panicked(target: usize, source: usize, at: &Location<'_>, payload: Box<dyn Any + Send>) -> ! {
    let why = caught(payload);
    end_with(format!("rank {target}: the handler at {at}, for a message from rank {source}, {why}"))
}

/// What a panic said that was caught: `panicked at …: …`. The end of the job goes on.
pub(crate) fn caught(payload: Box<dyn Any + Send>) -> String {
    match unwound(payload) {
        Unwound::JobIsOver => job_is_over(),
        Unwound::Ended(line) => end_with(line),
        Unwound::Panicked(text) => text,
    }
}

struct JobIsOver;
struct Line(String);

/// Why a rank did not return.
pub(crate) enum Unwound {
    /// Another rank aborted the job.
    JobIsOver,
    /// It ended the job with this line.
    Ended(String),
    /// It panicked, saying this.
    Panicked(String),
}

/// What a rank's panic meant.
pub(crate) fn unwound(payload: Box<dyn Any + Send>) -> Unwound {
    if payload.is::<JobIsOver>() {
        return Unwound::JobIsOver;
    }
    let payload = match payload.downcast::<Line>() {
        Ok(line) => return Unwound::Ended(line.0),
        Err(payload) => payload,
    };
    let text = message(&*payload).unwrap_or("of an unknown kind").to_string();
    // Dropping it may panic, too; then that is kept.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
    // The hook has seen this panic if its line ends with the same words; else it was one that somebody resumed.
    let line = LINE.take().filter(|line| line.ends_with(&text));
    Unwound::Panicked(line.unwrap_or_else(|| format!("panicked: {text}")))
}

/// Marks this thread as a rank's until the guard is dropped.
pub(crate) fn enter_rank(rank: u32, host: &str, quiet: bool, end: impl Fn(&str) + 'static) -> impl Drop {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if this_rank().is_some() {
                panicked_at().store(now_ns(), Relaxed);
            }
            keep_line(info, &before);
        }));
    });
    RANK.set(Some(rank));
    HOST.set(host.into());
    QUIET.set(quiet);
    END.set(Some(Box::new(end)));
    LINE.set(None);
    panicked_at().store(0, Relaxed);
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            RANK.set(None);
            QUIET.set(false);
            END.set(None);
        }
    }
    Leave
}

/// When the rank whose thread this is panicked last; whoever knows that this was caught stores 0.
pub(crate) fn panicked_at() -> Arc<AtomicU64> {
    PANICKED_AT.with(Arc::clone)
}

/// The rank whose thread this is, if it is one's.
pub(crate) fn this_rank() -> Option<u32> {
    RANK.get()
}

/// Ends this process and with it the job. The line is said once: by the launcher, or here.
pub(crate) fn die(code: i32, line: Option<&str>) -> ! {
    static FIRST: Mutex<()> = Mutex::new(());
    // Held until the process is gone: the first failure of a process is the one that counts.
    let _first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    ENDING.store(true, Release);
    // What an exit code can carry, but no failure that looks like success.
    let code = if code != 0 && code & 0xff == 0 { 1 } else { code & 0xff };
    // Another thread may hold the connection while it waits for others to come to the end; the launcher then notices that
    // this process has gone.
    let patience = Instant::now() + Duration::from_millis(500);
    let mut held = loop {
        match try_boot() {
            None if Instant::now() < patience => std::thread::sleep(Duration::from_millis(1)),
            held => break held,
        }
    };
    match held.as_mut().and_then(|boot| boot.as_mut()) {
        Some(boot) => boot.abort(code, line.map(|l| format!("partage: {l}")).as_deref()),
        None => line.into_iter().for_each(say),
    }
    std::process::exit(code)
}

/// One line to standard error, in one piece.
pub(crate) fn say(line: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("partage: {line}\n").as_bytes());
}

fn keep_line(info: &PanicHookInfo<'_>, before: &dyn Fn(&PanicHookInfo<'_>)) {
    if !QUIET.get() || cfg!(panic = "abort") {
        return before(info);
    }
    let at = info.location().map_or(String::new(), |l| format!(" at {l}"));
    let what = message(info.payload()).unwrap_or("of an unknown kind");
    // How the standard library says that the last panic will not unwind to us, in a destructor or out of foreign code:
    // then the process ends here, and that panic has to be said now.
    if what.starts_with("panic in a destructor") || what.starts_with("panic in a function that cannot unwind") {
        for line in [BEFORE.take(), LINE.take()].into_iter().flatten() {
            say(&format!("rank {} {line}", RANK.get().unwrap_or_default()));
        }
        return before(info);
    }
    BEFORE.set(LINE.replace(Some(format!("panicked{at}: {what}"))));
    if std::env::var_os("RUST_BACKTRACE").is_some_and(|v| v != "0") {
        before(info);
    }
}

fn message(payload: &(dyn Any + Send)) -> Option<&str> {
    payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied())
}
