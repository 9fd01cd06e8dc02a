//! Closed loops compared with the laws of queueing.

use penstock_queuenet::{simulate, ClosedLoop, Outcome};

fn run(device: &str, rest: &str) -> Outcome {
    let class = |overhead: &str| format!(r#"{{"overhead": {overhead}}}"#);
    let (servers, overhead) = device.split_once(' ').unwrap();
    let class = class(overhead);
    let text = format!(
        r#"{{"profile": {{"schema": "penstock/storage-profile/1", "name": "t", "servers": {servers},
              "read": {{"sequential": {class}, "random": {class}}},
              "write": {{"sequential": {class}, "random": {class}}}}}, {rest}}}"#
    );
    let spec: ClosedLoop = serde_json::from_str(&text).unwrap();
    simulate(&spec).unwrap()
}

const MILLISECOND: &str = r#"4 {"kind": "constant", "value_s": 0.001}"#;

fn random(count: u32, more: &str) -> String {
    format!(
        r#""duration_s": 20, "quantiles": [0.5, 0.99], "clients": [{{"count": {count}, {more}
           "pattern": {{"kind": "random", "op": "read", "block_bytes": 4096, "file_bytes": 1073741824}}}}]"#
    )
}

fn assert_close(actual: f64, expected: f64, tolerance: f64) {
    assert!(
        (actual / expected - 1.0).abs() <= tolerance,
        "{actual}, expected {expected}"
    );
}

#[test]
fn depth_and_threads_give_the_same_rates() {
    for (depth, rate) in [(1u32, 1000.0), (2, 2000.0), (4, 4000.0), (8, 4000.0)] {
        let threads = run(MILLISECOND, &random(depth, ""));
        let deep = run(MILLISECOND, &random(1, &format!(r#""iodepth": {depth},"#)));
        assert_close(threads.read.iops, rate, 0.01);
        assert_close(deep.read.iops, rate, 0.01);
        assert_close(threads.read.rate_bps, rate * 4096.0, 0.01);
        assert_close(threads.utilisation, rate / 4000.0, 0.01);
        let latency = f64::from(depth) / rate * 1e9;
        assert_close(threads.read.latency_mean_ns, latency, 0.01);
        assert_close(threads.read.latency_ns[0].1, latency, 0.02);
    }
}

/// Separate files are spread over a disk with an arm; a shared file is in one place.
#[test]
fn reads_at_other_positions_move_the_arm() {
    let times = r#"{"shortest_s":0.001,"average_s":0.012,"longest_s":0.02}"#;
    let arm = format!(
        r#"1,"seek":{{"span_bytes":320000000000,"cylinders":100000,"read":{times},"write":{times}}} {{"kind": "constant", "value_s": 0.004}}"#
    );
    let one_client = run(&arm, &random(1, ""));
    let shared = run(&arm, &random(8, r#""shared_file": true,"#));
    let eight_clients = run(&arm, &random(8, ""));
    // 1 GiB is 336 cylinders: a little more than 1 ms
    let near = 1.0 / (0.004 + 0.001 + 0.0233 * (0.00336f64).sqrt() * 8.0 / 15.0);
    assert_close(one_client.read.iops, near, 0.02);
    assert_close(shared.read.iops, near, 0.02);
    // eight places spread over the disk: seven of eight requests need a long seek
    assert!(
        (55.0..95.0).contains(&eight_clients.read.iops),
        "{}",
        eight_clients.read.iops
    );
}

/// Interactive response time law: rate = clients / (think + latency).
#[test]
fn thinking_slows_a_client_down() {
    let outcome = run(
        MILLISECOND,
        &random(
            2,
            r#""think_ns": 500000, "think_ns_per_byte": 122.0703125,"#,
        ),
    );
    assert_close(outcome.read.iops, 2.0 / 0.002, 0.01);
}

/// Machine repairman M/M/1//N: utilisation = 1 - p0.
#[test]
fn exponential_service_matches_the_closed_formula() {
    let think_s = 0.004;
    let device = r#"1 {"kind": "exponential", "mean_s": 0.001}"#;
    // think times that are not exponential: utilisation of M/G(think)//N does not depend on their shape
    let outcome = run(
        device,
        &random(6, &format!(r#""think_ns": {},"#, think_s * 1e9)).replace("20,", "200,"),
    );
    let ratio: f64 = 0.001 / think_s;
    let mut weight = 1.0;
    let mut sum = 1.0;
    for k in 0..6u32 {
        weight *= f64::from(6 - k) * ratio;
        sum += weight;
    }
    assert_close(outcome.utilisation, 1.0 - 1.0 / sum, 0.02);
}

#[test]
fn large_operations_reach_the_device_in_pieces() {
    let rest = r#""operations": 10, "max_request_bytes": 1048576, "clients": [{
        "pattern": {"kind": "sequential", "op": "write", "block_bytes": 4194304, "file_bytes": 67108864}}]"#;
    let outcome = run(MILLISECOND, rest);
    assert_eq!(
        (outcome.write.operations, outcome.device_requests),
        (10, 40)
    );
    // four servers serve the four pieces in parallel
    assert_close(outcome.elapsed_s, 0.010, 0.001);
}

#[test]
fn explicit_operations_run_once_each() {
    let rest = r#""clients": [
        {"pattern": {"kind": "explicit", "op": [0, 1, 2], "offset_bytes": [0, 4096, 0],
                     "size_bytes": [4096, 8192, 0], "think_ns": [0, 1000000, 0]}}]"#;
    let outcome = run(MILLISECOND, rest);
    assert_eq!(
        (
            outcome.read.operations,
            outcome.write.bytes,
            outcome.flush.operations
        ),
        (1, 8192, 1)
    );
    assert_close(outcome.elapsed_s, 0.003, 1e-6); // read, think, write; flush costs nothing
}

#[test]
fn nonsense_is_refused() {
    let spec = |rest: &str| {
        let class = r#"{"overhead": {"kind": "constant", "value_s": 0.001}}"#;
        let text = format!(
            r#"{{"profile": {{"schema": "penstock/storage-profile/1", "name": "t", "servers": 1,
                  "read": {{"sequential": {class}, "random": {class}}},
                  "write": {{"sequential": {class}, "random": {class}}}}}, {rest}}}"#
        );
        penstock_queuenet::simulate_json(&text).unwrap_err()
    };
    let pattern = r#""pattern": {"kind": "sequential", "op": "read", "block_bytes": 4096, "file_bytes": 8192}"#;
    for (rest, message) in [
        (r#""clients": []"#.to_owned(), "clients is empty"),
        (
            format!(r#""clients": [{{{pattern}}}]"#),
            "neither duration_s nor operations",
        ),
        (
            format!(r#""duration_s": -1, "clients": [{{{pattern}}}]"#),
            "duration_s -1",
        ),
        (
            format!(r#""duration_s": 1, "clients": [{{"iodepth": 0, {pattern}}}]"#),
            "iodepth",
        ),
        (
            format!(r#""duration_s": 1, "clients": [{{"think_ns": -5, {pattern}}}]"#),
            "think time",
        ),
        (
            format!(
                r#""duration_s": 1, "clients": [{{{}}}]"#,
                pattern.replace("8192", "1024")
            ),
            "block_bytes",
        ),
        (
            format!(
                r#""duration_s": 1, "clients": [{{{}}}]"#,
                pattern.replace("read", "reed")
            ),
            "reed",
        ),
    ] {
        let error = spec(&rest);
        assert!(error.contains(message), "{error}");
    }
}
