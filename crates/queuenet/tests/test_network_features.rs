//! Features of the store and the driver, each in a case small enough for a calculation by hand.

use penstock_queuenet::network::{simulate, Network, Outcome, Workload};
use serde_json::{json, Value};

const MIB: u64 = 1 << 20;
const B: f64 = 12.5e6;

fn link() -> Value {
    json!({"out_bps": B, "in_bps": B, "loopback_bps": 125e6})
}

fn node(name: &str) -> Value {
    json!({"name": name, "network": link(), "client": {},
           "storage": {"read": 0.001, "write": 0.001}})
}

/// `n` collocated hosts and a manager with a service time of zero.
fn network(n: usize) -> Value {
    let mut hosts: Vec<Value> = (0..n).map(|i| node(&format!("h{i}"))).collect();
    hosts.push(json!({"name": "m", "network": link(), "manager": {"service": 0}}));
    json!({"schema": "penstock/network/1", "hosts": hosts,
           "store": {"chunk_bytes": MIB, "shuffle": "none"}})
}

fn write(file: &str, bytes: u64) -> Value {
    json!({"op": "write", "file": file, "size_bytes": bytes})
}

fn read(file: &str, bytes: u64) -> Value {
    json!({"op": "read", "file": file, "size_bytes": bytes})
}

fn work(files: Value, tasks: Value) -> Value {
    json!({"schema": "penstock/workload/1", "files": files, "tasks": tasks})
}

fn run(workload: &Value, network: &Value) -> Outcome {
    let workload = Workload::from_json(&workload.to_string()).unwrap();
    let network = Network::from_json(&network.to_string()).unwrap();
    let outcome = simulate(&workload, &network, 1, true).unwrap();
    assert_eq!(outcome.error, None);
    outcome
}

fn stored(outcome: &Outcome) -> Vec<u64> {
    outcome.hosts.iter().map(|host| host.stored_bytes).collect()
}

/// Host that ran a task.
fn host_of(outcome: &Outcome, task: &str) -> String {
    let rows = outcome.tasks.as_ref().unwrap();
    rows.iter()
        .find(|row| row.name == task)
        .unwrap()
        .host
        .clone()
}

/// 7 chunks over three nodes in their own order: 3, 2 and 2.
#[test]
fn placement_vector() {
    let only = work(
        json!([]),
        json!([{"name": "w", "operations": [write("f", 7 * MIB)]}]),
    );
    assert_eq!(
        stored(&run(&only, &network(3)))[..3],
        [3 * MIB, 2 * MIB, 2 * MIB]
    );
    let mut two = network(3);
    two["store"]["stripe_width"] = json!(2);
    assert_eq!(stored(&run(&only, &two))[..3], [4 * MIB, 3 * MIB, 0]);
    let mut copied = network(3);
    copied["store"]["replicas"] = json!(2);
    // replica j of chunk i on node (i + j) mod 3: firsts 3, 2, 2 and seconds 2, 3, 2
    assert_eq!(
        stored(&run(&only, &copied))[..3],
        [5 * MIB, 5 * MIB, 4 * MIB]
    );
}

#[test]
fn placement_by_hint() {
    let on = |hints: Value| {
        let files = json!([{"name": "f", "hints": hints}]);
        work(
            files,
            json!([{"name": "w", "machine": "h1", "operations": [write("f", 6 * MIB)]}]),
        )
    };
    let of = |hints: Value| stored(&run(&on(hints), &network(3)))[..3].to_vec();
    assert_eq!(of(json!({"placement": "local"})), [0, 6 * MIB, 0]);
    assert_eq!(of(json!({"host": "h2"})), [0, 0, 6 * MIB]);
    assert_eq!(
        of(json!({"placement": "scatter", "scatter": 4})),
        [4 * MIB, 2 * MIB, 0]
    );
    assert_eq!(of(json!({"stripe_width": 1})), [6 * MIB, 0, 0]);
    assert_eq!(
        of(json!({"placement": "collocate", "group": "g"})),
        [6 * MIB, 0, 0]
    );
    assert_eq!(
        of(json!({"placement": "local", "replicas": 3})),
        [6 * MIB; 3]
    );
    let chunks = run(&on(json!({"chunk_bytes": MIB / 4})), &network(3));
    assert_eq!((chunks.requests, stored(&chunks)[0]), (24, 2 * MIB));
    let random: u64 = of(json!({"placement": "random"})).iter().sum();
    assert_eq!(random, 6 * MIB);
    // the second group goes to the second node
    let two = work(
        json!([{"name": "a", "hints": {"placement": "collocate", "group": "g"}},
               {"name": "b", "hints": {"placement": "collocate", "group": "h"}}]),
        json!([{"name": "w", "operations": [write("a", MIB), write("b", 2 * MIB)]}]),
    );
    assert_eq!(stored(&run(&two, &network(3)))[..3], [MIB, 2 * MIB, 0]);
}

