//! The deterministic check vectors (spec §12, set V). Each agrees with its closed form, and misses it with a service
//! time that is 5 % off.

use penstock_queuenet::network::{simulate, Network, Outcome, Workload};
use serde_json::{json, Value};

const C: f64 = 1024.0;
const S: f64 = 1_048_576.0;
const F: f64 = 65_536.0;
const B: f64 = 12.5e6;
const B_LOC: f64 = 125e6;
const MANAGER_S: f64 = 0.0005;
const CHUNK: u64 = 1 << 20;

fn per_chunk(seconds: f64) -> Value {
    json!({"overhead": 0, "s_per_byte": seconds / S})
}

fn link() -> Value {
    json!({"out_bps": B, "in_bps": B, "loopback_bps": B_LOC})
}

fn storage(name: &str, seconds: f64) -> Value {
    json!({"name": name, "network": link(),
           "storage": {"read": per_chunk(seconds), "write": per_chunk(seconds)}})
}

fn client(name: &str) -> Value {
    json!({"name": name, "network": link(), "client": {}})
}

fn both(name: &str, seconds: f64) -> Value {
    let mut host = storage(name, seconds);
    host["client"] = json!({});
    host
}

fn manager(seconds: f64) -> Value {
    json!({"name": "m", "network": link(), "manager": {"service": seconds}})
}

/// A network of set V with these hosts.
fn network(hosts: Vec<Value>) -> Value {
    json!({"schema": "penstock/network/1", "hosts": hosts,
           "store": {"chunk_bytes": CHUNK, "shuffle": "none"}})
}

/// One client, one manager, `n` storage nodes with `seconds` per chunk.
fn set_v(n: usize, seconds: f64) -> Value {
    let mut hosts = vec![client("c"), manager(MANAGER_S)];
    hosts.extend((0..n).map(|i| storage(&format!("s{i}"), seconds)));
    network(hosts)
}

fn task(name: &str, operations: Value) -> Value {
    json!({"name": name, "operations": operations})
}

fn write(file: &str, bytes: u64) -> Value {
    json!({"op": "write", "file": file, "size_bytes": bytes})
}

fn workload(files: Value, tasks: Vec<Value>) -> Value {
    json!({"schema": "penstock/workload/1", "name": "v", "files": files, "tasks": tasks})
}

fn one_write(bytes: u64) -> Value {
    workload(json!([]), vec![task("w", json!([write("f", bytes)]))])
}

fn run(workload: &Value, network: &Value) -> Outcome {
    let workload = Workload::from_json(&workload.to_string()).unwrap();
    let mut merged = network.clone();
    let mut outcomes = Vec::new();
    for merge in [true, false] {
        merged["protocol"]["merge_frames"] = json!(merge);
        let network = Network::from_json(&merged.to_string()).unwrap();
        let outcome = simulate(&workload, &network, 1, false).unwrap();
        assert_eq!(outcome.error, None);
        outcomes.push(outcome);
    }
    let by_frame = outcomes.pop().unwrap();
    let mut by_train = outcomes.pop().unwrap();
    assert!(by_train.events <= by_frame.events);
    by_train.events = by_frame.events;
    assert_eq!(by_train, by_frame, "merging frames changed the result");
    by_train
}

/// Check that closed form, the spec's figure and the run agree, and that a wrong service time agrees with neither.
fn holds(workload: &Value, network: &Value, closed_form: f64, figure: f64, wrong: &Value) {
    assert!(
        (closed_form / figure - 1.0).abs() < 1e-7,
        "{closed_form} is not {figure}"
    );
    let outcome = run(workload, network);
    let off = outcome.makespan_s / closed_form - 1.0;
    assert!(
        off.abs() < 1e-6,
        "{} s, {closed_form} s expected",
        outcome.makespan_s
    );
    let off = run(workload, wrong).makespan_s / closed_form - 1.0;
    assert!(off.abs() > 1e-6, "a wrong service time went unnoticed");
}

fn slower_network(network: &Value) -> Value {
    let mut wrong = network.clone();
    for host in wrong["hosts"].as_array_mut().unwrap() {
        host["network"]["out_bps"] = json!(B / 1.05);
        host["network"]["loopback_bps"] = json!(B_LOC / 1.05);
    }
    wrong
}

fn with(mut value: Value, path: &[&str], to: Value) -> Value {
    let mut at = &mut value;
    for key in path {
        at = &mut at[*key];
    }
    *at = to;
    value
}

