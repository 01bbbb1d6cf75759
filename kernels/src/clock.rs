//! Where the time of a rank goes.

use std::time::Instant;

/// What a rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Products of its part of the matrix.
    Compute,
    /// Packing and putting values, saying that they are there, and waiting until they have arrived, where it does.
    Send,
    /// Waiting for a peer's values, and copying them out.
    Wait,
    /// In a barrier.
    Barrier,
    /// In a sum over all ranks.
    Reduce,
    /// With its own part of vectors.
    Vectors,
}

/// Seconds, by what was done.
#[derive(Clone, Debug)]
pub struct Clock {
    last: Instant,
    spent: [f64; 6],
}

impl Clock {
    /// Nothing yet.
    pub fn start() -> Clock {
        Clock { last: Instant::now(), spent: [0.0; 6] }
    }

    /// The time since the last call was for this.
    #[inline]
    pub fn lap(&mut self, doing: Doing) {
        let now = Instant::now();
        self.spent[doing as usize] += (now - self.last).as_secs_f64();
        self.last = now;
    }

    /// Seconds that went there.
    pub fn spent(&self, doing: Doing) -> f64 {
        self.spent[doing as usize]
    }

    /// All of them.
    pub fn total(&self) -> f64 {
        self.spent.iter().sum()
    }
}

/// The middle value, or the mean of the two; not a number, of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n => (values[(n - 1) / 2] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_time_goes_somewhere() {
        let mut clock = Clock::start();
        let begun = clock.last;
        clock.lap(Doing::Compute);
        clock.lap(Doing::Wait);
        clock.lap(Doing::Compute);
        let whole = (clock.last - begun).as_secs_f64();
        assert!((clock.total() - whole).abs() <= 1e-9 * whole.max(1.0));
        assert_eq!(clock.total(), clock.spent(Doing::Compute) + clock.spent(Doing::Wait));
    }

    #[test]
    fn medians() {
        assert_eq!((median([3.0, 1.0, 2.0]), median([4.0, 1.0, 2.0, 3.0]), median([5.0])), (2.0, 2.5, 5.0));
        assert!(median([]).is_nan());
    }
}
