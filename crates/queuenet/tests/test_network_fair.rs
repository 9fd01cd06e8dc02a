//! Fairly shared links: shares, order and flow control by their closed forms. First come first served misses each of
//! these forms.

use penstock_queuenet::network::{simulate, Network, Outcome, TaskRow, Workload};
use serde_json::{json, Value};

const C: f64 = 1024.0;
const S: f64 = 1_048_576.0;
const F: f64 = 65_536.0;
const B: f64 = 12.5e6;
const MU: f64 = 0.001;
const MU_MANAGER: f64 = 0.0005;
const MIB: u64 = 1 << 20;

fn link(out: f64, inwards: f64) -> Value {
    json!({"out_bps": out, "in_bps": inwards, "loopback_bps": 125e6})
}

/// A host that runs up to 16 tasks and has storage.
fn host(name: &str) -> Value {
    json!({"name": name, "network": link(B, B), "client": {"slots": 16},
           "storage": {"read": {"s_per_byte": MU / S}, "write": {"s_per_byte": MU / S}}})
}

/// Fairly shared network of hosts `h0`, `h1`, … and the manager `m`.
fn network(n: usize) -> Value {
    let mut hosts: Vec<Value> = (0..n).map(|i| host(&format!("h{i}"))).collect();
    hosts.push(json!({"name": "m", "network": link(B, B), "manager": {"service": MU_MANAGER}}));
    json!({"schema": "penstock/network/1", "hosts": hosts, "fabric": {"sharing": "fair"},
           "store": {"chunk_bytes": MIB, "shuffle": "none"}})
}

fn as_fifo(network: &Value) -> Value {
    let mut network = network.clone();
    network["fabric"]["sharing"] = json!("fifo");
    network
}

fn write(file: &str, bytes: u64) -> Value {
    json!({"op": "write", "file": file, "size_bytes": bytes})
}

fn read(file: &str, bytes: u64) -> Value {
    json!({"op": "read", "file": file, "size_bytes": bytes})
}

fn task(name: &str, machine: &str, operations: Value) -> Value {
    json!({"name": name, "machine": machine, "operations": operations})
}

/// `at`: host of each file. Files with a size exist before the run.
fn workload(at: &[(&str, &str, Option<u64>)], tasks: Vec<Value>) -> Value {
    let files: Vec<Value> = at
        .iter()
        .map(|(name, host, size)| {
            let mut file = json!({"name": name, "hints": {"host": host}});
            if let Some(size) = size {
                file["size_bytes"] = json!(size);
                file["preloaded"] = json!(true);
            }
            file
        })
        .collect();
    json!({"schema": "penstock/workload/1", "files": files, "tasks": tasks})
}

fn run(workload: &Value, network: &Value) -> Outcome {
    let workload = Workload::from_json(&workload.to_string()).unwrap();
    let network = Network::from_json(&network.to_string()).unwrap();
    let outcome = simulate(&workload, &network, 1, true).unwrap();
    assert_eq!(outcome.error, None);
    outcome
}

fn row<'a>(outcome: &'a Outcome, name: &str) -> &'a TaskRow {
    let rows = outcome.tasks.as_ref().unwrap();
    rows.iter().find(|row| row.name == name).unwrap()
}

fn took(outcome: &Outcome, name: &str) -> f64 {
    let row = row(outcome, name);
    row.end_s - row.start_s
}

fn near(actual: f64, expected: f64, within_s: f64) {
    assert!(
        (actual - expected).abs() <= within_s,
        "{actual} s; {expected} s within {within_s} s are expected"
    );
}

fn exactly(actual: f64, expected: f64) {
    assert!(
        (actual / expected - 1.0).abs() < 1e-6,
        "{actual} s; {expected} s are expected"
    );
}