#[test]
fn write_ten_chunks() {
    let form = 10.0 * C / B + 2.0 * MANAGER_S + 10.0 * S / B + F / B + 0.001;
    let network = set_v(1, 0.001);
    holds(
        &one_write(10 * CHUNK),
        &network,
        form,
        0.846_922_88,
        &set_v(1, 0.00105),
    );
    holds(
        &one_write(10 * CHUNK),
        &network,
        form,
        0.846_922_88,
        &slower_network(&network),
    );
    let outcome = run(&one_write(10 * CHUNK), &network);
    assert_eq!(outcome.bytes.network, 10_500_096);
    assert_eq!(outcome.bytes.control, 14 * 1024);
    assert_eq!(outcome.requests, 10);
}

#[test]
fn write_ten_chunks_slow_storage() {
    let form = 10.0 * C / B + 2.0 * MANAGER_S + S / B + F / B + 10.0 * 0.2;
    holds(
        &one_write(10 * CHUNK),
        &set_v(1, 0.2),
        form,
        2.090_948_16,
        &set_v(1, 0.21),
    );
}

#[test]
fn write_width_four() {
    let form = 10.0 * C / B + 2.0 * MANAGER_S + 10.0 * S / B + F / B + 0.2;
    holds(
        &one_write(10 * CHUNK),
        &set_v(4, 0.2),
        form,
        1.045_922_88,
        &set_v(4, 0.21),
    );
}

#[test]
fn write_with_latency() {
    let form = 10.0 * C / B + 6.0 * 0.001 + 2.0 * MANAGER_S + 10.0 * S / B + F / B + 0.001;
    let network = with(set_v(1, 0.001), &["fabric", "latency_s"], json!(0.001));
    let wrong = with(set_v(1, 0.001), &["fabric", "latency_s"], json!(0.00105));
    holds(&one_write(10 * CHUNK), &network, form, 0.852_922_88, &wrong);
    // the same latency, with half of it on each host's own link
    let mut by_host = set_v(1, 0.001);
    for host in by_host["hosts"].as_array_mut().unwrap() {
        host["network"]["latency_s"] = json!(0.0005);
    }
    holds(&one_write(10 * CHUNK), &by_host, form, 0.852_922_88, &wrong);
    // and all of it on the client's link: latencies differ, so out-queues continue by a separate event
    let mut at_client = set_v(1, 0.001);
    at_client["hosts"][0]["network"]["latency_s"] = json!(0.001);
    holds(
        &one_write(10 * CHUNK),
        &at_client,
        form,
        0.852_922_88,
        &wrong,
    );
}

fn read_ten() -> Value {
    workload(
        json!([{"name": "f", "size_bytes": 10 * CHUNK, "preloaded": true}]),
        vec![task(
            "r",
            json!([{"op": "open", "file": "f"}, {"op": "read", "file": "f", "size_bytes": 10 * CHUNK}]),
        )],
    )
}

#[test]
fn read_ten_chunks_with_open() {
    let form = 6.0 * C / B + MANAGER_S + 0.001 + 10.0 * S / B + F / B;
    holds(
        &read_ten(),
        &set_v(1, 0.001),
        form,
        0.846_095_20,
        &set_v(1, 0.00105),
    );
}

#[test]
fn read_slow_storage() {
    let form = 6.0 * C / B + MANAGER_S + 10.0 * 0.2 + S / B + F / B;
    holds(
        &read_ten(),
        &set_v(1, 0.2),
        form,
        2.090_120_48,
        &set_v(1, 0.21),
    );
}

fn replicated(policy: &str, forward: &str, replicas: u32, seconds: f64) -> Value {
    let mut network = set_v(3, seconds);
    network["store"]["replicas"] = json!(replicas);
    network["store"]["replication"] = json!(policy);
    network["store"]["forward"] = json!(forward);
    network
}

#[test]
fn chain_by_chunk() {
    let r = 3.0;
    let form = (8.0 + 2.0 * r) * C / B + 2.0 * MANAGER_S + r * (S / B + F / B + 0.001);
    let wrong = replicated("chain", "chunk", 3, 0.00105);
    holds(
        &one_write(CHUNK),
        &replicated("chain", "chunk", 3, 0.001),
        form,
        0.272_533_76,
        &wrong,
    );
}

#[test]
fn chain_by_frame() {
    let r = 3.0;
    let form = (8.0 + 2.0 * r) * C / B + 2.0 * MANAGER_S + S / B + (2.0 * r - 1.0) * F / B + 0.001;
    let wrong = replicated("chain", "frame", 3, 0.00105);
    holds(
        &one_write(CHUNK),
        &replicated("chain", "frame", 3, 0.001),
        form,
        0.113_247_36,
        &wrong,
    );
}

