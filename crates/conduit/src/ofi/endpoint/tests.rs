use super::*;
use crate::word::{Atomic, Kind, Op};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

/// Nothing here takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// An endpoint on the loopback interface with a posted receive buffer and a registered segment; what comes is kept.
struct Side {
    // Closed before the memory that it uses.
    segment: Option<Region>,
    endpoint: Option<Endpoint>,
    memory: Vec<u8>,
    buffers: [Vec<u8>; 2],
    contexts: Vec<Context>,
    messages: RefCell<Vec<Vec<u8>>>,
    data: RefCell<Vec<u64>>,
    released: RefCell<Vec<u64>>,
    done: RefCell<Vec<u64>>,
    broken: RefCell<Vec<Broken>>,
}

const SEGMENT: usize = 2 << 20;
const BUFFER: usize = 4096;

impl Side {
    fn new() -> Result<Side, String> {
        let provider = std::env::var("PARTAGE_PROVIDER").ok();
        let source = Some("127.0.0.1".into());
        let asked = Asked { provider, source, min_multi_recv: 1024, ..Asked::default() };
        let endpoint = Endpoint::open(&asked)?;
        let mut memory = vec![0; SEGMENT];
        // SAFETY: the region is dropped before the memory, and the memory is looked at when nothing is under way.
        let segment = unsafe { endpoint.register(memory.as_mut_ptr(), SEGMENT, 7) }.map_err(|why| why.to_string())?;
        Ok(Side {
            segment: Some(segment),
            endpoint: Some(endpoint),
            memory,
            buffers: [vec![0; BUFFER], vec![0; BUFFER]],
            contexts: (0..16).map(Context::new).collect(),
            messages: RefCell::default(),
            data: RefCell::default(),
            released: RefCell::default(),
            done: RefCell::default(),
            broken: RefCell::default(),
        })
    }

    fn ep(&self) -> &Endpoint {
        self.endpoint.as_ref().unwrap()
    }

    fn remote(&self) -> Remote {
        self.segment.as_ref().unwrap().remote()
    }

    fn context(&mut self, which: usize) -> *mut Context {
        &mut self.contexts[which]
    }

    fn post_buffer(&mut self, which: usize) {
        let (buf, context) = (self.buffers[which].as_mut_ptr(), self.context(which));
        // SAFETY: both live longer than the endpoint, and nobody else uses them until they come back.
        let posted = unsafe { self.ep().post_receive(buf, BUFFER, Desc::NONE, context) };
        assert_eq!(posted, Posted::Done);
    }

    fn poll(&self) {
        let mut entries = [Entry::EMPTY; 8];
        let n = match self.ep().poll(&mut entries) {
            Ok(n) => n,
            Err(broken) => return self.broken.borrow_mut().push(*broken),
        };
        for entry in &entries[..n] {
            if let Some(data) = entry.remote_data() {
                self.data.borrow_mut().push(data);
                continue;
            }
            // SAFETY: contexts live as long as the side.
            let word = unsafe { (*entry.context).word };
            if entry.is_message() {
                // SAFETY: in a buffer of ours, which is not posted again before this.
                let bytes = unsafe { std::slice::from_raw_parts(entry.buf, entry.len) };
                self.messages.borrow_mut().push(bytes.to_vec());
            }
            if entry.releases_buffer() {
                self.released.borrow_mut().push(word);
            } else if !entry.is_message() {
                self.done.borrow_mut().push(word);
            }
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.segment = None;
        self.endpoint = None;
    }
}

/// Polls both until `is_over`.
fn until(what: &str, sides: &[&Side], mut is_over: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_over() {
        assert!(start.elapsed() < PATIENCE, "{what}: nothing comes");
        sides.iter().for_each(|side| side.poll());
    }
}

fn accepted(sides: &[&Side], mut post: impl FnMut() -> Posted) {
    until("posting", sides, || match post() {
        Posted::Done => true,
        Posted::Again => false,
        Posted::Failed(why) => panic!("{why}"),
    });
}

/// Ends the process if a call of the library never returns.
struct Watchdog(#[expect(dead_code, reason = "dropping it disarms")] std::sync::mpsc::Sender<()>);

impl Watchdog {
    fn new() -> Watchdog {
        let (disarm, armed) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            if armed.recv_timeout(2 * PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprintln!("a call of libfabric does not return");
                std::process::abort();
            }
        });
        Watchdog(disarm)
    }
}

