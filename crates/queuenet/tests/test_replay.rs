//! Replay of traced programs with known dependencies.

use penstock_queuenet::{About, Bound, Calls, Log, Program, Replayed, Setting, TracedFile};
use penstock_station::StorageProfile;

const MS: u64 = 1_000_000;
const PAGE: u64 = 4096;

/// A disk with constant times of reads, writes and flushes.
fn disk(read_ms: f64, write_ms: f64, flush_ms: f64) -> StorageProfile {
    let class = |ms: f64| {
        let line = format!(
            r#"{{"overhead": {{"kind": "constant", "value_s": {}}}}}"#,
            ms / 1e3
        );
        format!(r#"{{"sequential": {line}, "random": {line}}}"#)
    };
    let flush = format!(
        r#"{{"overhead": {{"kind": "constant", "value_s": {}}}}}"#,
        flush_ms / 1e3
    );
    let json = format!(
        r#"{{"schema": "penstock/storage-profile/1", "name": "plain", "servers": 1, "read": {}, "write": {}, "flush": {flush}}}"#,
        class(read_ms),
        class(write_ms)
    );
    StorageProfile::from_json(&json).unwrap_or_else(|e| panic!("{}", e.message))
}

fn setting(profile: StorageProfile, pages: u64) -> Setting {
    Setting {
        profile,
        cache_bytes: pages * PAGE,
        readahead_bytes: 32 * PAGE,
        dirty_bytes: 64 << 20,
        bounds: Vec::new(),
    }
}

fn files(pages: &[u64]) -> Vec<TracedFile> {
    let file = |(n, pages): (usize, &u64)| TracedFile {
        size_bytes: pages * PAGE,
        base: (n as u64 + 1) << 40,
        place: n as u32,
        random: true,
    };
    pages.iter().enumerate().map(file).collect()
}

#[derive(Default)]
struct Trace {
    calls: Calls,
    log: Log,
}

impl Trace {
    #[allow(clippy::too_many_arguments)]
    fn call(&mut self, t: u64, took: u64, tid: i64, op: u8, file: u32, offset: u64, size: u64) {
        self.calls.t_ns.push(t);
        self.calls.latency_ns.push(took);
        self.calls.tid.push(tid);
        self.calls.op.push(op);
        self.calls.direct.push(0);
        self.calls.file.push(file);
        self.calls.offset.push(offset);
        self.calls.size.push(size);
    }

    fn request(&mut self, t: u64, done: u64, tid: i64, op: u8, file: u32, size: u64) {
        self.log.t_ns.push(t);
        self.log.done_ns.push(done);
        self.log.tid.push(tid);
        self.log.op.push(op);
        self.log.file.push(file);
        self.log.offset.push(0);
        self.log.size.push(size);
    }

    fn program(&self, files: Vec<TracedFile>, cpu_ns: u64) -> Program {
        let about = About {
            files,
            start_ns: 0,
            cpu_ns: Some(cpu_ns),
        };
        Program::new(&self.calls, &self.log, &about).unwrap_or_else(|e| panic!("{}", e.0))
    }
}

fn run(program: &Program, setting: &Setting) -> Replayed {
    program
        .run(setting, 1)
        .unwrap_or_else(|e| panic!("{}", e.0))
}

fn near(value: f64, expected: f64, share: f64) {
    assert!(
        (value / expected - 1.0).abs() < share,
        "{value} beside {expected}"
    );
}

/// Two clients of one log: read for 1 ms, acquire the log, write, flush (2 ms), release it.
fn committers(rounds: u64) -> Trace {
    let mut trace = Trace::default();
    let mut free = [0, 0];
    let mut log_free = 0;
    for round in 0..2 * rounds {
        let (who, tid) = ((round % 2) as usize, 7 + (round % 2) as i64);
        let t = free[who] + MS / 10;
        trace.call(t, MS, tid, 0, 0, 0, PAGE);
        let ready = t + MS + MS / 10;
        let began = ready.max(log_free + 20_000);
        trace.call(began, 10_000, tid, 1, 1, round * PAGE, PAGE);
        trace.request(began + 10_000, began + 110_000, 0, 1, 1, PAGE);
        trace.request(began + 110_000, began + 2_110_000, tid, 2, 1, 0);
        free[who] = began + 2_110_000;
        log_free = free[who];
    }
    trace
}

#[test]
fn lock_waits_appear_on_every_disk() {
    let rounds = 200;
    let program = committers(rounds).program(files(&[8, 4096]), MS);
    assert_eq!(program.analysis.locks, [1]);
    assert!(program.analysis.waits > rounds, "{:?}", program.analysis);
    for flush_ms in [0.5, 2.0, 20.0] {
        let out = run(&program, &setting(disk(1.0, 0.1, flush_ms), 1 << 20));
        // in sequence inside (write, flush, handover); in parallel outside
        let inside = (0.03 + 0.1 + flush_ms) / 1e3;
        let period_s = 1.2e-3 + inside;
        let expected = rounds as f64 * (2.0 * inside).max(period_s);
        near(out.elapsed_s, expected, 0.06);
        assert_eq!(out.requests[2], 2 * rounds);
    }
}

#[test]
fn parallel_flushes_do_not_block_each_other() {
    let mut trace = Trace::default();
    for round in 0..200 {
        for tid in [7, 8] {
            let t = round * 4 * MS;
            trace.call(t, 10_000, tid, 1, (tid - 7) as u32, 0, PAGE);
            trace.request(t + 10_000, t + 110_000, 0, 1, (tid - 7) as u32, PAGE);
            trace.request(t + 110_000, t + 3 * MS, tid, 2, (tid - 7) as u32, 0);
        }
    }
    let program = trace.program(files(&[8, 8]), MS);
    assert_eq!(program.analysis.locks, [0_u32; 0]);
}

#[test]
fn half_the_memory_misses_half_of_random_reads() {
    let pages = 4000u64;
    let mut trace = Trace::default();
    let mut state = 12345u64;
    let reads = 40_000u64;
    for i in 0..reads {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        // two pages apart, so that no history resembles a stream
        let page = (state >> 33) % pages * 3 + 1;
        trace.call(i * 3000, 2000, 7, 0, 0, page * PAGE, PAGE);
    }
    let program = trace.program(files(&[3 * pages]), 1 << 40);
    let device = disk(1.0, 1.0, 1.0);
    let all = run(&program, &setting(device.clone(), 2 * pages));
    assert_eq!(all.requests[0], pages, "each page once");
    let half = run(&program, &setting(device.clone(), pages / 2));
    near(half.requests[0] as f64, reads as f64 / 2.0, 0.06);
    near(
        half.elapsed_s,
        half.requests[0] as f64 * 1e-3 + reads as f64 * 3e-6,
        0.02,
    );
    let none = run(&program, &setting(device, 1));
    assert!(none.requests[0] as f64 > 0.95 * reads as f64);
}

#[test]
fn sequential_reads_hit_readahead() {
    let pages = 1 << 14;
    let mut trace = Trace::default();
    for i in 0..pages / 2 {
        trace.call(i * 12_000, 2000, 7, 0, 0, i * 2 * PAGE, 2 * PAGE);
    }
    let program = trace.program(files(&[pages]), 1 << 40);
    let out = run(&program, &setting(disk(1.0, 1.0, 1.0), 1 << 20));
    // windows of 128 KiB, one in flight while one is read: the slower of disk and reader determines the rate
    near(out.requests[0] as f64, (pages / 32) as f64, 0.02);
    near(out.elapsed_s, (pages / 32) as f64 * 1e-3, 0.05);
    let fast = run(&program, &setting(disk(0.01, 1.0, 1.0), 1 << 20));
    near(fast.elapsed_s, (pages / 2) as f64 * 12e-6, 0.03);
}

#[test]
fn timed_programs_do_more_work_on_faster_disks() {
    let rounds = 500;
    let program = committers(rounds).program(files(&[8, 4096]), MS);
    let bound = Bound {
        tids: vec![7, 8],
        seconds: rounds as f64 * 2.0 * 2.13e-3,
    };
    let with_flush = |flush_ms: f64| {
        let mut settings = setting(disk(1.0, 0.1, flush_ms), 1 << 20);
        settings.bounds = vec![bound.clone()];
        let out = run(&program, &settings);
        near(out.elapsed_s, bound.seconds, 0.02);
        out.threads.iter().map(|t| t.syncs).sum::<u64>() as f64
    };
    let own = with_flush(2.0);
    near(own, 2.0 * rounds as f64, 0.03);
    near(with_flush(8.0), own * 2.13 / 8.13, 0.05);
    near(with_flush(1.2), own * 2.13 / 1.33, 0.05);
}

#[test]
fn dirty_pages_wait_for_explicit_flush() {
    let mut trace = Trace::default();
    let mut t = 0;
    for _ in 0..100 {
        for page in 0..8 {
            trace.call(t, 2000, 7, 1, 0, page * 2 * PAGE, PAGE);
            t += 3000;
        }
        trace.request(t, t + MS, 0, 1, 0, PAGE);
        trace.request(t + MS, t + 2 * MS, 7, 2, 0, 0);
        t += 2 * MS;
    }
    let program = trace.program(files(&[64]), 1 << 40);
    let out = run(&program, &setting(disk(1.0, 1.0, 5.0), 1 << 20));
    // eight pages apart: eight requests, one server
    assert_eq!(out.requests, [0, 800, 100]);
    near(out.elapsed_s, 100.0 * (8.0 + 5.0 + 0.024) / 1e3, 0.02);
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let mut trace = Trace::default();
    trace.call(0, 1, 7, 0, 3, 0, PAGE);
    let about = About {
        files: files(&[8]),
        start_ns: 0,
        cpu_ns: None,
    };
    let error = Program::new(&trace.calls, &trace.log, &about).unwrap_err();
    assert!(error.0.contains("file 3 of 1"), "{}", error.0);
    trace.calls.size.clear();
    let error = Program::new(&trace.calls, &trace.log, &about).unwrap_err();
    assert!(error.0.contains("length"), "{}", error.0);
    let error = Program::new(&Calls::default(), &Log::default(), &about).unwrap_err();
    assert!(error.0.contains("nothing was traced"), "{}", error.0);
}
