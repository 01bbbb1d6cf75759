//! The memory of one process's ranks: a sparse file without a name, mapped by every process of the node.
//!
//! Layout: the [control area](super::control), each rank's [area for messages](super::am), then one segment per rank. The file is large in virtual size and holds
//! only the pages that were touched; it vanishes with its last descriptor and mapping, however its users end.
//!
//! Huge pages are worth a factor of two for random access. In this order: a memfd with advice where the system grants
//! that to shared memory; a file on an anonymous tmpfs of our own that takes advice (as root directly, else from a
//! child in a user namespace of its own, which exits at once); else a memfd with ordinary pages. The first two MiB
//! of either heap always have ordinary pages, so that a small program stays small.
//!
//! Touching a file's page when memory has run out is a signal, not an error. So memory is *committed* before it is
//! handed out: what the machine and the control groups still give is compared first, then the pages are populated in
//! a call that can fail.

use crate::sync::{AtomicU64, Ordering::Relaxed};
use crate::topology;
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// Bytes of a huge page; segments and mappings are aligned to it.
pub const HUGE: usize = 2 << 20;

/// What a segment's pages are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// memfd, huge pages by advice.
    HugeMemfd,
    /// A file on a private tmpfs, huge pages by advice.
    HugeTmpfs,
    /// memfd, ordinary pages.
    Memfd,
}

impl std::fmt::Display for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Backing::HugeMemfd => "memfd with huge pages (the system grants them to shared memory on advice)",
            Backing::HugeTmpfs => "private tmpfs with huge pages",
            Backing::Memfd => "memfd with 4 KiB pages (this system grants no huge pages to shared memory)",
        })
    }
}

/// An unnamed sparse file of `len` bytes.
pub fn create(len: u64, huge: bool) -> std::io::Result<(OwnedFd, Backing)> {
    let (fd, backing) = match huge.then(huge_file).flatten() {
        Some(found) => found,
        None => (rustix::fs::memfd_create("partage", MemfdFlags::CLOEXEC)?, Backing::Memfd),
    };
    // Whoever goes beyond that limit is killed.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if let Some(limit) = limit.filter(|limit| *limit < len) {
        let why =
            format!("files have at most {limit} bytes here (ulimit -f); raise that, or set PARTAGE_SEGMENT lower");
        return Err(std::io::Error::other(why));
    }
    rustix::fs::ftruncate(&fd, len)?;
    Ok((fd, backing))
}

fn huge_file() -> Option<(OwnedFd, Backing)> {
    let shmem = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
    let granted = ["[always]", "[within_size]", "[advise]", "[force]"];
    if granted.iter().any(|g| shmem.contains(g)) {
        return Some((rustix::fs::memfd_create("partage", MemfdFlags::CLOEXEC).ok()?, Backing::HugeMemfd));
    }
    if shmem.contains("[deny]") {
        return None;
    }
    let fd = tmpfs_file().or_else(tmpfs_file_in_user_namespace)?;
    Some((fd, Backing::HugeTmpfs))
}

/// A file on a tmpfs that was never attached anywhere: it ends with the file. Needs the right to mount.
fn tmpfs_file() -> Option<OwnedFd> {
    use rustix::mount::fsconfig_set_string as set;
    use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    set(fs.as_fd(), "huge", "advise").ok()?;
    set(fs.as_fd(), "size", "100%").ok()?;
    fsconfig_create(fs.as_fd()).ok()?;
    let mount = fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).ok()?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::openat(&mount, ".", flags, Mode::RUSR | Mode::WUSR).ok()
}