#[test]
fn local_placement_needs_free_space() {
    let mut narrow = network(3);
    narrow["store"]["placement"] = json!("local");
    narrow["hosts"][0]["storage"]["capacity_bytes"] = json!(2 * MIB);
    let only = work(
        json!([]),
        json!([{"name": "w", "machine": "h0", "operations": [write("f", 2 * MIB), write("g", 2 * MIB)]}]),
    );
    assert_eq!(stored(&run(&only, &narrow))[..3], [2 * MIB, MIB, MIB]);
}

#[test]
fn set_xattr_tags_later_writes() {
    let tagged = work(
        json!([]),
        json!([{"name": "w", "machine": "h1", "operations": [
            write("a", 3 * MIB), {"op": "set_xattr", "file": "b", "hints": {"placement": "local"}}, write("b", 3 * MIB)]}]),
    );
    assert_eq!(stored(&run(&tagged, &network(3)))[..3], [MIB, 4 * MIB, MIB]);
}

/// With a window of one, a chunk leaves after the acknowledgement of the previous one.
#[test]
fn window() {
    let only = work(
        json!([]),
        json!([{"name": "w", "machine": "h0", "operations": [write("f", 4 * MIB)]}]),
    );
    let mut platform = network(2);
    platform["store"]["window"] = json!(1);
    platform["store"]["allocation"] = json!("none");
    platform["hosts"][0]["storage"] = Value::Null;
    let (s, f, c) = (MIB as f64 / B, 65_536.0 / B, 1024.0 / B);
    let each = s + f + 0.001 + 2.0 * c;
    let outcome = run(&only, &platform);
    assert!((outcome.makespan_s / (4.0 * each) - 1.0).abs() < 1e-9);
    let path: f64 = outcome.stations.iter().map(|row| row.critical_s).sum();
    assert!((path / outcome.makespan_s - 1.0).abs() < 1e-5);
    let mut all = platform.clone();
    all["store"]["window"] = Value::Null;
    assert!((run(&only, &all).makespan_s / (each + 3.0 * s) - 1.0).abs() < 1e-9);
    let mut two = platform;
    two["store"]["window"] = json!(2);
    assert!(run(&only, &two).makespan_s < 4.0 * each - 0.01);
}

/// Ten consecutive writes become one, with two requests to the manager instead of twenty (Costa 2014).
#[test]
fn aggregation() {
    let operations: Vec<Value> = (0..10)
        .map(|i| json!({"op": "write", "file": "f", "offset_bytes": i * MIB / 4, "size_bytes": MIB / 4}))
        .collect();
    let many = work(
        json!([{"name": "f", "hints": {"host": "h1"}}]),
        json!([{"name": "w", "machine": "h0", "operations": operations}]),
    );
    let manager = |outcome: &Outcome| {
        let row = outcome.stations.iter().find(|row| row.kind == "manager");
        row.unwrap().requests
    };
    let merged = run(&many, &network(3));
    assert_eq!(
        (manager(&merged), merged.requests, merged.operations.write.n),
        (2, 3, 1)
    );
    let mut plain = network(3);
    plain["preprocess"]["aggregate"] = json!(false);
    let separate = run(&many, &plain);
    assert_eq!(
        (
            manager(&separate),
            separate.requests,
            separate.operations.write.n
        ),
        (20, 10, 10)
    );
    assert_eq!(merged.bytes.written, separate.bytes.written);
    assert_eq!(merged.bytes.stored, separate.bytes.stored);
    assert!(merged.makespan_s < separate.makespan_s);
    // another file or another operation in between prevents merging
    let mixed = work(
        json!([]),
        json!([{"name": "w", "operations": [write("f", MIB), write("g", MIB),
            {"op": "write", "file": "f", "offset_bytes": MIB, "size_bytes": MIB}]}]),
    );
    assert_eq!(run(&mixed, &network(3)).operations.write.n, 3);
}

