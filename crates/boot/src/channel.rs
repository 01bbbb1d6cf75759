//! What a launcher and its agents say to each other, and the bytes of it.
//!
//! The agent begins, with a line of text that says which version it speaks ([`hello`]); whatever a remote shell or a
//! login has written before that line is passed over. Then both sides send frames: a length (4 bytes, little-endian),
//! a byte that says what it is, and the fields, numbers as 8 bytes, bytes and texts with their length before them.
//! The launcher sends [`Command`]s, the agent [`Event`]s.
//!
//! Guaranteed: whatever bytes come in, the outcome is a message or a one-line error, and no more is held than one frame
//! and one read. Writing never blocks; what the descriptor does not take is queued. Not contained: what is done about it.

use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use rustix::io::Errno;

use crate::crew::{Event, Order};
use crate::observe::Row;
use crate::verdict::Death;
use crate::{Error, wire};

/// Version of this protocol.
const AGENT: u32 = 2;
const HELLO: &str = "partage-agent";
/// The longest frame, without its length.
const FRAME_MAX: usize = 16 << 20;
/// As much as may come before the hello.
const CHATTER_MAX: usize = 64 << 10;

/// What a launcher tells an agent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Command {
    /// First: what there is to do.
    Plan(Plan),
    /// Second: do it.
    Start,
    /// Are you there?
    Ping,
    /// For the crew.
    Order(Order),
}

/// What an agent has to know to start its processes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    /// As the user calls this host.
    pub(crate) host: String,
    pub(crate) directory: OsString,
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) ranks: usize,
    pub(crate) procs: usize,
    /// Those of this host.
    pub(crate) processes: Range<usize>,
    pub(crate) label: bool,
    pub(crate) quiet_output: bool,
    /// Input will come for rank 0.
    pub(crate) input: bool,
}

/// The first line of an agent, with a line break before it that ends what others may have written.
pub(crate) fn hello() -> String {
    format!("\n{HELLO} protocol={AGENT} version={}\n", env!("CARGO_PKG_VERSION"))
}

/// Finds the hello in what has come so far: where it ends.
pub(crate) fn greeted(bytes: &[u8]) -> Result<Option<usize>, Error> {
    let mut end = 0;
    for line in bytes.split_inclusive(|b| *b == b'\n').take_while(|line| line.ends_with(b"\n")) {
        end += line.len();
        let line = String::from_utf8_lossy(line);
        let mut words = line.split_whitespace();
        if words.next() != Some(HELLO) {
            continue;
        }
        let mut field = |name: &str| words.next().and_then(|word| word.strip_prefix(name)?.strip_prefix('='));
        let (protocol, version) = (field("protocol").unwrap_or("?"), field("version").unwrap_or("?"));
        if protocol != AGENT.to_string() {
            return Err(Error::new(format!(
                "its `partage` is of another version: {version} with agent protocol {protocol}, here it is {} with {AGENT}",
                env!("CARGO_PKG_VERSION")
            )));
        }
        return Ok(Some(end));
    }
    if bytes.len() > CHATTER_MAX {
        return Err(Error::new(format!("no agent answers, but something that begins {}", wire::shown(bytes))));
    }
    Ok(None)
}

/// Frames in, frames out.
pub(crate) struct Channel {
    from: OwnedFd,
    /// The other side may still say something.
    open: bool,
    to: Option<OwnedFd>,
    frames: Frames,
    queue: Vec<u8>,
    /// How much of the queue is written already.
    written: usize,
}

impl Channel {
    pub(crate) fn new(from: OwnedFd, to: OwnedFd) -> io::Result<Channel> {
        rustix::io::ioctl_fionbio(&from, true)?;
        rustix::io::ioctl_fionbio(&to, true)?;
        Ok(Channel { from, open: true, to: Some(to), frames: Frames::default(), queue: Vec::new(), written: 0 })
    }

    /// To poll for reading.
    pub(crate) fn from(&self) -> &OwnedFd {
        &self.from
    }

    /// To poll for writing, when something is queued.
    pub(crate) fn to(&self) -> Option<&OwnedFd> {
        self.to.as_ref().filter(|_| self.queued() > 0)
    }

