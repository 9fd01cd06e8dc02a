//! Phases: sections of one class. They are detected over windows or epochs, and their borders are refined to a request.

use crate::epoch::{block_hash, Counter, Epoch};
use crate::hotset::within;
use crate::verdict::{classify_single_phase, Class, Phase, Z};

const WINDOWS: usize = 200;
const SMALLEST_WINDOW: usize = 64;
const LEAST_SHARE: f64 = 0.05;
const COVERED_SHARE: f64 = 0.9;
/// Maximum number of hashes of one epoch that are examined for a hot set.
pub(crate) const LOOKED: usize = 256;

/// Consecutive epochs of one class. The caller refines the borders in the first and the last epoch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Run {
    pub first: usize,
    pub end: usize,
    pub class: Class,
}

/// Probable class of a single epoch. The thresholds are lower than those of the rules, which evaluate the complete
/// phase.
pub(crate) fn label(epoch: &Epoch) -> Option<Class> {
    let share = |hits: u64| epoch.share(hits);
    let cycle = cycle_share(epoch);
    if share(epoch.zero) >= 0.85 {
        Some(Class::Consecutive)
    } else if share(epoch.reverse) >= 0.85 {
        Some(Class::Reverse)
    } else if epoch.chained as f64 >= 0.85 * epoch.requests as f64 && epoch.open() >= 1.5 {
        Some(Class::Interleaved)
    } else if cycle >= 0.80 {
        Some(Class::Strided)
    } else if share(epoch.near) >= 0.85 {
        Some(Class::Sequential)
    } else if epoch.concentrated()
        || share(epoch.zero) <= 0.1 && (0.3..=0.7).contains(&share(epoch.forward))
    {
        Some(Class::Random)
    } else {
        None
    }
}

/// True if chains contain a part of the requests, and the rest may be in chains of another kind.
pub(crate) fn part_chained(epoch: &Epoch) -> bool {
    let chained = epoch.chained as f64 / epoch.requests.max(1) as f64;
    (0.05..0.95).contains(&chained)
        && epoch.share(epoch.zero) < 0.95
        && epoch.share(epoch.near) < 0.95
        && cycle_share(epoch) < 0.80
}

/// True if re-access should be counted. A rule before `hot-set` explains the order of other epochs.
pub(crate) fn without_order(epoch: &Epoch) -> bool {
    !matches!(
        label(epoch),
        Some(
            Class::Consecutive
                | Class::Reverse
                | Class::Interleaved
                | Class::Strided
                | Class::Sequential
        )
    )
}

/// Share of the distances in a cycle; 0 if most of them are between adjacent requests.
pub(crate) fn cycle_share(epoch: &Epoch) -> f64 {
    let (period, share) = best_cycle(epoch);
    let adjacent = epoch.share(epoch.zero).max(epoch.share(epoch.reverse));
    // a cycle of several distances may include one between adjacent requests
    let most = if period == 1 { 0.1 } else { 0.8 };
    if adjacent <= most && epoch.distances[0] != 0 {
        share
    } else {
        0.0
    }
}

/// Length and share of the best cycle of start-to-start distances. Of equal shares, the shortest cycle wins.
pub(crate) fn best_cycle(epoch: &Epoch) -> (usize, f64) {
    let mut best = (1, 0.0);
    for (i, &hits) in epoch.cycle.iter().enumerate() {
        let share = epoch.share(hits);
        if share > best.1 + 0.02 {
            best = (i + 1, share);
        }
    }
    best
}

