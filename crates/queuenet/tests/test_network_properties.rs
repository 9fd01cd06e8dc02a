//! Properties of all platforms and workloads, checked on random ones that are small enough for seconds.

use penstock_queuenet::network::{simulate, simulate_many, Batch, Network, Outcome, Workload};
use penstock_station::Draws;
use serde_json::{json, Value};

/// Random numbers of a scenario.
struct Dice(Draws);

impl Dice {
    fn new(seed: u64) -> Self {
        Dice(Draws::keyed(seed, 99, 0, 0))
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.0.uniform() * n as f64) as u64
    }
    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + self.0.uniform() * (high - low)
    }
    fn chance(&mut self, p: f64) -> bool {
        self.0.uniform() < p
    }
    fn number(&mut self, numbers: &[u64]) -> u64 {
        numbers[self.below(numbers.len() as u64) as usize]
    }
    fn one_of<'a>(&mut self, names: &[&'a str]) -> &'a str {
        names[self.below(names.len() as u64) as usize]
    }
}

fn profile(servers: u64) -> Value {
    let class = |overhead: f64| json!({"overhead": {"kind": "constant", "value_s": overhead}, "rate_bps": 2e8});
    json!({"schema": "penstock/storage-profile/1", "name": "disk", "servers": servers,
           "read": {"sequential": class(1e-4), "random": class(5e-3)},
           "write": {"sequential": class(1e-4), "random": class(4e-3)}})
}

fn random_network(dice: &mut Dice) -> Value {
    let n = 2 + dice.below(7) as usize;
    let alike = dice.chance(0.5);
    let rate = dice.between(1e7, 2e8);
    let mut hosts = Vec::new();
    for i in 0..n {
        let rate = |dice: &mut Dice| if alike { rate } else { dice.between(1e7, 2e8) };
        let mut host = json!({"name": format!("h{i}"), "group": "nodes", "rack": dice.below(3),
            "network": {"out_bps": rate(dice), "in_bps": rate(dice), "loopback_bps": 1e9,
                        "latency_s": if alike { 0.0 } else { dice.between(0.0, 3e-3) }}});
        if i == 0 || dice.chance(0.7) {
            host["client"] = json!({"slots": 1 + dice.below(2), "speed": dice.between(0.5, 2.0),
                "service": if dice.chance(0.3) { json!(1e-4) } else { Value::Null }});
        }
        if i == 0 || dice.chance(0.7) {
            let service = |dice: &mut Dice| {
                json!({"overhead": {"kind": "exponential", "mean_s": dice.between(1e-4, 5e-3)},
                       "s_per_byte": dice.between(0.0, 1e-8)})
            };
            host["storage"] = if dice.chance(0.3) {
                json!({"profile": profile(1 + dice.below(3))})
            } else {
                json!({"read": service(dice), "write": service(dice), "servers": 1 + dice.below(3)})
            };
        }
        if i == 1 {
            host["manager"] = json!({"service": 5e-4, "servers": 1 + dice.below(2)});
        }
        hosts.push(host);
    }
    let storage = hosts.iter().filter(|h| !h["storage"].is_null()).count() as u64;
    let wait = [json!(0), json!(0.05), Value::Null][dice.below(3) as usize].clone();
    let mut network = json!({"schema": "penstock/network/1", "hosts": hosts,
        "fabric": {"latency_s": if dice.chance(0.5) { 0.0 } else { 5e-4 }},
        "store": {
            "chunk_bytes": dice.number(&[65_536, 262_144, 1_048_576, 300_000]),
            "replicas": 1 + dice.below(storage.min(3)),
            "replication": dice.one_of(&["chain", "parallel", "client"]),
            "forward": dice.one_of(&["chunk", "frame"]),
            "placement": dice.one_of(&["striped", "round_robin", "local", "random", "scatter"]),
            "shuffle": dice.one_of(&["fresh", "constant", "none"]),
            "allocation": dice.one_of(&["manager", "none"]),
            "read_replica": dice.one_of(&["local_first", "random"])},
        "protocol": {"frame_bytes": dice.number(&[16_384, 65_536, 50_000])},
        "scheduler": {"kind": dice.one_of(&["workqueue", "data_location"]),
                      "wait_s": wait},
        "launch": {"overhead": {"kind": "uniform", "low_s": 0.0, "high_s": 0.02},
                   "stagger": if dice.chance(0.5) { json!(0) } else { json!({"kind": "exponential", "mean_s": 0.01}) }}});
    if dice.chance(0.3) {
        network["store"]["window"] = json!(1 + dice.below(4));
    }
    if dice.chance(0.3) {
        network["store"]["stripe_width"] = json!(1 + dice.below(storage));
    }
    if dice.chance(0.2) {
        network["fabric"]["capacity_bps"] = json!(dice.between(5e7, 5e8));
    }
    if dice.chance(0.2) {
        network["fabric"]["rack_uplink_bps"] = json!(dice.between(5e7, 5e8));
    }
    if dice.chance(0.3) {
        network["preprocess"] = json!({"cache_bytes": 4 << 20, "prefetch_chunks": dice.below(3), "aggregate": dice.chance(0.5)});
    }
    network
}

