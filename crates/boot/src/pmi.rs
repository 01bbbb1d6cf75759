//! The client of PMI-1: how one process speaks to its launcher, ours or a foreign one.
//!
//! Guaranteed: one request, one answer, each answer checked; a launcher that answers nonsense or
//! hangs up gives a one-line error, and so does every later request. Nothing written here can
//! raise `SIGPIPE`. Not contained: the text itself (`wire`), and where the socket comes from
//! (`adopt`).
//!
//! An exchange is a number of `put`s (a blob, as text, cut to the launcher's longest value), one
//! barrier, and as many `get`s as the blobs of the others need. Keys carry the number of the
//! exchange, for a launcher keeps them to the end of the job. Our own launcher is asked for up to
//! [`AT_ONCE`] values in one go; a foreign one for one after another, as its own clients do.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::wire::{self, BLOB_MAX, Blob, Lines, Message};
use crate::{Error, PROTOCOL, adopt};

/// Requests on their way to our launcher at the same time: few enough to fit any socket buffer,
/// so that neither side can wait for the other to read.
const AT_ONCE: usize = 32;

/// Beginning of every key of an exchange; our launcher forgets such keys two barriers later.
pub(crate) const KEY_PREFIX: &str = "partage-";

#[derive(Debug)]
pub(crate) struct Pmi {
    socket: OwnedFd,
    lines: Lines,
    process: usize,
    processes: usize,
    ours: bool,
    kvsname: String,
    key_max: usize,
    value_max: usize,
    exchanges: u64,
    state: State,
}

#[derive(Debug, PartialEq)]
enum State {
    Open,
    Finalized,
    Failed,
}

impl Pmi {
    /// Adopts the socket that `PMI_FD` names and introduces this process.
    pub(crate) fn connect(var: impl Fn(&str) -> Option<String>) -> Result<Pmi, Error> {
        if let Some(theirs) = var("PARTAGE_PROTOCOL")
            && theirs != PROTOCOL.to_string()
        {
            return Err(other_protocol(&theirs));
        }
        let number = |name: &str| -> Result<usize, Error> {
            let text = var(name).unwrap_or_default();
            let bad = |_| Error::new(format!("PMI_FD is set, but {name}={text} is no number"));
            text.parse().map_err(bad)
        };
        let (process, processes) = (number("PMI_RANK")?, number("PMI_SIZE")?);
        if process >= processes {
            return Err(Error::new(format!("PMI_RANK={process} is not below PMI_SIZE={processes}")));
        }
        let socket = adopt::adopt(&var("PMI_FD").unwrap_or_default())?;
        Pmi::introduce(socket, process, processes)
    }

    pub(crate) fn ours(&self) -> bool {
        self.ours
    }

    pub(crate) fn process(&self) -> usize {
        self.process
    }

    pub(crate) fn processes(&self) -> usize {
        self.processes
    }

    pub(crate) fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        if mine.len() > BLOB_MAX {
            return Err(Error::new(format!(
                "{} bytes are too many for one exchange; {BLOB_MAX} are allowed",
                mine.len()
            )));
        }
        let round = self.exchanges;
        self.exchanges += 1;
        let text = wire::blob_text(mine);
        let mut rest = text.as_str();
        for chunk in 0.. {
            let (now, later) = rest.split_at(self.value_max.min(rest.len()));
            let key = self.key(round, self.process, chunk)?;
            let put = format!("cmd=put kvsname={} key={key} value={now}\n", self.kvsname);
            self.ask(&put, "put_result")?;
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        self.fence()?;

        let mut blobs = Vec::with_capacity(self.processes);
        let at_once = if self.ours { AT_ONCE } else { 1 };
        while blobs.len() < self.processes {
            let batch = blobs.len()..self.processes.min(blobs.len() + at_once);
            let keys = batch.clone().map(|process| self.key(round, process, 0));
            let firsts = self.get(keys.collect::<Result<_, _>>()?)?;
            for (process, first) in batch.zip(firsts) {
                blobs.push(self.collect(round, process, &first)?);
            }
        }
        Ok(blobs)
    }

    pub(crate) fn fence(&mut self) -> Result<(), Error> {
        self.ask("cmd=barrier_in\n", "barrier_out").map(drop)
    }

    pub(crate) fn announce(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        if !self.ours {
            return Ok(());
        }
        if !wire::is_key(key, 128) || value.len() > wire::LINE_MAX / 4 {
            return Err(Error::new(format!("cannot announce {} bytes as `{key}`", value.len())));
        }
        let (pid, value) = (std::process::id(), wire::hex(value));
        let line = format!("cmd=partage_announce key={key} value={value} pid={pid}\n");
        self.ask(&line, "partage_announced").map(drop)
    }