/// Runs of epochs with one label. Each has at least 0.05 of the requests, neighbours differ, and together they cover
/// 0.9 of the requests. An epoch between two runs may contain their border. Return no runs if there are fewer than two.
pub(crate) fn runs(epochs: &[Epoch]) -> Vec<Run> {
    let epochs = &chains_from_their_begin(epochs);
    let labels: Vec<Option<Class>> = epochs.iter().map(label).collect();
    let total: u64 = epochs.iter().map(|epoch| epoch.requests).sum();
    let requests = |first: usize, end: usize| -> f64 {
        epochs[first..end].iter().map(|e| e.requests as f64).sum()
    };
    let mut merged: Vec<Run> = Vec::new();
    let mut first = 0;
    for run in labels.chunk_by(|a, b| a == b) {
        let (start, end) = (first, first + run.len());
        first = end;
        let Some(class) = run[0] else { continue };
        if requests(start, end) < LEAST_SHARE * total as f64 {
            continue;
        }
        match merged.last_mut() {
            Some(last) if last.class == class => last.end = end,
            _ => merged.push(Run {
                first: start,
                end,
                class,
            }),
        }
    }
    // a single epoch that is a mixture of its neighbours contains their border
    let mut i = 1;
    while i + 1 < merged.len() {
        let own = merged[i].first;
        let (left, right) = (merged[i - 1].end - 1, merged[i + 1].first);
        if merged[i].end - own == 1 && between(&epochs[left], &epochs[own], &epochs[right]) {
            merged.remove(i);
        } else {
            i += 1;
        }
    }
    let least = LEAST_SHARE * total as f64;
    merged = merged
        .into_iter()
        .flat_map(|run| {
            let change = (run.class == Class::Random)
                .then(|| change_of_heat(epochs, run.first, run.end, least))
                .flatten();
            let Some((at, hot)) = change else {
                return vec![run];
            };
            let (left, right) = if hot {
                (Class::HotSet, Class::Random)
            } else {
                (Class::Random, Class::HotSet)
            };
            let part = |first, end, class| Run { first, end, class };
            vec![part(run.first, at, left), part(at, run.end, right)]
        })
        .collect();
    if merged.len() < 2 {
        return Vec::new();
    }
    if merged[0].first <= 1 {
        merged[0].first = 0;
    }
    let last = merged.len() - 1;
    if merged[last].end + 1 >= epochs.len() {
        merged[last].end = epochs.len();
    }
    let mut covered: f64 = merged.iter().map(|run| requests(run.first, run.end)).sum();
    for pair in merged.windows(2) {
        if pair[1].first - pair[0].end == 1 {
            covered += requests(pair[0].end, pair[1].first);
        }
    }
    if covered < COVERED_SHARE * total as f64 {
        return Vec::new();
    }
    merged[0].first = 0;
    merged[last].end = epochs.len();
    merged
}

/// Move requests of chains to the epochs in which they occurred. A chain is counted when it becomes long, then with all
/// its requests; the excess belongs to the previous epoch.
fn chains_from_their_begin(epochs: &[Epoch]) -> Vec<Epoch> {
    let mut moved = epochs.to_vec();
    for i in (1..moved.len()).rev() {
        let (before, own) = moved.split_at_mut(i);
        let (before, own) = (&mut before[i - 1], &mut own[0]);
        if own.chained > own.requests {
            let excess = own.chained - own.requests;
            let open = (own.open_sum as f64 * excess as f64 / own.chained as f64) as u64;
            own.chained -= excess;
            own.open_sum -= open;
            before.chained += excess;
            before.open_sum += open;
        }
    }
    moved
}

/// True if the shares of an epoch are a mixture of those of its neighbours.
fn between(left: &Epoch, middle: &Epoch, right: &Epoch) -> bool {
    let share = part(left, middle, right);
    let (l, m, r) = (shares(left), shares(middle), shares(right));
    let rest: f64 = (0..l.len())
        .map(|i| (m[i] - share * l[i] - (1.0 - share) * r[i]).powi(2))
        .sum();
    rest < 0.05
}

/// Split a run without order where re-access changes between random and hot set. Return the first epoch after the
/// border, and true if the part before it is the hot set. Return None if re-access does not differ enough.
fn change_of_heat(epochs: &[Epoch], first: usize, end: usize, least: f64) -> Option<(usize, bool)> {
    const DIFFERENT: f64 = 0.35;
    let all: (f64, f64) = heat(&epochs[first..end]);
    let total: f64 = epochs[first..end].iter().map(|e| e.requests as f64).sum();
    let (mut again, mut looked, mut requests) = (0.0, 0.0, 0.0);
    let mut best: Option<(f64, usize, bool)> = None;
    for (i, epoch) in epochs[first..end].iter().enumerate() {
        again += epoch.again as f64;
        looked += epoch.looked as f64;
        requests += epoch.requests as f64;
        if requests < least || total - requests < least {
            continue;
        }
        let left = again / looked.max(1.0);
        let right = (all.0 - again) / (all.1 - looked).max(1.0);
        let gain = (left - right).powi(2) * requests * (total - requests);
        if (left - right).abs() >= DIFFERENT && best.is_none_or(|b| gain > b.0) {
            best = Some((gain, first + i + 1, left > right));
        }
    }
    best.map(|(_, at, hot)| (at, hot))
}