/// One client and one target: the closed forms of first come first served apply unchanged.
#[test]
fn lone_flow_is_unchanged() {
    let chain_of = |chunks: u64| {
        workload(
            &[("f", "h1", None)],
            vec![task("w", "h0", json!([write("f", chunks * MIB)]))],
        )
    };
    let k = 10.0;
    let mut platform = network(2);
    let form = 10.0 * C / B + 2.0 * MU_MANAGER + k * S / B + F / B + MU;
    exactly(run(&chain_of(10), &platform).makespan_s, form);
    platform["fabric"]["latency_s"] = json!(0.001);
    exactly(run(&chain_of(10), &platform).makespan_s, form + 0.006);
    // a latency that hides several frames, on a link that must not run dry
    platform["fabric"]["latency_s"] = json!(0.1);
    exactly(run(&chain_of(10), &platform).makespan_s, form + 0.6);
    // a receiver with a tenth of the rate, and a sender with a tenth of the rate
    for (host, way) in [(1, "in_bps"), (0, "out_bps")] {
        let mut slow = network(2);
        slow["hosts"][host]["network"][way] = json!(B / 10.0);
        let (fast, slow_link) = (F / B, 10.0 * S * k / B);
        let control = match way {
            "in_bps" => 10.0 * C / B,
            // the client's own two control messages have that rate
            _ => 8.0 * C / B + 2.0 * 10.0 * C / B,
        };
        exactly(
            run(&chain_of(10), &slow).makespan_s,
            control + 2.0 * MU_MANAGER + slow_link + fast + MU,
        );
    }
    let readers = workload(
        &[("f", "h1", Some(10 * MIB))],
        vec![task(
            "r",
            "h0",
            json!([{"op": "open", "file": "f"}, read("f", 10 * MIB)]),
        )],
    );
    let mut slow = network(2);
    exactly(
        run(&readers, &slow).makespan_s,
        6.0 * C / B + MU_MANAGER + MU + k * S / B + F / B,
    );
    for way in ["read", "write"] {
        slow["hosts"][1]["storage"][way] = json!({"s_per_byte": 0.2 / S});
    }
    let stored = 2.0 * MU_MANAGER + S / B + F / B + k * 0.2;
    exactly(run(&chain_of(10), &slow).makespan_s, 10.0 * C / B + stored);
    exactly(
        run(&readers, &slow).makespan_s,
        6.0 * C / B + MU_MANAGER + k * 0.2 + S / B + F / B,
    );
}

#[test]
fn lone_copies_are_unchanged() {
    let only = json!({"schema": "penstock/workload/1",
                      "tasks": [task("w", "h3", json!([write("f", MIB)]))]});
    let mut platform = network(4);
    platform["hosts"][3]["storage"] = Value::Null;
    platform["store"]["replicas"] = json!(3);
    let r = 3.0;
    let common = (8.0 + 2.0 * r) * C / B + 2.0 * MU_MANAGER;
    exactly(
        run(&only, &platform).makespan_s,
        common + r * (S / B + F / B + MU),
    );
    platform["store"]["forward"] = json!("frame");
    let streamed = run(&only, &platform);
    exactly(
        streamed.makespan_s,
        common + S / B + (2.0 * r - 1.0) * F / B + MU,
    );
    let path: f64 = streamed.stations.iter().map(|row| row.critical_s).sum();
    assert!((path / streamed.makespan_s - 1.0).abs() < 1e-5, "{path}");
    // copies go to two hosts at once, frame by frame in turn: the last frames of both are the last ones of all
    platform["store"]["replication"] = json!("parallel");
    exactly(
        run(&only, &platform).makespan_s,
        12.0 * C / B + 2.0 * MU_MANAGER + r * S / B + 2.0 * F / B + 2.0 * MU,
    );
}

/// `n` flows over one link, each with `bytes`: all end after `n` times the time of one, within the frames that are
/// sent in turn. With first come first served they end one after the other.
fn together(workload: &Value, network: &Value, n: usize, bytes: f64) {
    let tolerance_s = n as f64 * F / B + 0.002;
    let joint_s = n as f64 * bytes / B;
    let fair = run(workload, network);
    for i in 0..n {
        near(took(&fair, &format!("t{i}")), joint_s, tolerance_s);
    }
    let fifo = run(workload, &as_fifo(network));
    let earliest = (0..n).map(|i| took(&fifo, &format!("t{i}")));
    assert!(earliest.fold(f64::INFINITY, f64::min) < 0.6 * joint_s);
    near(fair.makespan_s, fifo.makespan_s, tolerance_s);
}

