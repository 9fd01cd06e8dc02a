//! Invalid input is rejected with a message of one line that names the mistake. Nothing panics or runs forever.

use penstock_queuenet::network::{simulate, simulate_json, Network, Workload};
use penstock_station::mix64;
use serde_json::{json, Value};

fn link() -> Value {
    json!({"out_bps": 1e8, "in_bps": 1e8, "loopback_bps": 1e9})
}

fn network() -> Value {
    json!({"schema": "penstock/network/1", "hosts": [
        {"name": "c", "group": "clients", "network": link(), "client": {"slots": 1}},
        {"name": "m", "network": link(), "manager": {"service": 1e-4}},
        {"name": "s0", "network": link(), "client": {"speed": 2},
         "storage": {"read": 1e-3, "write": {"overhead": 1e-3, "s_per_byte": 1e-9}, "servers": 2}},
        {"name": "s1", "network": link(), "storage": {"read": 1e-3, "write": 1e-3, "capacity_bytes": 1u64 << 40}}],
        "fabric": {"latency_s": 1e-5, "capacity_bps": null},
        "store": {"chunk_bytes": 1 << 20, "replicas": 2, "replication": "chain", "window": null},
        "protocol": {"frame_bytes": 65536, "control_bytes": 1024},
        "scheduler": {"kind": "data_location", "wait_s": 0.1},
        "launch": {"overhead": {"kind": "uniform", "low_s": 0.1, "high_s": 0.3}, "stagger": 0},
        "preprocess": {"aggregate": true, "cache_bytes": 0, "prefetch_chunks": 0}})
}

fn workload() -> Value {
    json!({"schema": "penstock/workload/1", "name": "w",
        "files": [{"name": "in", "size_bytes": 3 << 20, "preloaded": true, "hints": {"stripe_width": 1}},
                  {"name": "out", "hints": {"placement": "local"}}],
        "tasks": [
            {"name": "a", "stage": "first", "operations": [
                {"op": "open", "file": "in"}, {"op": "read", "file": "in", "size_bytes": 3 << 20},
                {"op": "compute", "seconds": 0.1}, {"op": "write", "file": "mid", "size_bytes": 1 << 20}]},
            {"name": "b", "machine": "clients", "after": ["a"], "launch": 0.1, "not_before_s": 0.5, "operations": [
                {"op": "read", "file": "mid", "offset_bytes": 10, "size_bytes": 1000},
                {"op": "set_xattr", "file": "out", "hints": {"replicas": 1}},
                {"op": "write", "file": "out", "size_bytes": 0}, {"op": "close", "file": "out"}]}]})
}

fn set(mut value: Value, pointer: &str, to: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match value.pointer_mut(parent).unwrap() {
        Value::Object(map) => {
            map.insert(key.to_owned(), to);
        }
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = to,
        _ => panic!("{pointer}"),
    }
    value
}

fn outcome(workload: &Value, network: &Value) -> Result<Value, String> {
    let workload = Workload::from_json(&workload.to_string()).map_err(|e| e.0)?;
    let text = simulate_json(&workload, &network.to_string(), 1, true).map_err(|e| e.0)?;
    Ok(serde_json::from_str(&text).unwrap())
}

#[test]
fn the_example_runs() {
    let outcome = outcome(&workload(), &network()).unwrap();
    assert_eq!(outcome["error"], Value::Null);
    assert!(outcome["makespan_s"].as_f64().unwrap() > 0.5);
}

