//! Seeks of a rotating disk: times of a data sheet, by hand and as means over many requests.

use penstock_station::{Draws, Op, Patch, Request, Served, Station, StorageProfile, FILE_BITS};

const SPAN: u64 = 1_000_000_000_000;
const CYLINDERS: u64 = 100_002;
const AVERAGE_S: f64 = 0.012;

/// A disk whose only cost is seeks: 1, 12 and 20 ms before a read, 1.1, 13 and 21 ms before a write.
fn disk(more: &str) -> StorageProfile {
    let none = r#"{"overhead": {"kind": "constant", "value_s": 0}}"#;
    let text = format!(
        r#"{{"schema": "penstock/storage-profile/1", "name": "arm", "servers": 1, {more}
            "read": {{"sequential": {none}, "random": {none}}},
            "write": {{"sequential": {none}, "random": {none}}},
            "seek": {{"span_bytes": {SPAN}, "cylinders": {CYLINDERS},
                      "read": {{"shortest_s": 0.001, "average_s": {AVERAGE_S}, "longest_s": 0.020}},
                      "write": {{"shortest_s": 0.0011, "average_s": 0.013, "longest_s": 0.021}}}}}}"#
    );
    StorageProfile::from_json(&text).unwrap()
}

/// A station that receives one request at a time, long after the previous one.
struct Arm {
    station: Station,
    now_ns: u64,
}

impl Arm {
    fn new(profile: &StorageProfile) -> Self {
        Arm {
            station: Station::new(profile, 1).unwrap(),
            now_ns: 0,
        }
    }

    /// Send a request of 4 KiB at an offset.
    fn at(&mut self, op: Op, offset: u64) -> Served {
        self.now_ns += 1_000_000_000;
        let size = 4096;
        self.station
            .arrive(self.now_ns, Request { op, offset, size })
    }

    /// Send a request of 4 KiB at the beginning of a cylinder.
    fn at_cylinder(&mut self, op: Op, cylinder: u64) -> Served {
        let offset = (cylinder as f64 / CYLINDERS as f64 * SPAN as f64).ceil() as u64;
        self.at(op, offset)
    }
}

fn ms(served: Served) -> f64 {
    served.service_ns as f64 / 1e6
}

fn assert_close(actual: f64, expected: f64, relative: f64, what: &str) {
    assert!(
        (actual / expected - 1.0).abs() <= relative,
        "{what}: {actual}, expected {expected}"
    );
}

#[test]
fn seek_times_of_zero_one_and_all_cylinders() {
    let mut arm = Arm::new(&disk(""));
    arm.at_cylinder(Op::Read, 0);
    assert_close(ms(arm.at_cylinder(Op::Read, 1)), 1.0, 1e-6, "next");
    arm.at_cylinder(Op::Read, 0);
    let last = CYLINDERS - 1;
    assert_close(ms(arm.at_cylinder(Op::Read, last)), 20.0, 1e-6, "whole");
    assert_close(ms(arm.at_cylinder(Op::Write, 0)), 21.0, 1e-6, "and back");
    // the same cylinder again
    assert_eq!(arm.at_cylinder(Op::Write, 0).service_ns, 0);
    // a quarter of the distance: 1 + a / 2 + b / 4 with a = (180 - 10 - 100) / 3, b = (7 - 180 + 160) / 3
    let quarter = arm.at_cylinder(Op::Read, 1 + (CYLINDERS - 2) / 4);
    assert_close(ms(quarter), 1.0 + 70.0 / 6.0 - 13.0 / 12.0, 1e-6, "quarter");
}

#[test]
fn random_seeks_match_average_and_quantiles() {
    let profile = disk("");
    let mut arm = Arm::new(&profile);
    let n = 200_000u64;
    let mut times: Vec<f64> = (0..n)
        .map(|i| {
            let u = Draws::keyed(5, 7, i, 0).uniform();
            ms(arm.at(Op::Read, (u * SPAN as f64) as u64)) / 1e3
        })
        .collect();
    let mean = times.iter().sum::<f64>() / n as f64;
    assert_close(mean, AVERAGE_S, 0.005, "mean");
    let expected = profile.mean_service_s(Op::Read, false, 4096);
    assert_close(expected, AVERAGE_S, 2e-4, "mean of the profile");
    times.sort_by(f64::total_cmp);
    for p in [0.1, 0.5, 0.9, 0.99] {
        let actual = times[(p * n as f64) as usize];
        let expected = profile.service_quantile_s(Op::Read, false, 4096, p);
        assert_close(actual, expected, 0.02, &format!("quantile {p}"));
    }
    assert_eq!(profile.mean_service_s(Op::Read, true, 4096), 0.0);
}

