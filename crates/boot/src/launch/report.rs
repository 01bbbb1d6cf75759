//! Where the ranks are: asked of all parties, said when all have answered, or when they have had the time to.

use std::time::Instant;

use super::{Job, PATIENCE};
use crate::Row;
use crate::crew::Order;

/// A report that is being made.
pub(super) struct Report {
    pub(super) rows: Vec<Option<Vec<Row>>>,
    pub(super) until: Instant,
}

impl Job<'_> {
    /// Reports once when a rank waits for too long, and again when that has changed and comes back.
    pub(super) fn look_for_hangs(&mut self) {
        let Some(limit) = self.spec.hang_after.filter(|_| self.ended.is_none()) else { return };
        let hangs = self.waits.iter().flatten().any(|wait| *wait >= limit);
        let reported = std::mem::replace(&mut self.hang_reported, hangs);
        if hangs && !reported {
            let limit = limit.as_secs_f64();
            self.err.push_line(&format!("partage: a rank has been waiting for {limit} s in one call"));
            self.report();
        }
    }

    /// Asks all what their ranks are doing, and says it when all have answered or it takes too long.
    pub(super) fn report(&mut self) {
        if self.report.is_none() {
            let rows = self.members.iter().map(|_| None).collect();
            self.report = Some(Report { rows, until: Instant::now() + PATIENCE });
            self.order_all(Order::AskRows);
            self.think();
        }
    }

    pub(super) fn say_report(&mut self) {
        let Some(report) = self.report.take() else { return };
        let mut rows = Vec::with_capacity(self.spec.ranks);
        for (member, told) in self.members.iter().zip(report.rows) {
            let unknown = Row { text: format!("not known: {} does not answer", member.host), waiting: None };
            let told = told.into_iter().flatten().chain(std::iter::repeat(unknown));
            rows.extend(told.take(member.ranks.len()));
        }
        let nothing = || "partage: the ranks have not told what they are doing".to_owned();
        self.err.push_line(&self.observer.report(&rows).unwrap_or_else(nothing));
        self.err.write();
    }
}
