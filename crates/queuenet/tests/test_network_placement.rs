//! Placement of chunks: balanced, round robin over files, and by tag, each in a case small enough for a check by hand.

use penstock_queuenet::network::{simulate, Network, Outcome, Workload};
use serde_json::{json, Value};

const MIB: u64 = 1 << 20;

/// `n` hosts that run tasks and have storage, without a manager.
fn network(n: usize) -> Value {
    let link = json!({"out_bps": 12.5e6, "in_bps": 12.5e6, "loopback_bps": 125e6});
    let hosts: Vec<Value> = (0..n)
        .map(|i| {
            json!({"name": format!("h{i}"), "network": link, "client": {},
                   "storage": {"read": 0.001, "write": 0.001}})
        })
        .collect();
    json!({"schema": "penstock/network/1", "hosts": hosts,
           "store": {"chunk_bytes": MIB, "shuffle": "none", "allocation": "none"}})
}

fn placed(n: usize, placement: &str) -> Value {
    let mut network = network(n);
    network["store"]["placement"] = json!(placement);
    network
}

/// One task that writes files of these sizes in bytes, one after the other.
fn writes(sizes: &[u64]) -> Value {
    let operations: Vec<Value> = sizes
        .iter()
        .enumerate()
        .map(|(i, size)| json!({"op": "write", "file": format!("f{i}"), "size_bytes": size}))
        .collect();
    json!({"schema": "penstock/workload/1", "tasks": [{"name": "w", "machine": "h0", "operations": operations}]})
}

fn outcome(workload: &Value, network: &Value, seed: u64) -> Outcome {
    let workload = Workload::from_json(&workload.to_string()).unwrap();
    let network = Network::from_json(&network.to_string()).unwrap();
    simulate(&workload, &network, seed, true).unwrap()
}

fn stored(workload: &Value, network: &Value, seed: u64) -> Vec<u64> {
    let outcome = outcome(workload, network, seed);
    assert_eq!(outcome.error, None);
    outcome.hosts.iter().map(|host| host.stored_bytes).collect()
}

#[test]
fn the_least_used_host_is_next() {
    let balanced = placed(3, "balanced");
    let of = |sizes: &[u64]| stored(&writes(sizes), &balanced, 1);
    // 7 chunks: 3, 2 and 2; then single chunks on the least used host, the first in case of ties
    assert_eq!(of(&[7 * MIB]), [3 * MIB, 2 * MIB, 2 * MIB]);
    assert_eq!(of(&[7 * MIB, MIB]), [3 * MIB, 3 * MIB, 2 * MIB]);
    assert_eq!(of(&[7 * MIB, MIB, MIB]), [3 * MIB, 3 * MIB, 3 * MIB]);
    // bytes count, not chunks: half a chunk on the first host, one on each other, so the first is next, and next again
    assert_eq!(
        of(&[MIB / 2, 2 * MIB, MIB / 4, MIB / 4]),
        [MIB, MIB, MIB],
        "half chunks"
    );
    // the last chunk of a file can be shorter
    assert_eq!(of(&[MIB + MIB / 2, 2 * MIB]), [MIB, 3 * MIB / 2, MIB]);
}

#[test]
fn bytes_are_stored_once_in_any_order() {
    let pieces = |ranges: &[(u64, u64)]| {
        let operations: Vec<Value> = ranges
            .iter()
            .map(|(offset, size)| {
                json!({"op": "write", "file": "f", "offset_bytes": offset, "size_bytes": size})
            })
            .collect();
        let workload = json!({"schema": "penstock/workload/1",
            "tasks": [{"name": "w", "machine": "h0", "operations": operations}]});
        stored(&workload, &placed(3, "round_robin"), 1)
            .iter()
            .sum::<u64>()
    };
    let backwards: Vec<_> = (0..8).rev().map(|i| (i * MIB / 2, MIB / 2)).collect();
    assert_eq!(pieces(&backwards), 4 * MIB);
    // a hole remains until it is written: in parts, across its ends, or again
    assert_eq!(pieces(&[(3 * MIB, MIB)]), MIB);
    assert_eq!(pieces(&[(3 * MIB, MIB), (MIB, MIB), (MIB, MIB)]), 2 * MIB);
    let around = [(4 * MIB, MIB), (MIB / 2, MIB), (2 * MIB, MIB), (0, 6 * MIB)];
    assert_eq!(pieces(&around), 6 * MIB);
    let within = [(4 * MIB, MIB), (2 * MIB, MIB), (MIB, 7 * MIB / 2)];
    assert_eq!(pieces(&within), 4 * MIB);
}

