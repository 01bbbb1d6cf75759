//! What is a failure, which of several it is that ends the job, and what is said of it.
//!
//! One failure makes others, and they arrive together: a death causes aborts, an abort causes exits, and a host that is
//! lost causes all of them. So before a failure is judged, all parties tell what else has happened, and the causes are
//! looked for first.

use std::time::Instant;

use super::{Job, Life, Member, PATIENCE};
use crate::Error;
use crate::crew::Order;
use crate::server::Abort;
use crate::verdict::{self, Death};

/// A failure waits to be judged until these parties have looked around.
pub(super) struct Looking {
    pub(super) waiting: Vec<usize>,
    pub(super) until: Instant,
}

impl Job<'_> {
    /// Before a failure is judged, see [`Order::LookAround`].
    pub(super) fn look_around(&mut self) {
        let waiting = (0..self.parties.len()).filter(|number| self.parties[*number].is_running());
        self.looking = Some(Looking { waiting: waiting.collect(), until: Instant::now() + PATIENCE });
        self.order_all(Order::LookAround);
        self.think();
    }

    /// Finds the failure that ends the job, if there is one.
    pub(super) fn judge(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let deaths = || self.members.iter().enumerate().filter_map(|(p, member)| Some((p, member.death()?)));
        let aborted = |process: usize| self.aborts.iter().any(|(by, _)| *by == process);
        let killed = deaths().find(|(p, death)| matches!(death, Death::Signal { .. }) && !aborted(*p));
        if let Some((process, death)) = killed {
            return self.fail_by_death(process, death);
        }
        // The processes of other hosts complain when one is gone.
        if let Some(why) = self.lost.first() {
            let why = why.clone();
            if !self.going || self.failed {
                self.cannot = Some(Error::new(&why));
                return self.fail(2, None, None);
            }
            return self.fail(1, Some(format!("partage: {}", Error::new(why))), None);
        }
        if let Some((process, abort)) = self.aborts.first().cloned() {
            return self.fail_by_abort(process, abort);
        }
        if let Some((process, error)) = self.garbage.first() {
            let who = self.who(*process);
            let why = format!("partage: {who} sent its launcher what it does not understand: {error}");
            return self.fail(1, Some(why), Some(*process));
        }
        let exited = deaths().find(|(_, death)| !matches!(death, Death::Exit(0)));
        if let Some((process, death)) = exited.or_else(|| deaths().find(|(p, death)| self.is_failure(*p, *death))) {
            self.fail_by_death(process, death);
        }
    }

    pub(super) fn is_failure(&self, process: usize, death: Death) -> bool {
        death != Death::Exit(0) || self.server.takes_part(process) || self.server.awaited(process)
    }

    fn fail_by_death(&mut self, process: usize, death: Death) {
        let (who, member) = (self.who(process), &self.members[process]);
        let Life::Dead { out_of_memory, doing, .. } = &member.life else { return };
        let takes_part = self.server.takes_part(process);
        let what = match death {
            Death::Signal { number, core } => verdict::killed(&member.ranks, number, core, *out_of_memory),
            Death::Exit(code) if takes_part => format!("exited with code {code} before the job was over"),
            Death::Exit(0) => "exited with code 0 while others wait for it".into(),
            Death::Exit(code) => format!("exited with code {code}"),
        };
        let doing = verdict::doing(&member.ranks, doing.clone().filter(|_| takes_part));
        self.fail(death.code(), Some(format!("partage: {who} {what}{doing}")), None);
    }

    fn fail_by_abort(&mut self, process: usize, abort: Abort) {
        let why = match abort.line {
            Some(line) => Some(line),
            None if abort.said || abort.code == 0 => None,
            None => Some(format!("partage: {} aborted the job with code {}", self.who(process), abort.code)),
        };
        // What an exit code can carry, but no failure that looks like success.
        let code = match abort.code & 0xff {
            0 if abort.code != 0 => 1,
            code => code,
        };
        self.fail(code, why, Some(process));
    }

    /// `rank 3 on vm (pid 123)`.
    fn who(&self, process: usize) -> String {
        let Member { ranks, host, pid, .. } = &self.members[process];
        format!("{} on {host} (pid {pid})", verdict::name(ranks))
    }
}