fn heat(epochs: &[Epoch]) -> (f64, f64) {
    epochs.iter().fold((0.0, 0.0), |sum, epoch| {
        (sum.0 + epoch.again as f64, sum.1 + epoch.looked as f64)
    })
}

/// Phases of a sequence, each at least 0.05 of it, with different classes of neighbours. Empty if there are fewer than
/// two.
pub fn find(offsets: &[i64], sizes: &[i64]) -> Vec<Phase> {
    let n = offsets.len();
    let window = SMALLEST_WINDOW.max(n / WINDOWS);
    if n < 4 * window {
        return Vec::new();
    }
    let epochs = windows(offsets, sizes, window);
    let runs = runs(&epochs);
    let mut phases: Vec<Phase> = Vec::new();
    let mut first = 0;
    for (i, run) in runs.iter().enumerate() {
        let end = runs.get(i + 1).map_or(n, |next| {
            let low = (run.end - 1) * window;
            let high = ((next.first + 1) * window).min(n);
            border(offsets, sizes, window, low.max(1), high)
        });
        if end <= first {
            continue;
        }
        let verdict = classify_single_phase(&offsets[first..end], &sizes[first..end]);
        push(&mut phases, Phase::of(&verdict, first, end));
        first = end;
    }
    accepted(phases, n)
}

/// Append a phase, or extend the last one if the class is the same.
pub(crate) fn push(phases: &mut Vec<Phase>, phase: Phase) {
    match phases.last_mut() {
        Some(last) if last.class == phase.class => {
            if phase.end - phase.first > last.end - last.first {
                last.k = phase.k;
                last.strides_bytes = phase.strides_bytes;
            }
            last.end = phase.end;
            last.end_ns = phase.end_ns;
        }
        _ => phases.push(phase),
    }
}

/// Return the phases if there are at least two, each with a class and about 0.05 of the `n` requests. Otherwise return
/// none.
pub(crate) fn accepted(phases: Vec<Phase>, n: usize) -> Vec<Phase> {
    let fine = phases.len() >= 2
        && phases.iter().all(|phase| {
            phase.class != Class::Insufficient
                && (phase.end - phase.first) as f64 >= 0.9 * LEAST_SHARE * n as f64
        });
    if fine {
        phases
    } else {
        Vec::new()
    }
}

/// Variance of the deciding share between windows, relative to that of independent requests; at least 1. One
/// interruption of a stream affects two or more steps, and interruptions are clustered.
pub(crate) fn design_effect<'a>(class: Class, epochs: impl Iterator<Item = &'a Epoch>) -> f64 {
    /// Value for too few windows: the effect of single interruptions.
    const UNKNOWN: f64 = 2.0;
    const ENOUGH: usize = 8;
    let counted: Vec<(f64, f64)> = epochs.filter_map(|epoch| deciding(class, epoch)).collect();
    let hits: f64 = counted.iter().map(|one| one.0).sum();
    let n: f64 = counted.iter().map(|one| one.1).sum();
    let share = hits / n.max(1.0);
    if n == 0.0 || share <= 0.0 || share >= 1.0 {
        return 1.0;
    }
    if counted.len() < ENOUGH {
        return UNKNOWN;
    }
    let windows = counted.len() as f64;
    let squares: f64 = counted.iter().map(|(h, m)| (h - share * m).powi(2)).sum();
    // quantile of Student's distribution for this number of windows, relative to the normal one
    let student = 1.0 + (Z * Z + 1.0) / (4.0 * (windows - 1.0));
    (squares * windows / (windows - 1.0) / (n * share * (1.0 - share)) * student.powi(2)).max(1.0)
}

/// Count of the rule of a class in an epoch, and its total. None if the class has no such rule.
fn deciding(class: Class, epoch: &Epoch) -> Option<(f64, f64)> {
    let of_steps = |hits: u64| Some((hits as f64, epoch.steps as f64));
    match class {
        Class::Consecutive => of_steps(epoch.zero),
        Class::Reverse => of_steps(epoch.reverse),
        Class::Sequential => of_steps(epoch.near),
        Class::Random => of_steps(epoch.steps - epoch.zero),
        Class::Strided => of_steps(*epoch.cycle.iter().max()?),
        Class::Interleaved => Some((
            epoch.chained.min(epoch.requests) as f64,
            epoch.requests as f64,
        )),
        _ => None,
    }
}