#[test]
fn files_written_at_once_are_dealt_evenly_with_any_seed() {
    let tasks: Vec<Value> = (0..30)
        .map(|i| {
            json!({"name": format!("w{i}"), "operations":
                   [{"op": "write", "file": format!("f{i}"), "size_bytes": (1 + i % 3) * MIB}]})
        })
        .collect();
    let workload = json!({"schema": "penstock/workload/1", "tasks": tasks});
    let spread = |placement: &str, seed: u64| {
        let mut network = placed(7, placement);
        network["store"]["shuffle"] = json!("fresh");
        let stored = stored(&workload, &network, seed);
        assert_eq!(stored.iter().sum::<u64>(), 60 * MIB);
        stored.iter().max().unwrap() - stored.iter().min().unwrap()
    };
    assert!((1..=20).all(|seed| spread("balanced", seed) == MIB));
    // a random stripe for each file is not balanced
    assert!((1..=20).any(|seed| spread("striped", seed) > MIB));
}

#[test]
fn equal_hosts_are_shuffled() {
    let mut balanced = placed(5, "balanced");
    let of = |network: &Value, seed: u64| {
        let stored = stored(&writes(&[MIB]), network, seed);
        stored.iter().position(|bytes| *bytes > 0).unwrap()
    };
    assert!((0..40).all(|seed| of(&balanced, seed) == 0));
    balanced["store"]["shuffle"] = json!("fresh");
    let mut seen: Vec<usize> = (0..40).map(|seed| of(&balanced, seed)).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, [0, 1, 2, 3, 4]);
}

#[test]
fn replicas_are_on_distinct_hosts_and_balanced() {
    let mut balanced = placed(5, "balanced");
    balanced["store"]["replicas"] = json!(2);
    // 5 chunks twice: 0 1, 2 3, 4 0, 1 2, 3 4
    assert_eq!(stored(&writes(&[5 * MIB]), &balanced, 1), [2 * MIB; 5]);
    // two hosts are full after one chunk and its copy
    assert_eq!(
        stored(&writes(&[MIB]), &balanced, 1),
        [MIB, MIB, 0, 0, 0],
        "one chunk"
    );
    // a stripe of one stays on the least used host, and that of its copies on another
    balanced["store"]["stripe_width"] = json!(1);
    assert_eq!(
        stored(&writes(&[3 * MIB]), &balanced, 1),
        [3 * MIB, 3 * MIB, 0, 0, 0]
    );
}

#[test]
fn full_hosts_are_skipped() {
    let mut balanced = placed(3, "balanced");
    balanced["hosts"][1]["storage"]["capacity_bytes"] = json!(MIB + MIB / 2);
    assert_eq!(
        stored(&writes(&[7 * MIB]), &balanced, 1),
        [3 * MIB, MIB, 3 * MIB]
    );
    // data shorter than a chunk still fits there
    assert_eq!(
        stored(&writes(&[7 * MIB, MIB / 2]), &balanced, 1),
        [3 * MIB, MIB + MIB / 2, 3 * MIB]
    );
    for host in 0..3 {
        balanced["hosts"][host]["storage"]["capacity_bytes"] = json!(2 * MIB);
    }
    let full = outcome(&writes(&[7 * MIB]), &balanced, 1).error.unwrap();
    assert_eq!(full.kind, "full");
    assert!(full.message.contains("0 of 3 nodes"), "{}", full.message);
}

