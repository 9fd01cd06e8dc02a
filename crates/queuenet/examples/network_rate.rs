//! Simulation rate of stores on one core: `cargo run --release -p penstock-queuenet --example network_rate [RUNS
//! [NAME]]`. With NAME only the cases that contain it are run.
//!
//! An event is one completion of a service at one queue: a frame at an out-queue, a frame at an in-queue, a message at
//! a loopback, a request at a component. A train of merged frames counts once at each of its two queues. A request is
//! a chunk that storage serves. Each figure is the median of RUNS (default 3). Rates are per CPU time, which other work
//! on the machine affects less than wall time.

use std::time::Instant;

use penstock_queuenet::network::{simulate, simulate_many, Batch, Network, Outcome, Workload};
use serde_json::{json, Value};

const MIB: u64 = 1 << 20;

fn network(hosts: usize, replicas: u32, merge: bool) -> Value {
    let per_chunk = json!({"s_per_byte": 1e-3 / MIB as f64});
    let link = json!({"out_bps": 125e6, "in_bps": 125e6, "loopback_bps": 1e9});
    let mut all: Vec<Value> = (0..hosts)
        .map(|i| {
            json!({"name": format!("h{i}"), "network": link, "client": {},
                   "storage": {"read": per_chunk, "write": per_chunk}})
        })
        .collect();
    all.push(json!({"name": "manager", "network": link, "manager": {"service": 0.0001}}));
    json!({"schema": "penstock/network/1", "hosts": all,
           "store": {"chunk_bytes": MIB, "replicas": replicas},
           "protocol": {"merge_frames": merge}})
}

fn task(name: String, operations: Vec<Value>) -> Value {
    json!({"name": name, "operations": operations})
}

fn read(file: &str, bytes: u64) -> [Value; 2] {
    [
        json!({"op": "open", "file": file}),
        json!({"op": "read", "file": file, "size_bytes": bytes}),
    ]
}

fn write(file: String, bytes: u64) -> Value {
    json!({"op": "write", "file": file, "size_bytes": bytes})
}

fn workload(files: Vec<Value>, tasks: Vec<Value>) -> Workload {
    let text = json!({"schema": "penstock/workload/1", "files": files, "tasks": tasks});
    Workload::from_json(&text.to_string()).expect("a workload")
}

/// The published reduce (Costa 2014): every node stages a file in and writes another from it; one node reads them all
/// and writes as much.
fn reduce(nodes: u64, bytes: u64, hints: bool) -> Workload {
    let mut files = Vec::new();
    let mut tasks = Vec::new();
    let mut all = Vec::new();
    for i in 0..nodes {
        let (staged, intermediate) = (format!("in{i}"), format!("mid{i}"));
        tasks.push(task(
            format!("stage{i}"),
            vec![write(staged.clone(), bytes)],
        ));
        let mut operations = read(&staged, bytes).to_vec();
        operations.push(write(intermediate.clone(), bytes));
        tasks.push(task(format!("make{i}"), operations));
        all.extend(read(&intermediate, bytes));
        if hints {
            files.push(json!({"name": staged, "hints": {"placement": "local"}}));
            files.push(
                json!({"name": intermediate, "hints": {"placement": "collocate", "group": "g"}}),
            );
        }
    }
    all.push(write("out".into(), nodes * bytes));
    if hints {
        files.push(json!({"name": "out", "hints": {"placement": "local"}}));
    }
    tasks.push(task("reduce".into(), all));
    workload(files, tasks)
}

/// Every node writes a file and reads the file of its neighbour.
fn exchange(nodes: usize, chunks: u64) -> Workload {
    let mut tasks = Vec::new();
    for i in 0..nodes {
        tasks.push(task(
            format!("w{i}"),
            vec![write(format!("f{i}"), chunks * MIB)],
        ));
        let other = format!("f{}", (i + 1) % nodes);
        tasks.push(task(format!("r{i}"), read(&other, chunks * MIB).to_vec()));
    }
    workload(Vec::new(), tasks)
}