fn random_workload(dice: &mut Dice) -> (Value, u64, u64) {
    let tasks = 3 + dice.below(10);
    let (mut described, mut files) = (Vec::new(), Vec::new());
    let (mut read, mut written) = (0, 0);
    files.push(json!({"name": "given", "size_bytes": 3_000_000, "preloaded": true}));
    let mut sizes = vec![("given".to_owned(), 3_000_000u64)];
    for i in 0..tasks {
        let mut operations = Vec::new();
        for _ in 0..dice.below(3) {
            let (name, size) = sizes[dice.below(sizes.len() as u64) as usize].clone();
            let offset = dice.below(size.max(2) / 2);
            operations.push(json!({"op": "open", "file": name}));
            operations.push(json!({"op": "read", "file": name, "offset_bytes": offset, "size_bytes": size - offset}));
            read += size - offset;
        }
        if dice.chance(0.5) {
            operations
                .push(json!({"op": "compute", "seconds": {"kind": "exponential", "mean_s": 0.05}}));
        }
        let name = format!("f{i}");
        let size = dice.below(4_000_000);
        if dice.chance(0.3) {
            operations.push(json!({"op": "set_xattr", "file": name, "hints": {"placement": "collocate", "group": "g"}}));
        }
        let half = size / 2;
        operations.push(json!({"op": "write", "file": name, "size_bytes": half}));
        operations.push(
            json!({"op": "write", "file": name, "offset_bytes": half, "size_bytes": size - half}),
        );
        operations.push(json!({"op": "close", "file": name}));
        written += size;
        sizes.push((name, size));
        described.push(json!({"name": format!("t{i}"), "stage": format!("s{}", i % 3), "operations": operations}));
    }
    (
        json!({"schema": "penstock/workload/1", "files": files, "tasks": described}),
        read,
        written,
    )
}

fn run(workload: &Workload, network: &Value, seed: u64) -> Outcome {
    let network =
        Network::from_json(&network.to_string()).unwrap_or_else(|e| panic!("{e}: {network}"));
    simulate(workload, &network, seed, true).unwrap()
}

/// Merging changes no result: on all random platforms and workloads both modes agree to the last bit, although the
/// requirement is 2 %. A wrong frame size would fail the test.
#[test]
fn merged_frames_change_nothing() {
    let mut sensitive = 0;
    for seed in 0..300 {
        let mut dice = Dice::new(seed);
        let mut network = random_network(&mut dice);
        let (workload, ..) = random_workload(&mut dice);
        let workload = Workload::from_json(&workload.to_string()).unwrap();
        network["protocol"]["merge_frames"] = json!(true);
        let mut merged = run(&workload, &network, seed);
        network["protocol"]["merge_frames"] = json!(false);
        let framed = run(&workload, &network, seed);
        assert_eq!(merged.error, None, "{seed}");
        assert!(
            (merged.makespan_s / framed.makespan_s - 1.0).abs() < 0.02,
            "{seed}"
        );
        merged.events = framed.events;
        assert_eq!(merged, framed, "scenario {seed}");
        network["protocol"]["frame_bytes"] = json!(1 << 20);
        let other = run(&workload, &network, seed);
        sensitive += u32::from((other.makespan_s / framed.makespan_s - 1.0).abs() > 0.02);
    }
    assert!(
        sensitive > 30,
        "the frame size hardly matters in these scenarios: {sensitive}"
    );
}