/// The cache vector of spec §12 as a workload: reads of chunks 1, 2, 1, 3, 2, 1 with space for two: one hit.
#[test]
fn cache() {
    let operations: Vec<Value> = [1, 2, 1, 3, 2, 1]
        .iter()
        .map(|chunk| json!({"op": "read", "file": "f", "offset_bytes": chunk * MIB, "size_bytes": MIB}))
        .collect();
    let files =
        json!([{"name": "f", "size_bytes": 4 * MIB, "preloaded": true, "hints": {"host": "h1"}}]);
    let reads = work(
        files,
        json!([{"name": "r", "machine": "h0", "operations": operations}]),
    );
    let mut cached = network(2);
    cached["preprocess"] = json!({"aggregate": false, "cache_bytes": 2 * MIB});
    let outcome = run(&reads, &cached);
    assert_eq!(
        (
            outcome.requests,
            outcome.bytes.read,
            outcome.bytes.read_local
        ),
        (5, 6 * MIB, MIB)
    );
    cached["preprocess"] = json!({"aggregate": false});
    assert_eq!(run(&reads, &cached).requests, 6);
    // with space for all, each chunk is fetched once; a prefetch of one never fetches chunk 4, which does not exist
    cached["preprocess"] = json!({"aggregate": false, "cache_bytes": 8 * MIB});
    assert_eq!(run(&reads, &cached).requests, 3);
    cached["preprocess"] =
        json!({"aggregate": false, "cache_bytes": 8 * MIB, "prefetch_chunks": 2});
    let ahead = run(&reads, &cached);
    assert_eq!((ahead.requests, ahead.operations.read.n), (3, 6));
    let spans = &ahead.tasks.as_ref().unwrap()[0].spans;
    assert!(spans[0].end_s > 2.0 * MIB as f64 / B && spans[5].end_s == spans[0].end_s);
}