/// A thousand tasks like those of Montage: projections, differences of neighbours, a fit, corrections, one mosaic.
fn montage() -> Workload {
    let n = 250;
    let mut files = Vec::new();
    let mut tasks = Vec::new();
    for i in 0..n {
        let raw = format!("raw{i}");
        files.push(json!({"name": raw, "size_bytes": 4 * MIB, "preloaded": true}));
        let mut operations = read(&raw, 4 * MIB).to_vec();
        operations.push(json!({"op": "compute", "seconds": 1.5}));
        operations.push(write(format!("proj{i}"), 8 * MIB));
        tasks.push(task(format!("project{i}"), operations));
    }
    for i in 0..498 {
        let mut operations = read(&format!("proj{}", i % n), 8 * MIB).to_vec();
        operations.extend(read(&format!("proj{}", (i * 7 + 1) % n), 8 * MIB));
        operations.push(json!({"op": "compute", "seconds": 0.3}));
        operations.push(write(format!("diff{i}"), MIB / 4));
        tasks.push(task(format!("diff{i}"), operations));
    }
    let mut fit = Vec::new();
    for i in 0..498 {
        fit.extend(read(&format!("diff{i}"), MIB / 4));
    }
    fit.push(write("fit".into(), MIB));
    tasks.push(task("fit".into(), fit));
    let mut mosaic = Vec::new();
    for i in 0..n {
        let mut operations = read("fit", MIB).to_vec();
        operations.extend(read(&format!("proj{i}"), 8 * MIB));
        operations.push(write(format!("corr{i}"), 8 * MIB));
        tasks.push(task(format!("correct{i}"), operations));
        mosaic.extend(read(&format!("corr{i}"), 8 * MIB));
    }
    mosaic.push(write("mosaic".into(), 1000 * MIB));
    tasks.push(task("mosaic".into(), mosaic));
    workload(files, tasks)
}

fn timed(name: &str, runs: usize, workload: &Workload, network: &Value) {
    if !std::env::args()
        .nth(2)
        .is_none_or(|pattern| name.contains(&pattern))
    {
        return;
    }
    let network = Network::from_json(&network.to_string()).expect("a network");
    let (mut walls, mut cpus) = (Vec::new(), Vec::new());
    let mut last: Option<Outcome> = None;
    for seed in 0..runs as u64 {
        // the kernel counts CPU time in milliseconds: repeat short runs
        let (start, cpu, mut times) = (Instant::now(), cpu_s(), 0.0);
        let outcome = loop {
            let outcome = simulate(workload, &network, seed, false).expect("a run");
            times += 1.0;
            if start.elapsed().as_secs_f64() > 0.2 {
                break outcome;
            }
        };
        walls.push(start.elapsed().as_secs_f64() / times);
        cpus.push((cpu_s() - cpu) / times);
        assert_eq!(outcome.error, None);
        last = Some(outcome);
    }
    walls.sort_by(f64::total_cmp);
    cpus.sort_by(f64::total_cmp);
    let cpu = cpus[cpus.len() / 2];
    let (wall, outcome) = (walls[walls.len() / 2], last.expect("at least one run"));
    println!(
        "{name:46} {wall:8.4} s wall {cpu:8.4} s CPU {:6.2} M events/s {:6.3} M requests/s",
        outcome.events as f64 / cpu / 1e6,
        outcome.requests as f64 / cpu / 1e6,
    );
}

/// CPU time of this thread, seconds (`/proc/thread-self/schedstat`, first field).
fn cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
    ns.unwrap_or(0.0) / 1e9
}

fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_else(|_| "unknown".into())
}

fn main() {
    let runs = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(3);
    println!("load before: {}", load().trim());
    for hosts in [50, 200, 1000] {
        let work = exchange(hosts, 100_000 / hosts as u64);
        timed(
            &format!("exchange, {hosts} hosts, by frame"),
            runs,
            &work,
            &network(hosts, 1, false),
        );
        timed(
            &format!("exchange, {hosts} hosts, merged"),
            runs,
            &work,
            &network(hosts, 1, true),
        );
    }
    for hosts in [50, 1000] {
        timed(
            &format!("Montage-like, {hosts} hosts, 2 replicas"),
            runs,
            &montage(),
            &network(hosts, 2, true),
        );
    }
    for (size, bytes) in [("medium", 10 * MIB), ("large", 100 * MIB)] {
        for merge in [false, true] {
            let mode = if merge { "merged" } else { "by frame" };
            timed(
                &format!("reduce {size}, 20 hosts, {mode}"),
                runs,
                &reduce(20, bytes, false),
                &network(20, 1, merge),
            );
        }
    }
    for (name, hints) in [("default", false), ("with hints", true)] {
        for merge in [false, true] {
            let mode = if merge { "merged" } else { "by frame" };
            let mut platform = network(1000, 1, merge);
            if hints {
                platform["scheduler"]["kind"] = json!("data_location");
            }
            timed(
                &format!("reduce 600 GB, 1000 hosts, {name}, {mode}"),
                1,
                &reduce(1000, 100_000_000, hints),
                &platform,
            );
        }
    }
    if std::env::args().nth(2).is_some() {
        return;
    }
    let networks = vec![network(20, 1, true).to_string(); 10_000 / 10];
    let start = Instant::now();
    let work = reduce(20, 10 * MIB, false);
    let batch = Batch {
        networks: &networks,
        seeds: &[1],
        columns: &[],
        fields: None,
    };
    simulate_many(&work, &batch, 2).expect("runs");
    let wall = start.elapsed().as_secs_f64();
    println!(
        "{:44} {wall:9.4} s, so 10,000 in {:.1} s",
        "1,000 configurations of reduce medium",
        10.0 * wall
    );
    println!("load after: {}", load().trim());
}
