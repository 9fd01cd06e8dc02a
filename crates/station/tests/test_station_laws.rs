//! The laws a station must obey, in virtual time.

use penstock_station::{Op, Patch, Request, Station, StorageProfile};

const NS: f64 = 1e9;

fn profile(servers: usize, overhead: &str, more: &str) -> StorageProfile {
    let class = format!(r#"{{"overhead": {overhead}}}"#);
    let text = format!(
        r#"{{"schema": "penstock/storage-profile/1", "name": "t", "servers": {servers}, {more}
            "read": {{"sequential": {class}, "random": {class}}},
            "write": {{"sequential": {class}, "random": {class}}}}}"#
    );
    StorageProfile::from_json(&text).unwrap()
}

fn constant(value_s: f64) -> String {
    format!(r#"{{"kind": "constant", "value_s": {value_s}}}"#)
}

/// Rate per second and mean time in the system of a closed loop of `depth` clients that never think.
fn closed_loop(profile: &StorageProfile, depth: usize, n: usize) -> (f64, f64) {
    let mut station = Station::new(profile, 11).unwrap();
    let mut due = vec![0u64; depth];
    let mut sojourn = 0.0;
    let mut last = 0;
    for i in 0..n {
        let next = (0..depth).min_by_key(|c| due[*c]).unwrap();
        let offset = (i as u64 * 7919 % 1_000_003) * 4096;
        let served = station.arrive(
            due[next],
            Request {
                op: Op::Read,
                offset,
                size: 4096,
            },
        );
        sojourn += (served.due_ns - due[next]) as f64;
        assert_eq!(
            served.wait_ns + served.service_ns,
            served.due_ns - due[next]
        );
        due[next] = served.due_ns;
        last = last.max(served.due_ns);
    }
    (n as f64 / (last as f64 / NS), sojourn / n as f64 / NS)
}

fn assert_close(actual: f64, expected: f64, tolerance: f64, what: &str) {
    assert!(
        (actual / expected - 1.0).abs() <= tolerance,
        "{what}: {actual}, expected {expected}"
    );
}

#[test]
fn four_servers_of_one_millisecond_give_1000_2000_4000_4000() {
    for (depth, rate) in [(1, 1000.0), (2, 2000.0), (4, 4000.0), (8, 4000.0)] {
        let (measured, _) = closed_loop(&profile(4, &constant(0.001), ""), depth, 20_000);
        assert_close(measured, rate, 0.01, &format!("depth {depth}"));
    }
}

#[test]
fn five_percent_error_is_detected() {
    let (measured, _) = closed_loop(&profile(4, &constant(0.00105), ""), 1, 20_000);
    assert!((measured / 1000.0 - 1.0).abs() > 0.01);
}

#[test]
fn saturated_rate_is_servers_over_mean_service_time() {
    let lognormal = r#"{"kind": "lognormal", "mean_s": 0.002, "sigma": 0.5}"#;
    for servers in [1, 3, 16] {
        let profile = profile(servers, lognormal, "");
        let (rate, sojourn) = closed_loop(&profile, servers * 4, 200_000);
        assert_close(rate, servers as f64 / 0.002, 0.01, "rate");
        // Little's law: mean number in the system = rate x mean time in the system
        assert_close(
            rate * sojourn,
            servers as f64 * 4.0,
            0.01,
            "number in the system",
        );
    }
}

#[test]
fn lognormal_service_has_its_quantiles_at_depth_one() {
    let profile = profile(
        1,
        r#"{"kind": "lognormal", "mean_s": 0.002, "sigma": 0.5}"#,
        "",
    );
    let mut station = Station::new(&profile, 3).unwrap();
    let n = 100_000u64;
    let mut services: Vec<f64> = (0..n)
        .map(|i| {
            let request = Request {
                op: Op::Read,
                offset: i * 8192,
                size: 4096,
            };
            station.arrive(i * 1_000_000_000, request).service_ns as f64 / NS
        })
        .collect();
    let mean = services.iter().sum::<f64>() / n as f64;
    assert_close(mean, 0.002, 0.02, "mean");
    services.sort_unstable_by(f64::total_cmp);
    for p in [0.5, 0.99] {
        let stated = profile.service_quantile_s(Op::Read, false, 4096, p);
        assert_close(services[(p * n as f64) as usize], stated, 0.02, "quantile");
    }
    // Kolmogorov-Smirnov distance, on a grid of probabilities
    let distance = (1..1000).map(f64::from).fold(0f64, |worst, i| {
        let stated = profile.service_quantile_s(Op::Read, false, 4096, i / 1000.0);
        let below = services.partition_point(|s| *s <= stated) as f64 / n as f64;
        worst.max((below - i / 1000.0).abs())
    });
    assert!(distance <= 0.01, "Kolmogorov-Smirnov distance {distance}");
}

/// Mean wait of M/M/1 is rho/(1-rho) x E[S]; of M/D/1 half of that (Pollaczek-Khinchine).
#[test]
fn open_arrivals_match_queueing_theory() {
    for (overhead, factor) in [
        (
            r#"{"kind": "exponential", "mean_s": 0.001}"#.to_owned(),
            1.0,
        ),
        (constant(0.001), 0.5),
    ] {
        let mut station = Station::new(&profile(1, &overhead, ""), 5).unwrap();
        let (rho, n) = (0.7, 1_000_000u64);
        let (mut t, mut wait) = (0.0, 0.0);
        for i in 0..n {
            let u = penstock_station::Draws::keyed(99, 7, i, 0).uniform();
            t += -u.ln() * 0.001 / rho * NS;
            let request = Request {
                op: Op::Read,
                offset: i * 65_536,
                size: 4096,
            };
            wait += station.arrive(t as u64, request).wait_ns as f64 / NS;
        }
        let expected = factor * rho / (1.0 - rho) * 0.001;
        assert_close(wait / n as f64, expected, 0.03, &overhead);
    }
}

#[test]
fn draws_do_not_depend_on_the_interleaving() {
    let profile = profile(2, r#"{"kind": "exponential", "mean_s": 0.001}"#, "");
    let serve = |order: &[u64]| {
        let mut station = Station::new(&profile, 21).unwrap();
        let mut drawn: Vec<(u64, u32, u64)> = order
            .iter()
            .map(|block| {
                let request = Request {
                    op: Op::Write,
                    offset: block * 1_048_576,
                    size: 512,
                };
                let served = station.arrive(0, request);
                (*block, served.visit, served.service_ns)
            })
            .collect();
        drawn.sort_unstable();
        drawn
    };
    let forward: Vec<u64> = (0..500).chain(0..500).collect();
    let backward: Vec<u64> = forward.iter().rev().copied().collect();
    let drawn = serve(&forward);
    assert_eq!(drawn, serve(&backward));
    assert_ne!(drawn[0].2, drawn[1].2, "a second visit draws anew");
}

#[test]
fn streams_are_distinguished_up_to_the_maximum() {
    let split = |streams: usize| {
        let text = profile(
            1,
            &constant(0.001),
            &format!(r#""sequential_streams": {streams},"#),
        );
        let mut station = Station::new(&text, 1).unwrap();
        let mut sequential = 0;
        for i in 0..100u64 {
            for file in 0..4u64 {
                let request = Request {
                    op: Op::Read,
                    offset: (file << 40) | (i * 4096),
                    size: 4096,
                };
                sequential += u32::from(station.arrive(0, request).sequential);
            }
        }
        sequential
    };
    assert_eq!(split(4), 4 * 99);
    assert_eq!(split(3), 0);
    assert_eq!(split(0), 0);
}

#[test]
fn bursts_only_compensate_pauses() {
    // 4 KiB at 4,096,000 B/s is 1 ms each; the client pauses for 0.2 ms after every answer.
    let rate = |burst: &str| {
        let caps = format!("\"interface_rate_bps\": 4096000,{burst}");
        let mut station = Station::new(&profile(1, &constant(0.0), &caps), 1).unwrap();
        let (mut now_ns, n) = (1_000_000_000, 1_000);
        for i in 0..n {
            let request = Request {
                op: Op::Write,
                offset: i * 4096,
                size: 4096,
            };
            now_ns = station.arrive(now_ns, request).due_ns + 200_000;
        }
        n as f64 / ((now_ns - 1_000_000_000) as f64 * 1e-9)
    };
    assert!((rate("") - 1.0 / 0.0012).abs() < 1.0);
    assert!((rate("\"interface_burst_s\": 0.001,") - 1000.0).abs() < 2.0);
    assert!((rate("\"interface_burst_s\": 0.0001,") - 1.0 / 0.0011).abs() < 2.0);
}

#[test]
fn the_interface_caps_all_servers_together() {
    let by_rate = profile(8, &constant(0.001), r#""interface_rate_bps": 8192000,"#);
    assert_close(closed_loop(&by_rate, 16, 20_000).0, 2000.0, 0.01, "bytes");
    let by_count = profile(8, &constant(0.001), r#""interface_iops": 3000,"#);
    assert_close(
        closed_loop(&by_count, 16, 20_000).0,
        3000.0,
        0.01,
        "operations",
    );
    // a rate below the cap is not affected
    assert_close(
        closed_loop(&by_count, 2, 20_000).0,
        2000.0,
        0.01,
        "below the cap",
    );
}

#[test]
fn page_fetches_are_paid_once_per_page() {
    let class = r#"{"overhead": {"kind": "constant", "value_s": 0.00001},
        "page_fetch": {"page_bytes": 65536, "overhead": {"kind": "constant", "value_s": 0.00008}}}"#;
    let text = format!(
        r#"{{"schema": "penstock/storage-profile/1", "name": "t", "servers": 1,
            "read": {{"sequential": {class}, "random": {class}}},
            "write": {{"sequential": {class}, "random": {class}}}}}"#
    );
    let profile = StorageProfile::from_json(&text).unwrap();
    for size in [4096u64, 28_672, 65_536, 131_072] {
        let mut station = Station::new(&profile, 1).unwrap();
        let n = 16 * 7 * 100;
        let total: u64 = (0..n)
            .map(|i| {
                station
                    .arrive(
                        0,
                        Request {
                            op: Op::Read,
                            offset: i * size,
                            size,
                        },
                    )
                    .service_ns
            })
            .sum();
        let stated = profile.mean_service_s(Op::Read, true, size);
        assert_close(
            total as f64 / n as f64 / NS,
            stated,
            0.001,
            &format!("{size} bytes"),
        );
    }
}

#[test]
fn profile_changes_apply_to_new_requests() {
    let mut station = Station::new(&profile(1, &constant(0.005), ""), 1).unwrap();
    let read = |offset| Request {
        op: Op::Read,
        offset,
        size: 4096,
    };
    assert_eq!(station.arrive(0, read(0)).due_ns, 5_000_000);
    let other = Patch {
        profile: Some(Some(Box::new(profile(2, &constant(0.001), "")))),
        ..Patch::default()
    };
    assert!(station.change(0, &other).unwrap().is_empty());
    assert_eq!(station.arrive(0, read(1 << 20)).due_ns, 1_000_000);
    assert_eq!(station.arrive(0, read(2 << 20)).due_ns, 2_000_000);
    let repeated = station.arrive(10_000_000, read(0));
    assert_eq!(repeated.visit, 1);
    station.reset();
    assert_eq!(station.arrive(0, read(0)).visit, 0);
}

#[test]
fn errors_of_invalid_profiles() {
    let good = profile(1, &constant(0.001), "").to_json();
    assert!(StorageProfile::from_json(&good).is_ok());
    let cases = [
        (
            good.replace("\"servers\": 1", "\"servers\": 0"),
            "servers is 0",
        ),
        (
            good.replace("\"servers\": 1", "\"servers\": 1, \"colour\": 1"),
            "unknown field `colour`",
        ),
        (
            good.replacen("0.001", "-0.001", 1),
            "read.sequential.overhead.value_s is -0.001",
        ),
        (
            good.replacen("\"constant\"", "\"constantly\"", 1),
            "unknown variant `constantly`",
        ),
        (
            good.replace("penstock/storage-profile/1", "penstock/storage-profile/9"),
            "schema",
        ),
        (
            good.replace(
                "\"servers\": 1",
                "\"servers\": 1, \"interface_rate_bps\": 0",
            ),
            "interface_rate_bps is 0",
        ),
        (
            good.replace("\"time_scale\": 1.0", "\"time_scale\": -2"),
            "time_scale is -2",
        ),
        (
            good.replace("\"name\": \"t\"", "\"name\": \"\""),
            "name is empty",
        ),
        (good.replacen("0.001", "1e999", 1), "number out of range"),
    ];
    for (text, message) in cases {
        assert_ne!(text, good, "{message}: the case must change the text");
        let error = StorageProfile::from_json(&text).unwrap_err();
        assert!(error.message.contains(message), "{error}");
    }
}