/// Bytes are conserved, times are in their valid ranges, and the critical path accounts for the complete run.
#[test]
fn conservation_laws_hold_on_random_scenarios() {
    for seed in 1000..1300 {
        let mut dice = Dice::new(seed);
        let mut network = random_network(&mut dice);
        network["launch"]["stagger"] = json!(0);
        let cached = network["preprocess"]["cache_bytes"].as_u64().is_some();
        let (text, read, written) = random_workload(&mut dice);
        let workload = Workload::from_json(&text.to_string()).unwrap();
        let outcome = run(&workload, &network, seed);
        assert_eq!(outcome.error, None);
        assert_eq!(
            (outcome.bytes.read, outcome.bytes.written),
            (read, written),
            "{seed}"
        );
        let replicas = network["store"]["replicas"].as_u64().unwrap();
        assert_eq!(
            outcome.bytes.stored,
            (written + 3_000_000) * replicas,
            "{seed}"
        );
        let sent: u64 = outcome.hosts.iter().map(|h| h.sent_bytes).sum();
        let received: u64 = outcome.hosts.iter().map(|h| h.received_bytes).sum();
        let stored: u64 = outcome.hosts.iter().map(|h| h.stored_bytes).sum();
        assert_eq!(
            (sent, received),
            (outcome.bytes.network, outcome.bytes.network),
            "{seed}"
        );
        assert_eq!(stored, outcome.bytes.stored);
        let moved = outcome.bytes.network - outcome.bytes.control + outcome.bytes.loopback;
        assert!(moved >= written * replicas, "{seed}");
        assert!(cached || moved >= read + written * replicas, "{seed}");
        for row in &outcome.stations {
            assert!(
                (0.0..=1.0 + 1e-9).contains(&row.utilisation),
                "{seed} {row:?}"
            );
            assert!(
                row.wait_mean_s <= row.wait_max_s * (1.0 + 1e-9) + 1e-12,
                "{seed} {row:?}"
            );
        }
        let tasks = outcome.tasks.as_ref().unwrap();
        for task in tasks {
            assert!(task.ready_s <= task.start_s && task.start_s <= task.end_s);
            let parts =
                task.launch_s + task.compute_s + task.read_s + task.write_s + task.manager_s;
            let client: f64 = outcome
                .stations
                .iter()
                .filter(|r| r.kind == "client")
                .map(|r| r.busy_s + 1.0)
                .sum();
            let duration_s = task.end_s - task.start_s;
            assert!(
                parts <= duration_s + 1e-9 && (client > 0.0 || parts >= duration_s - 1e-9),
                "{seed} {task:?}"
            );
            assert!(task
                .spans
                .windows(2)
                .all(|pair| pair[0].end_s <= pair[1].start_s));
        }
        let stages: u64 = outcome.stages.iter().map(|stage| stage.tasks).sum();
        assert_eq!(stages as usize, tasks.len());
        let path: f64 = outcome.stations.iter().map(|row| row.critical_s).sum();
        assert!(
            (path / outcome.makespan_s - 1.0).abs() < 2e-3,
            "{seed}: {path} of {} at {:?}, {}",
            outcome.makespan_s,
            outcome
                .stations
                .iter()
                .filter(|row| row.critical_s > 0.0)
                .map(|row| (&row.name, row.critical_s))
                .collect::<Vec<_>>(),
            network["store"]
        );
    }
}

/// The numbers do not depend on the number of threads, but on the seed.
#[test]
fn results_do_not_depend_on_thread_count() {
    let mut dice = Dice::new(5);
    let (workload, ..) = random_workload(&mut dice);
    let workload = Workload::from_json(&workload.to_string()).unwrap();
    let networks: Vec<String> = (0..12)
        .map(|_| random_network(&mut dice).to_string())
        .collect();
    let seeds = [1, 2, 3];
    let batch = Batch {
        networks: &networks,
        seeds: &seeds,
        columns: &[],
        fields: None,
    };
    let single_thread = simulate_many(&workload, &batch, 1).unwrap();
    for threads in [2, 3, 0, 40] {
        assert_eq!(
            simulate_many(&workload, &batch, threads).unwrap(),
            single_thread
        );
    }
    assert!(single_thread.iter().all(|outcomes| outcomes.len() == 3));
    assert!(single_thread
        .iter()
        .any(|outcomes| outcomes[0] != outcomes[1]));
}

