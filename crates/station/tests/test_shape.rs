//! Limits, credits, write cache, read-ahead and fail-slow in virtual time, and changes during a run.

use penstock_station::{
    Bucket, Credits, Limits, LimitsPatch, Op, Patch, Readahead, Request, Slow, Stall, Station,
    StorageProfile, Stray, WriteCache,
};

const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

fn device(servers: usize, overhead_s: f64, rate: &str) -> StorageProfile {
    let class =
        format!(r#"{{"overhead": {{"kind": "constant", "value_s": {overhead_s}}} {rate}}}"#);
    let both = format!(r#"{{"sequential": {class}, "random": {class}}}"#);
    StorageProfile::from_json(&format!(
        r#"{{"schema": "penstock/storage-profile/1", "name": "t", "servers": {servers},
            "read": {both}, "write": {both}}}"#
    ))
    .unwrap()
}

fn constant(value_s: f64) -> penstock_station::Distribution {
    penstock_station::Distribution::Constant { value_s }
}

fn request(op: Op, number: u64, size: u64) -> Request {
    Request {
        op,
        offset: (number * 7919 % 1_000_003) << 21,
        size,
    }
}

/// Closed loop of clients, each with one operation and size; (rate per second, sorted times) of each client.
fn closed(
    station: &mut Station,
    clients: &[(Op, u64, usize)],
    until_ns: u64,
) -> Vec<(f64, Vec<u64>)> {
    let mut slots: Vec<(u64, usize)> = Vec::new();
    for (kind, (_, _, depth)) in clients.iter().enumerate() {
        slots.extend((0..*depth).map(|_| (0, kind)));
    }
    let mut seen: Vec<(f64, Vec<u64>)> = vec![(0.0, Vec::new()); clients.len()];
    let mut number = 0;
    loop {
        let slot = (0..slots.len()).min_by_key(|s| slots[*s].0).unwrap();
        let (t, kind) = slots[slot];
        if t >= until_ns {
            break;
        }
        let (op, size, _) = clients[kind];
        number += 1;
        let served = station.arrive(t, request(op, number, size));
        seen[kind].1.push(served.due_ns - t);
        slots[slot].0 = served.due_ns;
    }
    for (rate, times) in &mut seen {
        *rate = times.len() as f64 / (until_ns as f64 / 1e9);
        times.sort_unstable();
    }
    seen
}

fn assert_close(actual: f64, expected: f64, tolerance: f64, what: &str) {
    assert!(
        (actual / expected - 1.0).abs() <= tolerance,
        "{what}: {actual}, expected {expected}"
    );
}

fn limits(read_bps: f64, write_bps: f64, read_iops: f64, write_iops: f64) -> Limits {
    let some = |v: f64| (v > 0.0).then_some(v);
    Limits {
        read_bps: some(read_bps),
        write_bps: some(write_bps),
        read_iops: some(read_iops),
        write_iops: some(write_iops),
        burst_s: None,
    }
}

#[test]
fn limits_apply_to_one_direction() {
    let plain = device(1, 0.0001, "");
    let both = [(Op::Read, 4096, 4), (Op::Write, 8192, 4)];
    for (limits, read, write) in [
        (limits(409_600.0, 0.0, 0.0, 0.0), 100.0, 9900.0),
        (limits(0.0, 819_200.0, 0.0, 0.0), 9900.0, 100.0),
        (limits(0.0, 0.0, 250.0, 0.0), 250.0, 9750.0),
        (limits(0.0, 0.0, 0.0, 250.0), 9750.0, 250.0),
        (limits(409_600.0, 819_200.0, 250.0, 50.0), 100.0, 50.0),
    ] {
        let mut station = Station::new(
            &StorageProfile {
                limits: Some(limits),
                ..plain.clone()
            },
            1,
        )
        .unwrap();
        let seen = closed(&mut station, &both, 20 * S);
        assert_close(seen[0].0, read, 0.01, &format!("reads under {limits:?}"));
        assert_close(seen[1].0, write, 0.01, &format!("writes under {limits:?}"));
    }
}