#[test]
fn continued_round_robin_spreads_single_chunk_files() {
    let mut network = placed(3, "round_robin");
    let five = writes(&[MIB; 5]);
    assert_eq!(stored(&five, &network, 1), [5 * MIB, 0, 0]);
    network["store"]["round_robin"] = json!("continue");
    assert_eq!(stored(&five, &network, 1), [2 * MIB, 2 * MIB, MIB]);
    // 4 chunks end on the first host, so the next file begins on the second
    assert_eq!(
        stored(&writes(&[4 * MIB, MIB]), &network, 1),
        [2 * MIB, 2 * MIB, MIB]
    );
    // a file that grows continues as well
    let grown = json!({"schema": "penstock/workload/1", "tasks": [{"name": "w", "operations": [
        {"op": "write", "file": "f", "size_bytes": MIB},
        {"op": "compute", "seconds": 1},
        {"op": "write", "file": "f", "offset_bytes": MIB, "size_bytes": MIB}]}]});
    assert_eq!(stored(&grown, &network, 1), [MIB, MIB, 0]);
    // stripes of two hosts: 0 1, 2 0, 1 2
    network["store"]["stripe_width"] = json!(2);
    assert_eq!(
        stored(&writes(&[3 * MIB, 2 * MIB]), &network, 1),
        [3 * MIB, MIB, MIB]
    );
}

#[test]
fn continued_round_robin_skips_full_hosts() {
    let mut network = placed(3, "round_robin");
    network["store"]["round_robin"] = json!("continue");
    network["hosts"][1]["storage"]["capacity_bytes"] = json!(MIB);
    // 0, 1, 2, 0; then the full host is skipped, and the sixth chunk goes to the third
    assert_eq!(
        stored(&writes(&[MIB; 6]), &network, 1),
        [2 * MIB, MIB, 3 * MIB]
    );
}

/// A round robin over three hosts that places a unit of a file together.
fn in_units(unit: Value) -> Value {
    let mut network = placed(3, "round_robin");
    network["store"]["round_robin"] = json!("continue");
    network["store"]["placement_unit"] = unit;
    network
}

#[test]
fn placement_units_are_on_one_host() {
    let units = in_units(json!(2 * MIB));
    let of = |sizes: &[u64]| stored(&writes(sizes), &units, 1);
    assert_eq!(of(&[5 * MIB]), [2 * MIB, 2 * MIB, MIB]);
    assert_eq!(of(&[4 * MIB, MIB, MIB]), [3 * MIB, 2 * MIB, MIB]);
    let files = in_units(json!("file"));
    assert_eq!(
        stored(&writes(&[5 * MIB, MIB]), &files, 1),
        [5 * MIB, MIB, 0]
    );
    for placement in ["random", "balanced", "striped"] {
        let mut files = placed(3, placement);
        files["store"]["placement_unit"] = json!("file");
        let of_hosts = stored(&writes(&[5 * MIB]), &files, 1);
        assert_eq!(of_hosts.iter().max(), Some(&(5 * MIB)), "{placement}");
    }
    // a unit smaller than a chunk is a chunk
    assert_eq!(
        stored(&writes(&[3 * MIB]), &in_units(json!(1)), 1),
        [MIB, MIB, MIB]
    );
}

/// A task on `h2` that writes the chunks of a file in this order, then reads the file.
fn chunk_by_chunk(order: &[u64]) -> Value {
    let mut operations: Vec<Value> = Vec::new();
    for chunk in order {
        operations.push(
            json!({"op": "write", "file": "f", "offset_bytes": chunk * MIB, "size_bytes": MIB}),
        );
        operations.push(json!({"op": "compute", "seconds": 1}));
    }
    let size = order.len() as u64 * MIB;
    operations.push(json!({"op": "read", "file": "f", "size_bytes": size}));
    json!({"schema": "penstock/workload/1", "tasks": [{"name": "w", "machine": "h2", "operations": operations}]})
}