#[test]
fn errors_name_the_bad_network_key() {
    let cases = [
        (
            "/schema",
            json!("penstock/network/2"),
            "\"penstock/network/1\" is expected",
        ),
        ("/extra", json!(1), "unknown field `extra`"),
        (
            "/hosts/0/network/out_bps",
            json!(-1.0),
            "host \"c\": network.out_bps is -1",
        ),
        ("/hosts/0/network/in_bps", json!(0), "above 0 is expected"),
        (
            "/hosts/0/network/latency_s",
            json!(-1e-3),
            "network.latency_s is -0.001",
        ),
        ("/hosts/0/network/out_bps", json!("fast"), "invalid type"),
        ("/hosts/0/name", json!("m"), "host \"m\" is described twice"),
        ("/hosts/0/client/slots", json!(0), "client.slots is 0"),
        ("/hosts/2/client/speed", json!(0.0), "client.speed is 0"),
        ("/hosts/2/storage/servers", json!(0), "storage.servers is 0"),
        (
            "/hosts/2/storage/read",
            json!(-1),
            "storage.read.overhead is -1",
        ),
        (
            "/hosts/2/storage/read",
            Value::Null,
            "neither read and write nor a profile",
        ),
        (
            "/hosts/2/storage/read",
            json!({"overhead": {"kind": "exponential", "mean_s": 0}}),
            "above 0 is expected",
        ),
        (
            "/hosts/2/storage/read",
            json!({"overhead": {"kind": "gamma"}}),
            "unknown variant `gamma`",
        ),
        ("/hosts/1/manager", Value::Null, "no host has a manager"),
        (
            "/store/stripe_width",
            json!(3),
            "there are only 2 storage hosts",
        ),
        (
            "/store/replicas",
            json!(3),
            "store.replicas is 3; there are only 2 storage hosts",
        ),
        ("/store/replicas", json!(0), "store.replicas is 0"),
        ("/store/chunk_bytes", json!(0), "store.chunk_bytes is 0"),
        ("/store/window", json!(0), "store.window is 0"),
        (
            "/store/placement",
            json!("anywhere"),
            "unknown variant `anywhere`",
        ),
        (
            "/protocol/frame_bytes",
            json!(0),
            "protocol.frame_bytes is 0",
        ),
        ("/fabric/capacity_bps", json!(0), "fabric.capacity_bps is 0"),
        ("/scheduler/wait_s", json!(-1), "scheduler.wait_s is -1"),
        ("/launch/overhead", json!(-0.1), "launch.overhead is -0.1"),
    ];
    for (pointer, to, message) in cases {
        let error = outcome(&workload(), &set(network(), pointer, to)).unwrap_err();
        assert!(
            error.contains(message) && !error.contains('\n'),
            "{pointer}: {error}"
        );
    }
    let mut bare = network();
    bare["hosts"].as_array_mut().unwrap().truncate(2);
    assert!(outcome(&workload(), &bare)
        .unwrap_err()
        .contains("no host has storage"));
    bare["hosts"] = json!([network()["hosts"][1], network()["hosts"][3]]);
    assert!(outcome(&workload(), &bare)
        .unwrap_err()
        .contains("no host has a client"));
    let text = network()
        .to_string()
        .replacen("1e-5", "NaN", 1)
        .replacen("0.00001", "NaN", 1);
    assert!(Network::from_json(&text).is_err());
}

#[test]
fn errors_name_the_bad_workload_key() {
    let read = |file: &str| json!({"op": "read", "file": file, "size_bytes": 10});
    let cases = [
        ("/schema", json!("x"), "\"penstock/workload/1\" is expected"),
        ("/tasks", json!([]), "no tasks"),
        (
            "/tasks/0/operations",
            json!([]),
            "task \"a\" has no operations",
        ),
        (
            "/tasks/0/operations/0",
            read("ghost"),
            "task \"a\": operations[0] reads file \"ghost\", which no task writes",
        ),
        (
            "/tasks/0/operations/0",
            read("mid"),
            "before it writes it, and no other task does",
        ),
        (
            "/tasks/0/after",
            json!(["b"]),
            "circle: \"a\" before \"b\" before \"a\"",
        ),
        (
            "/tasks/0/after",
            json!(["nobody"]),
            "after names \"nobody\"",
        ),
        ("/tasks/1/name", json!("a"), "task \"a\" is described twice"),
        (
            "/tasks/1/machine",
            json!("moon"),
            "task \"b\" is to run on \"moon\"",
        ),
        ("/tasks/1/launch", json!(-1), "task \"b\": launch is -1"),
        (
            "/tasks/1/not_before_s",
            json!(-1),
            "task \"b\": not_before_s is -1",
        ),
        (
            "/tasks/0/operations/2/seconds",
            json!(-1),
            "task \"a\": operations[2]: seconds is -1",
        ),
        (
            "/tasks/0/operations/2/seconds",
            json!(1e300),
            "of virtual time",
        ),
        (
            "/tasks/0/operations/1/size_bytes",
            json!(-5),
            "invalid value",
        ),
        (
            "/tasks/0/operations/1/size_bytes",
            json!(4 << 20),
            "it only ever has 3145728",
        ),
        (
            "/tasks/0/operations/3/size_bytes",
            json!(u64::MAX),
            "go beyond",
        ),
        (
            "/tasks/0/operations/3/size_bytes",
            json!(1u64 << 59),
            "expected",
        ),
        (
            "/tasks/0/operations/3/op",
            json!("rename"),
            "unknown variant `rename`",
        ),
        (
            "/tasks/0/operations/3/colour",
            json!("red"),
            "unknown field `colour`",
        ),
        (
            "/files/0/size_bytes",
            Value::Null,
            "preloaded without size_bytes",
        ),
        (
            "/files/1/name",
            json!("in"),
            "file \"in\" is described twice",
        ),
        (
            "/files/0/hints",
            json!({"stripe_width": 9}),
            "file \"in\": stripe_width is 9; there are only 2",
        ),
        ("/files/0/hints", json!({"replicas": 0}), "replicas is 0"),
        (
            "/files/0/hints",
            json!({"host": "c"}),
            "host \"c\" has no storage",
        ),
        (
            "/files/0/hints",
            json!({"host": "x"}),
            "there is no host \"x\"",
        ),
        (
            "/files/0/hints",
            json!({"placement": "collocate"}),
            "collocate without group",
        ),
        ("/files/0/hints", json!({"scatter": 0}), "scatter is 0"),
    ];
    for (pointer, to, message) in cases {
        let error = outcome(&set(workload(), pointer, to), &network()).unwrap_err();
        assert!(
            error.contains(message) && !error.contains('\n'),
            "{pointer}: {error}"
        );
    }
    let chunks = set(network(), "/store/chunk_bytes", json!(1));
    let big = set(
        workload(),
        "/tasks/0/operations/3/size_bytes",
        json!(10u64 << 40),
    );
    assert!(outcome(&big, &chunks)
        .unwrap_err()
        .contains("take larger chunks"));
    let frames = set(network(), "/protocol/frame_bytes", json!(1));
    assert!(outcome(&big, &frames)
        .unwrap_err()
        .contains("take larger frames"));
}