    /// Has no answer, and nobody to report an error to.
    pub(crate) fn abort(&mut self, code: i32, line: Option<&str>) {
        let extra = match line {
            _ if !self.ours => String::new(),
            None => " said=1".into(),
            Some(line) => {
                let bytes = &line.as_bytes()[..line.len().min(wire::LINE_MAX / 4)];
                format!(" line={}", wire::hex(bytes))
            }
        };
        let _ = self.send(&format!("cmd=abort exitcode={code}{extra}\n"));
    }

    pub(crate) fn finalize(&mut self) {
        if self.state == State::Open {
            let _ = self.ask("cmd=finalize\n", "finalize_ack");
            self.state = State::Finalized;
        }
    }

    pub(crate) fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        (self.ours || self.state != State::Finalized).then(|| self.socket.as_fd())
    }

    fn introduce(socket: OwnedFd, process: usize, processes: usize) -> Result<Pmi, Error> {
        let mut pmi = Pmi {
            socket,
            lines: Lines::default(),
            process,
            processes,
            ours: false,
            kvsname: String::new(),
            key_max: 0,
            value_max: 0,
            exchanges: 0,
            state: State::Open,
        };
        let answer = pmi.ask("cmd=init pmi_version=1 pmi_subversion=1\n", "response_to_init")?;
        // Our launcher says so here as well as in the environment: the variable alone may be
        // left over from a job in which somebody started a foreign launcher.
        match Message::parse(&answer)?.field("partage") {
            None => {}
            Some(theirs) if theirs == PROTOCOL.to_string() => pmi.ours = true,
            Some(theirs) => return Err(other_protocol(theirs)),
        }
        let answer = pmi.ask("cmd=get_maxes\n", "maxes")?;
        let maxes = Message::parse(&answer)?;
        pmi.key_max = maxes.number("keylen_max")?;
        // Some launchers count a terminating NUL.
        pmi.value_max = maxes.number::<usize>("vallen_max")?.saturating_sub(1).min(wire::LINE_MAX / 2);
        if pmi.value_max < 32 {
            return Err(Error::new(format!("the launcher's longest value is {} bytes: too short", pmi.value_max)));
        }
        let answer = pmi.ask("cmd=get_my_kvsname\n", "my_kvsname")?;
        pmi.kvsname = Message::parse(&answer)?.need("kvsname")?.to_owned();
        Ok(pmi)
    }

    fn key(&self, round: u64, process: usize, chunk: usize) -> Result<String, Error> {
        let key = format!("{KEY_PREFIX}{round}-{process}-{chunk}");
        if key.len() >= self.key_max {
            return Err(Error::new(format!("the launcher's longest key is {} bytes: too short", self.key_max)));
        }
        Ok(key)
    }

    /// The blob of `process`, of which `first` is the first chunk.
    fn collect(&mut self, round: u64, process: usize, first: &str) -> Result<Vec<u8>, Error> {
        let from = |e: Error| Error::new(format!("what process {process} has sent is broken: {e}"));
        let mut blob = Blob::begin(first).map_err(from)?;
        for chunk in 1.. {
            if blob.complete() {
                break;
            }
            let key = self.key(round, process, chunk)?;
            for value in self.get(vec![key])? {
                blob.add(&value).map_err(from)?;
            }
        }
        Ok(blob.into_bytes())
    }

    fn get(&mut self, keys: Vec<String>) -> Result<Vec<String>, Error> {
        let requests: String = keys.iter().map(|key| format!("cmd=get kvsname={} key={key}\n", self.kvsname)).collect();
        let answers = self.ask_all(&requests, keys.len(), "get_result")?;
        answers.iter().map(|answer| Ok(Message::parse(answer)?.need("value")?.to_owned())).collect()
    }

    fn ask(&mut self, request: &str, answer: &str) -> Result<String, Error> {
        let mut answers = self.ask_all(request, 1, answer)?;
        answers.pop().ok_or_else(|| Error::new("no answer"))
    }

    /// Sends `count` requests and reads their answers, all of the kind `answer`.
    fn ask_all(&mut self, requests: &str, count: usize, answer: &str) -> Result<Vec<String>, Error> {
        match self.state {
            State::Open => {}
            State::Finalized => return Err(Error::new("this process has already finalized")),
            State::Failed => return Err(Error::new("the connection to the launcher has failed before")),
        }
        let result = self.send(requests).and_then(|()| {
            let mut answers = Vec::with_capacity(count);
            while answers.len() < count {
                let line = self.receive()?;
                Message::parse(&line)
                    .and_then(|message| message.expect(answer))
                    .map_err(|e| Error::new(format!("the launcher's answer is not understood: {e}")))?;
                answers.push(line);
            }
            Ok(answers)
        });
        if result.is_err() {
            self.state = State::Failed;
        }
        result
    }

    fn send(&self, text: &str) -> Result<(), Error> {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            match rustix::net::send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT),
                Err(e) => return Err(Error::new(format!("cannot write to the launcher: {e}"))),
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<String, Error> {
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some(line) = self.lines.next().map_err(|e| Error::new(format!("the launcher sent {e}")))? {
                return Ok(line);
            }
            match rustix::net::recv(&self.socket, &mut buffer, RecvFlags::empty()) {
                Ok((0, _)) => return Err(Error::new("the launcher has hung up")),
                Ok((read, _)) => self.lines.push(&buffer[..read]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN),
                Err(Errno::CONNRESET) => return Err(Error::new("the launcher has hung up")),
                Err(e) => return Err(Error::new(format!("cannot read from the launcher: {e}"))),
            }
        }
    }

    /// For a launcher that made the socket non-blocking. An error shows again in the next call.
    fn wait(&self, events: PollFlags) {
        let _ = poll(&mut [PollFd::new(&self.socket, events)], None);
    }
}