/// The same by a child that shares our descriptors but has a user namespace of its own, where it may mount.
fn tmpfs_file_in_user_namespace() -> Option<OwnedFd> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    // Prepared before the fork: the child of a threaded process may not allocate.
    let maps = [
        (c"/proc/self/setgroups", "deny".to_string()),
        (c"/proc/self/uid_map", format!("{uid} {uid} 1")),
        (c"/proc/self/gid_map", format!("{gid} {gid} 1")),
    ];
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok()?;
    // SAFETY: a plain fork but for CLONE_FILES (the child's new descriptor appears in our table) and the missing exit
    // signal (nobody's SIGCHLD handler is disturbed). The child has a copy of this stack and makes system calls only.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES, 0, 0, 0, 0) };
    if child == 0 {
        // SAFETY: system calls on values prepared above; `_exit` runs nothing of the parent's.
        unsafe {
            if libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) == 0 {
                for (file, text) in &maps {
                    let fd = libc::open(file.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                    libc::write(fd, text.as_ptr().cast(), text.len());
                    libc::close(fd);
                }
                let fd = tmpfs_file().map_or(-1, std::os::fd::IntoRawFd::into_raw_fd);
                libc::write(write.as_raw_fd(), (&raw const fd).cast(), 4);
            }
            libc::_exit(0);
        }
    }
    if child < 0 {
        return None;
    }
    // SAFETY: `child` is our own child; __WALL because it has no exit signal.
    while unsafe { libc::waitpid(child as i32, ptr::null_mut(), libc::__WALL) } < 0 {
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return None;
        }
    }
    drop(write);
    let mut number = [0u8; 4];
    if rustix::io::read(&read, &mut number) != Ok(4) {
        return None;
    }
    let fd = i32::from_ne_bytes(number);
    // SAFETY: the child opened it in our table and is gone: nobody else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A mapping of a whole file, aligned to huge pages; unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: a mapping is an address range; all access goes through the copy routine or atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of the file, not inherited by children.
    pub fn new(fd: BorrowedFd<'_>, len: usize, write: bool) -> std::io::Result<Mapping> {
        let reserve = len + HUGE;
        let prot = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a fresh anonymous reservation is trimmed to an aligned part, over which the file is mapped; none of
        // these addresses was in use before.
        unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let start = rustix::mm::mmap_anonymous(ptr::null_mut(), reserve, ProtFlags::empty(), flags)?.cast::<u8>();
            let head = start.align_offset(HUGE);
            let base = start.add(head);
            if head > 0 {
                rustix::mm::munmap(start.cast(), head)?;
            }
            let tail = reserve - head - len;
            if tail > 0 {
                rustix::mm::munmap(base.add(len).cast(), tail)?;
            }
            let mapping = Mapping { base, len };
            let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
            rustix::mm::mmap(base.cast(), len, prot, flags, fd, 0)?;
            rustix::mm::madvise(base.cast(), len, Advice::LinuxDontFork)?;
            // A core dump would read all of it, and make pages of what is none.
            rustix::mm::madvise(base.cast(), len, Advice::LinuxDontDump)?;
            Ok(mapping)
        }
    }

    /// The first byte.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Asks for huge pages within this part.
    pub fn advise_huge(&self, at: usize, len: usize) {
        assert!(at + len <= self.len);
        // SAFETY: advice within our own mapping changes no contents. A refusal leaves ordinary pages.
        let _ = unsafe { rustix::mm::madvise(self.base.add(at).cast(), len, Advice::LinuxHugepage) };
    }

    /// Asks for ordinary pages for a part that is used here and there.
    pub fn advise_small(&self, at: usize, len: usize) {
        assert!(at + len <= self.len);
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::madvise(self.base.add(at).cast(), len, Advice::LinuxNoHugepage) };
    }

    /// Makes the pages of this part present, or says why that cannot be (and may have made some). `pending` counts the
    /// bytes that ranks of this node are about to populate: all may ask at once, and none sees the others' pages yet.
    pub fn commit(&self, fd: BorrowedFd<'_>, at: usize, len: usize, pending: &AtomicU64) -> Result<(), Exhausted> {
        assert!(at + len <= self.len);
        // What is left must also carry page tables and everybody else for a moment.
        let reserve = (topology::memory_total() / 128).min(64 << 20);
        let mut others = pending.load(Relaxed);
        loop {
            let left = topology::memory_left().saturating_sub(others).saturating_sub(reserve);
            if left < len as u64 {
                return Err(Exhausted::Memory { left });
            }
            match pending.compare_exchange(others, others + len as u64, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(changed) => others = changed,
            }
        }
        let (mut done, mut result) = (0, Ok(()));
        while done < len && result.is_ok() {
            let step = (16 << 20).min(len - done);
            result = self.populate(fd, at + done, step);
            if result.is_ok() {
                pending.fetch_sub(step as u64, Relaxed);
                done += step;
            }
        }
        pending.fetch_sub((len - done) as u64, Relaxed);
        result
    }

    fn populate(&self, fd: BorrowedFd<'_>, at: usize, len: usize) -> Result<(), Exhausted> {
        // SAFETY: populating pages of our own shared mapping changes no contents.
        let done = match unsafe { rustix::mm::madvise(self.base.add(at).cast(), len, Advice::LinuxPopulateWrite) } {
            // Before Linux 5.14.
            Err(Errno::INVAL) => rustix::io::retry_on_intr(|| {
                rustix::fs::fallocate(fd, rustix::fs::FallocateFlags::empty(), at as u64, len as u64)
            }),
            done => done,
        };
        done.map_err(|_| Exhausted::Memory { left: topology::memory_left() })
    }

    /// Gives whole pages back to the system; they read as zero afterwards. False: they are as they were.
    pub fn release(&self, at: usize, len: usize) -> bool {
        assert!(at + len <= self.len);
        // SAFETY: pages of our own mapping, into which no reference exists; who still reads them reads zeros.
        len == 0 || unsafe { rustix::mm::madvise(self.base.add(at).cast(), len, Advice::LinuxRemove) }.is_ok()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; whoever holds an address into it holds the owner of this value too.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }
}