/// A column gives the same results as networks with the numbers written out, for floating-point numbers and integers.
#[test]
fn columns_equal_single_networks() {
    let mut dice = Dice::new(6);
    let (workload, ..) = random_workload(&mut dice);
    let workload = Workload::from_json(&workload.to_string()).unwrap();
    let network = random_network(&mut dice);
    let columns = [vec![3e7, 4.5e7, 1e8], vec![4096.0, 65536.0, 8192.0]];
    let places = ["/hosts/0/network/out_bps", "/protocol/frame_bytes"];
    let put = |numbers: [Value; 2]| {
        let mut network = network.clone();
        for (place, number) in places.iter().zip(numbers) {
            *network.pointer_mut(place).unwrap() = number;
        }
        network.to_string()
    };
    let seeds = [7, 8, 9];
    let run = |networks: &[String], seeds: &[u64], columns: &[Vec<f64>], fields: &[String]| {
        let batch = Batch {
            networks,
            seeds,
            columns,
            fields: Some(fields),
        };
        simulate_many(&workload, &batch, 2)
    };
    let fields = ["error", "makespan_s", "stages", "tasks"].map(String::from);
    let open = put([json!({"column": 0}), json!({"column": 1})]);
    let together = run(std::slice::from_ref(&open), &seeds, &columns, &fields).unwrap();
    for (j, seed) in seeds.iter().enumerate() {
        let written = put([json!(columns[0][j]), json!(columns[1][j] as u64)]);
        let single = run(&[written], &[*seed], &[], &fields).unwrap();
        assert_eq!(single[0][0], together[0][j]);
        assert!(single[0][0].contains("\"spans\""));
    }
    assert_ne!(together[0][0], together[0][1]);

    let refused = |open: &str, columns: &[Vec<f64>], field: &str| {
        let fields = [field.to_owned()];
        run(&[open.to_owned()], &seeds, columns, &fields)
            .unwrap_err()
            .0
    };
    assert_eq!(
        refused(&open, &[vec![1.0]], "events"),
        "a column of 1 numbers for 3 seeds"
    );
    assert!(refused(&open, &columns[..1], "events").contains("null"));
    let fractions = [columns[0].clone(), vec![0.5; 3]];
    assert!(refused(&open, &fractions, "events").contains("0.5"));
    assert!(refused(&open, &columns, "event").contains("no field \"event\""));
}

/// Frame sizes from 16 KiB to a quarter of the chunk move a write of ten chunks or more by less than 2 %.
#[test]
fn frame_size_hardly_matters() {
    let link = json!({"out_bps": 12.5e6, "in_bps": 12.5e6, "loopback_bps": 125e6});
    let per_chunk = json!({"s_per_byte": 1e-3 / 1048576.0});
    let work = json!({"schema": "penstock/workload/1", "tasks": [{"name": "w", "operations": [
        {"op": "write", "file": "f", "size_bytes": 10 << 20}]}]});
    let workload = Workload::from_json(&work.to_string()).unwrap();
    let of = |frame: u64| {
        let network = json!({"schema": "penstock/network/1", "hosts": [
            {"name": "c", "network": link, "client": {}},
            {"name": "m", "network": link, "manager": {"service": 5e-4}},
            {"name": "s", "network": link, "storage": {"read": per_chunk, "write": per_chunk}}],
            "store": {"chunk_bytes": 1 << 20}, "protocol": {"frame_bytes": frame}});
        run(&workload, &network, 1).makespan_s
    };
    let base = of(65_536);
    for frame in [16_384, 32_768, 131_072, 262_144] {
        assert!((of(frame) / base - 1.0).abs() < 0.02, "{frame}");
    }
    assert!(
        (of(1 << 20) / base - 1.0).abs() > 0.02,
        "whole chunks as frames are another model"
    );
}