#[test]
fn a_limit_spreads_its_latency_at_any_size_and_depth() {
    for depth in [1usize, 2, 4, 8, 16, 32, 64] {
        for size in [4096u64, 65_536, 1 << 20] {
            let rate_bps = 4.0 * 1048576.0;
            let profile = StorageProfile {
                limits: Some(limits(rate_bps, 0.0, 0.0, 0.0)),
                ..device(4, 0.000_05, "")
            };
            let mut station = Station::new(&profile, 1).unwrap();
            let n = depth as u64 * 200;
            let each_ns = size as f64 / rate_bps * 1e9;
            let until = (n as f64 * each_ns) as u64;
            let seen = closed(&mut station, &[(Op::Read, size, depth)], until);
            let what = format!("{size} bytes, depth {depth}");
            // tokens of the first 5 ms come on top
            let extra = 0.01 + (0.005 * 1e9 / until as f64) + depth as f64 / n as f64;
            assert_close(seen[0].0 * size as f64, rate_bps, extra, &what);
            // no bursts: the 99th percentile is the median
            let times = &seen[0].1;
            let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
            assert_close(p50 as f64, depth as f64 * each_ns, 0.02, &what);
            assert_close(p99 as f64, p50 as f64, 0.02, &what);
        }
    }
}

fn bucket(baseline: f64, burst: f64, capacity: f64) -> Bucket {
    Bucket {
        baseline,
        burst,
        capacity,
        initial: 1.0,
    }
}

/// Requests served in each second.
fn per_second(station: &mut Station, op: Op, size: u64, depth: usize, seconds: usize) -> Vec<u64> {
    let mut slots = vec![0u64; depth];
    let mut counts = vec![0; seconds + 1];
    let mut number = 0;
    loop {
        let slot = (0..depth).min_by_key(|s| slots[*s]).unwrap();
        if slots[slot] >= seconds as u64 * S {
            return counts;
        }
        number += 1;
        slots[slot] = station
            .arrive(slots[slot], request(op, number, size))
            .due_ns;
        counts[((slots[slot] / S) as usize).min(seconds)] += 1;
    }
}

#[test]
fn credits_allow_a_burst_until_they_run_out() {
    let profile = StorageProfile {
        credits: Some(Credits {
            iops: Some(bucket(100.0, 3000.0, 29_000.0)),
            unit_bytes: Some(262_144),
            ..Credits::default()
        }),
        ..device(16, 0.0005, "")
    };
    // 29,000 credits last 10 s at 3000/s, because 100/s flow in
    let mut station = Station::new(&profile, 1).unwrap();
    let counts = per_second(&mut station, Op::Read, 4096, 16, 20);
    for (second, count) in counts.iter().enumerate().take(20) {
        match second {
            0 => assert!((2999..=3020).contains(count), "{counts:?}"),
            1..=8 => assert_eq!(*count, 3000, "{counts:?}"),
            9 | 10 => {}
            _ => assert!((99..=101).contains(count), "{counts:?}"),
        }
    }
    assert!(station.levels(20 * S).credits_iops.unwrap() < 2.0);
    // idle for a minute: the bucket has 6000 credits again
    let later = station.levels(80 * S).credits_iops.unwrap();
    assert_close(later, 6000.0, 0.01, "credits after a minute");
    // a large request counts as several
    let mut large = Station::new(&profile, 1).unwrap();
    let counts = per_second(&mut large, Op::Write, 1 << 20, 16, 4);
    assert!((749..=752).contains(&counts[2]), "{counts:?}");
}

#[test]
fn byte_credits_have_a_minimum_per_request() {
    let credits = |least_bytes| Credits {
        bytes: Some(bucket(1048576.0, 8.0 * 1048576.0, 21.0 * 1048576.0)),
        least_bytes,
        ..Credits::default()
    };
    for (least, size, fast, slow) in [(None, 1 << 20, 8, 1), (Some(1 << 20), 4096, 8, 1)] {
        let profile = StorageProfile {
            credits: Some(credits(least)),
            ..device(16, 0.0005, "")
        };
        let mut station = Station::new(&profile, 1).unwrap();
        let counts = per_second(&mut station, Op::Write, size, 4, 10);
        assert_eq!((counts[1], counts[8]), (fast, slow), "{counts:?}");
    }
}