#[test]
fn parallel() {
    let form = 12.0 * C / B + 2.0 * MANAGER_S + 3.0 * S / B + 2.0 * F / B + 2.0 * 0.001;
    let wrong = replicated("parallel", "chunk", 3, 0.00105);
    holds(
        &one_write(CHUNK),
        &replicated("parallel", "chunk", 3, 0.001),
        form,
        0.266_127_04,
        &wrong,
    );
}

#[test]
fn client_without_manager() {
    let form = 2.0 * S / B + F / B + 0.001 + 2.0 * C / B;
    let bare = |seconds| {
        let mut network = network(vec![
            client("c"),
            storage("s0", seconds),
            storage("s1", seconds),
        ]);
        network["store"]["allocation"] = json!("none");
        network["store"]["replication"] = json!("client");
        network["store"]["replicas"] = json!(2);
        network
    };
    holds(
        &one_write(CHUNK),
        &bare(0.001),
        form,
        0.174_178_88,
        &bare(0.00105),
    );
}

#[test]
fn local_write() {
    let form = 8.0 * C / B + 2.0 * MANAGER_S + 10.0 * S / B_LOC + 0.001 + C / B_LOC;
    let local = |seconds| {
        let mut network = network(vec![both("h", seconds), manager(MANAGER_S)]);
        network["store"]["placement"] = json!("local");
        network
    };
    // the spec's figure has eight digits of 0.086549632
    let outcome = run(&one_write(10 * CHUNK), &local(0.001));
    assert!(
        (outcome.makespan_s - 0.086_549_63).abs() < 1e-8,
        "{}",
        outcome.makespan_s
    );
    assert!((outcome.makespan_s / form - 1.0).abs() < 1e-9);
    assert_eq!(outcome.bytes.written_local, 10 * CHUNK);
    assert_eq!(outcome.bytes.network, 4 * 1024);
    let wrong = run(&one_write(10 * CHUNK), &local(0.00105)).makespan_s;
    assert!((wrong / form - 1.0).abs() > 1e-6);
}

#[test]
fn last_chunk_half() {
    let form = 10.0 * C / B + 2.0 * MANAGER_S + 10.5 * S / B + F / B + 0.0005;
    let bytes = 10 * CHUNK + CHUNK / 2;
    holds(
        &one_write(bytes),
        &set_v(1, 0.001),
        form,
        0.888_365_92,
        &set_v(1, 0.00105),
    );
}

#[test]
fn incast() {
    let incast = |seconds, manager_s| {
        let mut hosts: Vec<Value> = (0..5).map(|i| client(&format!("c{i}"))).collect();
        hosts.push(manager(manager_s));
        hosts.push(storage("s", seconds));
        network(hosts)
    };
    let tasks = (0..5)
        .map(|i| {
            task(
                &format!("w{i}"),
                json!([write(&format!("f{i}"), 10 * CHUNK)]),
            )
        })
        .collect();
    let work = workload(json!([]), tasks);
    let outcome = run(&work, &incast(0.001, MANAGER_S));
    assert!(
        (outcome.makespan_s / 4.202_366_08 - 1.0).abs() < 1e-6,
        "{}",
        outcome.makespan_s
    );
    for wrong in [incast(0.00105, MANAGER_S), incast(0.001, MANAGER_S * 1.05)] {
        assert!((run(&work, &wrong).makespan_s / 4.202_366_08 - 1.0).abs() > 1e-6);
    }
}

#[test]
fn eight_collocated_hosts() {
    let hosts = |placement: &str, shuffle: &str, seconds| {
        let mut hosts: Vec<Value> = (0..8).map(|i| both(&format!("h{i}"), seconds)).collect();
        hosts.push(manager(MANAGER_S));
        let mut network = network(hosts);
        network["store"]["placement"] = json!(placement);
        network["store"]["shuffle"] = json!(shuffle);
        network
    };
    let tasks = (0..8)
        .map(|i| {
            task(
                &format!("w{i}"),
                json!([write(&format!("f{i}"), 10 * CHUNK)]),
            )
        })
        .collect();
    let work = workload(json!([]), tasks);
    let same = run(&work, &hosts("striped", "none", 0.001)).makespan_s;
    let local = run(&work, &hosts("local", "none", 0.001)).makespan_s;
    let fresh = run(&work, &hosts("striped", "fresh", 0.001)).makespan_s;
    println!("same {same} local {local} fresh {fresh}");
    assert!((local / 0.090_049_63 - 1.0).abs() < 0.02);
    assert!((same / 1.183_876_80 - 1.0).abs() < 0.02, "{same}");
    assert!(
        local < fresh && fresh < same && (fresh / 0.93 - 1.0).abs() < 0.1,
        "{fresh}"
    );
    let wrong = run(&work, &slower_network(&hosts("striped", "none", 0.001))).makespan_s;
    assert!((wrong / 1.183_876_80 - 1.0).abs() > 0.02);
}