/// A full node, a full store and a missing chunk are results, not crashes.
#[test]
fn a_full_store_is_a_result() {
    let small = set(network(), "/hosts/2/storage/capacity_bytes", json!(2 << 20));
    let small = set(small, "/hosts/3/storage/capacity_bytes", json!(2 << 20));
    let result = outcome(&workload(), &small).unwrap();
    assert_eq!(result["error"]["kind"], "full");
    let message = result["error"]["message"].as_str().unwrap();
    assert!(message.contains("before the run file \"in\""), "{message}");
    let first_fits = set(small, "/hosts/2/storage/capacity_bytes", json!(3 << 20));
    let first_fits = set(
        first_fits,
        "/hosts/3/storage/capacity_bytes",
        json!(3 << 20),
    );
    let result = outcome(&workload(), &first_fits).unwrap();
    let message = result["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("task \"a\" writes file \"mid\": the store is full"),
        "{message}"
    );
    let pinned = set(
        workload(),
        "/files/0/hints",
        json!({"host": "s0", "replicas": 1}),
    );
    let narrow = set(network(), "/hosts/2/storage/capacity_bytes", json!(2 << 20));
    let result = outcome(&pinned, &narrow).unwrap();
    let message = result["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("host \"s0\" has no room left"),
        "{message}"
    );
    // enough space for it: no error
    assert_eq!(outcome(&pinned, &network()).unwrap()["error"], Value::Null);
    let hole = json!({"schema": "penstock/workload/1", "tasks": [{"name": "t", "operations": [
        {"op": "write", "file": "f", "offset_bytes": 5 << 20, "size_bytes": 10},
        {"op": "read", "file": "f", "size_bytes": 10}]}]});
    let result = outcome(&hole, &network()).unwrap();
    assert_eq!(result["error"]["kind"], "missing");
}

/// Zero bytes need two requests to the manager. Ten terabytes need no more memory than their stripe.
#[test]
fn zero_and_ten_terabytes() {
    let only = |size: u64| {
        json!({"schema": "penstock/workload/1", "tasks": [{"name": "w", "operations": [
            {"op": "write", "file": "f", "size_bytes": size}]}]})
    };
    let zero = outcome(&only(0), &network()).unwrap();
    assert_eq!(
        (&zero["requests"], &zero["bytes"]["network"]),
        (&json!(0), &json!(4096))
    );
    let large = set(network(), "/store/chunk_bytes", json!(256 << 20));
    let large = set(large, "/protocol/frame_bytes", json!(16 << 20));
    let large = set(large, "/store/replicas", json!(1));
    let large = set(large, "/hosts/3/storage/capacity_bytes", json!(1u64 << 50));
    let result = outcome(&only(10_000_000_000_000), &large).unwrap();
    assert_eq!(result["error"], Value::Null);
    assert_eq!(result["bytes"]["stored"], json!(10_000_000_000_000u64));
    assert!(result["makespan_s"].as_f64().unwrap() > 5e4);
}

