//! The client of PMI-1: how one process speaks to its launcher, ours or a foreign one.
//!
//! Guaranteed: one request, one answer, each answer checked; a launcher that answers nonsense or
//! hangs up gives a one-line error, and so does every later request. Nothing written here can
//! raise `SIGPIPE`. Not contained: the text itself (`wire`), and how an inherited socket becomes ours (`adopt`).
//!
//! An exchange over our own launcher is one message there and one back. Over a foreign one it goes through its store of
//! keys and values ([`gather`]). Keys carry the number of the exchange, for a launcher keeps them to the end of the job.

use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::gather::{Key, Store, gather};
use crate::wire::{self, BLOB_MAX, Blob, Lines, Message};
use crate::{Error, PROTOCOL, adopt};

/// Our longest key.
const KEY_MAX: usize = 64;

/// Of a blob, as much as goes to our launcher in one line.
const PART: usize = wire::LINE_MAX / 2;

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
        Pmi::new(socket, process, processes).introduce()
    }

    /// Connects to the address that `PMI_PORT` names, by which a launcher is reached that passes no socket on. There
    /// `PMI_ID` says who we are, and the launcher the rest.
    pub(crate) fn dial(var: impl Fn(&str) -> Option<String>) -> Result<Pmi, Error> {
        let (address, id) = (var("PMI_PORT").unwrap_or_default(), var("PMI_ID").unwrap_or_default());
        if !wire::is_key(&id, 64) {
            return Err(Error::new(format!("PMI_PORT is set, but PMI_ID={id} names no process")));
        }
        let socket = TcpStream::connect(&address)
            .map_err(|e| Error::new(format!("cannot reach the launcher at PMI_PORT={address}: {e}")))?;
        // Only speed suffers if this fails.
        let _ = socket.set_nodelay(true);
        let mut pmi = Pmi::new(socket.into(), 0, 0);
        pmi.ask(&format!("cmd=initack pmiid={id}\n"), "initack")?;
        let (mut process, mut processes) = (None, None);
        for _ in 0..3 {
            let line = pmi.receive()?;
            let set = Message::parse(&line)?.expect("set")?;
            process = process.or(set.field("rank").map(|_| set.number("rank")).transpose()?);
            processes = processes.or(set.field("size").map(|_| set.number("size")).transpose()?);
        }
        match (process, processes) {
            (Some(process), Some(processes)) if process < processes => {
                (pmi.process, pmi.processes) = (process, processes);
                pmi.introduce()
            }
            _ => Err(Error::new(format!("the launcher at PMI_PORT={address} does not say who this process is"))),
        }
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
            return Err(wire::too_long(mine));
        }
        self.exchanges += 1;
        if self.ours {
            return self.give(mine);
        }
        gather(self, self.process, self.processes, mine)
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

    fn new(socket: OwnedFd, process: usize, processes: usize) -> Pmi {
        Pmi {
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
        }
    }

    fn introduce(self) -> Result<Pmi, Error> {
        let mut pmi = self;
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
        let value_max: usize = maxes.number("vallen_max")?;
        let answer = pmi.ask("cmd=get_my_kvsname\n", "my_kvsname")?;
        pmi.kvsname = Message::parse(&answer)?.need("kvsname")?.to_owned();
        // Some launchers count a terminating NUL, and Slurm's takes no longer request than its longest value.
        let around = "cmd=put kvsname= key= value=\n".len() + pmi.kvsname.len() + KEY_MAX;
        pmi.value_max = value_max.saturating_sub(1 + around).min(wire::LINE_MAX / 2);
        if pmi.value_max < 32 {
            return Err(Error::new(format!("the launcher's longest value is {value_max} bytes: too short")));
        }
        Ok(pmi)
    }

    /// An exchange over our own launcher.
    fn give(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let text = wire::blob_text(mine);
        let parts = text.len().div_ceil(PART);
        for part in 0..parts - 1 {
            self.tell(&format!("cmd=partage_give last=0 value={}\n", &text[part * PART..(part + 1) * PART]))?;
        }
        let mut answer =
            self.ask(&format!("cmd=partage_give last=1 value={}\n", &text[(parts - 1) * PART..]), "partage_given")?;
        let mut all = String::new();
        loop {
            let given = Message::parse(&answer)?;
            all.push_str(given.need("value")?);
            if given.need("last")? == "1" {
                break;
            }
            answer = self.hear("partage_given")?;
        }
        let blob = |(process, text)| {
            Blob::read(text).map_err(|e| Error::new(format!("what process {process} has sent is broken: {e}")))
        };
        let blobs: Vec<Vec<u8>> = all.split(',').enumerate().map(blob).collect::<Result<_, _>>()?;
        match blobs.len() == self.processes {
            true => Ok(blobs),
            false => Err(Error::new(format!("the launcher sent {} blobs, not {}", blobs.len(), self.processes))),
        }
    }

    fn name(&self, key: Key) -> Result<String, Error> {
        let Key { round, process, chunk } = key;
        let name = format!("partage-{}-{round}-{process}-{chunk}", self.exchanges);
        if name.len() >= self.key_max.min(KEY_MAX + 1) {
            return Err(Error::new(format!("`{name}` is too long a key for the launcher")));
        }
        Ok(name)
    }

    /// Sends a request and reads its answer, which is of the kind `answer`.
    fn ask(&mut self, request: &str, answer: &str) -> Result<String, Error> {
        self.tell(request)?;
        self.hear(answer)
    }

    fn tell(&mut self, request: &str) -> Result<(), Error> {
        match self.state {
            State::Open => {}
            State::Finalized => return Err(Error::new("this process has already finalized")),
            State::Failed => return Err(Error::new("the connection to the launcher has failed before")),
        }
        let sent = self.send(request);
        self.noted(sent)
    }

    fn hear(&mut self, answer: &str) -> Result<String, Error> {
        let line = self.receive().and_then(|line| {
            let message = Message::parse(&line).and_then(|message| message.expect(answer));
            message.map_err(|e| Error::new(format!("the launcher's answer is not understood: {e}")))?;
            Ok(line)
        });
        self.noted(line)
    }

    /// After an error the connection is of no more use.
    fn noted<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
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