/// Design effect of a sequence of requests.
pub(crate) fn design_effect_of(class: Class, offsets: &[i64], sizes: &[i64]) -> f64 {
    let window = (offsets.len() / 64).max(SMALLEST_WINDOW / 4);
    design_effect(class, count(offsets, sizes, window).iter())
}

fn windows(offsets: &[i64], sizes: &[i64], window: usize) -> Vec<Epoch> {
    let mut epochs = count(offsets, sizes, window);
    for (epoch, (offsets, sizes)) in epochs
        .iter_mut()
        .zip(offsets.chunks(window).zip(sizes.chunks(window)))
    {
        let blocks = offsets
            .iter()
            .zip(sizes)
            .map(|(&offset, &size)| block_hash(offset, size));
        look_within(epoch, blocks);
    }
    epochs
}

fn count(offsets: &[i64], sizes: &[i64], window: usize) -> Vec<Epoch> {
    let mut counter = Counter::default();
    offsets
        .chunks(window)
        .zip(sizes.chunks(window))
        .map(|(offsets, sizes)| {
            for (&offset, &size) in offsets.iter().zip(sizes) {
                counter.push(offset, size, 0);
            }
            counter.cut()
        })
        .collect()
}

/// Set the re-access counts of an epoch without order.
pub(crate) fn look_within(epoch: &mut Epoch, blocks: impl Iterator<Item = u64>) {
    if !without_order(epoch) {
        return;
    }
    let mut hashes: Vec<u32> = blocks
        .take(LOOKED)
        .map(|hash| (hash >> 32) as u32)
        .collect();
    (epoch.looked, epoch.again, epoch.top_fifth) = within(&mut hashes);
}

const FEATURES: usize = 6;

/// Return the request between `low` and `high` at which the requests begin to resemble those after `high`.
///
/// Each request has six binary features. Their frequencies in the windows before `low` and after `high` give the
/// likelihood of both sides. The border maximises the product.
fn border(offsets: &[i64], sizes: &[i64], window: usize, low: usize, high: usize) -> usize {
    let from = low.saturating_sub(2 * window);
    let to = (high + window).min(offsets.len());
    let features: Vec<[bool; FEATURES]> = features(&offsets[from..to], &sizes[from..to]);
    let rates = |range: std::ops::Range<usize>| -> [f64; FEATURES] {
        let of = range.len().max(1) as f64;
        std::array::from_fn(|f| {
            let hits = features[range.clone()].iter().filter(|x| x[f]).count() as f64;
            (hits / of).clamp(0.01, 0.99)
        })
    };
    let left = rates(window.min(low - from)..low - from);
    let right = rates(high - from..to - from);
    let weight = |feature: &[bool; FEATURES]| -> f64 {
        (0..FEATURES)
            .map(|f| {
                if feature[f] {
                    (left[f] / right[f]).ln()
                } else {
                    ((1.0 - left[f]) / (1.0 - right[f])).ln()
                }
            })
            .sum()
    };
    let mut sum = 0.0;
    let mut best = (0.0, low);
    for i in low..high {
        sum += weight(&features[i - from]);
        if sum > best.0 {
            best = (sum, i + 1);
        }
    }
    best.1
}

fn features(offsets: &[i64], sizes: &[i64]) -> Vec<[bool; FEATURES]> {
    let mut counter = Counter::default();
    let mut rows = Vec::with_capacity(offsets.len());
    for (&offset, &size) in offsets.iter().zip(sizes) {
        rows.push(counter.features(offset, size));
    }
    rows
}

/// Share of the epoch between two runs that belongs to the left one, by interpolation of its shares.
pub(crate) fn part(left: &Epoch, middle: &Epoch, right: &Epoch) -> f64 {
    let (l, m, r) = (shares(left), shares(middle), shares(right));
    let (mut dot, mut square) = (0.0, 0.0);
    for i in 0..l.len() {
        dot += (m[i] - r[i]) * (l[i] - r[i]);
        square += (l[i] - r[i]) * (l[i] - r[i]);
    }
    if square > 0.0 {
        (dot / square).clamp(0.0, 1.0)
    } else {
        0.5
    }
}

fn shares(epoch: &Epoch) -> [f64; 9] {
    let share = |hits| epoch.share(hits);
    let [one, two, three, four] = epoch.cycle.map(share);
    [
        share(epoch.zero),
        share(epoch.reverse),
        share(epoch.near),
        share(epoch.forward),
        one,
        two,
        three,
        four,
        (epoch.chained as f64 / epoch.requests.max(1) as f64).min(1.0),
    ]
}