/// Two senders to two receivers share a core with the rate of one link: twice the time. Racks share an uplink.
#[test]
fn fabric_and_racks() {
    let pair = work(
        json!([{"name": "a", "hints": {"host": "h2"}}, {"name": "b", "hints": {"host": "h3"}}]),
        json!([{"name": "wa", "machine": "h0", "operations": [write("a", 10 * MIB)]},
               {"name": "wb", "machine": "h1", "operations": [write("b", 10 * MIB)]}]),
    );
    let mut plain = network(4);
    for (i, host) in plain["hosts"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .enumerate()
    {
        host["rack"] = json!(i / 2);
    }
    let alone_s = run(&pair, &plain).makespan_s;
    let data = 10.0 * MIB as f64 / B;
    assert!((alone_s / data - 1.0).abs() < 0.02);
    let mut core = plain.clone();
    core["fabric"]["capacity_bps"] = json!(B);
    let shared = run(&pair, &core);
    assert!((shared.makespan_s / (2.0 * data) - 1.0).abs() < 0.02);
    let row = shared
        .stations
        .iter()
        .find(|row| row.name == "fabric/core")
        .unwrap();
    assert!(row.utilisation > 0.97);
    let mut racks = plain.clone();
    racks["fabric"]["rack_uplink_bps"] = json!(B);
    let uplink = run(&pair, &racks);
    assert!((uplink.makespan_s / (2.0 * data) - 1.0).abs() < 0.02);
    let busy = |name: &str| {
        uplink
            .stations
            .iter()
            .find(|row| row.name == name)
            .unwrap()
            .utilisation
    };
    assert!(busy("rack-0/up") > 0.97 && busy("rack-1/down") > 0.97 && busy("rack-1/up") < 0.01);
    // within a rack the uplink is unused
    let mut near = pair.clone();
    near["files"] =
        json!([{"name": "a", "hints": {"host": "h1"}}, {"name": "b", "hints": {"host": "h0"}}]);
    assert!((run(&near, &racks).makespan_s / data - 1.0).abs() < 0.02);
    // a core with twice the rate of the links hardly slows down two senders
    let mut wide = plain;
    wide["fabric"]["capacity_bps"] = json!(2.0 * B);
    assert!((run(&pair, &wide).makespan_s / alone_s - 1.0).abs() < 0.02);
}

#[test]
fn scheduling() {
    let tasks = json!([
        {"name": "busy", "machine": "h1", "operations": [{"op": "compute", "seconds": 3}]},
        {"name": "reader", "not_before_s": 1, "operations": [read("f", 4 * MIB), {"op": "compute", "seconds": 1}]}]);
    let files =
        json!([{"name": "f", "size_bytes": 4 * MIB, "preloaded": true, "hints": {"host": "h1"}}]);
    let pair = work(files.clone(), tasks);
    let with = |kind: &str, wait: Value| {
        let mut network = network(3);
        network["scheduler"] = json!({"kind": kind, "wait_s": wait});
        network
    };
    assert_eq!(
        host_of(&run(&pair, &with("workqueue", json!(0))), "reader"),
        "h0"
    );
    // h1 has its data and is busy until 3 s
    assert_eq!(
        host_of(&run(&pair, &with("data_location", json!(0))), "reader"),
        "h0"
    );
    let forever = run(&pair, &with("data_location", Value::Null));
    assert_eq!(host_of(&forever, "reader"), "h1");
    assert_eq!(forever.tasks.unwrap()[1].start_s, 3.0);
    let short = run(&pair, &with("data_location", json!(0.5)));
    assert_eq!(host_of(&short, "reader"), "h0");
    assert_eq!(short.tasks.unwrap()[1].start_s, 1.5);
    assert_eq!(
        host_of(&run(&pair, &with("data_location", json!(5))), "reader"),
        "h1"
    );
    let free = work(
        files,
        json!([{"name": "reader", "operations": [read("f", 4 * MIB)]}]),
    );
    let local = run(&free, &with("data_location", json!(0)));
    assert_eq!(host_of(&local, "reader"), "h1");
    assert_eq!((local.bytes.read_local, local.bytes.network), (4 * MIB, 0));
}

#[test]
fn slots_speed_launch_and_stagger() {
    let four = work(
        json!([]),
        json!((0..4).map(|i| json!({"name": format!("t{i}"), "operations": [{"op": "compute", "seconds": 2}]})).collect::<Vec<_>>()),
    );
    let mut platform = network(1);
    assert_eq!(run(&four, &platform).makespan_s, 8.0);
    platform["hosts"][0]["client"] = json!({"slots": 2, "speed": 4});
    let fast = run(&four, &platform);
    assert_eq!(fast.makespan_s, 1.0);
    // energy: two tasks at a time load the complete processor, three tasks of 0.5 s on two slots three quarters of it
    assert_eq!(fast.hosts[0].app_s, 1.0);
    let three = json!((0..3)
        .map(|i| json!({"name": format!("t{i}"), "operations": [{"op": "compute", "seconds": 2}]}))
        .collect::<Vec<_>>());
    let fast = run(&work(json!([]), three), &platform);
    assert_eq!((fast.makespan_s, fast.hosts[0].app_s), (1.0, 0.75));
    platform["launch"] = json!({"overhead": 0.25});
    assert_eq!(run(&four, &platform).makespan_s, 1.5);
    platform["launch"] = json!({"overhead": {"kind": "uniform", "low_s": 0.1, "high_s": 0.3}});
    let drawn = run(&four, &platform);
    let launches: Vec<f64> = drawn
        .tasks
        .unwrap()
        .iter()
        .map(|task| task.launch_s)
        .collect();
    assert!(launches.iter().all(|s| (0.1..0.3).contains(s)) && launches[0] != launches[1]);
    platform["launch"] = json!({"stagger": 5});
    assert_eq!(run(&four, &platform).makespan_s, 6.0);
}

#[test]
fn tasks_spread_over_hosts_or_fill_the_first() {
    let tasks: Vec<_> = (0..5)
        .map(|i| json!({"name": format!("t{i}"), "operations": [{"op": "compute", "seconds": i + 1}]}))
        .collect();
    let five = work(json!([]), json!(tasks));
    let mut three = network(3);
    for host in 0..3 {
        three["hosts"][host]["client"] = json!({"slots": 2});
    }
    let places = |network: &Value| -> Vec<String> {
        let done = run(&five, network);
        (0..5).map(|i| host_of(&done, &format!("t{i}"))).collect()
    };
    assert_eq!(places(&three), ["h0", "h1", "h2", "h0", "h1"]);
    three["scheduler"] = json!({"fill": "pack"});
    assert_eq!(places(&three), ["h0", "h0", "h1", "h1", "h2"]);
    // a host that has become idle again is equivalent to one that never ran a task
    three["scheduler"] = json!({"fill": "spread"});
    let later = json!([
        {"name": "first", "operations": [{"op": "compute", "seconds": 1}]},
        {"name": "second", "operations": [{"op": "compute", "seconds": 9}]},
        {"name": "third", "after": ["first"], "operations": [{"op": "compute", "seconds": 1}]},
    ]);
    assert_eq!(
        host_of(&run(&work(json!([]), later), &three), "third"),
        "h0"
    );
}

/// 20 ms for each file with tags that a task writes, whatever it reads; 30 ms to locate output of another task.
#[test]
fn setting_tags_and_finding_files_take_time() {
    let files = json!([{"name": "in", "size_bytes": MIB, "preloaded": true},
                       {"name": "a", "hints": {"placement": "local"}},
                       {"name": "b", "hints": {"placement": "local"}}]);
    let twice = json!([write("a", MIB), write("a", MIB), write("b", MIB)]);
    let tasks = json!([
        {"name": "plain", "operations": [read("in", MIB), write("c", MIB)]},
        {"name": "tags", "operations": twice},
        {"name": "reads", "operations": [read("a", MIB), write("d", MIB)]}]);
    let mut platform = network(3);
    let launches = |network: &Value| -> Vec<f64> {
        let outcome = run(&work(files.clone(), tasks.clone()), network);
        let rows = outcome.tasks.unwrap();
        rows.iter().map(|task| task.launch_s).collect()
    };
    platform["launch"] = json!({"overhead": 0.25, "tag": 0.02, "locate": 0.03});
    let near = |actual: Vec<f64>, expected: [f64; 3]| {
        for (a, e) in actual.iter().zip(expected) {
            assert!((a - e).abs() < 1e-9, "{actual:?}; {expected:?}");
        }
    };
    near(launches(&platform), [0.25, 0.29, 0.25]);
    platform["scheduler"] = json!({"kind": "data_location"});
    near(launches(&platform), [0.25, 0.29, 0.28]);
}

/// Each host's own client queue serves operations one by one.
#[test]
fn a_client_takes_time_for_each_operation() {
    let two = work(
        json!([]),
        json!([{"name": "w", "operations": [write("a", 0), write("b", 0)]}]),
    );
    let mut slow = network(1);
    let plain = run(&two, &slow).makespan_s;
    slow["hosts"][0]["client"]["service"] = json!(0.5);
    assert!((run(&two, &slow).makespan_s - plain - 1.0).abs() < 1e-9);
}

/// Chunks are contiguous on their node, so a profile can distinguish sequential from random access.
#[test]
fn profiles_distinguish_sequential_from_random() {
    let class = |s: f64| json!({"overhead": {"kind": "constant", "value_s": s}});
    let both = json!({"sequential": class(0.001), "random": class(0.1)});
    let mut disk = network(1);
    disk["hosts"][0]["storage"] = json!({"profile": {"schema": "penstock/storage-profile/1", "name": "disk",
        "servers": 1, "read": both, "write": both}});
    disk["store"]["allocation"] = json!("none");
    disk["hosts"][0]["network"]["loopback_bps"] = json!(1e15);
    let files = json!([{"name": "f", "size_bytes": 20 * MIB, "preloaded": true}]);
    let forward = work(
        files.clone(),
        json!([{"name": "r", "operations": [read("f", 20 * MIB)]}]),
    );
    let ahead = run(&forward, &disk).makespan_s;
    assert!((ahead - (0.1 + 19.0 * 0.001)).abs() < 1e-4, "{ahead}");
    let operations: Vec<Value> = (0..20)
        .map(|i| json!({"op": "read", "file": "f", "offset_bytes": (i * 7 % 20) * MIB, "size_bytes": MIB}))
        .collect();
    let jumping = work(files, json!([{"name": "r", "operations": operations}]));
    let behind = run(&jumping, &disk).makespan_s;
    assert!((behind - 20.0 * 0.1).abs() < 1e-4, "{behind}");
    // more servers serve more requests in parallel
    disk["hosts"][0]["storage"]["profile"]["servers"] = json!(20);
    assert!(run(&forward, &disk).makespan_s < 0.11);
}

/// k servers halve the time of many requests to slow storage.
#[test]
fn servers() {
    let only = work(
        json!([]),
        json!([{"name": "w", "machine": "h0", "operations": [write("f", 10 * MIB)]}]),
    );
    let mut slow = network(1);
    slow["hosts"][0]["storage"] = json!({"read": 1, "write": 1, "servers": 1});
    let one_s = run(&only, &slow).makespan_s;
    slow["hosts"][0]["storage"]["servers"] = json!(5);
    let five = run(&only, &slow).makespan_s;
    assert!(one_s > 10.0 && five < 2.2, "{one_s} {five}");
}

/// A reader uses the replica on its own host (the simulator of Costa 2014 did not).
#[test]
fn local_replica_first() {
    let files =
        json!([{"name": "f", "size_bytes": 8 * MIB, "preloaded": true, "hints": {"replicas": 4}}]);
    let reads = work(
        files,
        json!([{"name": "r", "machine": "h2", "operations": [read("f", 8 * MIB)]}]),
    );
    let local = run(&reads, &network(4));
    assert_eq!((local.bytes.read_local, local.bytes.network), (8 * MIB, 0));
    let mut random = network(4);
    random["store"]["read_replica"] = json!("random");
    let spread = run(&reads, &random);
    assert!(spread.bytes.read_local < 6 * MIB && spread.bytes.network > 2 * MIB);
}

/// A fast chain of three with frame forwarding costs hardly more than one copy.
#[test]
fn streaming_shortens_the_run() {
    let only = work(
        json!([]),
        json!([{"name": "w", "machine": "c", "operations": [write("f", 4 * MIB)]}]),
    );
    let with = |replicas: u32, forward: &str| {
        let mut network = network(3);
        network["hosts"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "c", "network": link(), "client": {}}));
        network["store"]["replicas"] = json!(replicas);
        network["store"]["forward"] = json!(forward);
        network["store"]["stripe_width"] = json!(1);
        run(&only, &network).makespan_s
    };
    let (one, chunk, frame) = (with(1, "chunk"), with(3, "chunk"), with(3, "frame"));
    assert!(
        frame < 1.1 * one && chunk > 1.3 * one,
        "{one} {chunk} {frame}"
    );
}