impl Store for Pmi {
    fn longest(&self) -> usize {
        self.value_max
    }

    fn put(&mut self, key: Key, value: &str) -> Result<(), Error> {
        let request = format!("cmd=put kvsname={} key={} value={value}\n", self.kvsname, self.name(key)?);
        self.ask(&request, "put_result").map(drop)
    }

    fn get(&mut self, key: Key) -> Result<String, Error> {
        let request = format!("cmd=get kvsname={} key={}\n", self.kvsname, self.name(key)?);
        let answer = self.ask(&request, "get_result")?;
        Ok(Message::parse(&answer)?.need("value")?.to_owned())
    }

    fn fence(&mut self) -> Result<(), Error> {
        self.ask("cmd=barrier_in\n", "barrier_out").map(drop)
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
        Pmi::new(mine.into(), 0, 2).introduce()
    }

    #[test]
    fn exchange_over_a_scripted_launcher() {
        let mut pmi = against(
            format!(
                "{WELCOME}cmd=put_result rc=0\ncmd=barrier_out\n\
                 cmd=get_result rc=0 msg=success value=7.AwA\ncmd=get_result rc=0 value=AAGFiYw\n\
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
        let ours = WELCOME.replace("rc=0", "partage=2 rc=0");
        assert!(against(ours.as_bytes()).unwrap().ours());
        let newer = WELCOME.replace("rc=0", "partage=3 rc=0");
        let line = against(newer.as_bytes()).unwrap_err().to_string();
        assert_eq!(line, "launcher speaks protocol 3, this program 2; rebuild one of them");
        let var = |name: &str| (name == "PARTAGE_PROTOCOL").then(|| "7".to_owned());
        let line = Pmi::connect(var).unwrap_err().to_string();
        assert_eq!(line, "launcher speaks protocol 7, this program 2; rebuild one of them");
    }

    #[test]
    fn exchange_over_our_launcher() {
        let ours = WELCOME.replace("rc=0", "partage=2 rc=0");
        let script = format!("{ours}cmd=partage_given last=0 value=2.aG\ncmd=partage_given last=1 value=k,3.YWJj\n");
        assert_eq!(against(script.as_bytes()).unwrap().exchange(b"hi").unwrap(), [&b"hi"[..], b"abc"]);
        for (given, why) in [("2.aGk", "the launcher sent 1 blobs, not 2"), ("0.,2.A", "process 1 has sent is broken")]
        {
            let script = format!("{ours}cmd=partage_given last=1 value={given}\n");
            let line = against(script.as_bytes()).unwrap().exchange(b"hi").unwrap_err().to_string();
            assert!(line.contains(why), "{line}");
        }
    }

    /// What comes of a launcher at a port that says `script`, and what it is told.
    fn dialed(script: &str) -> (Result<(usize, usize, bool), Error>, String) {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = port.local_addr().unwrap().to_string();
        std::thread::scope(|scope| {
            let launcher = scope.spawn(|| {
                let (mut socket, _) = port.accept().unwrap();
                socket.write_all(script.as_bytes()).unwrap();
                socket.shutdown(std::net::Shutdown::Write).unwrap();
                let mut said = Vec::new();
                // A client that has not read all resets the connection.
                let _ = socket.read_to_end(&mut said);
                String::from_utf8(said).unwrap()
            });
            let pmi = Pmi::dial(|name| Some(if name == "PMI_PORT" { address.clone() } else { "1".into() }));
            let outcome = pmi.map(|pmi| (pmi.process(), pmi.processes(), pmi.ours()));
            (outcome, launcher.join().unwrap())
        })
    }

    #[test]
    fn a_launcher_at_a_port() {
        let acknowledged = "cmd=initack\ncmd=set size=3\ncmd=set rank=1\ncmd=set debug=0\n";
        let (outcome, said) = dialed(&format!("{acknowledged}{WELCOME}"));
        assert_eq!(outcome.unwrap(), (1, 3, false));
        assert!(said.starts_with("cmd=initack pmiid=1\ncmd=init "), "{said}");
        for (script, why) in [
            ("cmd=initack\ncmd=set size=3\ncmd=set rank=3\ncmd=set debug=0\n", "does not say who"),
            ("cmd=initack\ncmd=set size=x\ncmd=set rank=3\ncmd=set debug=0\n", "no such number"),
            ("cmd=initack rc=-1\n", "not understood"),
            ("cmd=initack\n", "has hung up"),
        ] {
            let line = dialed(script).0.unwrap_err().to_string();
            assert!(line.contains(why), "{line}");
        }
        let line = |port: &str, id: &str| {
            let var = |name: &str| Some(if name == "PMI_PORT" { port } else { id }.to_owned());
            Pmi::dial(var).unwrap_err().to_string()
        };
        assert!(line("127.0.0.1:1", "0").starts_with("cannot reach the launcher at PMI_PORT=127.0.0.1:1: "));
        assert!(line("nonsense", "0").starts_with("cannot reach the launcher at PMI_PORT=nonsense: "));
        assert_eq!(line("127.0.0.1:1", "a b"), "PMI_PORT is set, but PMI_ID=a b names no process");
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
            let mut pmi = Pmi::new(mine.into(), 0, 1).introduce().unwrap();
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
            "{WELCOME}cmd=put_result rc=0\ncmd=barrier_out\n\
             cmd=get_result rc=0 value=7.AwA\ncmd=get_result rc=0 value=AAGFiYw\n"
        );
        let ours = WELCOME.replace("rc=0", "partage=2 rc=0");
        let ours = format!("{ours}cmd=partage_given last=0 value=2.aG\ncmd=partage_given last=1 value=k,3.YWJj\n");
        let mut random = Xorshift(77);
        for round in 0..4000 {
            let mut bytes = [&script, &ours][round % 2].clone().into_bytes();
            random.mutate(&mut bytes);
            let outcome = against(&bytes).and_then(|mut pmi| pmi.exchange(b"hi"));
            if let Err(e) = outcome {
                assert!(!e.to_string().contains('\n'));
            }
        }
    }
}