#[test]
fn short_stroking_is_faster() {
    let mean = |part: f64| {
        let mut arm = Arm::new(&disk(""));
        let n = 20_000u64;
        let times = (0..n).map(|i| {
            let u = Draws::keyed(6, 7, i, 0).uniform();
            let offset = (u * part * SPAN as f64) as u64;
            ms(arm.at(Op::Read, offset))
        });
        times.sum::<f64>() / n as f64
    };
    // over a tenth: 1 + a sqrt(0.1) 8 / 15 + b 0.1 / 3
    let expected = 1.0 + 70.0 / 3.0 * 0.1f64.sqrt() * 8.0 / 15.0 - 13.0 / 3.0 * 0.1 / 3.0;
    assert_close(mean(0.1), expected, 0.01, "a tenth");
    assert_close(mean(1.0), 12.0, 0.01, "all");
}

#[test]
fn streams_caches_and_flushes_do_not_move_the_arm() {
    let far = SPAN - 8192;
    let mut plain = Arm::new(&disk(""));
    let first = plain.at(Op::Read, far);
    assert!(first.service_ns > 0 && !first.sequential);
    let second = plain.at(Op::Read, far + 4096);
    assert!(second.sequential);
    assert_eq!(second.service_ns, 0);
    let cache = r#""write_cache": {"size_bytes": 1000000, "drain_rate_bps": 1e9,
                                   "overhead": {"kind": "constant", "value_s": 0.0001}},"#;
    let mut cached = Arm::new(&disk(cache));
    assert_eq!(cached.at(Op::Write, far).service_ns, 100_000);
    // the arm has not moved
    assert_eq!(cached.at(Op::Read, 100).service_ns, 0);
}

#[test]
fn files_are_spread_over_the_disk() {
    let mut arm = Arm::new(&disk(""));
    let n = 50_000u64;
    let times = (0..n).map(|i| {
        let file = 1 + (Draws::keyed(8, 7, i, 0).uniform() * 4_194_300.0) as u64;
        ms(arm.at(Op::Read, file << FILE_BITS))
    });
    let mean = times.sum::<f64>() / n as f64;
    assert_close(mean, 12.0, 0.01, "one file after the other");
    // within one file the distance is short
    let begin = 77 << FILE_BITS;
    arm.at(Op::Read, begin);
    let near = arm.at(Op::Read, begin + 64 * 1024 * 1024);
    assert!((1.0..1.5).contains(&ms(near)), "{near:?}");
}

#[test]
fn waiting_requests_keep_their_seek_and_scale_with_slowness() {
    let mut station = Station::new(&disk(""), 1).unwrap();
    station.remember();
    let read = |offset| Request {
        op: Op::Read,
        offset,
        size: 4096,
    };
    let t = 1_000_000_000;
    station.arrive(t, read(SPAN / 2));
    let waits = station.arrive(t, read(10));
    let patch = Patch::from_json(r#"{"slow": {"factor": 3}}"#).unwrap();
    let moved = station.change(t + 1, &patch).unwrap();
    assert_eq!(moved.len(), 1);
    assert_eq!(moved[0].served.id, waits.id);
    let expected = 3.0 * waits.service_ns as f64;
    let actual = moved[0].served.service_ns as f64;
    assert_close(actual, expected, 1e-6, "three times as slow");
}

#[test]
fn time_scale_multiplies_seek_times() {
    let (plain, slow) = (disk(""), disk("").scaled(8.0));
    let served = |profile| ms(Arm::new(profile).at_cylinder(Op::Write, 5000));
    assert_close(served(&slow), 8.0 * served(&plain), 1e-6, "scaled");
}

#[test]
fn numbers_that_make_no_curve_are_refused() {
    let text = disk("").to_json();
    for (from, to, message) in [
        (
            r#""cylinders": 100002"#,
            r#""cylinders": 2"#,
            "seek.cylinders is 2",
        ),
        (
            r#""span_bytes": 1000000000000"#,
            r#""span_bytes": 5"#,
            "seek.span_bytes is 5; at least one byte per cylinder",
        ),
        (
            r#""longest_s": 0.02"#,
            r#""longest_s": 0.04"#,
            "seek.read.average_s is 0.012; between 0.014000 and",
        ),
        (
            r#""longest_s": 0.02"#,
            r#""longest_s": 0.012"#,
            "seek.read.average_s",
        ),
        (
            r#""shortest_s": 0.001"#,
            r#""shortest_s": -0.001"#,
            "seek.read.shortest_s is -0.001",
        ),
    ] {
        assert!(text.contains(from), "{from} in {text}");
        let broken = StorageProfile::from_json(&text.replacen(from, to, 1)).unwrap_err();
        assert!(broken.message.starts_with(message), "{}", broken.message);
    }
}