fn other_protocol(theirs: &str) -> Error {
    Error::new(format!("launcher speaks protocol {theirs}, this program {PROTOCOL}; rebuild one of them"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::wire::Xorshift;

    const WELCOME: &str = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n\
         cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n\
         cmd=my_kvsname kvsname=kvs_1\n";

    /// A client whose launcher says `script`, whatever it is asked, and then hangs up.
    fn against(script: &[u8]) -> Result<Pmi, Error> {
        let (mine, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(script).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        // Keeps its other end open, so that the client's writes do not fail first.
        std::mem::forget(theirs);
        Pmi::introduce(mine.into(), 0, 2)
    }

    #[test]
    fn exchange_over_a_scripted_launcher() {
        let mut pmi = against(
            format!(
                "{WELCOME}cmd=put_result rc=0\ncmd=barrier_out\n\
                 cmd=get_result rc=0 msg=success value=2.6869\n\
                 cmd=get_result rc=0 msg=success value=3.6\ncmd=get_result rc=0 value=16263\n\
                 cmd=finalize_ack\n"
            )
            .as_bytes(),
        )
        .unwrap();
        assert!(!pmi.ours());
        assert_eq!(pmi.exchange(b"hi").unwrap(), [&b"hi"[..], b"abc"]);
        assert!(pmi.lifeline().is_some());
        pmi.finalize();
        pmi.finalize();
        assert!(pmi.lifeline().is_none());
        assert!(pmi.fence().unwrap_err().to_string().contains("already finalized"));
    }

    #[test]
    fn our_launcher_is_known_by_its_answer() {
        let ours = WELCOME.replace("rc=0", "partage=1 rc=0");
        assert!(against(ours.as_bytes()).unwrap().ours());
        let newer = WELCOME.replace("rc=0", "partage=2 rc=0");
        let line = against(newer.as_bytes()).unwrap_err().to_string();
        assert_eq!(line, "launcher speaks protocol 2, this program 1; rebuild one of them");
        let var = |name: &str| (name == "PARTAGE_PROTOCOL").then(|| "7".to_owned());
        let line = Pmi::connect(var).unwrap_err().to_string();
        assert_eq!(line, "launcher speaks protocol 7, this program 1; rebuild one of them");
    }

    #[test]
    fn an_error_is_final() {
        let mut pmi = against(format!("{WELCOME}cmd=barrier_out rc=-1\ncmd=barrier_out\n").as_bytes()).unwrap();
        assert!(pmi.fence().unwrap_err().to_string().contains("barrier_out rc=-1"));
        assert!(pmi.fence().unwrap_err().to_string().contains("failed before"));
        let mut pmi = against(WELCOME.as_bytes()).unwrap();
        assert_eq!(pmi.fence().unwrap_err().to_string(), "the launcher has hung up");
    }

    #[test]
    fn abort_says_what_each_launcher_understands() {
        for (ours, line, expect) in [
            (false, Some("x"), "cmd=abort exitcode=3\n"),
            (true, Some("x"), "cmd=abort exitcode=3 line=78\n"),
            (true, None, "cmd=abort exitcode=3 said=1\n"),
        ] {
            let (mine, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(WELCOME.as_bytes()).unwrap();
            let mut pmi = Pmi::introduce(mine.into(), 0, 1).unwrap();
            pmi.ours = ours;
            pmi.abort(3, line);
            drop(pmi);
            let mut said = String::new();
            theirs.read_to_string(&mut said).unwrap();
            assert!(said.ends_with(expect), "{said}");
        }
    }

    #[test]
    fn mutated_launchers_never_panic() {
        let script = format!(
            "{WELCOME}cmd=put_result rc=0\ncmd=barrier_out\ncmd=get_result rc=0 value=2.6869\n\
             cmd=get_result rc=0 value=3.6\ncmd=get_result rc=0 value=16263\n"
        );
        let mut random = Xorshift(77);
        for _ in 0..2000 {
            let mut bytes = script.clone().into_bytes();
            random.mutate(&mut bytes);
            let outcome = against(&bytes).and_then(|mut pmi| pmi.exchange(b"hi"));
            if let Err(e) = outcome {
                assert!(!e.to_string().contains('\n'));
            }
        }
    }
}
