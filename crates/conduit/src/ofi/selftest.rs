//! Does the network work on this machine? Two endpoints of this process, a message from one to the other, and a put.
//!
//! It needs no job and no other host, so it tells apart what is wrong here from what is wrong between hosts.

use super::endpoint::{Asked, Context, Endpoint, Entry, Posted};
use std::time::{Duration, Instant};

/// Bytes of the message; more than providers inject.
const MESSAGE: usize = 4096;
/// Bytes of the put.
const PUT: usize = 8;

/// What came of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// From the call to the arrival of the message, which made the connection.
    pub message: Duration,
    /// Of a put that is complete there.
    pub put: Duration,
}

/// Sends a message of 4 KiB and puts 8 bytes, and looks at both when they have come; both within this time, or it has failed.
pub fn test(asked: &Asked, patience: Duration) -> Result<Report, String> {
    let open = || Endpoint::open(&Asked { min_multi_recv: 0, never_waits: true, no_atomics: true, ..asked.clone() });
    let (here, there) = (open()?, open()?);
    let mut buffers = [vec![0u8; MESSAGE], (0..MESSAGE).map(|i| i as u8).collect()];
    let [received, sent] = buffers.each_mut().map(|b| b.as_mut_ptr());
    let mut contexts = [0, 1, 2].map(Context::new);
    let [receive, send, put] = contexts.each_mut().map(|c| &raw mut *c);
    let (key_here, key_there) = (0x7e57, 0x7e58);
    // SAFETY: both live until the regions, which are declared later, are gone; they are looked at below when nothing is under
    // way any more.
    let regions = unsafe { (here.register(sent, MESSAGE, key_here), there.register(received, MESSAGE, key_there)) };
    let (source, target) = (regions.0.map_err(|e| e.to_string())?, regions.1.map_err(|e| e.to_string())?);
    let peer = here.insert(there.name())?;
    let start = Instant::now();
    let turn = |wanted: *mut Context, done: &mut bool| -> Result<(), String> {
        let mut entries = [Entry::EMPTY; 4];
        for endpoint in [&here, &there] {
            let n = endpoint.poll(&mut entries).map_err(|broken| broken.to_string())?;
            *done |= entries[..n].iter().any(|e| e.context == wanted);
        }
        match start.elapsed() > patience {
            true => Err(format!("nothing came within {} s", patience.as_secs_f64())),
            false => Ok(()),
        }
    };
    let posted = |what: &dyn Fn() -> Posted| -> Result<(), String> {
        loop {
            match what() {
                Posted::Done => return Ok(()),
                Posted::Again => turn(std::ptr::null_mut(), &mut false)?,
                Posted::Failed(why) => return Err(why.to_string()),
            }
        }
    };
    let finish = |wanted| -> Result<Duration, String> {
        let mut done = false;
        while !done {
            turn(wanted, &mut done)?;
        }
        Ok(start.elapsed())
    };
    // SAFETY: buffers and contexts live until both endpoints are closed (below), and nobody looks at them before what uses them is
    // over. All of the source and the target lies in both regions.
    let result = (|| unsafe {
        posted(&|| there.post_receive(received, MESSAGE, target.desc(), receive))?;
        posted(&|| here.send(peer, sent, MESSAGE, source.desc(), send))?;
        let message = finish(receive)?;
        let came = std::slice::from_raw_parts(received, MESSAGE) == std::slice::from_raw_parts(sent, MESSAGE);
        if !came {
            return Err("the message that came is not the one that was sent".to_string());
        }
        let before = start.elapsed();
        // The last of them, over the first.
        let last = sent.add(MESSAGE - PUT);
        posted(&|| here.write(peer, last, PUT, source.desc(), target.remote(), put, true))?;
        let after = finish(put)?;
        let came = std::slice::from_raw_parts(received, PUT) == std::slice::from_raw_parts(last, PUT);
        if !came {
            return Err("what was put did not come".to_string());
        }
        Ok(Report { message, put: after - before })
    })();
    // Nothing is under way when everything is closed.
    drop((source, target, here, there));
    drop((buffers, contexts));
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_that_works_says_so() {
        if let Err(why) = Endpoint::version() {
            println!("SKIPPED: {why}");
            return;
        }
        let asked = Asked { source: Some("127.0.0.1".into()), ..Asked::default() };
        let report = test(&asked, Duration::from_secs(10)).unwrap();
        assert!(report.message > Duration::ZERO && report.put > Duration::ZERO);
        let asked = Asked { provider: Some("nonsense".into()), ..asked };
        assert!(test(&asked, Duration::from_secs(10)).is_err_and(|why| why.contains("nonsense")));
    }
}