#[test]
fn a_write_cache_takes_a_burst_and_then_drains() {
    let cache = WriteCache {
        size_bytes: 64 << 20,
        drain_rate_bps: 10.0 * 1048576.0,
        overhead: constant(0.0001),
        rate_bps: Some(1048576.0 * 1000.0),
    };
    let profile = StorageProfile {
        write_cache: Some(cache),
        ..device(1, 0.05, "")
    };
    let mut station = Station::new(&profile, 1).unwrap();
    let mib = 1 << 20;
    let mut now = S;
    let mut times = Vec::new();
    for i in 0..128 {
        let due = station.arrive(now, request(Op::Write, i, mib)).due_ns;
        times.push(due - now);
        now = due;
    }
    // into free space: 0.1 ms and 1 ms by size; into a full cache: 1 MiB at 10 MiB/s
    assert_eq!(times[5], MS + MS / 10);
    assert_eq!(times[60], MS + MS / 10);
    assert_close(times[100] as f64, 100.0 * MS as f64, 0.001, "a full cache");
    let dirty = station.levels(now).dirty_bytes.unwrap();
    assert_close(dirty, (64 * mib) as f64, 0.001, "dirty bytes");
    // a flush waits until the cache is empty; a second one does not wait
    let flush = |station: &mut Station, at| station.arrive(at, request(Op::Flush, 0, 0)).due_ns;
    let flushed = flush(&mut station, now);
    assert_close((flushed - now) as f64, 6.4 * S as f64, 0.001, "flush");
    assert_eq!(flush(&mut station, flushed), flushed);
    // half drained, half the cost
    station.arrive(flushed, request(Op::Write, 300, 20 * mib));
    let half = flush(&mut station, flushed + S) - (flushed + S);
    assert_close(half as f64, 1.0 * S as f64, 0.03, "half drained");
    // without the cache, writes cost as much as on the device
    let off = Patch::from_json(r#"{"cache": false}"#).unwrap();
    station.change(20 * S, &off).unwrap();
    let at = 60 * S;
    let due = station.arrive(at, request(Op::Write, 500, mib)).due_ns;
    assert_eq!(due - at, 50 * MS);
}

fn flash(buffer_pages: usize) -> StorageProfile {
    StorageProfile {
        readahead: Some(Readahead {
            page_bytes: 65_536,
            fetch: constant(0.00008),
            buffer_pages,
        }),
        interface_iops: Some(100_000.0),
        sequential_streams: 32,
        ..device(16, 0.00002, r#", "rate_bps": 1e9"#)
    }
}

fn read_rate(profile: &StorageProfile, patch: &str, sequential: bool, size: u64, jobs: u64) -> f64 {
    let mut station = Station::new(profile, 1).unwrap();
    station
        .change(0, &Patch::from_json(patch).unwrap())
        .unwrap();
    let mut next = vec![(0u64, 0u64); jobs as usize];
    let n = 20_000;
    let mut last = 0;
    for i in 0..n {
        let job = (0..next.len()).min_by_key(|j| next[*j].0).unwrap();
        let (t, done) = next[job];
        let offset = if sequential {
            ((job as u64) << 40) + done * size
        } else {
            request(Op::Read, i, size).offset
        };
        let op = Op::Read;
        let due = station.arrive(t, Request { op, offset, size }).due_ns;
        next[job] = (due, done + 1);
        last = last.max(due);
    }
    n as f64 * size as f64 / last as f64 * 1e9
}

#[test]
fn flash_shapes_of_read_ahead() {
    let profile = flash(0);
    let ratio = |patch: &str, size, jobs| {
        read_rate(&profile, patch, true, size, jobs) / read_rate(&profile, patch, false, size, jobs)
    };
    let (on, off) = ("{}", r#"{"readahead": false}"#);
    assert!(ratio(on, 4096, 1) >= 2.0);
    assert!(ratio(on, 4096, 16) <= 1.1);
    assert!(ratio(on, 65_536, 1) <= 1.1);
    assert!(ratio(on, 1 << 20, 1) <= 1.1);
    assert!((0.9..=1.1).contains(&ratio(off, 4096, 1)));
    let sequential = |patch: &str| read_rate(&profile, patch, true, 4096, 1);
    assert!(sequential(off) < 0.5 * sequential(on));
    assert_eq!(sequential(r#"{"readahead": null}"#), sequential(on));
}

#[test]
fn buffered_pages_need_no_fetch_until_evicted() {
    let mut station = Station::new(&flash(2), 1).unwrap();
    let mut now = S;
    let mut read = |page: u64| {
        let at = Request {
            op: Op::Read,
            offset: page * 65_536 + 8192,
            size: 1000,
        };
        let served = station.arrive(now, at);
        now += S;
        served.service_ns > 50_000
    };
    let fetched: Vec<bool> = [7, 7, 9, 7, 9, 11, 7, 7, 11, 9].map(&mut read).to_vec();
    assert_eq!(
        fetched,
        [true, false, true, false, false, true, true, false, false, true]
    );
}

#[test]
fn slow_device_scales_by_its_factor_and_recovers() {
    let mut station = Station::new(&device(4, 0.001, ""), 1).unwrap();
    let rate = |station: &mut Station, from: u64| {
        let mut due = [from; 8];
        for i in 0..2000 {
            let slot = (0..8).min_by_key(|s| due[*s]).unwrap();
            due[slot] = station.arrive(due[slot], request(Op::Read, i, 4096)).due_ns;
        }
        2000.0 / ((due.iter().max().unwrap() - from) as f64 / 1e9)
    };
    let set = |station: &mut Station, at, text: &str| {
        station
            .change(at, &Patch::from_json(text).unwrap())
            .unwrap()
    };
    assert_close(rate(&mut station, S), 4000.0, 0.01, "healthy");
    set(&mut station, 10 * S, r#"{"slow": {"factor": 10}}"#);
    assert_close(rate(&mut station, 10 * S), 400.0, 0.01, "ten times slower");
    set(
        &mut station,
        20 * S,
        r#"{"slow": {"stall": {"period_s": 0.1, "length_s": 0.025}}}"#,
    );
    assert_close(
        rate(&mut station, 20 * S),
        3000.0,
        0.05,
        "stalling a quarter",
    );
    set(
        &mut station,
        30 * S,
        r#"{"slow": {"random": {"probability": 0.5, "factor": 9}}}"#,
    );
    assert_close(
        rate(&mut station, 30 * S),
        800.0,
        0.05,
        "half of them nine times",
    );
    set(
        &mut station,
        40 * S,
        r#"{"slow": {"factor": 3, "ramp_s": 1e6}}"#,
    );
    assert_close(rate(&mut station, 40 * S), 4000.0, 0.01, "a long ramp");
    set(&mut station, 50 * S, r#"{"slow": "max"}"#);
    assert_close(rate(&mut station, 50 * S), 4000.0, 0.01, "healthy again");
    assert!(station.changed().is_empty());
}

#[test]
fn slowness_applies_to_the_interface() {
    let profile = StorageProfile {
        interface_iops: Some(1000.0),
        ..device(1, 0.0, "")
    };
    let mut station = Station::new(&profile, 1).unwrap();
    let slow = Slow {
        factor: 4.0,
        stall: Some(Stall {
            period_s: 1.0,
            length_s: 0.5,
        }),
        random: Some(Stray {
            probability: 0.0,
            factor: 1.0,
        }),
        ..Slow::default()
    };
    let patch = Patch {
        slow: Some(Some(slow)),
        ..Patch::default()
    };
    station.change(0, &patch).unwrap();
    let seen = closed(&mut station, &[(Op::Write, 4096, 2)], 101 * S);
    // half of each second has no stall
    assert_close(seen[0].0 * 101.0, 250.0 * 50.5, 0.005, "stalled interface");
}

#[test]
fn lifting_a_limit_releases_waiting_requests() {
    let profile = StorageProfile {
        limits: Some(limits(0.0, 1048576.0, 0.0, 0.0)),
        ..device(1, 0.001, "")
    };
    let mut station = Station::new(&profile, 1).unwrap();
    station.remember();
    let t = 100 * S;
    let promised: Vec<u64> = (0..32)
        .map(|i| station.arrive(t + i, request(Op::Write, i, 1 << 20)).due_ns)
        .collect();
    assert_close((promised[31] - t) as f64, 32.0 * S as f64, 0.01, "promised");
    // after 4.5 s half of the fifth request has passed; at twice the rate the rest takes half of the time
    let faster = Patch::from_json(r#"{"limits": {"write_bps": 2097152}}"#).unwrap();
    let now = t + 4_500 * MS;
    let moved = station.change(now, &faster).unwrap();
    assert_eq!(moved.len(), 28);
    assert_close(
        (moved[0].served.due_ns - now) as f64,
        0.25e9,
        0.02,
        "the next",
    );
    let last = moved[27].served.due_ns - now;
    assert_close(last as f64, 13.75e9, 0.01, "the last");
    let off = Patch::from_json(r#"{"limits": {"write_bps": "max"}}"#).unwrap();
    let moved = station.change(now + S, &off).unwrap();
    assert!(moved.iter().all(|m| m.served.due_ns == now + S));
    assert_eq!(moved.len(), 26);
    assert_eq!(station.change(now + 2 * S, &off).unwrap().len(), 0);
}

#[test]
fn waiting_requests_use_the_current_device() {
    let mut station = Station::new(&device(1, 0.1, ""), 1).unwrap();
    station.remember();
    let dues: Vec<u64> = (0..10)
        .map(|i| station.arrive(S, request(Op::Read, i, 4096)).due_ns)
        .collect();
    assert_eq!(dues[9], 2 * S);
    // two are complete and the third is in service: it ends as scheduled, the others cost ten times as much
    let slow = Patch::from_json(r#"{"slow": {"factor": 10}}"#).unwrap();
    let moved = station.change(S + 250 * MS, &slow).unwrap();
    assert_eq!(moved.len(), 7);
    assert_eq!(moved[0].served.id, 3);
    assert_eq!(moved[0].served.due_ns, dues[2] + S);
    assert_eq!(moved[6].served.due_ns, dues[2] + 7 * S);
    // and with four servers at once, healthy again
    let well = Patch::from_json(r#"{"slow": null, "servers": 4}"#).unwrap();
    let moved = station.change(S + 260 * MS, &well).unwrap();
    let due_ns: Vec<u64> = moved.iter().map(|m| m.served.due_ns).collect();
    let at = |ms: u64| S + ms * MS;
    assert_eq!(due_ns, [360, 360, 360, 400, 460, 460, 460].map(at));
    assert_eq!(
        station.arrive(at(300), request(Op::Read, 99, 4096)).due_ns,
        at(500)
    );
}

#[test]
fn changes_amid_requests_replay_exactly() {
    let profile = StorageProfile {
        limits: Some(limits(2e6, 1e6, 0.0, 300.0)),
        ..device(2, 0.002, "")
    };
    let changes = [
        (300u64, r#"{"limits": {"read_bps": 1e5}}"#),
        (
            700,
            r#"{"slow": {"factor": 3, "ramp_s": 0.2}, "servers": 1}"#,
        ),
        (
            900,
            r#"{"limits": {"read_bps": null}, "credits": {"bytes": {"baseline": 1e5, "burst": 1e6, "capacity": 1e6}}}"#,
        ),
    ];
    let run = || {
        let mut station = Station::new(&profile, 7).unwrap();
        station.remember();
        let mut dues = Vec::new();
        for i in 0..1200u64 {
            for (at, text) in changes {
                if at == i {
                    let patch = Patch::from_json(text).unwrap();
                    for m in station.change(i * 900_000, &patch).unwrap() {
                        assert!(m.served.due_ns >= i * 900_000);
                        dues[m.served.id as usize] = m.served.due_ns;
                    }
                }
            }
            let op = if i % 3 == 0 { Op::Write } else { Op::Read };
            let served = station.arrive(i * 900_000, request(op, i, 4096));
            assert_eq!(served.id, i);
            dues.push(served.due_ns);
        }
        dues
    };
    assert_eq!(run(), run());
}

#[test]
fn patches_accumulate_undo_and_serialise() {
    let mut station = Station::new(&device(1, 0.001, ""), 1).unwrap();
    let mut set = |text: &str| {
        station.change(5, &Patch::from_json(text).unwrap()).unwrap();
        serde_json::to_string(station.changed()).unwrap()
    };
    set(r#"{"limits": {"read_bps": 1e6}}"#);
    assert_eq!(
        set(r#"{"limits": {"write_bps": 5}, "slow": {"factor": 2}}"#),
        r#"{"limits":{"read_bps":1000000.0,"write_bps":5.0},"slow":{"factor":2.0,"since_ns":5}}"#
    );
    assert_eq!(
        set(r#"{"limits": {"read_bps": "max"}, "slow": null, "servers": 3}"#),
        r#"{"limits":{"read_bps":null,"write_bps":5.0},"servers":3}"#
    );
    assert_eq!(station.effective().limits.unwrap().write_bps, Some(5.0));
    assert_eq!(station.effective().servers, 3);
    let text = serde_json::to_string(station.changed()).unwrap();
    assert_eq!(Patch::from_json(&text).unwrap(), *station.changed());
}

#[test]
fn errors_of_invalid_parts_and_patches() {
    for (text, message) in [
        (r#"{"limits": {"read_bps": -1}}"#, "limits.read_bps is -1"),
        (r#"{"limits": {"read": 1}}"#, "unknown field `read`"),
        (r#"{"colour": 1}"#, "unknown field `colour`"),
        (r#"{"slow": {"factor": 0}}"#, "slow.factor is 0"),
        (
            r#"{"slow": {"stall": {"period_s": 1, "length_s": 1}}}"#,
            "slow.stall.length_s is 1",
        ),
        (
            r#"{"slow": {"random": {"probability": 2, "factor": 1}}}"#,
            "slow.random.probability is 2",
        ),
        (r#"{"servers": 0}"#, "servers is 0"),
        (
            r#"{"credits": {"iops": {"baseline": 5, "burst": 1, "capacity": 1}}}"#,
            "credits.iops.burst is 1",
        ),
        (r#"{"readahead": 3}"#, "invalid type"),
    ] {
        let error = Patch::from_json(text).unwrap_err();
        assert!(error.message.contains(message), "{text}: {error}");
    }
    let plain = device(1, 0.001, "").to_json();
    for (part, message) in [
        (r#""limits": {"write_iops": 0}"#, "limits.write_iops is 0"),
        (r#""credits": {"unit_bytes": 0}"#, "credits.unit_bytes is 0"),
        (
            r#""readahead": {"page_bytes": 0, "fetch": {"kind": "constant", "value_s": 0}}"#,
            "readahead.page_bytes is 0",
        ),
        (
            r#""write_cache": {"size_bytes": 0, "drain_rate_bps": 1, "overhead": {"kind": "constant", "value_s": 0}}"#,
            "write_cache.size_bytes is 0",
        ),
        (
            r#""write_cache": {"size_bytes": 1, "drain_rate_bps": -1, "overhead": {"kind": "constant", "value_s": 0}}"#,
            "write_cache.drain_rate_bps is -1",
        ),
    ] {
        let text = plain.replacen('{', &format!("{{{part},"), 1);
        let error = StorageProfile::from_json(&text).unwrap_err();
        assert!(error.message.contains(message), "{part}: {error}");
    }
    let mut station = Station::new(&device(1, 0.001, ""), 1).unwrap();
    let wrong = Patch {
        limits: Some(Some(LimitsPatch {
            read_bps: Some(Some(f64::NAN)),
            ..LimitsPatch::default()
        })),
        ..Patch::default()
    };
    assert!(station.change(0, &wrong).is_err());
    assert!(station.changed().is_empty());
}