    /// How much is queued.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len() - self.written
    }

    pub(crate) fn say(&mut self, message: &impl Message) {
        if self.to.is_some() {
            encode(message, &mut self.queue);
        }
    }

    pub(crate) fn say_text(&mut self, text: &str) {
        self.queue.extend_from_slice(text.as_bytes());
    }

    /// Writes what the descriptor takes. False: nobody reads it.
    pub(crate) fn write(&mut self) -> bool {
        while let Some(to) = self.to.as_ref().filter(|_| self.queued() > 0) {
            match rustix::io::write(to, &self.queue[self.written..]) {
                Ok(count) => self.written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.hang_up(),
            }
        }
        // Not at every write, for what remains is moved.
        if 2 * self.written >= self.queue.len() {
            self.queue.drain(..self.written);
            self.written = 0;
        }
        self.to.is_some()
    }

    /// Says nothing any more, and the other side hears that.
    pub(crate) fn hang_up(&mut self) {
        self.to = None;
        self.queue.clear();
        self.written = 0;
    }

    /// Whether anything more may come.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Reads some; nothing, if there is nothing now or nothing more will come.
    pub(crate) fn read<'a>(&mut self, buffer: &'a mut [u8]) -> &'a [u8] {
        match rustix::io::read(&self.from, &mut *buffer) {
            Ok(read) if read > 0 => &buffer[..read],
            Err(Errno::INTR | Errno::AGAIN) => &[],
            Ok(_) | Err(_) => {
                self.open = false;
                &[]
            }
        }
    }

    /// Takes bytes that were read.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.frames.push(bytes);
    }

    /// The next message among those bytes.
    pub(crate) fn next<M: Message>(&mut self) -> Result<Option<M>, Error> {
        self.frames.next()?.map(decode).transpose()
    }
}

/// Cuts a stream of bytes into frames.
#[derive(Debug, Default)]
struct Frames {
    bytes: Vec<u8>,
    begin: usize,
}

impl Frames {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.begin);
        self.begin = 0;
        self.bytes.extend_from_slice(bytes);
    }

    fn next(&mut self) -> Result<Option<&[u8]>, Error> {
        let rest = &self.bytes[self.begin..];
        let Some((length, rest)) = rest.split_first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > FRAME_MAX {
            return Err(Error::new(format!("a frame of {length} bytes")));
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        self.begin += 4 + length;
        Ok(Some(frame))
    }
}