fn unmanaged(n: usize) -> Value {
    let mut network = network(n);
    network["store"]["allocation"] = json!("none");
    network
}

#[test]
fn equal_flows_through_one_out_queue_end_together() {
    for n in [2, 3, 5] {
        let names: Vec<(String, String)> = (0..n)
            .map(|i| (format!("f{i}"), format!("h{}", i + 1)))
            .collect();
        let at: Vec<(&str, &str, Option<u64>)> = names
            .iter()
            .map(|(file, host)| (file.as_str(), host.as_str(), None))
            .collect();
        let tasks = (0..n)
            .map(|i| {
                task(
                    &format!("t{i}"),
                    "h0",
                    json!([write(&format!("f{i}"), 10 * MIB)]),
                )
            })
            .collect();
        together(&workload(&at, tasks), &unmanaged(n + 1), n, 10.0 * S);
    }
}

#[test]
fn readers_of_one_server_end_together() {
    let tasks = (0..3)
        .map(|i| {
            task(
                &format!("t{i}"),
                &format!("h{}", i + 1),
                json!([read("f", 10 * MIB)]),
            )
        })
        .collect();
    let mut work = workload(&[("f", "h0", Some(10 * MIB))], tasks);
    // one chunk each, as in stores with large chunks
    work["files"][0]["hints"]["chunk_bytes"] = json!(10 * MIB);
    let mut platform = unmanaged(4);
    platform["hosts"][0]["storage"]["read"] = json!(0);
    together(&work, &platform, 3, 10.0 * S);
}

/// One host reads a large file from one server while it reads from three others: its in-queue has no backlog that
/// delays the new flow.
#[test]
fn late_flow_gets_its_share_immediately() {
    let mut tasks: Vec<Value> = (0..3)
        .map(|i| {
            task(
                &format!("t{i}"),
                "h0",
                json!([read(&format!("f{i}"), 40 * MIB)]),
            )
        })
        .collect();
    let mut late = task("late", "h0", json!([read("g", 2 * MIB)]));
    late["not_before_s"] = json!(2.0);
    tasks.push(late);
    let at = [
        ("f0", "h1", Some(40 * MIB)),
        ("f1", "h2", Some(40 * MIB)),
        ("f2", "h3", Some(40 * MIB)),
        ("g", "h4", Some(2 * MIB)),
    ];
    let (work, platform) = (workload(&at, tasks), unmanaged(5));
    // a quarter of the link's rate
    near(
        took(&run(&work, &platform), "late"),
        4.0 * 2.0 * S / B,
        12.0 * F / B,
    );
    // with first come first served it waits for everything that the three sent in 2 s
    assert!(took(&run(&work, &as_fifo(&platform)), "late") > 3.0);
}

#[test]
fn flows_through_a_shared_link_end_together() {
    let at = [("f0", "h2", None), ("f1", "h3", None)];
    let tasks = (0..2)
        .map(|i| {
            task(
                &format!("t{i}"),
                &format!("h{i}"),
                json!([write(&format!("f{i}"), 10 * MIB)]),
            )
        })
        .collect();
    let work = workload(&at, tasks);
    for link in ["capacity_bps", "rack_uplink_bps"] {
        let mut platform = unmanaged(4);
        platform["fabric"][link] = json!(B / 2.0);
        for far in [2, 3] {
            platform["hosts"][far]["rack"] = json!(1);
        }
        let outcome = run(&work, &platform);
        for name in ["t0", "t1"] {
            near(took(&outcome, name), 4.0 * 10.0 * S / B, 12.0 * F / B);
        }
        let share: f64 = outcome.stations.iter().map(|row| row.critical_s).sum();
        assert!((share / outcome.makespan_s - 1.0).abs() < 1e-4, "{share}");
    }
}

