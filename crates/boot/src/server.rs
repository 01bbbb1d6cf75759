//! The launcher's half of PMI-1, as a state machine: lines in, actions out.
//!
//! Guaranteed: pure (no process, socket or clock is touched); a line that is not understood is an
//! error of the process that sent it and changes nothing; what the processes can make it store is
//! bounded. An exchange of our own processes is one line of each and one to all, as long as blobs are short
//! (`partage_give`). Spoken are, besides, the commands that [`crate::Boot`] uses, and the few more that an MPICH
//! program asks for when it starts. Not contained: publishing of names, and spawning.

use std::collections::HashMap;

use crate::wire::{self, Message};
use crate::{Error, PROTOCOL};

const KEY_MAX: usize = 128;
const VALUE_MAX: usize = 64 << 10;
/// Bytes of all keys and values together, and of the blobs of one exchange.
const STORE_MAX: usize = 1 << 30;

/// Of all blobs of an exchange, as much as goes in one line.
const PART: usize = wire::LINE_MAX / 2;

/// What the launcher has to do about a line.
#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    /// Send this line, newline included.
    Send { to: usize, line: String },
    /// Send this line to every process.
    SendAll { line: String },
    /// The sender announces something about itself.
    Announced { pid: Option<u32>, key: String, value: Vec<u8> },
    /// The sender ends the job.
    Abort(Abort),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Abort {
    pub(crate) code: i32,
    /// The sender has said why.
    pub(crate) said: bool,
    /// What is to be said.
    pub(crate) line: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Server {
    name: String,
    peers: Vec<Peer>,
    /// How many of the peers are waiting, and what for.
    waiting: usize,
    meeting: Meeting,
    store: HashMap<String, String>,
    stored: usize,
    /// What the peers have given to the exchange that is under way, and how much of it there is.
    given: Vec<String>,
    gathered: usize,
}

/// What all processes do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meeting {
    Barrier,
    Exchange,
}

#[derive(Debug, Clone, Copy, Default)]
struct Peer {
    joined: bool,
    finalized: bool,
    waiting: bool,
}

impl Server {
    /// `nodes`: runs of processes, each with the number of its node.
    pub(crate) fn new(name: String, nodes: &[(usize, usize)]) -> Server {
        let mapping = ("PMI_process_mapping".to_owned(), mapping(nodes));
        let processes = nodes.iter().map(|(_, processes)| processes).sum();
        Server {
            name,
            peers: vec![Peer::default(); processes],
            waiting: 0,
            meeting: Meeting::Barrier,
            store: HashMap::from([mapping]),
            stored: 0,
            given: vec![String::new(); processes],
            gathered: 0,
        }
    }

