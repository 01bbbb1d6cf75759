//! The machine as this process may use it: cores, CPU quota, memory, huge pages. Read from the kernel, never assumed.

use rustix::thread::CpuSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The cores that this thread may run on.
pub fn allowed_cores() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&c| set.is_set(c)).collect(),
        // More than 1024 cores: the mask does not fit, so assume that it is full.
        Err(_) => (0..std::thread::available_parallelism().map_or(1, usize::from)).collect(),
    }
}

/// The name of the processor, and how many cores the machine has, whoever may use them.
pub fn processor() -> (String, usize) {
    parse_processor(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

fn parse_processor(text: &str) -> (String, usize) {
    let values = |name: &'static str| {
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        pairs.filter(move |(key, _)| key.trim() == name).map(|(_, value)| value.trim())
    };
    // Where processors have numbers and no names, those are the name.
    let number = ["CPU implementer", "CPU part"].map(|key| values(key).next());
    let name = match (values("model name").next(), number) {
        (Some(name), _) => name.into(),
        (None, [Some(maker), Some(part)]) => format!("{} {maker} {part}", std::env::consts::ARCH),
        (None, _) => std::env::consts::ARCH.into(),
    };
    (name, values("processor").count().max(1))
}

/// Binds this thread to one core.
pub fn bind_to(core: usize) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput));
    }
    set.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Lets this thread run on these cores again.
pub fn allow(cores: &[usize]) {
    let mut set = CpuSet::new();
    cores.iter().filter(|&&c| c < CpuSet::MAX_CPU).for_each(|&c| set.set(c));
    // Nothing is lost if the system refuses.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// CPUs that the control groups grant, up the hierarchy: the smallest quota divided by its period.
pub fn cpu_quota() -> Option<f64> {
    let v2 = |dir: &Path| {
        let text = fs::read_to_string(dir.join("cpu.max")).ok()?;
        let (quota, period) = text.trim().split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    };
    let v1 = |dir: &Path| {
        let quota = number(&dir.join("cpu.cfs_quota_us"))?;
        let period = number(&dir.join("cpu.cfs_period_us"))?;
        (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
    };
    smallest(groups("").iter().filter_map(|d| v2(d)).chain(groups("cpu").iter().filter_map(|d| v1(d))))
}

/// Do the ranks of a node have a core each? `masks` holds one rank's allowed cores each; `quota` is the CPU quota.
pub fn have_own_cores(masks: &[Vec<usize>], quota: Option<f64>) -> bool {
    let mut union: Vec<usize> = masks.iter().flatten().copied().collect();
    union.sort_unstable();
    union.dedup();
    let cores = union.len().min(quota.map_or(usize::MAX, |q| q.floor().max(1.0) as usize));
    // Ranks whose masks lie within one mask must find room in it. For masks that are equal, disjoint or nested, which
    // is what binders produce, this is exact.
    let mut distinct = masks.to_vec();
    distinct.sort();
    distinct.dedup();
    masks.len() <= cores
        && distinct.iter().all(|m| masks.iter().filter(|x| x.iter().all(|c| m.contains(c))).count() <= m.len())
}

/// Bytes that could be allocated now without being killed for it: what the machine has available and what the memory
/// control groups leave, up the hierarchy. Racy by nature: others allocate too.
pub fn memory_left() -> u64 {
    let machine = meminfo("MemAvailable:").unwrap_or(u64::MAX);
    memory_groups().map(|(limit, used)| limit.saturating_sub(used)).fold(machine, u64::min)
}

/// The memory that this process may ever have: the machine's, or the smallest limit of its control groups.
pub fn memory_total() -> u64 {
    let machine = meminfo("MemTotal:").unwrap_or(1 << 34);
    memory_groups().map(|(limit, _)| limit).fold(machine, u64::min)
}

/// Limit and use of each memory control group of this process that has a limit. Page cache that can be dropped does
/// not count as used.
fn memory_groups() -> impl Iterator<Item = (u64, u64)> {
    let v2 = groups("").into_iter().filter_map(|d| {
        let used = number(&d.join("memory.current"))?;
        Some((number(&d.join("memory.max"))? as u64, (used as u64).saturating_sub(inactive_file(&d, "inactive_file"))))
    });
    let v1 = groups("memory").into_iter().filter_map(|d| {
        let used = number(&d.join("memory.usage_in_bytes"))?;
        let limit = number(&d.join("memory.limit_in_bytes"))?;
        Some((limit as u64, (used as u64).saturating_sub(inactive_file(&d, "total_inactive_file"))))
    });
    v2.chain(v1)
}

fn inactive_file(dir: &Path, key: &str) -> u64 {
    let text = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let value = text.lines().find_map(|l| l.strip_prefix(key)?.trim().parse().ok());
    value.unwrap_or(0)
}

fn meminfo(key: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with(key))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

/// The directories of this process's control group and its parents: of controller `name` (v1), or of v2 for "".
fn groups(name: &str) -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = text.lines().find_map(|l| {
        let mut fields = l.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        controllers.split(',').any(|c| c == name).then_some(path)
    });
    let Some(path) = path else { return vec![] };
    let roots: &[&str] = match name {
        "" => &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
        "cpu" => &["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"],
        _ => &["/sys/fs/cgroup/memory"],
    };
    let up = Path::new(path.trim_start_matches('/')).ancestors();
    up.flat_map(|p| roots.iter().map(move |r| Path::new(r).join(p))).filter(|d| d.is_dir()).collect()
}

fn number(file: &Path) -> Option<i64> {
    let n: i64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    // "No limit" in v1 is a number near 2^63.
    (n < 1 << 60).then_some(n)
}

fn smallest(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.fold(None, |least, v| Some(least.map_or(v, |l: f64| l.min(v))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cores_only_where_every_rank_finds_one() {
        let all: Vec<usize> = (0..4).collect();
        let n = |k: usize| vec![all.clone(); k];
        assert!(have_own_cores(&n(4), None));
        assert!(!have_own_cores(&n(5), None));
        assert!(!have_own_cores(&n(4), Some(3.9)));
        assert!(have_own_cores(&n(3), Some(3.9)));
        assert!(have_own_cores(&n(1), Some(0.5)));
        assert!(!have_own_cores(&n(2), Some(0.5)));
        let bound = |cores: &[usize]| cores.iter().map(|&c| vec![c]).collect::<Vec<_>>();
        assert!(have_own_cores(&bound(&[0, 1, 2]), None));
        assert!(!have_own_cores(&bound(&[0, 1, 1]), None));
        // Two halves, one too full.
        let halves = [vec![0, 1], vec![0, 1], vec![0, 1], vec![2, 3]];
        assert!(!have_own_cores(&halves, None));
        // One rank anywhere, the others bound: it finds the last core.
        assert!(have_own_cores(&[all, vec![0], vec![1], vec![2]], None));
    }

    #[test]
    fn processors_have_names() {
        let text =
            "processor\t: 0\nmodel name\t: Some: CPU @ 2 GHz\n\nprocessor\t: 1\nmodel name\t: Some: CPU @ 2 GHz\n";
        assert_eq!(parse_processor(text), ("Some: CPU @ 2 GHz".into(), 2));
        let text = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert_eq!(parse_processor(text), (format!("{} 0x41 0xd0c", std::env::consts::ARCH), 1));
        assert_eq!(parse_processor("").1, 1);
    }

    #[test]
    fn this_machine_has_cores_and_memory() {
        assert!(!allowed_cores().is_empty());
        assert!(memory_left() > 0 && memory_left() <= memory_total());
    }
}