/// Why memory could not be had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Exhausted {
    /// The segment's two heaps would meet; the largest block that fits.
    Segment {
        /// Bytes.
        largest: u64,
    },
    /// The machine or a control group has no more.
    Memory {
        /// Bytes left.
        left: u64,
    },
    /// The network does not take it.
    Network {
        /// Its words.
        why: String,
    },
    /// There are as many semaphores as can be, freed ones of the last two barriers included.
    Semaphores {
        /// So many.
        most: usize,
    },
    /// The same of mailboxes.
    Mailboxes {
        /// So many.
        most: usize,
    },
}

impl std::fmt::Display for Exhausted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use super::bytes;
        match self {
            Exhausted::Semaphores { most } | Exhausted::Mailboxes { most } => {
                write!(f, "a rank has {most} at most, and those it has freed since the last barriers count")
            }
            Exhausted::Segment { largest } => {
                write!(
                    f,
                    "the largest free block of the segment has {}; PARTAGE_SEGMENT sets its size",
                    bytes(*largest)
                )
            }
            Exhausted::Memory { left } => write!(f, "{} of memory are left", bytes(*left)),
            Exhausted::Network { why } => write!(f, "the network cannot register it: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_shared_between_mappings_and_sparse() {
        for huge in [true, false] {
            let len = 64 * HUGE;
            let (fd, backing) = create(len as u64, huge).unwrap();
            let a = Mapping::new(fd.as_fd(), len, true).unwrap();
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            let again = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
            let b = Mapping::new(again.as_fd(), len, true).unwrap();
            assert_eq!((a.base() as usize % HUGE, b.base() as usize % HUGE), (0, 0));
            a.advise_huge(HUGE, len - HUGE);
            let pending = AtomicU64::new(0);
            a.commit(fd.as_fd(), 0, HUGE + 4096, &pending).unwrap();
            assert_eq!(pending.load(Relaxed), 0);
            // SAFETY: within both mappings, which nobody else uses.
            unsafe {
                crate::copy::store(a.base().add(HUGE + 8), 77u64);
                assert_eq!(crate::copy::load::<u64>(b.base().add(HUGE + 8)), 77);
            }
            let blocks = rustix::fs::fstat(&fd).unwrap().st_blocks as usize * 512;
            assert!((HUGE..=3 * HUGE).contains(&blocks), "{backing:?}: {blocks} bytes for {len}");
            assert!(a.release(HUGE, 2 * HUGE));
            // SAFETY: as above.
            assert_eq!(unsafe { crate::copy::load::<u64>(b.base().add(HUGE + 8)) }, 0, "given back");
        }
    }

    #[test]
    fn too_much_memory_is_refused_not_killed_for() {
        let len = 1usize << 46;
        let (fd, _) = create(len as u64 / 2, false).unwrap();
        let m = Mapping::new(fd.as_fd(), len / 2, true).unwrap();
        let pending = AtomicU64::new(0);
        assert!(matches!(m.commit(fd.as_fd(), 0, len / 2, &pending), Err(Exhausted::Memory { .. })));
        // What others are about to take is not there either.
        let pending = AtomicU64::new(topology::memory_total());
        assert!(matches!(m.commit(fd.as_fd(), 0, 4096, &pending), Err(Exhausted::Memory { .. })));
        assert_eq!(pending.load(Relaxed), topology::memory_total());
    }
}