#[test]
fn later_requests_join_their_unit() {
    let workload = chunk_by_chunk(&[0, 1, 2, 3]);
    let single = in_units(Value::Null);
    assert_eq!(stored(&workload, &single, 1), [2 * MIB, MIB, MIB]);
    let units = in_units(json!(2 * MIB));
    assert_eq!(stored(&workload, &units, 1), [2 * MIB, 2 * MIB, 0]);
    let mut copies = units.clone();
    copies["store"]["replicas"] = json!(2);
    assert_eq!(stored(&workload, &copies, 1), [2 * MIB, 4 * MIB, 2 * MIB]);
    // chunk 2 joins chunk 3 on the first host; alone it is on the third one
    let local = |network: &Value| {
        let outcome = outcome(&chunk_by_chunk(&[3, 0, 2, 1]), network, 1);
        outcome.tasks.unwrap()[0].spans.last().unwrap().local_bytes
    };
    assert_eq!((local(&single), local(&units)), (MIB, 0));
    let refused = Network::from_json(&in_units(json!(0)).to_string()).unwrap_err();
    assert!(refused.0.contains("placement_unit"), "{}", refused.0);
}

/// A task on `h2` that reads the existing file `g`, writes `f` in two operations and reads it back.
fn two_files() -> Value {
    json!({"schema": "penstock/workload/1",
           "files": [{"name": "g", "size_bytes": 2 * MIB, "preloaded": true}],
           "tasks": [{"name": "w", "machine": "h2", "operations": [
               {"op": "read", "file": "g", "size_bytes": 2 * MIB},
               {"op": "write", "file": "f", "size_bytes": MIB},
               {"op": "compute", "seconds": 1},
               {"op": "write", "file": "f", "offset_bytes": MIB, "size_bytes": 2 * MIB},
               {"op": "read", "file": "f", "size_bytes": 3 * MIB}]}]})
}

fn on(offset: u64, length: u64, hosts: &[&str]) -> Value {
    json!({"offset_bytes": offset, "length_bytes": length, "hosts": hosts})
}

fn with_placement(workload: &Value, placement: &Value) -> Result<Workload, String> {
    let mut workload = Workload::from_json(&workload.to_string()).unwrap();
    workload
        .place(&placement.to_string())
        .map_err(|error| error.0)?;
    Ok(workload)
}

#[test]
fn given_placement_is_used() {
    let placement = json!({
        "f": [on(0, 2 * MIB, &["h2"]), on(2 * MIB, MIB, &["h0", "h2"])],
        "g": [on(MIB, MIB, &["h1"]), on(0, MIB, &["h2"])]});
    let workload = with_placement(&two_files(), &placement).unwrap();
    let network = Network::from_json(&placed(4, "random").to_string()).unwrap();
    for seed in 0..10 {
        let outcome = simulate(&workload, &network, seed, true).unwrap();
        assert_eq!(outcome.error, None);
        let stored: Vec<u64> = outcome.hosts.iter().map(|host| host.stored_bytes).collect();
        assert_eq!(stored, [MIB, MIB, 4 * MIB, 0]);
        // of g one chunk is local, of f all: two chunks and the second replica of the third
        let spans = &outcome.tasks.as_ref().unwrap()[0].spans;
        let local: Vec<u64> = spans.iter().map(|span| span.local_bytes).collect();
        assert_eq!(local, [MIB, MIB, 0, MIB, 3 * MIB]);
    }
}