    /// Takes one line of `from`.
    pub(crate) fn line(&mut self, from: usize, line: &str) -> Result<Vec<Action>, Error> {
        let message = Message::parse(line)?;
        let command = message.command();
        let peer = self.peers[from];
        if command != "abort" && (peer.finalized || peer.waiting || peer.joined == (command == "init")) {
            return Err(Error::new(format!("`{command}` comes at the wrong time")));
        }
        let answer = match command {
            "init" => {
                self.peers[from].joined = true;
                format!("cmd=response_to_init pmi_version=1 pmi_subversion=1 partage={PROTOCOL} rc=0\n")
            }
            "get_maxes" => {
                format!("cmd=maxes kvsname_max=256 keylen_max={KEY_MAX} vallen_max={VALUE_MAX}\n")
            }
            "get_my_kvsname" => format!("cmd=my_kvsname kvsname={}\n", self.name),
            "get_appnum" => "cmd=appnum appnum=0\n".into(),
            "get_universe_size" => format!("cmd=universe_size size={}\n", self.peers.len()),
            "put" => match self.put(message.need("key")?, message.need("value")?) {
                Ok(()) => "cmd=put_result rc=0 msg=success\n".into(),
                Err(why) => format!("cmd=put_result rc=-1 msg={why}\n"),
            },
            "get" => match self.store.get(message.need("key")?) {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}\n"),
                None => "cmd=get_result rc=-1 msg=key_not_found value=unknown\n".into(),
            },
            "barrier_in" => {
                let all = self.meet(from, Meeting::Barrier)?;
                return Ok(all
                    .then(|| Action::SendAll { line: "cmd=barrier_out rc=0\n".into() })
                    .into_iter()
                    .collect());
            }
            "partage_give" => return self.give(from, message),
            "finalize" => {
                self.peers[from].finalized = true;
                "cmd=finalize_ack\n".into()
            }
            "abort" => return Ok(vec![Action::Abort(abort(message)?)]),
            "partage_announce" => {
                let key = message.need("key")?;
                if !wire::is_key(key, KEY_MAX) {
                    return Err(Error::new("a bad key in `partage_announce`"));
                }
                let pid = message.field("pid").map(|_| message.number("pid")).transpose()?;
                let value = wire::unhex(message.need("value")?)?;
                let line = "cmd=partage_announced rc=0\n".to_owned();
                return Ok(vec![
                    Action::Announced { pid, key: key.to_owned(), value },
                    Action::Send { to: from, line },
                ]);
            }
            _ => return Err(Error::new(format!("unknown command in {}", wire::shown(line.as_bytes())))),
        };
        Ok(vec![Action::Send { to: from, line: answer }])
    }

    /// Whether the process has joined the job and not left it again.
    pub(crate) fn takes_part(&self, process: usize) -> bool {
        self.peers[process].joined && !self.peers[process].finalized
    }

    /// Whether some process waits in a barrier that `process` has not entered.
    pub(crate) fn awaited(&self, process: usize) -> bool {
        self.waiting > 0 && !self.peers[process].waiting
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        let bytes = key.len() + value.len();
        if key.len() > KEY_MAX || value.len() > VALUE_MAX {
            return Err("too_long");
        }
        if self.stored + bytes > STORE_MAX {
            return Err("store_is_full");
        }
        if self.store.contains_key(key) {
            return Err("duplicate_key");
        }
        self.stored += bytes;
        self.store.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    /// Takes a part of a blob. When all have given theirs, all get them all.
    fn give(&mut self, from: usize, message: Message<'_>) -> Result<Vec<Action>, Error> {
        let value = message.need("value")?;
        if !wire::is_of_blob(value) {
            return Err(Error::new("no part of a blob in `partage_give`"));
        }
        if self.gathered + value.len() > STORE_MAX {
            return Err(Error::new(format!("more than {STORE_MAX} bytes in one exchange")));
        }
        let last = message.number::<u8>("last")? == 1;
        let all = last && self.meet(from, Meeting::Exchange)?;
        self.gathered += value.len();
        self.given[from].push_str(value);
        if !all {
            return Ok(vec![]);
        }
        self.gathered = 0;
        let all = self.given.iter_mut().map(std::mem::take).collect::<Vec<_>>().join(",");
        let lines = all.len().div_ceil(PART);
        let line = |i: usize| {
            let (part, last) = (&all[i * PART..all.len().min((i + 1) * PART)], u8::from(i + 1 == lines));
            Action::SendAll { line: format!("cmd=partage_given last={last} value={part}\n") }
        };
        Ok((0..lines).map(line).collect())
    }

    /// A process waits for the others; whether it was the last, so that nobody waits any more.
    fn meet(&mut self, from: usize, meeting: Meeting) -> Result<bool, Error> {
        if self.waiting > 0 && self.meeting != meeting {
            return Err(Error::new(format!("{meeting:?}, while others wait in {:?}", self.meeting)));
        }
        self.meeting = meeting;
        self.peers[from].waiting = true;
        self.waiting += 1;
        let all = self.waiting == self.peers.len();
        if all {
            self.waiting = 0;
            self.peers.iter_mut().for_each(|peer| peer.waiting = false);
        }
        Ok(all)
    }
}

/// Blocks of (first node, how many nodes, processes on each).
fn mapping(nodes: &[(usize, usize)]) -> String {
    let mut blocks: Vec<(usize, usize, usize)> = Vec::new();
    for &(node, processes) in nodes {
        match blocks.last_mut() {
            Some((first, count, each)) if *first + *count == node && *each == processes => *count += 1,
            _ => blocks.push((node, 1, processes)),
        }
    }
    let blocks: Vec<String> = blocks.iter().map(|(first, count, each)| format!("({first},{count},{each})")).collect();
    format!("(vector,{})", blocks.join(","))
}