/// A flow of small chunks gets as many bytes as a flow of large ones.
#[test]
fn shares_are_in_bytes() {
    let mut work = workload(
        &[("small", "h1", None), ("large", "h2", None)],
        vec![
            task("s", "h0", json!([write("small", 8 * MIB)])),
            task("l", "h0", json!([write("large", 8 * MIB)])),
        ],
    );
    work["files"][0]["hints"]["chunk_bytes"] = json!(4096);
    let outcome = run(&work, &unmanaged(3));
    near(took(&outcome, "l"), 2.0 * 8.0 * S / B, 6.0 * F / B);
    // its storage and its control messages take a little longer
    near(took(&outcome, "s"), 2.0 * 8.0 * S / B, 0.03);
}

/// Opening a file during a transfer of 40 MiB by the same host waits for at most a frame in each direction.
#[test]
fn control_messages_pass_data() {
    let idle = 4.0 * C / B + MU_MANAGER;
    for transfer in [write("f", 40 * MIB), read("g", 40 * MIB)] {
        let mut open = task("open", "h0", json!([{"op": "open", "file": "f"}]));
        open["not_before_s"] = json!(1.0);
        let at = [("f", "h1", None), ("g", "h1", Some(40 * MIB))];
        let tasks = vec![
            task("t", "h0", json!([transfer])),
            open,
            // a task that writes the file
            task("other", "h1", json!([write("f", 1)])),
        ];
        let work = workload(&at, tasks);
        let fair = took(&run(&work, &network(2)), "open");
        assert!(fair >= idle - 1e-9, "{fair}");
        assert!(fair <= idle + 2.0 * F / B, "{fair}");
    }
    // with first come first served it waits for the complete write
    let mut open = task("open", "h0", json!([{"op": "open", "file": "f"}]));
    open["not_before_s"] = json!(1.0);
    let tasks = vec![task("t", "h0", json!([write("f", 40 * MIB)])), open];
    let work = workload(&[("f", "h1", None)], tasks);
    assert!(took(&run(&work, &as_fifo(&network(2))), "open") > 2.0);
    assert!(took(&run(&work, &network(2)), "open") <= idle + 2.0 * F / B);
}

/// Max-min fairness: other flows of a sender use the share of its link that a slow receiver cannot use.
#[test]
fn a_slow_receiver_leaves_its_share_to_others() {
    let at = [("slow", "h1", None), ("fast", "h2", None)];
    let tasks = vec![
        task("t0", "h0", json!([write("slow", 10 * MIB)])),
        task("t1", "h0", json!([write("fast", 10 * MIB)])),
    ];
    let work = workload(&at, tasks);
    let mut platform = unmanaged(3);
    platform["hosts"][1]["network"]["in_bps"] = json!(B / 4.0);
    let outcome = run(&work, &platform);
    near(took(&outcome, "t0"), 4.0 * 10.0 * S / B, 8.0 * F / B);
    near(took(&outcome, "t1"), 10.0 * S / (0.75 * B), 8.0 * F / B);
}

/// With a window of `w` at most `w` chunk requests are at the only server, which is so slow that all requests in flight
/// meet there.
#[test]
fn window_bounds_requests_in_flight() {
    let at = [("f", "h1", None), ("g", "h1", Some(12 * MIB))];
    for operation in [write("f", 12 * MIB), read("g", 12 * MIB)] {
        let work = workload(&at, vec![task("t", "h0", json!([operation]))]);
        for sharing in ["fifo", "fair"] {
            for window in [1u64, 2, 5] {
                let mut platform = unmanaged(2);
                platform["fabric"]["sharing"] = json!(sharing);
                for way in ["read", "write"] {
                    platform["hosts"][1]["storage"][way] = json!(10.0);
                }
                let waiting = |network: &Value| {
                    let outcome = run(&work, network);
                    let rows = &outcome.stations;
                    let row = rows.iter().find(|row| row.name == "h1/storage").unwrap();
                    assert_eq!(row.requests, 12);
                    row.queue_max
                };
                assert_eq!(waiting(&platform), 11, "one is served, all others wait");
                platform["store"]["window"] = json!(window);
                assert_eq!(waiting(&platform), window - 1);
            }
        }
    }
}
