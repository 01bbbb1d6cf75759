//! `partage info --network`: what a job over hosts would use here, what each line means, and a test that needs no other host.

use super::{asked, plain};
use comfy_table::ContentArrangement;
use partage_conduit::ofi::endpoint::{Asked, Endpoint};
use partage_conduit::ofi::interfaces::{Interface, interfaces};
use partage_conduit::ofi::selftest::{self, Report};
use partage_conduit::shm::bytes;
use rustix::process::{Resource, Rlimit, getrlimit};
use std::time::Duration;

/// The test takes no longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Prints it; 1 if there is no network, or it fails.
pub fn info() -> i32 {
    let version = match Endpoint::version() {
        Ok(version) => version,
        Err(why) => {
            eprintln!("partage: no network between nodes: {why}");
            return 1;
        }
    };
    let (mut asked, all) = (asked(), interfaces());
    let chosen = asked.source.clone().or_else(|| first(&all).map(|i| i.address.to_string()));
    asked.source = chosen.clone().or_else(|| Some("127.0.0.1".into()));
    let opened = Endpoint::open(&asked);
    let tested = match &opened {
        Ok(_) => selftest::test(&asked, PATIENCE),
        Err(why) => Err(why.clone()),
    };
    let mut table = plain();
    table.set_content_arrangement(ContentArrangement::Dynamic);
    for (what, value, meaning) in rows(&version, &asked, &all, chosen.as_deref(), &opened, &tested) {
        table.add_row([format!("  {what}"), value, meaning]);
    }
    out!("Network between nodes\n{table}");
    match tested {
        Ok(_) => 0,
        Err(why) => {
            let (provider, source) =
                (asked.provider.as_deref().unwrap_or("tcp"), asked.source.as_deref().unwrap_or_default());
            eprintln!("partage: the network does not work on this host ({provider} on {source}): {why}");
            1
        }
    }
}

/// What a job takes if all hosts share its subnet.
fn first(all: &[Interface]) -> Option<&Interface> {
    all.iter().find(|i| !i.is_loopback)
}

fn rows(
    version: &str,
    asked: &Asked,
    all: &[Interface],
    chosen: Option<&str>,
    opened: &Result<Endpoint, String>,
    tested: &Result<Report, String>,
) -> Vec<(&'static str, String, String)> {
    let row = |what, value: String, meaning: &str| (what, value, meaning.to_string());
    let list = |i: &Interface| format!("{} {}/{}", i.name, i.address, i.prefix);
    let mut rows = vec![
        row("library", format!("libfabric {version}"), "found at run time; PARTAGE_LIBFABRIC names another file"),
        row(
            "interfaces",
            if all.is_empty() { "none".into() } else { all.iter().map(list).collect::<Vec<_>>().join(", ") },
            "those that are up, with their subnets",
        ),
        row(
            "interface",
            chosen.unwrap_or("none but loopback").into(),
            match std::env::var_os("PARTAGE_INTERFACE").is_some_and(|v| !v.is_empty()) {
                true => "as PARTAGE_INTERFACE says",
                false => {
                    "the first; with other hosts, the first whose subnet all have. PARTAGE_INTERFACE=ADDRESS on each host chooses"
                }
            },
        ),
    ];
    let wanted = asked.provider.as_deref().unwrap_or("tcp");
    match opened {
        Err(why) => rows.push(row("provider", format!("{wanted}: {why}"), "PARTAGE_PROVIDER chooses; `tcp` is everywhere")),
        Ok(endpoint) => rows.extend([
            row("provider", endpoint.provider(), "what answered, with its layers; PARTAGE_PROVIDER chooses (tcp if not said)"),
            row(
                "address",
                endpoint.address_text(),
                "such a one has each process, with a port that the system gives it: firewalls must let all ports pass between the hosts",
            ),
            row("mr_mode", mr_mode(endpoint.mr_mode()), "what the provider asks of memory that it is to reach, as in fi_mr(3)"),
            row("inject size", format!("{} bytes", endpoint.inject_size()), "messages up to this are copied at once"),
            row("largest message", largest(endpoint.max_message_size() as u64), "longer puts and gets go in parts"),
            row("data with a put", format!("{} bytes", endpoint.cq_data_size()), "what a long put can carry to announce itself"),
            row("signals", super::signals().unwrap_or_else(|why| why), "how a put that signals goes; PARTAGE_SIGNAL chooses"),
        ]),
    }
    rows.push(row(
        "locked memory",
        memlock(&getrlimit(Resource::Memlock)),
        "RLIMIT_MEMLOCK (ulimit -l): adapters that register memory lock it; tcp does not",
    ));
    rows.push(match tested {
        Ok(Report { message, put }) => row(
            "self-test",
            format!("passed: message {} µs, put {} µs", message.as_micros(), put.as_micros()),
            "4 KiB and 8 bytes between two endpoints of this process, by that interface; the first makes the connection",
        ),
        Err(why) => row("self-test", format!("failed: {why}"), "between two endpoints of this process, by that interface"),
    });
    rows
}

/// Providers without a limit say one that nothing reaches.
fn largest(len: u64) -> String {
    if len < 1 << 50 { bytes(len) } else { "no limit".into() }
}

/// The bits with their names, as fi_mr(3) has them.
fn mr_mode(mode: i32) -> String {
    const NAMES: [(i32, &str); 9] = [
        (1 << 2, "LOCAL"),
        (1 << 3, "RAW"),
        (1 << 4, "VIRT_ADDR"),
        (1 << 5, "ALLOCATED"),
        (1 << 6, "PROV_KEY"),
        (1 << 7, "MMU_NOTIFY"),
        (1 << 8, "RMA_EVENT"),
        (1 << 9, "ENDPOINT"),
        (1 << 10, "HMEM"),
    ];
    let names: Vec<&str> = NAMES.iter().filter(|(bit, _)| mode & bit != 0).map(|&(_, name)| name).collect();
    if names.is_empty() { format!("{mode:#x}: nothing") } else { format!("{mode:#x}: {}", names.join(", ")) }
}

fn memlock(limit: &Rlimit) -> String {
    let size = |limit: Option<u64>| limit.map_or("unlimited".into(), bytes);
    match (limit.current, limit.maximum) {
        (current, maximum) if current == maximum => size(current),
        (current, maximum) => format!("{}, at most {}", size(current), size(maximum)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_limits_are_said_in_words() {
        assert_eq!(mr_mode(0), "0x0: nothing");
        assert_eq!(mr_mode(1 << 2 | 1 << 9), "0x204: LOCAL, ENDPOINT");
        assert_eq!([largest(1 << 30), largest(u64::MAX)], [bytes(1 << 30), "no limit".into()]);
        let limit = |current, maximum| memlock(&Rlimit { current, maximum });
        assert_eq!(limit(None, None), "unlimited");
        assert_eq!(limit(Some(8 << 20), Some(8 << 20)), bytes(8 << 20));
        assert_eq!(limit(Some(0), None), format!("{}, at most unlimited", bytes(0)));
    }
}