fn encode(message: &impl Message, queue: &mut Vec<u8>) {
    let begin = queue.len();
    queue.extend_from_slice(&[0; 4]);
    message.put(&mut Writer(queue));
    let length = (queue.len() - begin - 4) as u32;
    queue[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
}

fn decode<M: Message>(frame: &[u8]) -> Result<M, Error> {
    let mut reader = Reader(frame);
    let message = M::get(&mut reader).filter(|_| reader.0.is_empty());
    message.ok_or_else(|| Error::new(format!("a frame that is not understood: {}", wire::shown(frame))))
}

/// What can be sent in a frame.
pub(crate) trait Message: Sized {
    fn put(&self, to: &mut Writer<'_>);
    fn get(from: &mut Reader<'_>) -> Option<Self>;
}

impl Message for Command {
    fn put(&self, to: &mut Writer<'_>) {
        match self {
            Command::Plan(plan) => {
                to.byte(0).bytes(plan.host.as_bytes()).os(&plan.directory).os(&plan.program);
                to.list(&plan.args, |to, arg| _ = to.os(arg));
                to.list(&plan.env, |to, (name, value)| _ = to.os(name).os(value));
                to.number(plan.ranks).number(plan.procs);
                to.number(plan.processes.start).number(plan.processes.end);
                to.flag(plan.label).flag(plan.quiet_output).flag(plan.input);
            }
            Command::Start => _ = to.byte(1),
            Command::Ping => _ = to.byte(2),
            Command::Order(order) => match order {
                Order::Send { process, line } => _ = to.byte(3).number(*process).bytes(line.as_bytes()),
                Order::Refuse { process } => _ = to.byte(4).number(*process),
                Order::Signal { signal, spare } => {
                    to.byte(5).integer(*signal).option(spare.as_ref(), |to, spare| _ = to.number(*spare));
                }
                Order::Announced { process, pid, key, value } => {
                    to.byte(6).number(*process).option(pid.as_ref(), |to, pid| _ = to.number(*pid as usize));
                    to.bytes(key.as_bytes()).bytes(value);
                }
                Order::LookAround => _ = to.byte(7),
                Order::AskRows => _ = to.byte(8),
                Order::AskWait => _ = to.byte(9),
                Order::Input(bytes) => _ = to.byte(10).bytes(bytes),
                Order::Hold { stream, hold } => _ = to.byte(11).number(*stream).flag(*hold),
                Order::End { left } => _ = to.byte(12).flag(*left),
                Order::SendAll { line } => _ = to.byte(13).bytes(line.as_bytes()),
            },
        }
    }

    fn get(from: &mut Reader<'_>) -> Option<Command> {
        Some(Command::Order(match from.byte()? {
            0 => {
                return Some(Command::Plan(Plan {
                    host: from.text()?,
                    directory: from.os()?,
                    program: from.os()?,
                    args: from.list(Reader::os)?,
                    env: from.list(|from| Some((from.os()?, from.os()?)))?,
                    ranks: from.number()?,
                    procs: from.number()?,
                    processes: from.number()?..from.number()?,
                    label: from.flag()?,
                    quiet_output: from.flag()?,
                    input: from.flag()?,
                }));
            }
            1 => return Some(Command::Start),
            2 => return Some(Command::Ping),
            3 => Order::Send { process: from.number()?, line: from.text()? },
            4 => Order::Refuse { process: from.number()? },
            5 => Order::Signal { signal: from.integer()?, spare: from.option(Reader::number)? },
            6 => Order::Announced {
                process: from.number()?,
                pid: from.option(Reader::pid)?,
                key: from.text()?,
                value: from.bytes()?.to_vec(),
            },
            7 => Order::LookAround,
            8 => Order::AskRows,
            9 => Order::AskWait,
            10 => Order::Input(from.bytes()?.to_vec()),
            11 => Order::Hold { stream: from.number()?, hold: from.flag()? },
            12 => Order::End { left: from.flag()? },
            13 => Order::SendAll { line: from.text()? },
            _ => return None,
        }))
    }
}

impl Message for Event {
    fn put(&self, to: &mut Writer<'_>) {
        match self {
            Event::Ready => _ = to.byte(0),
            Event::Started(pids) => to.byte(1).list(pids, |to, pid| _ = to.number(*pid as usize)),
            // A connection that is lost has nothing to say; what is put here is only a matter of form.
            Event::Failed(why) | Event::Lost(why) => _ = to.byte(2).bytes(why.as_bytes()),
            Event::Line { process, line } => _ = to.byte(3).number(*process).bytes(line.as_bytes()),
            Event::Garbage { process, error } => _ = to.byte(4).number(*process).bytes(error.as_bytes()),
            Event::Death { process, death, out_of_memory, doing } => {
                to.byte(5).number(*process);
                match death {
                    Death::Exit(code) => _ = to.byte(0).integer(*code),
                    Death::Signal { number, core } => _ = to.byte(1).integer(*number).flag(*core),
                }
                to.flag(*out_of_memory).option(doing.as_ref(), |to, doing| _ = to.bytes(doing.as_bytes()));
            }
            Event::Output { stream, bytes } => _ = to.byte(6).number(*stream).bytes(bytes),
            Event::Looked => _ = to.byte(7),
            Event::Rows { process, rows } => {
                to.byte(8).number(*process).list(rows, |to, row| {
                    to.bytes(row.text.as_bytes()).option(row.waiting.as_ref(), |to, time| _ = to.time(*time));
                });
            }
            Event::Wait(longest) => _ = to.byte(9).option(longest.as_ref(), |to, time| _ = to.time(*time)),
            Event::Fed => _ = to.byte(10),
            Event::Unread => _ = to.byte(11),
            Event::Closed => _ = to.byte(12),
            Event::Pong => _ = to.byte(13),
        }
    }

    fn get(from: &mut Reader<'_>) -> Option<Event> {
        Some(match from.byte()? {
            0 => Event::Ready,
            1 => Event::Started(from.list(Reader::pid)?),
            2 => Event::Failed(from.text()?),
            3 => Event::Line { process: from.number()?, line: from.text()? },
            4 => Event::Garbage { process: from.number()?, error: from.text()? },
            5 => Event::Death {
                process: from.number()?,
                death: match from.byte()? {
                    0 => Death::Exit(from.integer()?),
                    1 => Death::Signal { number: from.integer()?, core: from.flag()? },
                    _ => return None,
                },
                out_of_memory: from.flag()?,
                doing: from.option(Reader::text)?,
            },
            6 => Event::Output { stream: from.number().filter(|stream| *stream < 2)?, bytes: from.bytes()?.to_vec() },
            7 => Event::Looked,
            8 => Event::Rows {
                process: from.number()?,
                rows: from.list(|from| Some(Row { text: from.text()?, waiting: from.option(Reader::time)? }))?,
            },
            9 => Event::Wait(from.option(Reader::time)?),
            10 => Event::Fed,
            11 => Event::Unread,
            12 => Event::Closed,
            13 => Event::Pong,
            _ => return None,
        })
    }
}

pub(crate) struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn byte(&mut self, byte: u8) -> &mut Self {
        self.0.push(byte);
        self
    }

    fn flag(&mut self, flag: bool) -> &mut Self {
        self.byte(flag.into())
    }

    fn number(&mut self, number: usize) -> &mut Self {
        self.0.extend_from_slice(&(number as u64).to_le_bytes());
        self
    }

    fn integer(&mut self, integer: i32) -> &mut Self {
        self.0.extend_from_slice(&integer.to_le_bytes());
        self
    }

    fn time(&mut self, time: Duration) -> &mut Self {
        self.number(time.as_nanos().min(u128::from(u64::MAX)) as usize)
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len());
        self.0.extend_from_slice(bytes);
        self
    }

    fn os(&mut self, text: &OsString) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    fn option<T>(&mut self, value: Option<&T>, put: impl FnOnce(&mut Self, &T)) -> &mut Self {
        self.flag(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
        self
    }

    fn list<T>(&mut self, values: &[T], put: impl Fn(&mut Self, &T)) {
        self.number(values.len());
        values.iter().for_each(|value| put(self, value));
    }
}

pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*chunk)
    }

    fn byte(&mut self) -> Option<u8> {
        self.chunk().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Option<bool> {
        self.byte().filter(|byte| *byte < 2).map(|byte| byte == 1)
    }

    fn number(&mut self) -> Option<usize> {
        usize::try_from(u64::from_le_bytes(self.chunk()?)).ok()
    }

    fn pid(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    fn integer(&mut self) -> Option<i32> {
        self.chunk().map(i32::from_le_bytes)
    }

    fn time(&mut self) -> Option<Duration> {
        self.number().map(|nanos| Duration::from_nanos(nanos as u64))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    fn os(&mut self) -> Option<OsString> {
        Some(OsString::from_vec(self.bytes()?.to_vec()))
    }

    fn option<T>(&mut self, get: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.flag()? { get(self).map(Some) } else { Some(None) }
    }

    /// No room is made for more than there are bytes: every element has some.
    fn list<T>(&mut self, mut get: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number().filter(|count| *count <= self.0.len())?;
        (0..count).map(|_| get(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Xorshift;

    fn commands() -> Vec<Command> {
        let plan = Plan {
            host: "b".into(),
            directory: "/home/ü".into(),
            program: "./app".into(),
            args: vec!["".into(), OsString::from_vec(vec![255, 1])],
            env: vec![("A".into(), "b=c".into())],
            ranks: 7,
            procs: 3,
            processes: 1..3,
            label: true,
            quiet_output: false,
            input: true,
        };
        let mut commands = vec![Command::Plan(plan), Command::Start, Command::Ping];
        let orders = [
            Order::Send { process: 2, line: "cmd=barrier_out rc=0\n".into() },
            Order::SendAll { line: "cmd=barrier_out rc=0\n".into() },
            Order::Refuse { process: 1 },
            Order::Signal { signal: 15, spare: Some(1) },
            Order::Signal { signal: 9, spare: None },
            Order::Announced { process: 1, pid: Some(12), key: "memory".into(), value: vec![0, 255] },
            Order::LookAround,
            Order::AskRows,
            Order::AskWait,
            Order::Input(b"text".into()),
            Order::Hold { stream: 1, hold: true },
            Order::End { left: false },
        ];
        commands.extend(orders.map(Command::Order));
        commands
    }

    fn events() -> Vec<Event> {
        let row = |waiting| Row { text: "waiting in barrier".into(), waiting };
        vec![
            Event::Ready,
            Event::Started(vec![12, 13]),
            Event::Failed("no".into()),
            Event::Line { process: 1, line: "cmd=init".into() },
            Event::Garbage { process: 1, error: "not text".into() },
            Event::Death { process: 1, death: Death::Exit(-3), out_of_memory: false, doing: None },
            Event::Death {
                process: 1,
                death: Death::Signal { number: 9, core: true },
                out_of_memory: true,
                doing: Some("in barrier".into()),
            },
            Event::Output { stream: 1, bytes: vec![0, 1, 255] },
            Event::Looked,
            Event::Rows { process: 1, rows: vec![row(None), row(Some(Duration::from_nanos(1_500_000_001)))] },
            Event::Wait(None),
            Event::Wait(Some(Duration::from_secs(3))),
            Event::Fed,
            Event::Unread,
            Event::Closed,
            Event::Pong,
        ]
    }

    fn frames_of(messages: &[impl Message]) -> Vec<u8> {
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| encode(message, &mut bytes));
        bytes
    }

    /// What is read of these bytes, given in parts.
    fn read<M: Message>(parts: &[&[u8]]) -> Result<Vec<M>, Error> {
        let (mut frames, mut messages) = (Frames::default(), Vec::new());
        for part in parts {
            frames.push(part);
            while let Some(frame) = frames.next()? {
                messages.push(decode(frame)?);
            }
            assert!(frames.bytes.len() - frames.begin <= part.len() + FRAME_MAX);
        }
        Ok(messages)
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let bytes = frames_of(&commands());
        assert_eq!(read::<Command>(&[&bytes]).unwrap(), commands());
        let bytes = frames_of(&events());
        let parts: Vec<&[u8]> = bytes.chunks(3).collect();
        assert_eq!(read::<Event>(&parts).unwrap(), events());
    }

    #[test]
    fn bad_frames() {
        assert!(read::<Event>(&[&[255; 4]]).unwrap_err().to_string().contains("a frame of 4294967295 bytes"));
        for frame in
            [&[][..], &[99], &[0, 0], &[1, 255, 255, 255, 255, 255, 255, 255, 255], &[6, 2, 0, 0, 0, 0, 0, 0, 0]]
        {
            let line = decode::<Event>(frame).unwrap_err().to_string();
            assert!(line.starts_with("a frame that is not understood: "), "{line}");
        }
    }

    #[test]
    fn hellos() {
        let hello = hello();
        let noise = format!("Welcome to b\nlast login: never{hello}");
        assert_eq!(greeted(noise.as_bytes()).unwrap(), Some(noise.len()));
        assert_eq!(greeted(&noise.as_bytes()[..noise.len() - 1]).unwrap(), None);
        let other = hello.replace("protocol=2 version=", "protocol=77 version=9.");
        let line = greeted(other.as_bytes()).unwrap_err().to_string();
        assert!(line.contains("another version: 9.") && line.contains("protocol 77"), "{line}");
        assert!(greeted(b"partage-agent\n").is_err());
        assert!(greeted(&vec![b'x'; CHATTER_MAX + 1]).unwrap_err().to_string().len() < 200);
    }

    #[test]
    fn mutated_frames_never_panic() {
        let (commands, events) = (commands(), events());
        let mut random = Xorshift(7);
        for round in 0..40_000 {
            let mut bytes = if round % 2 == 0 {
                frames_of(&commands[random.below(commands.len())..][..1])
            } else {
                frames_of(&events[random.below(events.len())..][..1])
            };
            bytes.extend_from_within(..);
            random.mutate(&mut bytes);
            let cut = random.below(bytes.len() + 1);
            let parts = [&bytes[..cut], &bytes[cut..]];
            if round % 2 == 0 {
                let _ = read::<Command>(&parts);
            } else {
                let _ = read::<Event>(&parts);
            }
            let _ = greeted(&bytes);
        }
    }
}