fn abort(message: Message<'_>) -> Result<Abort, Error> {
    let line = message.field("line").map(wire::unhex).transpose()?;
    Ok(Abort {
        code: message.number("exitcode")?,
        said: message.field("said") == Some("1"),
        line: line.map(|line| crate::error::one_line(&String::from_utf8_lossy(&line))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Xorshift;

    /// The one line that the sender gets back.
    fn answer(server: &mut Server, from: usize, line: &str) -> String {
        match server.line(from, line).unwrap().as_slice() {
            [Action::Send { to, line }] if *to == from => line.trim_end().to_owned(),
            other => panic!("{other:?}"),
        }
    }

    fn joined(processes: usize) -> Server {
        let mut server = Server::new("kvs".into(), &[(0, processes)]);
        for process in 0..processes {
            assert!(!server.takes_part(process));
            let line = answer(&mut server, process, "cmd=init pmi_version=1 pmi_subversion=1");
            assert_eq!(line, "cmd=response_to_init pmi_version=1 pmi_subversion=1 partage=2 rc=0");
            assert!(server.takes_part(process));
        }
        server
    }

    #[test]
    fn put_barrier_get() {
        let mut server = joined(2);
        assert_eq!(answer(&mut server, 0, "cmd=get_my_kvsname"), "cmd=my_kvsname kvsname=kvs");
        let put = "cmd=put kvsname=kvs key=k value=a=b";
        assert_eq!(answer(&mut server, 0, put), "cmd=put_result rc=0 msg=success");
        assert_eq!(answer(&mut server, 1, put), "cmd=put_result rc=-1 msg=duplicate_key");
        assert_eq!(server.line(0, "cmd=barrier_in").unwrap(), []);
        assert!(server.awaited(1) && !server.awaited(0));
        let out = Action::SendAll { line: "cmd=barrier_out rc=0\n".into() };
        assert_eq!(server.line(1, "cmd=barrier_in").unwrap(), [out]);
        assert!(!server.awaited(1));
        let get = answer(&mut server, 1, "cmd=get kvsname=kvs key=k");
        assert_eq!(get, "cmd=get_result rc=0 msg=success value=a=b");
        assert!(answer(&mut server, 1, "cmd=get kvsname=kvs key=none").contains("rc=-1"));
        let get = answer(&mut server, 1, "cmd=get kvsname=kvs key=PMI_process_mapping");
        assert!(get.ends_with("value=(vector,(0,1,2))"));
        assert_eq!(answer(&mut server, 1, "cmd=finalize"), "cmd=finalize_ack");
        assert!(!server.takes_part(1) && server.takes_part(0));
    }

    #[test]
    fn mappings_of_hosts() {
        assert_eq!(mapping(&[(0, 2), (1, 2), (2, 2)]), "(vector,(0,3,2))");
        assert_eq!(mapping(&[(0, 2), (1, 1), (2, 1)]), "(vector,(0,1,2),(1,2,1))");
        assert_eq!(mapping(&[(0, 2), (1, 2), (0, 1)]), "(vector,(0,2,2),(0,1,1))");
    }

    #[test]
    fn an_exchange_is_one_line_to_the_launcher_and_one_back() {
        let processes = 1024;
        let mut server = joined(processes);
        for round in 0..2 {
            let blob = |process: usize| wire::blob_text(format!("{round}: the address of {process}").as_bytes());
            for process in 0..processes {
                let actions =
                    server.line(process, &format!("cmd=partage_give last=1 value={}", blob(process))).unwrap();
                let [Action::SendAll { line }] = actions.as_slice() else {
                    assert!(actions.is_empty() && process < processes - 1);
                    assert!(!server.awaited(process) && server.awaited(process + 1));
                    continue;
                };
                let all: Vec<String> = (0..processes).map(blob).collect();
                assert_eq!(*line, format!("cmd=partage_given last=1 value={}\n", all.join(",")));
                assert!(!server.awaited(0) && server.gathered == 0);
            }
        }
    }

    #[test]
    fn long_blobs_go_in_parts() {
        let mut server = joined(2);
        let part = "A".repeat(VALUE_MAX);
        for _ in 0..20 {
            assert_eq!(server.line(0, &format!("cmd=partage_give last=0 value={part}")).unwrap(), []);
            assert!(!server.awaited(1));
        }
        assert_eq!(server.line(0, "cmd=partage_give last=1 value=AA").unwrap(), []);
        assert!(server.line(0, "cmd=partage_give last=1 value=AA").is_err());
        // The others are in an exchange.
        assert!(server.line(1, "cmd=barrier_in").is_err());
        let actions = server.line(1, "cmd=partage_give last=1 value=0.").unwrap();
        let lines = actions.iter().map(|action| match action {
            Action::SendAll { line } => line.trim_end().strip_prefix("cmd=partage_given last=").unwrap(),
            other => panic!("{other:?}"),
        });
        let lines: Vec<(&str, &str)> = lines.map(|line| line.split_once(" value=").unwrap()).collect();
        let lasts: String = lines.iter().map(|(last, _)| *last).collect();
        assert_eq!(lasts, "001");
        let all: String = lines.iter().map(|(_, value)| *value).collect();
        assert_eq!(all, format!("{}AA,0.", "A".repeat(20 * VALUE_MAX)));
    }

    #[test]
    fn aborts_and_announcements() {
        let mut server = joined(1);
        let abort =
            |code, said, line: Option<&str>| vec![Action::Abort(Abort { code, said, line: line.map(str::to_owned) })];
        assert_eq!(server.line(0, "cmd=abort exitcode=3").unwrap(), abort(3, false, None));
        assert_eq!(server.line(0, "cmd=abort exitcode=-1 said=1").unwrap(), abort(-1, true, None));
        let line = format!("cmd=abort exitcode=0 line={}", wire::hex("two\nlines ü\n".as_bytes()));
        assert_eq!(server.line(0, &line).unwrap(), abort(0, false, Some("two lines ü")));
        let actions = server.line(0, "cmd=partage_announce key=shm value=6869 pid=12").unwrap();
        assert_eq!(actions[0], Action::Announced { pid: Some(12), key: "shm".into(), value: b"hi".into() });
        assert_eq!(actions.len(), 2);
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for line in [
            "",
            "hello",
            "cmd=init",
            "cmd=put key=k",
            "cmd=get",
            "cmd=abort",
            "cmd=abort exitcode=x",
            "cmd=abort exitcode=1 line=0",
            "cmd=partage_give last=1",
            "cmd=partage_give last=1 value=",
            "cmd=partage_give last=1 value=1.AA,0.",
            "cmd=partage_give last=x value=0.",
            "cmd=partage_give value=0.",
            "cmd=partage_announce key=a/b value=",
            "cmd=partage_announce key=a value=0 pid=1",
            "cmd=partage_announce key=a value= pid=-1",
            "mcmd=spawn",
            "cmd=spawn",
        ] {
            assert!(joined(1).line(0, line).is_err(), "{line}");
        }
        let mut server = Server::new("kvs".into(), &[(0, 2)]);
        assert!(server.line(0, "cmd=barrier_in").is_err());
        let mut server = joined(2);
        server.line(0, "cmd=barrier_in").unwrap();
        assert!(server.line(0, "cmd=barrier_in").is_err());
        let put = format!("cmd=put key=k value={}", "x".repeat(VALUE_MAX + 1));
        assert_eq!(answer(&mut server, 1, &put), "cmd=put_result rc=-1 msg=too_long");
        answer(&mut server, 1, "cmd=finalize");
        assert!(server.line(1, "cmd=get key=k").is_err());
    }

    #[test]
    fn mutated_lines_never_panic() {
        let seeds = [
            "cmd=init pmi_version=1 pmi_subversion=1",
            "cmd=put kvsname=kvs key=a value=4.00ff",
            "cmd=get kvsname=kvs key=a",
            "cmd=partage_give last=1 value=0.",
            "cmd=partage_give last=0 value=2.AA",
            "cmd=barrier_in",
            "cmd=abort exitcode=3 line=6869",
            "cmd=partage_announce key=shm value=00 pid=4",
        ];
        let mut random = Xorshift(42);
        let mut server = joined(3);
        for round in 0..40_000 {
            if round % 100 == 0 {
                server = joined(3);
            }
            let mut bytes = seeds[random.below(seeds.len())].as_bytes().to_vec();
            if random.below(3) > 0 {
                random.mutate(&mut bytes);
            }
            if let Ok(actions) = server.line(random.below(3), &String::from_utf8_lossy(&bytes)) {
                for action in actions {
                    if let Action::Send { line, .. } | Action::SendAll { line } = &action {
                        assert!(line.ends_with('\n') && line.matches('\n').count() == 1);
                    }
                }
            }
        }
    }
}