#[test]
fn unlisted_files_are_placed_by_the_store() {
    let placement = json!({"g": [on(0, 2 * MIB, &["h3"])]});
    let workload = with_placement(&two_files(), &placement).unwrap();
    let network = Network::from_json(&placed(4, "round_robin").to_string()).unwrap();
    let outcome = simulate(&workload, &network, 1, false).unwrap();
    let stored: Vec<u64> = outcome.hosts.iter().map(|host| host.stored_bytes).collect();
    // f: one chunk on the first host, then two that start at the first host again
    assert_eq!(stored, [2 * MIB, MIB, 0, 2 * MIB]);
}

#[test]
fn full_host_of_a_placement_is_reported() {
    let placement = json!({"f": [on(0, 3 * MIB, &["h1"])]});
    let workload = with_placement(&two_files(), &placement).unwrap();
    let mut network = placed(3, "striped");
    network["hosts"][1]["storage"]["capacity_bytes"] = json!(3 * MIB);
    let network = Network::from_json(&network.to_string()).unwrap();
    let error = simulate(&workload, &network, 1, false)
        .unwrap()
        .error
        .unwrap();
    assert_eq!(error.kind, "full");
    assert!(error.message.contains("\"h1\""), "{}", error.message);
}

#[test]
fn a_placement_that_does_not_fit_is_refused() {
    let complete = |host: &str| json!({"f": [on(0, 3 * MIB, &[host])]});
    for (placement, message) in [
        (json!([]), "an object"),
        (
            json!({"x": []}),
            "file \"x\"; a file of the workload is expected",
        ),
        (
            json!({"f": [on(0, 2 * MIB, &["h0"])]}),
            "no host has byte 2097152",
        ),
        (
            json!({"f": [on(MIB, 2 * MIB, &["h0"])]}),
            "no host has byte 0",
        ),
        (json!({"g": []}), "no host has byte 0"),
        (
            json!({"f": [on(0, 3 * MIB, &[])]}),
            "no hosts; at least one",
        ),
        (
            json!({"f": [on(0, 3 * MIB, &["h0", "h0"])]}),
            "a second time",
        ),
        (
            json!({"f": [on(0, 3 * MIB, &["h0"]), on(MIB, MIB, &["h1"])]}),
            "overlap at byte 1048576",
        ),
        (json!({"f": [on(0, 0, &["h0"])]}), "length_bytes is 0"),
        (json!({"f": [on(u64::MAX, 9, &["h0"])]}), "2^62"),
        (
            json!({"f": [{"offset_bytes": 0, "hosts": ["h0"]}]}),
            "length_bytes",
        ),
        (
            json!({"f": [{"offset_bytes": 0, "length_bytes": 1, "hosts": ["h0"], "x": 1}]}),
            "unknown field `x`",
        ),
    ] {
        let error = with_placement(&two_files(), &placement).unwrap_err();
        assert!(error.starts_with("placement: "), "{error}");
        assert!(error.contains(message), "{error}");
    }
    let mut workload = Workload::from_json(&two_files().to_string()).unwrap();
    let twice = format!(
        "{{\"f\": [], \"g\": {}, \"f\": []}}",
        json!([on(0, 2 * MIB, &["h0"])])
    );
    assert!(workload
        .place(&twice)
        .unwrap_err()
        .0
        .contains("stands there twice"));
    let mut compute = network(3);
    compute["hosts"][1]["storage"] = Value::Null;
    for (placement, message) in [
        (
            complete("h9"),
            "host \"h9\"; a host of the platform is expected, such as \"h0\"",
        ),
        (
            complete("h1"),
            "host \"h1\"; a host with storage is expected",
        ),
        (
            json!({"f": [on(0, MIB / 2, &["h0"]), on(MIB / 2, 3 * MIB, &["h2"])]}),
            "other hosts from byte 524288 on, inside a chunk of 1048576 bytes",
        ),
    ] {
        let workload = with_placement(&two_files(), &placement).unwrap();
        let network = Network::from_json(&compute.to_string()).unwrap();
        let error = simulate(&workload, &network, 1, false).unwrap_err().0;
        assert!(error.starts_with("placement: "), "{error}");
        assert!(error.contains(message), "{error}");
    }
    let mut tagged = two_files();
    tagged["tasks"][0]["operations"][0] =
        json!({"op": "set_xattr", "file": "f", "hints": {"chunk_bytes": 2 * MIB}});
    let error = with_placement(&tagged, &complete("h0")).unwrap_err();
    assert!(error.contains("chunks of one size"), "{error}");
}