/// A reader waits for the writer; explicit dependencies wait; stages are added up.
#[test]
fn dependencies_and_stages() {
    let chain = work(
        json!([]),
        json!([{"name": "r", "stage": "second", "operations": [read("f", MIB), {"op": "compute", "seconds": 1}]},
               {"name": "w", "stage": "first", "operations": [{"op": "compute", "seconds": 2}, write("f", MIB)]},
               {"name": "last", "stage": "second", "after": ["r"], "operations": [{"op": "compute", "seconds": 1}]}]),
    );
    let outcome = run(&chain, &network(2));
    let tasks = outcome.tasks.as_ref().unwrap();
    assert!(tasks[0].ready_s == tasks[1].end_s && tasks[2].ready_s == tasks[0].end_s);
    assert!(tasks.iter().all(|task| task.critical));
    let second = outcome
        .stages
        .iter()
        .find(|stage| stage.name == "second")
        .unwrap();
    assert_eq!(
        (second.tasks, second.compute_s, second.read_bytes),
        (2, 2.0, MIB)
    );
    assert_eq!(second.end_s, outcome.makespan_s);
}

/// Writers on separate hosts that start at these times [s], each of 1 MiB.
fn writers(begins: &[f64]) -> Value {
    let tasks: Vec<Value> = (0..)
        .zip(begins)
        .map(|(i, begin): (usize, &f64)| {
            json!({"name": format!("w{i}"), "machine": format!("h{i}"), "not_before_s": begin,
                   "operations": [write(&format!("f{i}"), MIB)]})
        })
        .collect();
    work(json!([]), json!(tasks))
}

#[test]
fn writers_at_once_slow_each_other_down() {
    let mut contended = network(3);
    contended["store"]["placement"] = json!("local");
    let alone_s = run(&writers(&[0.0]), &contended).makespan_s;
    contended["store"]["write_contention_s"] = json!(0.1);
    assert!((run(&writers(&[0.0]), &contended).makespan_s - alone_s).abs() < 1e-9);
    // in sequence, so that none waits
    let staggered = run(&writers(&[0.0, 1.0]), &contended).makespan_s;
    assert!((staggered - 1.0 - alone_s).abs() < 1e-9, "{staggered}");
    let together = run(&writers(&[0.0; 3]), &contended);
    let ends: Vec<f64> = together
        .tasks
        .as_ref()
        .unwrap()
        .iter()
        .map(|t| t.end_s)
        .collect();
    // each waits for two others
    assert!(
        ends.iter().all(|end| (end - alone_s - 0.2).abs() < 0.01),
        "{ends:?} {alone_s}"
    );
    let path: f64 = together.stations.iter().map(|row| row.critical_s).sum();
    assert!((path - together.makespan_s).abs() < 1e-6, "{path}");
}
