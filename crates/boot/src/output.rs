//! What the launcher writes, its own lines and those of the processes, and how it takes these from them.
//!
//! Guaranteed: lines are never mixed with or broken by each other; no output is lost while
//! somebody reads it, and none piles up without bound when nobody does. A write never blocks for
//! long: the descriptor is polled first, and no more is written than fits a pipe that reports to
//! be writable; a terminal, of which that is not known, is opened once more, not to block. Not contained: output of
//! processes on the launcher's own host without labels, which inherit the launcher's. What a process without label writes
//! in pieces that are no lines is passed on in such pieces, as prompts are.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Above this, no more is read for a sink until it has written some.
const FULL: usize = 1 << 20;
/// A longer line is cut in two.
const LINE_MAX: usize = 1 << 20;
/// What a pipe that is writable takes at least (PIPE_BUF).
const PIECE: usize = 4096;

/// Standard output or standard error of this process, with a queue before it.
pub(crate) struct Sink {
    to: Box<dyn AsFd>,
    queue: Vec<u8>,
    broken: bool,
    deserted: bool,
}

impl Sink {
    pub(crate) fn new(to: impl AsFd + 'static) -> Sink {
        Sink { to: Box::new(to), queue: Vec::new(), broken: false, deserted: false }
    }

    /// Of a descriptor that others have, too.
    pub(crate) fn shared(to: impl AsFd + 'static) -> Sink {
        let own = || {
            let path = format!("/proc/self/fd/{}", to.as_fd().as_raw_fd());
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty()).ok()
        };
        match rustix::termios::isatty(&to).then(own).flatten() {
            Some(own) => Sink::new(own),
            None => Sink::new(to),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.to.as_fd()
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if !self.broken {
            self.queue.extend_from_slice(bytes);
        }
    }

    /// `line` and a newline, unless it has one.
    pub(crate) fn push_line(&mut self, line: &str) {
        self.push(line.trim_end_matches('\n').as_bytes());
        self.push(b"\n");
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() > FULL
    }

    /// Writes for as long as the descriptor takes it. Nobody reads any more: discards.
    pub(crate) fn write(&mut self) {
        let mut written = 0;
        while written < self.queue.len() && is_writable(self.to.as_fd()) {
            let piece = &self.queue[written..self.queue.len().min(written + PIECE)];
            match rustix::io::write(&self.to, piece) {
                Ok(n) => written += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(why) => {
                    self.discard();
                    self.deserted = why == Errno::PIPE;
                    return;
                }
            }
        }
        self.queue.drain(..written);
    }

    /// Has whoever read it gone?
    pub(crate) fn is_deserted(&self) -> bool {
        self.deserted
    }

    pub(crate) fn discard(&mut self) {
        self.queue.clear();
        self.broken = true;
    }
}

/// Our end of the pipe that is one process's standard output or error.
pub(crate) struct Stream {
    from: OwnedFd,
    label: Option<Label>,
    /// Without label: the begin of a line whose end is in the pipe.
    kept: Vec<u8>,
}

impl Stream {
    /// `label` goes before every line; without one, bytes are passed on as they come.
    pub(crate) fn new(from: OwnedFd, label: Option<String>) -> io::Result<Stream> {
        rustix::io::ioctl_fionbio(&from, true)?;
        Ok(Stream { from, label: label.map(|prefix| Label { prefix, line: Vec::new() }), kept: Vec::new() })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.from.as_fd()
    }