/// Extents of one chunk on the same hosts can be split anywhere and count as one.
#[test]
fn contiguous_extents_are_merged() {
    let placement =
        json!({"f": [on(0, MIB / 2, &["h0"]), on(MIB / 2, 2 * MIB + MIB / 2, &["h0"])]});
    let workload = with_placement(&two_files(), &placement).unwrap();
    let network = Network::from_json(&network(3).to_string()).unwrap();
    let outcome = simulate(&workload, &network, 1, false).unwrap();
    assert_eq!(outcome.hosts[0].stored_bytes, 4 * MIB); // with a chunk of g
}

/// A tag names the host of a file that a task writes, until another placement is set.
#[test]
fn tags_decide_placement_of_written_files() {
    let tag = |file: &str, hints: Value| json!({"op": "set_xattr", "file": file, "hints": hints});
    let write = |file: &str| json!({"op": "write", "file": file, "size_bytes": 2 * MIB});
    let of = |operations: Value| {
        let workload = json!({"schema": "penstock/workload/1",
            "tasks": [{"name": "w", "machine": "h0", "operations": operations}]});
        stored(&workload, &network(4), 1)
    };
    let on_h2 = json!({"placement": "host", "host": "h2"});
    assert_eq!(
        of(json!([tag("f", on_h2.clone()), write("f")])),
        [0, 0, 2 * MIB, 0]
    );
    // the host alone has the same effect, and the last one counts
    assert_eq!(
        of(json!([
            tag("f", on_h2.clone()),
            tag("f", json!({"host": "h3"})),
            write("f")
        ])),
        [0, 0, 0, 2 * MIB]
    );
    assert_eq!(
        of(json!([
            tag("f", on_h2.clone()),
            tag("f", json!({"placement": "local"})),
            write("f")
        ])),
        [2 * MIB, 0, 0, 0]
    );
    // a tag of another kind does not change it
    assert_eq!(
        of(json!([
            tag("f", on_h2.clone()),
            tag("f", json!({"replicas": 1})),
            write("f"),
            write("g")
        ])),
        [MIB, MIB, 2 * MIB, 0]
    );
}

#[test]
fn a_host_that_is_not_named_or_not_there_is_refused() {
    let with = |hints: Value| {
        json!({"schema": "penstock/workload/1", "files": [{"name": "f", "hints": hints}],
               "tasks": [{"name": "w", "operations": [{"op": "write", "file": "f", "size_bytes": 1}]}]})
    };
    let unnamed = with(json!({"placement": "host"}));
    let error = Workload::from_json(&unnamed.to_string()).unwrap_err().0;
    assert!(
        error.contains("file \"f\": placement host without host"),
        "{error}"
    );
    let elsewhere = with(json!({"placement": "host", "host": "h9"}));
    let workload = Workload::from_json(&elsewhere.to_string()).unwrap();
    let platform = Network::from_json(&network(3).to_string()).unwrap();
    let error = simulate(&workload, &platform, 1, false).unwrap_err().0;
    assert!(error.contains("there is no host \"h9\""), "{error}");
    let error = Network::from_json(&placed(3, "host").to_string())
        .unwrap_err()
        .0;
    assert!(error.contains("store.placement is host"), "{error}");
}