fn two() -> Option<(Side, Side, Watchdog)> {
    if let Err(why) = Endpoint::version() {
        println!("SKIPPED: {why}");
        return None;
    }
    let watchdog = Watchdog::new();
    Some((Side::new().unwrap(), Side::new().unwrap(), watchdog))
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

#[test]
fn puts_and_gets_of_all_sizes() {
    let Some((mut a, mut b, _watchdog)) = two() else { return };
    let peer = a.ep().insert(b.ep().name()).unwrap();
    for len in [1, 8, 64, 4096, 65536, 65537, 1 << 20] {
        let (src, offset, at) = (pattern(len, len), 4096 + len % 5, b.remote());
        let mut back = vec![0; len];
        for delivery in [false, true] {
            let (context, at) = (a.context(3), at.offset(offset as u64));
            a.done.borrow_mut().clear();
            // SAFETY: `src` and the context outlive the completion, for which `until` waits.
            let put = || unsafe { a.ep().write(peer, src.as_ptr(), len, Desc::NONE, at, context, delivery) };
            accepted(&[&a, &b], put);
            until("a put", &[&a, &b], || *a.done.borrow() == [3]);
        }
        assert_eq!(b.memory[offset..offset + len], src, "{len} bytes");
        assert_eq!(b.memory[offset + len], 0, "past {len} bytes");
        let (context, at) = (a.context(4), at.offset(offset as u64));
        a.done.borrow_mut().clear();
        let to = back.as_mut_ptr();
        // SAFETY: as above.
        accepted(&[&a, &b], || unsafe { a.ep().read(peer, to, len, Desc::NONE, at, context) });
        until("a get", &[&a, &b], || *a.done.borrow() == [4]);
        assert_eq!(back, src, "{len} bytes back");
        b.memory[..offset + len].fill(0);
    }
    assert!(a.ep().inject_size() >= 8);
    accepted(&[&a, &b], || a.ep().inject_write(peer, &[5; 8], b.remote().offset(16)));
    // SAFETY: polled until it is there; the provider writes it whole or in parts.
    until("an injected put", &[&a, &b], || unsafe { b.memory.as_ptr().add(23).read_volatile() } == 5);
    assert_eq!(b.memory[16..25], [5, 5, 5, 5, 5, 5, 5, 5, 0]);
}

/// Every operation on every type, to another endpoint and to its own process's.
#[test]
fn the_data_of_a_put_comes_when_its_bytes_have() {
    let Some((mut a, mut b, _watchdog)) = two() else { return };
    if a.ep().cq_data_size() < 4 {
        return println!("SKIPPED: puts with {} bring no data", a.ep().provider());
    }
    let peer = a.ep().insert(b.ep().name()).unwrap();
    a.post_buffer(0);
    b.post_buffer(0);
    for (n, len) in [1, 8, 64, 4096, 16384, 65537, 1 << 20, 8].into_iter().enumerate() {
        let (src, context) = (pattern(len, n), a.context(3));
        let data = u64::from(u32::MAX) - n as u64;
        a.done.borrow_mut().clear();
        // SAFETY: `src` and the context outlive the completion, for which `until` waits.
        let put = || unsafe {
            a.ep().write_data(peer, src.as_ptr(), len, Desc::NONE, b.remote().offset(4096), context, data)
        };
        accepted(&[&a, &b], put);
        until("the data", &[&a, &b], || !b.data.borrow().is_empty());
        assert_eq!(b.memory[4096..4096 + len], src, "{len} bytes");
        assert_eq!(b.data.take(), [data], "{len} bytes");
        until("a put", &[&a, &b], || *a.done.borrow() == [3]);
        b.memory.fill(0);
    }
    assert!(a.data.borrow().is_empty() && b.done.borrow().is_empty() && b.messages.borrow().is_empty());
}

#[test]
fn atomics_that_are_valid_do_what_they_say() {
    let Some((mut a, b, _watchdog)) = two() else { return };
    let [from, to] = match [Atomics::open(a.ep()), Atomics::open(b.ep())] {
        [Ok(from), Ok(to)] => [from, to],
        [Err(why), _] | [_, Err(why)] => return println!("SKIPPED: no atomics of the network: {why}"),
    };
    let mut done = 0;
    for (peer, at) in [(&to, b.remote()), (&from, a.remote())] {
        let peer = a.ep().insert(peer.name()).unwrap();
        for (op, kind, width) in Op::ALL.iter().flat_map(|&op| {
            let kinds = [Kind::Unsigned, Kind::Signed, Kind::Float];
            kinds.into_iter().flat_map(move |kind| [4, 8].map(|width| (op, kind, width)))
        }) {
            if Atomic::decode(Atomic { op, kind, width, ..Atomic::on_u64(op, 0) }.encode()).is_none() {
                continue;
            }
            assert!(from.is_valid(op, kind, width), "{op:?} {kind:?} {width}");
            let float = |x: f64| if width == 4 { (x as f32).to_bits().into() } else { x.to_bits() };
            let value = |x: i64| match kind {
                Kind::Float => float(x as f64),
                _ if width == 4 => u64::from(x as u32),
                _ => x as u64,
            };
            let mut run = |op: Op, operand: u64, expected: u64| {
                let what = Atomic { op, kind, width, order: crate::word::Order::Relaxed, operand, expected };
                let words = Operands { operand: operand.to_le_bytes(), expected: expected.to_le_bytes(), old: [0; 8] };
                let (mut words, context) = (Box::new(words), a.context(7));
                a.done.borrow_mut().clear();
                let words_at = &raw mut *words;
                // SAFETY: both outlive the completion, for which `until` waits.
                let post = || unsafe { from.start(peer, at.offset(64), &what, (words_at, Desc::NONE), context) };
                accepted(&[&a, &b], post);
                until("an atomic", &[&a, &b], || *a.done.borrow() == [7]);
                // SAFETY: it has completed.
                u64::from_le_bytes(unsafe { (*words_at).old })
            };
            run(Op::Store, value(-6), 0);
            assert_eq!(run(op, value(3), value(-6)), value(-6), "{op:?} {kind:?} {width}");
            let (bits, unsigned) = ((-6i64) as u64, kind == Kind::Unsigned);
            let now = match op {
                Op::Load => value(-6),
                Op::Store | Op::Swap | Op::CompareExchange => value(3),
                Op::Add => value(-3),
                Op::Mul => value(-18),
                Op::Min => value(if unsigned { 3 } else { -6 }),
                Op::Max => value(if unsigned { -6 } else { 3 }),
                Op::And => value((bits & 3) as i64),
                Op::Or => value((bits | 3) as i64),
                Op::Xor => value((bits ^ 3) as i64),
            };
            assert_eq!(run(Op::Load, 0, 0), now, "{op:?} {kind:?} {width}");
            assert_eq!(run(Op::CompareExchange, 0, now ^ 1), now, "another value");
            assert_eq!(run(Op::Load, 0, 0), now, "nothing was written");
            done += 1;
        }
    }
    assert_eq!(done, 2 * (8 * 6 + 3 * 4));
}

#[test]
fn messages_come_in_order_and_buffers_come_back() {
    let Some((mut a, mut b, _watchdog)) = two() else { return };
    let peer = a.ep().insert(b.ep().name()).unwrap();
    b.post_buffer(0);
    b.post_buffer(1);
    let inject = a.ep().inject_size().min(64);
    let sent: Vec<Vec<u8>> = (0..200).map(|i| pattern(1 + (i * 37) % 900, i)).collect();
    for (i, message) in sent.iter().enumerate() {
        if message.len() <= inject {
            accepted(&[&a, &b], || a.ep().inject(peer, message));
        } else {
            a.done.borrow_mut().clear();
            let context = a.context(5);
            // SAFETY: the message and the context outlive the completion, for which `until` waits.
            let send = || unsafe { a.ep().send(peer, message.as_ptr(), message.len(), Desc::NONE, context) };
            accepted(&[&a, &b], send);
            until("a message", &[&a, &b], || *a.done.borrow() == [5]);
        }
        until("a receive", &[&a, &b], || b.messages.borrow().len() == i + 1);
        let released = b.released.take();
        released.into_iter().for_each(|which| b.post_buffer(which as usize));
    }
    assert_eq!(*b.messages.borrow(), sent);
    assert!(b.broken.borrow().is_empty() && a.broken.borrow().is_empty());
}

#[test]
fn a_bad_key_is_an_error() {
    let Some((mut a, b, _watchdog)) = two() else { return };
    if a.ep().provider().starts_with("udp") {
        return println!("SKIPPED: {} leaves a bad key unanswered", a.ep().provider());
    }
    let peer = a.ep().insert(b.ep().name()).unwrap();
    let (src, context) = ([1u8; 8], a.context(6));
    let at = Remote { key: 4711, ..b.remote() };
    // SAFETY: both outlive the completion.
    accepted(&[&a, &b], || unsafe { a.ep().write(peer, src.as_ptr(), 8, Desc::NONE, at, context, true) });
    until("an error", &[&a, &b], || !a.broken.borrow().is_empty());
    let broken = a.broken.take();
    println!("{}: {broken:?}", a.ep().provider());
    assert_eq!((broken.len(), broken[0].context, broken[0].is_receive), (1, context, false));
    assert!(!broken[0].text.is_empty() && !broken[0].text.contains('\n'));
    // The connection is gone, and made anew; what was posted before that was noticed breaks as well.
    until("a good put", &[&a, &b], || {
        a.broken.take();
        // SAFETY: both outlive the completion.
        accepted(&[&a, &b], || unsafe { a.ep().write(peer, src.as_ptr(), 8, Desc::NONE, b.remote(), context, true) });
        until("an end", &[&a, &b], || !a.broken.borrow().is_empty() || !a.done.borrow().is_empty());
        !a.done.borrow().is_empty()
    });
    assert_eq!(b.memory[..9], [1, 1, 1, 1, 1, 1, 1, 1, 0]);
}

/// Where we choose them: none follows from others, and they are spread over all that there are.
#[test]
fn keys_cannot_be_guessed() {
    const MANY: usize = 32;
    const PAGE: usize = 4096;
    let Some((a, _b, _watchdog)) = two() else { return };
    if a.ep().mr_mode() & FI_MR_PROV_KEY != 0 {
        return println!("SKIPPED: {} chooses the keys", a.ep().provider());
    }
    let mut memory = vec![0u8; MANY * PAGE];
    let parts = memory.chunks_exact_mut(PAGE).map(|part| {
        // SAFETY: the regions are dropped before the memory, and nobody uses it.
        unsafe { a.ep().register_anew(part.as_mut_ptr(), PAGE) }.unwrap()
    });
    let regions: Vec<Region> = parts.collect();
    let keys: Vec<u64> = regions.iter().map(|region| region.remote().key).collect();
    let count = |mut of: Vec<u64>| {
        of.sort();
        of.dedup();
        of.len()
    };
    assert_eq!(count(keys.clone()), MANY, "{keys:x?}");
    let steps = keys.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    assert!(count(steps) > MANY / 2, "{keys:x?}");
    let half = a.ep().keys() / 2;
    let high = keys.iter().filter(|&&key| key >= half).count();
    assert!((1..MANY).contains(&high), "{keys:x?}");
    assert!(keys.iter().all(|&key| key < a.ep().keys()), "{keys:x?}");
}

#[test]
fn whatever_is_under_way_ends_when_it_is_closed() {
    let Some((mut a, mut b, _watchdog)) = two() else { return };
    let peer = a.ep().insert(b.ep().name()).unwrap();
    b.post_buffer(0);
    a.post_buffer(0);
    let (src, context) = (pattern(1 << 20, 0), a.context(2));
    // SAFETY: `src` is dropped after both sides, and the context with its own.
    accepted(&[&a, &b], || unsafe {
        a.ep().write(peer, src.as_ptr(), src.len(), Desc::NONE, b.remote(), context, true)
    });
    drop(a);
    b.poll();
}

#[test]
fn waiting_ends_when_something_comes() {
    let Some((mut a, b, _watchdog)) = two() else { return };
    let peer = a.ep().insert(b.ep().name()).unwrap();
    let (src, context) = ([9u8; 8], a.context(6));
    let at = b.remote();
    let over = &AtomicBool::new(false);
    std::thread::scope(|s| {
        let target = &b.endpoint;
        s.spawn(move || {
            let ep = target.as_ref().unwrap();
            while !over.load(Relaxed) {
                ep.wait(PATIENCE);
                ep.poll(&mut [Entry::EMPTY; 4]).unwrap();
            }
        });
        for i in 0..100 {
            a.done.borrow_mut().clear();
            // SAFETY: both outlive the completion.
            accepted(&[&a], || unsafe { a.ep().write(peer, src.as_ptr(), 8, Desc::NONE, at, context, true) });
            until("a put", &[&a], || *a.done.borrow() == [6]);
            std::thread::sleep(Duration::from_micros(10 * i));
        }
        over.store(true, Relaxed);
        b.ep().wake();
    });
    assert_eq!(b.memory[..9], [9, 9, 9, 9, 9, 9, 9, 9, 0]);
}

#[test]
fn who_has_no_provider_is_told_which_there_are() {
    if let Err(why) = Endpoint::version() {
        return println!("SKIPPED: {why}");
    }
    let asked = Asked { provider: Some("carrier-pigeon".into()), ..Asked::default() };
    let why = Endpoint::open(&asked).unwrap_err();
    assert!(why.contains("has no provider carrier-pigeon") && why.contains("tcp") && !why.contains('\n'), "{why}");
    let here = Side::new().unwrap();
    assert!(here.ep().address_text().starts_with("127.0.0.1:"), "{}", here.ep().address_text());
    println!(
        "{} {} inject {} cq data {} mr mode {:#x} longest {}",
        here.ep().provider(),
        Endpoint::version().unwrap(),
        here.ep().inject_size(),
        here.ep().cq_data_size(),
        here.ep().mr_mode(),
        here.ep().max_message_size()
    );
}