    /// Passes on what is there, `limit` bytes or a little more. False: nothing more will come.
    pub(crate) fn pass(&mut self, limit: usize, to: &mut Vec<u8>) -> bool {
        let mut buffer = [0; 16 << 10];
        let mut passed = 0;
        let begin = to.len();
        to.append(&mut self.kept);
        while passed < limit {
            match rustix::io::read(&self.from, &mut buffer) {
                Ok(0) => return false,
                Ok(n) => {
                    match &mut self.label {
                        Some(label) => label.lines(&buffer[..n], to),
                        None => to.extend_from_slice(&buffer[..n]),
                    }
                    passed += n;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        // Another's may come next. What is left of this one's is passed on when the rest has come, which is there.
        let more = || rustix::io::ioctl_fionread(&self.from).is_ok_and(|bytes| bytes > 0);
        if self.label.is_none() && more() {
            let line = to[begin..].iter().rposition(|b| *b == b'\n').map_or(begin, |at| begin + at + 1);
            if to.len() - line < LINE_MAX {
                self.kept = to.split_off(line);
            }
        }
        true
    }

    /// Passes on what the pipe holds, whoever may still have its other end, and closes it.
    pub(crate) fn finish(mut self, to: &mut Vec<u8>) {
        let holds = rustix::pipe::fcntl_getpipe_size(&self.from).unwrap_or(FULL);
        self.pass(holds, to);
        to.append(&mut self.kept);
        self.label.into_iter().for_each(|mut label| label.end(to));
    }
}

struct Label {
    prefix: String,
    /// The line that has not ended yet.
    line: Vec<u8>,
}

impl Label {
    fn lines(&mut self, bytes: &[u8], to: &mut Vec<u8>) {
        for part in bytes.split_inclusive(|b| *b == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") || self.line.len() >= LINE_MAX {
                self.end(to);
            }
        }
    }

    fn end(&mut self, to: &mut Vec<u8>) {
        if !self.line.is_empty() {
            to.extend_from_slice(self.prefix.as_bytes());
            to.append(&mut self.line);
            if !to.ends_with(b"\n") {
                to.push(b'\n');
            }
        }
    }
}

fn is_writable(fd: BorrowedFd<'_>) -> bool {
    let now = Timespec::try_from(Duration::ZERO).unwrap_or_default();
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_with_labels() {
        let mut to = Vec::new();
        let (mut a, mut b) =
            (Label { prefix: "[0-3] ".into(), line: vec![] }, Label { prefix: "[4] ".into(), line: vec![] });
        a.lines(b"one\ntw", &mut to);
        b.lines(b"\nx", &mut to);
        a.lines(b"o\n", &mut to);
        b.end(&mut to);
        b.end(&mut to);
        assert_eq!(String::from_utf8_lossy(&to), "[0-3] one\n[4] \n[0-3] two\n[4] x\n");
    }

    #[test]
    fn endless_lines_are_cut() {
        let mut to = Vec::new();
        let mut label = Label { prefix: String::new(), line: vec![] };
        label.lines(&vec![b'x'; LINE_MAX + 1], &mut to);
        label.lines(b"x", &mut to);
        assert!(label.line.len() < LINE_MAX && to.ends_with(b"x\n"));
    }

    #[test]
    fn lines_are_whole_where_many_come() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let mut stream = Stream::new(read, None).unwrap();
        let lines = "some words\n".repeat(4000);
        rustix::io::write(&write, lines.as_bytes()).unwrap();
        let (mut all, mut to) = (Vec::new(), Vec::new());
        while stream.pass(10_000, &mut to) && !to.is_empty() {
            assert!(to.ends_with(b"\n"), "a line is broken after {} bytes", all.len() + to.len());
            all.append(&mut to);
        }
        assert_eq!(all, lines.as_bytes());
        // A prompt does not wait, and the last words are not lost.
        rustix::io::write(&write, b"name? ").unwrap();
        assert!(stream.pass(10_000, &mut to) && to == b"name? ");
        rustix::io::write(&write, &[b'x'; 30_000]).unwrap();
        to.clear();
        assert!(stream.pass(10_000, &mut to) && to.is_empty());
        drop(write);
        stream.finish(&mut to);
        assert_eq!(to, [b'x'; 30_000]);
    }

    #[test]
    fn a_sink_without_reader_discards() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let mut sink = Sink::new(write);
        sink.push(&vec![0; 100_000]);
        sink.write();
        assert!(!sink.is_empty());
        drop(read);
        sink.write();
        assert!(sink.is_empty());
        sink.push(b"more");
        assert!(sink.is_empty());
    }
}