/// Thousands of small changes to both descriptions yield an error of one line or an outcome.
#[test]
fn mutated_inputs_neither_panic_nor_hang() {
    fn leaves(value: &Value, at: String, paths: &mut Vec<String>) {
        match value {
            Value::Object(map) => map
                .iter()
                .for_each(|(key, inner)| leaves(inner, format!("{at}/{key}"), paths)),
            Value::Array(list) => list
                .iter()
                .enumerate()
                .for_each(|(i, inner)| leaves(inner, format!("{at}/{i}"), paths)),
            _ => paths.push(at),
        }
    }
    let values = [
        json!(0),
        json!(1),
        json!(-1),
        json!(2),
        json!(1e-300),
        json!(1e9),
        json!(u64::MAX),
        json!(0.5),
        json!(""),
        json!("a"),
        json!("s0"),
        Value::Null,
        json!(true),
        json!([]),
        json!({}),
        json!("random"),
        json!("scatter"),
        json!("collocate"),
        json!(65537),
        json!(1 << 16),
        json!("client"),
        json!("frame"),
        json!("none"),
    ];
    // small files, so that chunks and frames of one byte are fast
    let small = set(workload(), "/files/0/size_bytes", json!(3000));
    let small = set(small, "/tasks/0/operations/1/size_bytes", json!(3000));
    let small = set(small, "/tasks/0/operations/3/size_bytes", json!(2000));
    let (mut refused, mut ran, mut failed) = (0, 0, 0);
    for seed in 0..6000u64 {
        let (mut w, mut n) = (small.clone(), network());
        for change in 0..1 + seed % 3 {
            let key = mix64(seed * 7 + change);
            let target = if key & 1 == 0 { &mut w } else { &mut n };
            let mut paths = Vec::new();
            leaves(target, String::new(), &mut paths);
            let pointer = &paths[(key >> 8) as usize % paths.len()];
            let to = values[(key >> 32) as usize % values.len()].clone();
            if let Some(leaf) = target.pointer_mut(pointer) {
                *leaf = to;
            }
        }
        match outcome(&w, &n) {
            Err(message) => {
                assert!(!message.is_empty() && !message.contains('\n'), "{message}");
                refused += 1;
            }
            Ok(outcome) if outcome["error"].is_null() => ran += 1,
            Ok(_) => failed += 1,
        }
    }
    assert!(refused > 500 && ran > 500, "{refused} {ran} {failed}");
}

/// Many operations that take no time need no deep stack.
#[test]
fn many_empty_operations() {
    let operations: Vec<Value> = (0..200_000)
        .map(|_| json!({"op": "read", "file": "in", "size_bytes": 0}))
        .collect();
    let work = json!({"schema": "penstock/workload/1",
        "files": [{"name": "in", "size_bytes": 1, "preloaded": true}],
        "tasks": [{"name": "t", "operations": operations}]});
    let workload = Workload::from_json(&work.to_string()).unwrap();
    let plain = set(network(), "/preprocess/aggregate", json!(false));
    let network =
        Network::from_json(&set(plain, "/launch/overhead", json!(0)).to_string()).unwrap();
    let outcome = simulate(&workload, &network, 1, false).unwrap();
    assert_eq!(
        (outcome.makespan_s, outcome.operations.read.n),
        (0.0, 200_000)
    );
}

#[test]
fn jobs_of_a_day_last_a_day() {
    let tasks: Vec<Value> = (0..6000)
        .map(|i| {
            json!({"name": format!("t{i}"), "not_before_s": 20.0 * f64::from(i),
                   "operations": [{"op": "compute", "seconds": 0.01}]})
        })
        .collect();
    let day = json!({"schema": "penstock/workload/1", "name": "day", "files": [], "tasks": tasks});
    let makespan_s = outcome(&day, &network()).unwrap()["makespan_s"]
        .as_f64()
        .unwrap();
    assert!((makespan_s - 20.0 * 5999.0).abs() < 1.0, "{makespan_s}");
}

#[test]
fn many_parallel_tasks_do_not_lengthen_the_run() {
    let mut network = network();
    for (host, slots) in [
        ("/hosts/0/client/slots", 1000),
        ("/hosts/2/client/slots", 1000),
    ] {
        network = set(network, host, json!(slots));
    }
    let tasks: Vec<Value> = (0..2000)
        .map(|i| {
            json!({"name": format!("t{i}"), "launch": 0, "operations": [{"op": "compute", "seconds": 4e6}]})
        })
        .collect();
    let jobs =
        json!({"schema": "penstock/workload/1", "name": "jobs", "files": [], "tasks": tasks});
    let makespan_s = outcome(&jobs, &network).unwrap()["makespan_s"]
        .as_f64()
        .unwrap();
    assert!((makespan_s - 4e6).abs() < 1.0, "{makespan_s}");
}
