//! The memory that messages are received into and sent from: of each kind a fixed number of buffers, each for one message.

use super::super::Net;
use super::super::endpoint::{Context, Desc, Posted};
use super::super::local::Describe;
use super::LONGEST;
use std::cell::UnsafeCell;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::time::{Duration, Instant};

/// Receive buffers. What comes when all are in use waits in the network.
pub(in crate::ofi) const BUFFERS: usize = 64;

/// How long a provider may take to accept them all.
pub(in crate::ofi) const POSTING: Duration = Duration::from_secs(10);

/// Bounce buffers.
pub(in crate::ofi) const BOUNCES: usize = 64;

/// A buffer that one message is received into.
#[derive(Debug)]
#[repr(C)]
pub(in crate::ofi) struct Buffer {
    context: UnsafeCell<Context>,
    memory: UnsafeCell<Box<[u64]>>,
    desc: Desc,
}

/// A buffer that one message is sent from.
#[derive(Debug)]
#[repr(C)]
pub(in crate::ofi) struct Bounce {
    pub(super) context: UnsafeCell<Context>,
    pub(super) taken: AtomicBool,
    /// To which process its message goes.
    pub(in crate::ofi) process: AtomicU32,
    pub(super) memory: UnsafeCell<Box<[u64]>>,
    pub(super) desc: Desc,
}

/// What a context belongs to: the low byte of its word; the rest is an index.
pub(in crate::ofi) const OF_BUFFER: u64 = 1;
pub(in crate::ofi) const OF_BOUNCE: u64 = 2;
pub(in crate::ofi) const OF_OP: u64 = 3;

// SAFETY: context and memory are the network's until a message has been received, and then of the one thread that has read
// its completion, until it posts the buffer again.
unsafe impl Sync for Buffer {}

// SAFETY: used by whoever has set `taken`, then by the network until the message has been sent.
unsafe impl Sync for Bounce {}

impl Buffer {
    pub fn new(i: usize) -> Buffer {
        let context = UnsafeCell::new(Context::new(OF_BUFFER | (i as u64) << 8));
        Buffer { context, memory: UnsafeCell::new(vec![0; LONGEST.div_ceil(8)].into()), desc: Desc::NONE }
    }

    /// Its memory is registered.
    pub fn describe(&mut self, describe: &mut Describe) -> Result<(), String> {
        let memory = self.memory.get_mut();
        self.desc = describe(memory.as_mut_ptr().cast(), size_of_val(&**memory))?;
        Ok(())
    }
}

impl Bounce {
    pub fn new(i: usize) -> Bounce {
        let context = UnsafeCell::new(Context::new(OF_BOUNCE | (i as u64) << 8));
        let memory = UnsafeCell::new(vec![0; LONGEST.div_ceil(8) + 2].into());
        Bounce { context, taken: AtomicBool::new(false), process: AtomicU32::new(0), memory, desc: Desc::NONE }
    }

    /// Its memory is registered.
    pub fn describe(&mut self, describe: &mut Describe) -> Result<(), String> {
        let memory = self.memory.get_mut();
        self.desc = describe(memory.as_mut_ptr().cast(), size_of_val(&**memory))?;
        Ok(())
    }
}

impl Net {
    /// Posts all receive buffers, before anybody sends.
    pub(in crate::ofi) fn post_all(&self, patience: Duration) -> Result<(), String> {
        let deadline = Instant::now() + patience;
        loop {
            self.post_buffers();
            let idle = self.idle_count.load(Relaxed);
            if let Some(why) = self.why_broken() {
                return Err(why);
            }
            if idle == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "fi_recvmsg: {} took {} of {BUFFERS} receive buffers within {} s; PARTAGE_PROVIDER chooses another \
                     provider, and fi_info -e shows the variables that limit this one",
                    self.endpoint.provider(),
                    BUFFERS - idle,
                    patience.as_secs_f64()
                ));
            }
            // Some providers make room when they are looked at; nothing is under way that could complete.
            if let Err(broken) = self.endpoint.poll(&mut []) {
                self.broke(&broken.to_string());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Posts the receive buffers that nobody uses.
    pub(in crate::ofi) fn post_buffers(&self) {
        if self.idle_count.load(Relaxed) == 0 {
            return;
        }
        let Ok(mut idle) = self.idle_buffers.try_lock() else { return };
        while let Some(&i) = idle.last() {
            let buffer = &self.buffers[i];
            // SAFETY: nobody uses the buffer (it is idle), it stays as long as the endpoint, which is a field of the same
            // value and is closed before it, and it comes back by its completion.
            let posted = unsafe {
                let memory = (*buffer.memory.get()).as_mut_ptr().cast();
                self.endpoint.post_receive(memory, LONGEST, buffer.desc, buffer.context.get())
            };
            match posted {
                Posted::Done => _ = idle.pop(),
                Posted::Again => break,
                Posted::Failed(why) => {
                    self.broke(&format!("a receive buffer cannot be posted: {why}"));
                    break;
                }
            }
        }
        self.idle_count.store(idle.len(), Relaxed);
    }

    /// The message of `len` bytes that was received into this buffer.
    ///
    /// # Safety
    /// This thread has read the completion of the buffer and has not left it since, nor does it before the last use.
    pub(in crate::ofi) unsafe fn received(&self, i: usize, len: usize) -> &[u8] {
        // SAFETY: so nobody else uses it: the network has written it before the completion, and it is posted again only
        // after it was left.
        let bytes: &[u8] = bytemuck::cast_slice(unsafe { &*self.buffers[i].memory.get() });
        &bytes[..len.min(bytes.len())]
    }

    /// Its message has been dealt with.
    pub(in crate::ofi) fn leave_buffer(&self, i: usize) {
        let mut idle = self.idle_buffers.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(i);
        self.idle_count.store(idle.len(), Relaxed);
    }

    /// A message has left this bounce buffer.
    pub(in crate::ofi) fn sent(&self, i: usize) {
        self.bounces[i].taken.store(false, Release);
    }

    pub(super) fn take_bounce(&self) -> Option<&Bounce> {
        let start = self.next_bounce.fetch_add(1, Relaxed);
        let free = |b: &&Bounce| !b.taken.load(Relaxed) && !b.taken.swap(true, Acquire);
        let n = self.bounces.len();
        (0..n).map(|i| &self.bounces[start.wrapping_add(i) % n]).find(free)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::alone;
    use super::*;

    #[test]
    fn a_provider_that_takes_no_buffers_is_found_out() {
        let Some(mut net) = alone() else { return };
        net.endpoint.refuse_receives();
        let why = net.post_all(Duration::from_millis(30)).unwrap_err();
        assert!(why.contains("took 0 of 64 receive buffers within 0.03 s") && !why.contains('\n'), "{why}");
        let Some(net) = alone() else { return };
        assert_eq!(net.post_all(POSTING), Ok(()));
    }
}
