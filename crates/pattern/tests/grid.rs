//! Generated sequences of known class, and sequences that must not be misclassified.

use penstock_pattern::{classify, judge, judge_as_in_kernel, Class, Operation, Stream};

const KIB: i64 = 1024;

/// Random number generator (splitmix64), so that the sequences do not depend on a library's version.
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn share(&mut self) -> f64 {
        self.below(1 << 53) as f64 / (1u64 << 53) as f64
    }

    /// Ranks 0..n with frequencies as rank^-a, by inversion.
    fn zipf(&mut self, table: &[f64]) -> i64 {
        let at = self.share() * table[table.len() - 1];
        table.partition_point(|&sum| sum < at) as i64
    }
}

fn sizes(n: usize, size: i64) -> Vec<i64> {
    vec![size; n]
}

fn class_of(offsets: &[i64], size: i64) -> (Class, Option<u32>) {
    let verdict = classify(offsets, &sizes(offsets.len(), size));
    (verdict.class, verdict.k)
}

fn random_blocks(draws: &mut Draws, n: usize, size: i64) -> Vec<i64> {
    (0..n).map(|_| draws.below(1 << 18) as i64 * size).collect()
}

#[test]
fn basic_classes_over_sizes_lengths_and_seeds() {
    let (mut right, mut all) = (0, 0);
    let mut wrong = Vec::new();
    for seed in 0..20u64 {
        for n in [64usize, 1009, 10_007] {
            for size in [512i64, 4 * KIB, 28 * KIB, 1024 * KIB] {
                let mut draws = Draws(seed * 977 + n as u64 + size as u64);
                let n64 = n as i64;
                let consecutive: Vec<i64> = (0..n64).map(|i| i * size).collect();
                let reverse: Vec<i64> = (0..n64).rev().map(|i| i * size).collect();
                let strided: Vec<i64> = (0..n64).map(|i| i * 4 * size).collect();
                let mut at = 0;
                let gaps: Vec<i64> = (0..n)
                    .map(|_| {
                        let offset = at;
                        at += size + draws.below(33) as i64 * KIB;
                        offset
                    })
                    .collect();
                let random = random_blocks(&mut draws, n, size);
                for (offsets, truth) in [
                    (consecutive, Class::Consecutive),
                    (reverse, Class::Reverse),
                    (strided, Class::Strided),
                    (gaps, Class::Sequential),
                    (random, Class::Random),
                ] {
                    let (class, _) = class_of(&offsets, size);
                    all += 1;
                    right += i32::from(class == truth);
                    if class != truth {
                        wrong.push((seed, n, size, truth, class));
                    }
                }
            }
        }
    }
    assert!(
        f64::from(right) >= 0.99 * f64::from(all),
        "{right} of {all}: {wrong:?}"
    );
}

#[test]
fn streams_are_counted_in_any_interleaving() {
    for k in [2u64, 4, 8, 16] {
        for uneven in [false, true] {
            let mut draws = Draws(k);
            let mut next: Vec<i64> = (0..k as i64).map(|s| s * 4096 * 4 * KIB).collect();
            let offsets: Vec<i64> = (0..10_007u64)
                .map(|i| {
                    let stream = if uneven {
                        draws.below(k).min(draws.below(k)) as usize
                    } else {
                        (i % k) as usize
                    };
                    next[stream] += 4 * KIB;
                    next[stream] - 4 * KIB
                })
                .collect();
            assert_eq!(
                class_of(&offsets, 4 * KIB),
                (Class::Interleaved, Some(k as u32)),
                "k {k}, uneven {uneven}"
            );
        }
    }
}

