//! Samples of collectives by named algorithms, in jobs of ours that live side by side and sleep while they are not asked.

use super::Programs;
use super::cells::{Mode, Operation};
use super::stage::{By, Order, Sample};

/// A batch of a sample takes about so long, in microseconds.
const BATCH: f64 = 100.0;

/// One job for each number of ranks.
pub struct Sampler {
    programs: Programs,
    ranks: Vec<usize>,
    /// Ranks that have a core each are timed in batches.
    cores: usize,
    /// A sample takes about so long, in microseconds.
    window: f64,
}

/// What is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct What {
    /// The collective.
    pub operation: Operation,
    /// Bytes of a block.
    pub bytes: usize,
    /// When data may be touched.
    pub mode: Mode,
    /// Slices of one's own, not shared arrays.
    pub private: bool,
    /// Owners write what is passed before each call, and read what they get after it, which is in the time.
    pub touched: bool,
    /// The root is the next rank in each call, and not always the same.
    pub rotating: bool,
    /// The algorithm, by its number among those that the sampler has.
    pub algorithm: usize,
}

/// How many calls fit into a sample, for each job.
pub type Fit = Vec<(u64, u64)>;

/// Whoever can be asked how long calls take.
pub trait Samples {
    /// How many calls fit, and about how long one takes in each job, in microseconds.
    fn fit(&mut self, what: &What) -> Result<(Fit, Vec<f64>), String>;

    /// How long one call takes in each job, in microseconds.
    fn take(&mut self, what: &What, fit: &Fit) -> Result<Vec<f64>, String>;
}

impl Sampler {
    /// Starts the jobs, which know these algorithms. They run as if there were neither a profile nor a table in the environment, and
    /// with these settings, or without those that have no value.
    pub fn start(
        ranks: &[usize],
        cores: usize,
        window: f64,
        algorithms: &[String],
        settings: &[(&str, Option<&str>)],
    ) -> Result<Sampler, String> {
        let mut programs = Programs::new()?;
        let args: Vec<&str> = algorithms.iter().flat_map(|name| ["--named", name]).collect();
        for &n in ranks {
            let plain = |job: &mut std::process::Command| {
                job.env("PARTAGE_PROFILE", "none").env_remove("PARTAGE_COLL");
                for &(name, value) in settings {
                    match value {
                        Some(value) => job.env(name, value),
                        None => job.env_remove(name),
                    };
                }
            };
            programs.add_job(n, plain, &args)?;
        }
        Ok(Sampler { programs, ranks: ranks.to_vec(), cores, window })
    }

    /// Tells the jobs to end.
    pub fn end(self) -> Result<(), String> {
        self.programs.end()
    }

    fn ask(&mut self, job: usize, what: &What, (calls, batches): (u64, u64)) -> Result<f64, String> {
        let What { operation, bytes, mode, private, touched, rotating, algorithm } = *what;
        let by = By::Named(algorithm);
        let sample = Sample { operation, bytes, mode, by, touched, rotating, private, calls, batches };
        let asked = self.programs.ask(job, Order::Sample(sample));
        asked.map_err(|why| format!("{} of {bytes} bytes on {} ranks: {why}", operation.name(), self.ranks[job]))
    }
}

impl Samples for Sampler {
    fn fit(&mut self, what: &What) -> Result<(Fit, Vec<f64>), String> {
        let (mut fit, mut times) = (vec![], vec![]);
        for job in 0..self.ranks.len() {
            let ranks = self.ranks[job] as u64;
            // As many for each root.
            let multiple = if what.operation.is_rooted() { ranks } else { 1 };
            let count = |window: f64, time: f64| ((window / time.max(0.001)) as u64).max(2).next_multiple_of(multiple);
            // The first is for pages and plans.
            self.ask(job, what, (multiple, 1))?;
            let mut time = self.ask(job, what, (multiple, 1))?;
            if time * (multiple as f64) < self.window / 8.0 {
                time = self.ask(job, what, (count(self.window / 8.0, time), 1))?;
            }
            let batch = count(BATCH, time);
            fit.push(match self.ranks[job] > self.cores {
                true => (count(self.window, time), 1),
                false => (batch, (self.window / BATCH.max(time * batch as f64)).ceil() as u64 + 2),
            });
            times.push(time);
        }
        Ok((fit, times))
    }

    fn take(&mut self, what: &What, fit: &Fit) -> Result<Vec<f64>, String> {
        (0..self.ranks.len()).map(|job| self.ask(job, what, fit[job])).collect()
    }
}