#[test]
fn reduce() {
    let size = 4 * CHUNK;
    let hosts = |seconds| {
        let mut hosts: Vec<Value> = (0..4).map(|i| both(&format!("h{i}"), seconds)).collect();
        hosts.push(manager(MANAGER_S));
        network(hosts)
    };
    // the spec's figures include an open before each read
    let work = |placed: bool, open: bool| {
        let mut tasks: Vec<Value> = (0..4)
            .map(|i| task(&format!("p{i}"), json!([write(&format!("f{i}"), size)])))
            .collect();
        let mut operations = Vec::new();
        for i in 0..4 {
            if open {
                operations.push(json!({"op": "open", "file": format!("f{i}")}));
            }
            operations.push(json!({"op": "read", "file": format!("f{i}"), "size_bytes": size}));
        }
        operations.push(write("out", size));
        tasks.push(task("reduce", Value::Array(operations)));
        let mut files: Vec<Value> = (0..4).map(|i| json!({"name": format!("f{i}")})).collect();
        files.push(json!({"name": "out"}));
        if placed {
            for file in &mut files {
                file["hints"] = json!({"placement": "collocate", "group": "g"});
            }
            files[4]["hints"] = json!({"placement": "local"});
        }
        workload(Value::Array(files), tasks)
    };
    let woss = |seconds| {
        with(
            hosts(seconds),
            &["scheduler", "kind"],
            json!("data_location"),
        )
    };
    let hinted = run(&work(true, true), &woss(0.001)).makespan_s;
    assert!((hinted - 1.193_056).abs() < 1e-6, "{hinted}");
    let plain = run(&work(false, true), &hosts(0.001)).makespan_s;
    assert!((plain - 1.722_783).abs() < 1e-6, "{plain}");
    for off in [
        run(&work(true, true), &woss(0.00105)).makespan_s - 1.193_056,
        run(&work(true, false), &woss(0.001)).makespan_s - 1.193_056,
        run(&work(false, true), &hosts(0.00105)).makespan_s - 1.722_783,
    ] {
        assert!(off.abs() > 1e-5);
    }
}

#[test]
fn compute_only() {
    let tasks = [4, 3, 3, 2, 2]
        .iter()
        .enumerate()
        .map(|(i, s)| task(&format!("t{i}"), json!([{"op": "compute", "seconds": s}])))
        .collect();
    let work = workload(json!([]), tasks);
    let hosts = |speed: f64| {
        let mut network = network(vec![both("a", 0.001), client("b"), manager(MANAGER_S)]);
        network["hosts"][0]["client"]["speed"] = json!(speed);
        network["hosts"][1]["client"]["speed"] = json!(speed);
        network
    };
    assert_eq!(run(&work, &hosts(1.0)).makespan_s, 8.0);
    assert_ne!(run(&work, &hosts(1.0 / 1.05)).makespan_s, 8.0);
}

/// Utilisations of the bottleneck table, write of 10 chunks.
#[test]
fn utilisation() {
    let of = |outcome: &Outcome, name: &str| {
        let row = outcome.stations.iter().find(|row| row.name == name);
        row.map(|row| row.utilisation).unwrap()
    };
    let fast = run(&one_write(10 * CHUNK), &set_v(1, 0.001));
    for (name, expected) in [
        ("c/out", 0.990_674),
        ("s0/in", 0.990_481),
        ("s0/storage", 0.011_807),
        ("m/manager", 0.001_181),
    ] {
        assert!(
            (of(&fast, name) - expected).abs() < 1e-6,
            "{name} {}",
            of(&fast, name)
        );
    }
    let slow = run(&one_write(10 * CHUNK), &set_v(1, 0.2));
    assert!((of(&slow, "s0/storage") - 0.956_504).abs() < 1e-6);
    assert!((of(&slow, "c/out") - 0.401_265).abs() < 1e-6);
    let wrong = run(&one_write(10 * CHUNK), &set_v(1, 0.00105));
    assert!((of(&wrong, "s0/storage") - 0.011_807).abs() > 1e-6);
    // the parts of the critical path add up to the makespan
    for outcome in [&fast, &slow] {
        let path: f64 = outcome.stations.iter().map(|row| row.critical_s).sum();
        assert!(
            (path / outcome.makespan_s - 1.0).abs() < 1e-5,
            "{path} {}",
            outcome.makespan_s
        );
    }
}