#[test]
fn threads_reading_one_file_from_its_start_are_interleaved() {
    // in bursts of a time slice, two threads at once, sometimes at the same offset
    let n = 10_007i64;
    let mut draws = Draws(4);
    let mut next = [0i64; 4];
    let (mut offsets, mut tids) = (Vec::new(), Vec::new());
    let mut working = [0usize, 1];
    while next.iter().any(|&at| at < n) {
        if draws.below(700) == 0 {
            let slot = draws.below(2) as usize;
            working[slot] = draws.below(4) as usize;
        }
        let thread = working[draws.below(2) as usize];
        if next[thread] < n {
            offsets.push(next[thread] * 4 * KIB);
            tids.push(100 + thread as u32);
            next[thread] += 1;
        } else {
            working = [draws.below(4) as usize, draws.below(4) as usize];
        }
    }
    let judged = judge(&offsets, &sizes(offsets.len(), 4 * KIB), &tids, &[]);
    assert_eq!(judged.together.class, Class::Interleaved);
    assert!(
        matches!(judged.together.k, Some(3 | 4)),
        "{:?}",
        judged.together.k
    );
    assert_eq!(judged.threads.len(), 4);
    for thread in &judged.threads {
        assert_eq!(thread.verdict.class, Class::Consecutive);
        assert_eq!(thread.verdict.requests, n as u64);
    }
}

#[test]
fn zipf_is_a_hot_set_with_its_exponent() {
    let mut sum = 0.0;
    let table: Vec<f64> = (1..=4096)
        .map(|rank| {
            sum += f64::from(rank).powf(-1.2);
            sum
        })
        .collect();
    let mut draws = Draws(1);
    let offsets: Vec<i64> = (0..50_000)
        .map(|_| (draws.zipf(&table) * 2_654_435_761 % 4096) * 4 * KIB)
        .collect();
    let verdict = classify(&offsets, &sizes(offsets.len(), 4 * KIB));
    assert_eq!(verdict.class, Class::HotSet);
    let exponent = verdict.evidence["spread"]["zipf_exponent"]
        .as_f64()
        .unwrap();
    assert!((1.0..1.4).contains(&exponent), "{exponent}");
}

