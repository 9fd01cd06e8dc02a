//! Where chunks go: dealt out evenly, in turn over files, as a tag says. Each case is small enough to be dealt by hand.

use penstock_queuenet::network::{simulate, Network, Outcome, Workload};
use serde_json::{json, Value};

const MIB: u64 = 1 << 20;

/// `n` hosts that run tasks and store, without a manager.
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

/// One task that writes files of so many bytes, one after the other.
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
    // 7 chunks: 3, 2 and 2; then single chunks where least is, the first of equal ones
    assert_eq!(of(&[7 * MIB]), [3 * MIB, 2 * MIB, 2 * MIB]);
    assert_eq!(of(&[7 * MIB, MIB]), [3 * MIB, 3 * MIB, 2 * MIB]);
    assert_eq!(of(&[7 * MIB, MIB, MIB]), [3 * MIB, 3 * MIB, 3 * MIB]);
    // bytes count, not chunks: half a chunk on the first host, one on each other, so the first is next, and next again
    assert_eq!(
        of(&[MIB / 2, 2 * MIB, MIB / 4, MIB / 4]),
        [MIB, MIB, MIB],
        "half chunks"
    );
    // the last chunk of a file is as long as it is
    assert_eq!(of(&[MIB + MIB / 2, 2 * MIB]), [MIB, 3 * MIB / 2, MIB]);
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
    // a stripe that is drawn anew for each file is not even
    assert!((1..=20).any(|seed| spread("striped", seed) > MIB));
}

#[test]
fn equal_hosts_come_in_a_shuffled_order() {
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
fn replicas_are_on_hosts_of_their_own_and_even() {
    let mut balanced = placed(5, "balanced");
    balanced["store"]["replicas"] = json!(2);
    // 5 chunks twice: 0 1, 2 3, 4 0, 1 2, 3 4
    assert_eq!(stored(&writes(&[5 * MIB]), &balanced, 1), [2 * MIB; 5]);
    // two hosts are full with one chunk and its copy
    assert_eq!(
        stored(&writes(&[MIB]), &balanced, 1),
        [MIB, MIB, 0, 0, 0],
        "one chunk"
    );
    // a stripe of one keeps to the least used host, and the one of its copies
    balanced["store"]["stripe_width"] = json!(1);
    assert_eq!(
        stored(&writes(&[3 * MIB]), &balanced, 1),
        [3 * MIB, 3 * MIB, 0, 0, 0]
    );
}

#[test]
fn hosts_without_room_are_passed_over() {
    let mut balanced = placed(3, "balanced");
    balanced["hosts"][1]["storage"]["capacity_bytes"] = json!(MIB + MIB / 2);
    assert_eq!(
        stored(&writes(&[7 * MIB]), &balanced, 1),
        [3 * MIB, MIB, 3 * MIB]
    );
    // what is shorter than a chunk still fits there
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
fn a_round_robin_that_goes_on_spreads_files_of_one_chunk() {
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
    // a file that grows goes on as well
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
fn a_round_robin_that_goes_on_passes_over_hosts_without_room() {
    let mut network = placed(3, "round_robin");
    network["store"]["round_robin"] = json!("continue");
    network["hosts"][1]["storage"]["capacity_bytes"] = json!(MIB);
    // 0, 1, 2, 0, then the full one is passed over, and the sixth is for the third
    assert_eq!(
        stored(&writes(&[MIB; 6]), &network, 1),
        [2 * MIB, MIB, 3 * MIB]
    );
}