/// The task reads the last quarter of a file; the other three are on another host.
#[test]
fn tasks_run_where_their_inputs_are() {
    let extents = |at: &[(u64, u64, &str)]| {
        let list: Vec<Value> = at
            .iter()
            .map(|(from, n, host)| on(from * MIB, n * MIB, &[host]))
            .collect();
        json!(list)
    };
    let reads = |operations: Value| {
        json!({"schema": "penstock/workload/1", "files": [
                   {"name": "f", "size_bytes": 8 * MIB, "preloaded": true},
                   {"name": "g", "size_bytes": 3 * MIB + MIB / 2, "preloaded": true}],
               "tasks": [{"name": "r", "operations": operations}]})
    };
    let part = |file: &str, offset: u64, size: u64| json!({"op": "read", "file": file, "offset_bytes": offset, "size_bytes": size});
    let placement = json!({
        "f": extents(&[(0, 6, "h1"), (6, 2, "h2")]),
        "g": extents(&[(0, 3, "h0"), (3, 1, "h3")])});
    let runs_on = |operations: Value, inputs: &str| {
        let workload = with_placement(&reads(operations), &placement).unwrap();
        let mut network = network(4);
        network["scheduler"] = json!({"kind": "data_location", "inputs": inputs});
        let network = Network::from_json(&network.to_string()).unwrap();
        let outcome = simulate(&workload, &network, 1, true).unwrap();
        outcome.tasks.unwrap()[0].host.clone()
    };
    let last = json!([part("f", 6 * MIB, 2 * MIB)]);
    assert_eq!(runs_on(last.clone(), "read"), "h2");
    assert_eq!(runs_on(last, "files"), "h1");
    // parts of chunks: 0.5 MiB on h1, then 1 MiB on h2
    let across = json!([part("f", 6 * MIB - MIB / 2, MIB + MIB / 2)]);
    assert_eq!(runs_on(across.clone(), "read"), "h2");
    assert_eq!(runs_on(across, "files"), "h1");
    // 1 MiB twice from h2 is more than 1.5 MiB from h1
    let twice = json!([part("f", 0, MIB + MIB / 2), part("f", 6 * MIB, MIB), {"op": "compute", "seconds": 1}, part("f", 6 * MIB, MIB)]);
    assert_eq!(runs_on(twice, "read"), "h2");
    // the last chunk of g is half a chunk: with 0.75 MiB of f, h2 has more
    let half = json!([part("g", 3 * MIB, MIB / 2), part("f", 6 * MIB, 3 * MIB / 4)]);
    assert_eq!(runs_on(half, "read"), "h2");
    // complete files: most of f is on h1
    let all = json!([part("f", 0, 8 * MIB), part("g", 0, 3 * MIB + MIB / 2)]);
    assert_eq!(runs_on(all.clone(), "read"), "h1");
    assert_eq!(runs_on(all, "files"), "h1");
}

/// Bytes of a read by host, counted chunk by chunk, for all placement rules and ranges.
#[test]
fn shares_of_hosts_are_those_of_the_chunks() {
    // a stripe over three hosts and a half chunk at its end: a read of all but the first half chunk and the last quarter
    let files = json!([{"name": "f", "size_bytes": 6 * MIB + MIB / 2, "preloaded": true}]);
    let reads = |offset: u64, size: u64| {
        json!({"schema": "penstock/workload/1", "files": files, "tasks": [{"name": "r", "operations": [
            {"op": "read", "file": "f", "offset_bytes": offset, "size_bytes": size}]}]})
    };
    let runs_on = |offset: u64, size: u64| {
        let mut network = network(3);
        network["scheduler"] = json!({"kind": "data_location"});
        outcome(&reads(offset, size), &network, 1).tasks.unwrap()[0]
            .host
            .clone()
    };
    // chunks 0 3 6 on h0, 1 4 on h1, 2 5 on h2; h0 has 2.5 MiB of all
    assert_eq!(runs_on(0, 6 * MIB + MIB / 2), "h0");
    // without most of its first and last chunks it has 1.5 MiB; h1 and h2 have 2
    assert_eq!(runs_on(3 * MIB / 4, 5 * MIB + MIB / 2), "h1");
    assert_eq!(runs_on(2 * MIB, MIB), "h2");
}