#[test]
fn mixed_halves_are_split_at_their_border() {
    let mut draws = Draws(5);
    let mut offsets: Vec<i64> = (0..5000).map(|i| i * 4 * KIB).collect();
    offsets.extend(random_blocks(&mut draws, 5000, 4 * KIB));
    let verdict = classify(&offsets, &sizes(10_000, 4 * KIB));
    assert_eq!(verdict.class, Class::Mixed);
    let phases = verdict.evidence["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 2);
    assert_eq!(phases[0]["class"], "consecutive");
    assert_eq!(phases[1]["class"], "random");
    let border = phases[1]["first"].as_i64().unwrap();
    assert!((border - 5000).abs() <= 100, "{border}");
}

#[test]
fn main_stream_is_detected_with_ten_percent_random() {
    let mut draws = Draws(6);
    let mut at = 0;
    let mut main = 0;
    let offsets: Vec<i64> = (0..20_000)
        .map(|_| {
            if draws.below(10) == 0 {
                (1 << 32) + draws.below(1 << 20) as i64 * 4 * KIB
            } else {
                at += 4 * KIB;
                main += 1;
                at - 4 * KIB
            }
        })
        .collect();
    let verdict = classify(&offsets, &sizes(offsets.len(), 4 * KIB));
    assert_eq!(verdict.class, Class::Irregular);
    let share = verdict.evidence["main_stream_share"].as_f64().unwrap();
    assert!((share - f64::from(main) / 20_000.0).abs() < 0.01, "{share}");
    assert!((share - 0.90).abs() < 0.01, "{share}");
}

#[test]
fn guards() {
    let few: Vec<i64> = (0..31).map(|i| i * 4 * KIB).collect();
    assert_eq!(class_of(&few, 4 * KIB).0, Class::Insufficient);
    assert_eq!(class_of(&[0], 1 << 30).0, Class::Insufficient);
    assert_eq!(class_of(&[], 1).0, Class::Insufficient);
    // two threads in random turns, each consecutive in its own half
    let mut draws = Draws(7);
    let mut next = [0i64, 1 << 30];
    let (mut offsets, mut tids) = (Vec::new(), Vec::new());
    for _ in 0..5003 {
        let thread = draws.below(2) as usize;
        offsets.push(next[thread]);
        tids.push(thread as u32);
        next[thread] += 4 * KIB;
    }
    let judged = judge(&offsets, &sizes(offsets.len(), 4 * KIB), &tids, &[]);
    assert_eq!(
        (judged.together.class, judged.together.k),
        (Class::Interleaved, Some(2))
    );
    // every block of a file once, in random order: no streams, although every block has a neighbour
    let mut blocks: Vec<i64> = (0..16_384).map(|i| i * 4 * KIB).collect();
    for i in (1..blocks.len()).rev() {
        blocks.swap(i, draws.below(i as u64 + 1) as usize);
    }
    assert_eq!(class_of(&blocks[..10_007], 4 * KIB).0, Class::Random);
    assert_eq!(class_of(&blocks, 4 * KIB).0, Class::Random);
}

#[test]
fn cyclic_strides_are_reported() {
    let mut at = 0;
    let offsets: Vec<i64> = (0..3000)
        .map(|i| {
            let offset = at;
            at += [64, 128, 512][i % 3] * KIB;
            offset
        })
        .collect();
    let verdict = classify(&offsets, &sizes(3000, 4 * KIB));
    assert_eq!(verdict.class, Class::Strided);
    let mut values: Vec<i64> = verdict.evidence["strides_bytes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_i64().unwrap() / KIB)
        .collect();
    values.sort_unstable();
    assert_eq!(values, [64, 128, 512]);
}

#[test]
fn appends_by_short_processes_are_consecutive() {
    for each in [1usize, 3] {
        let n = 400 * each;
        let offsets: Vec<i64> = (0..n as i64).map(|i| i * 64).collect();
        let tids: Vec<u32> = (0..n).map(|i| 1000 + (i / each) as u32).collect();
        let times: Vec<u64> = (0..n as u64).map(|i| 1_000_000 * i).collect();
        let exact = judge(&offsets, &sizes(n, 64), &tids, &[]);
        assert_eq!(exact.together.class, Class::Consecutive);
        let counted = judge_as_in_kernel(&offsets, &sizes(n, 64), &tids, &times);
        assert_eq!(counted.together.class, Class::Consecutive, "{each} each");
        assert!(counted.together.confidence > 0.98);
    }
}

#[test]
fn small_requests_to_one_block_are_not_reaccess() {
    // records of 64 B, each written once, in random order; then ten records, written repeatedly
    let mut draws = Draws(11);
    let mut records: Vec<i64> = (0..8192).map(|i| i * 64).collect();
    for i in (1..records.len()).rev() {
        records.swap(i, draws.below(i as u64 + 1) as usize);
    }
    let again: Vec<i64> = (0..8192)
        .map(|_| draws.below(10) as i64 * 64 + 64 * 64 * i64::from(draws.below(10) == 0))
        .collect();
    let times: Vec<u64> = (0..8192).collect();
    for (offsets, truth) in [(records, Class::Random), (again, Class::HotSet)] {
        let exact = classify(&offsets, &sizes(8192, 64));
        let counted = judge_as_in_kernel(&offsets, &sizes(8192, 64), &[1; 8192], &times);
        for verdict in [exact, counted.together] {
            let spread = &verdict.evidence["spread"];
            let share = spread["reaccess_share"].as_f64().unwrap();
            assert_eq!(share >= 0.5, truth == Class::HotSet, "{spread}");
        }
    }
}

/// Streams in random turns: (step, share) of each.
fn unequal(seed: u64, n: usize, streams: &[(i64, f64)]) -> (Vec<i64>, Vec<i64>) {
    let mut draws = Draws(seed);
    let mut next: Vec<i64> = (0..streams.len() as i64).map(|s| (s + 1) << 36).collect();
    let offsets = (0..n)
        .map(|_| {
            let (mut at, mut one) = (draws.share(), 0);
            while one + 1 < streams.len() && at >= streams[one].1 {
                at -= streams[one].1;
                one += 1;
            }
            let offset = next[one];
            next[one] += streams[one].0;
            offset
        })
        .collect();
    (offsets, sizes(n, 4 * KIB))
}

#[test]
fn interleaved_streams_are_reported_with_shares() {
    let (adjacent, reverse, strided) = (4 * KIB, -4 * KIB, 260 * KIB);
    for (streams, kinds) in [
        (
            vec![(adjacent, 0.7), (strided, 0.3)],
            vec!["adjacent", "strided"],
        ),
        (
            vec![(adjacent, 0.6), (reverse, 0.4)],
            vec!["adjacent", "reverse"],
        ),
        (
            vec![(reverse, 0.6), (strided, 0.4)],
            vec!["reverse", "strided"],
        ),
        (
            vec![(adjacent, 0.5), (reverse, 0.3), (strided, 0.2)],
            vec!["adjacent", "reverse", "strided"],
        ),
        (
            vec![(strided, 0.55), (adjacent, 0.45)],
            vec!["strided", "adjacent"],
        ),
    ] {
        for n in [1009usize, 20_011] {
            let (offsets, sizes) = unequal(3, n, &streams);
            let verdict = classify(&offsets, &sizes);
            assert_eq!(verdict.class, Class::Interleaved, "{kinds:?} {n}");
            assert_eq!(verdict.k, Some(kinds.len() as u32), "{kinds:?}");
            let reported = verdict.evidence["streams"].as_array().unwrap();
            assert_eq!(reported.len(), kinds.len(), "{reported:?}");
            for ((stream, kind), truth) in reported.iter().zip(&kinds).zip(&streams) {
                assert_eq!(stream["kind"], *kind);
                assert_eq!(stream["size_bytes"], 4 * KIB);
                let share = stream["share"].as_f64().unwrap();
                assert!((share - truth.1).abs() < 0.05, "{share} {truth:?}");
                if *kind == "strided" {
                    assert_eq!(stream["stride_bytes"], strided);
                }
            }
        }
    }
}

#[test]
fn lone_steps_and_noise_are_not_streams() {
    let (strided, other) = (260 * KIB, 1028 * KIB);
    let (offsets, sizes) = unequal(4, 20_011, &[(strided, 0.5), (other, 0.5)]);
    assert_ne!(classify(&offsets, &sizes).class, Class::Interleaved);
    for blocks in [12u64, 100, 1000, 100_000] {
        for seed in 0..20 {
            let (mut offsets, sizes) = unequal(seed, 5003, &[(4 * KIB, 1.0)]);
            let mut draws = Draws(seed + 100);
            for offset in &mut offsets {
                if draws.below(2) == 0 {
                    *offset = draws.below(blocks) as i64 * 4 * KIB;
                }
            }
            let verdict = classify(&offsets, &sizes);
            assert_ne!(verdict.class, Class::Interleaved, "{blocks} {seed}");
        }
    }
}

#[test]
fn reads_and_writes_are_classified_separately_and_jointly() {
    // a copy within one file: each block is read, then written beyond the middle
    for n in [1000i64, 300_000] {
        let mut stream = Stream::new(Vec::new(), 10_000);
        for i in 0..n {
            for (op, place) in [(0u8, i), (32, i + n)] {
                stream.push(&Operation {
                    t_ns: (2 * i + i64::from(op > 0)) as u64,
                    file_id: 1,
                    tid: 1,
                    offset: place * 4096,
                    done: 4096,
                    op,
                    ..Operation::default()
                });
            }
        }
        let rows = stream.finish();
        assert_eq!(rows.len(), 2);
        for row in rows {
            assert_eq!(row.judgement.together.class, Class::Consecutive);
            let both = row.both.unwrap();
            assert_eq!((both.class, both.k), (Class::Interleaved, Some(2)));
            assert_eq!(both.requests, 2 * n as u64);
        }
    }
}

#[test]
fn phases_report_step_and_streams() {
    let mut draws = Draws(8);
    let mut offsets: Vec<i64> = (0..5000).map(|i| i * 64 * KIB).collect();
    let mut next: Vec<i64> = (1..=3).map(|s| s << 36).collect();
    offsets.extend((0..5000).map(|_| {
        let stream = draws.below(3) as usize;
        next[stream] += 4 * KIB;
        next[stream]
    }));
    let times: Vec<u64> = (0..10_000).collect();
    let exact = classify(&offsets, &sizes(10_000, 4 * KIB));
    let counted = judge_as_in_kernel(&offsets, &sizes(10_000, 4 * KIB), &[1; 10_000], &times);
    for verdict in [exact, counted.together] {
        assert_eq!(verdict.class, Class::Mixed);
        let phases = verdict.evidence["phases"].as_array().unwrap();
        assert_eq!(phases[0]["class"], "strided");
        assert_eq!(phases[0]["strides_bytes"][0], 64 * KIB);
        assert_eq!(phases[1]["class"], "interleaved");
        assert_eq!(phases[1]["k"], 3);
    }
}
