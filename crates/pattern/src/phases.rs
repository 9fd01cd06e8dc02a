//! Phases: stretches of one class, found over windows or epochs and bordered to the request.

use crate::epoch::{block_hash, Counter, Epoch};
use crate::hotset::within;
use crate::verdict::{classify_whole, Class, Phase, Z};

const WINDOWS: usize = 200;
const SMALLEST_WINDOW: usize = 64;
const LEAST_SHARE: f64 = 0.05;
const COVERED_SHARE: f64 = 0.9;
/// Hashes of one epoch that are looked at for a hot set within it.
pub(crate) const LOOKED: usize = 256;

/// Epochs of one class; the first request of the first and the end of the last are bordered by the caller.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Run {
    pub first: usize,
    pub end: usize,
    pub class: Class,
}

/// The class that an epoch by itself looks like. Less strict than the rules: those judge the whole phase.
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

/// Whether chains hold a part of it, and the rest may be in chains of another kind.
pub(crate) fn part_chained(epoch: &Epoch) -> bool {
    let chained = epoch.chained as f64 / epoch.requests.max(1) as f64;
    (0.05..0.95).contains(&chained)
        && epoch.share(epoch.zero) < 0.95
        && epoch.share(epoch.near) < 0.95
        && cycle_share(epoch) < 0.80
}

/// Whether re-access is worth counting: an order that a rule before `hot-set` explains has none to tell.
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

/// Share of the distances in a cycle; 0 where they are rather those of adjacent requests.
pub(crate) fn cycle_share(epoch: &Epoch) -> f64 {
    let (period, share) = best_cycle(epoch);
    let adjacent = epoch.share(epoch.zero).max(epoch.share(epoch.reverse));
    // in a cycle of several distances one may be that of an adjacent request
    let most = if period == 1 { 0.1 } else { 0.8 };
    if adjacent <= most && epoch.distances[0] != 0 {
        share
    } else {
        0.0
    }
}

/// The cycle of start-to-start distances that fits best, the shorter of equals: its length and share.
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

/// Runs of epochs with one label, each at least 0.05 of the requests, neighbours different, together 0.9 of them
/// (an epoch between two runs may hold their border). Fewer than two: none.
pub(crate) fn runs(epochs: &[Epoch]) -> Vec<Run> {
    let epochs = &chains_from_their_begin(epochs);
    let labels: Vec<Option<Class>> = epochs.iter().map(label).collect();
    let total: u64 = epochs.iter().map(|epoch| epoch.requests).sum();
    let requests = |first: usize, end: usize| -> f64 {
        epochs[first..end].iter().map(|e| e.requests as f64).sum()
    };
    let mut found: Vec<Run> = Vec::new();
    let mut first = 0;
    for run in labels.chunk_by(|a, b| a == b) {
        let (start, end) = (first, first + run.len());
        first = end;
        let Some(class) = run[0] else { continue };
        if requests(start, end) < LEAST_SHARE * total as f64 {
            continue;
        }
        match found.last_mut() {
            Some(last) if last.class == class => last.end = end,
            _ => found.push(Run {
                first: start,
                end,
                class,
            }),
        }
    }
    // a single epoch that is part of what comes before and part of what comes after has their border
    let mut i = 1;
    while i + 1 < found.len() {
        let own = found[i].first;
        let (left, right) = (found[i - 1].end - 1, found[i + 1].first);
        if found[i].end - own == 1 && between(&epochs[left], &epochs[own], &epochs[right]) {
            found.remove(i);
        } else {
            i += 1;
        }
    }
    let least = LEAST_SHARE * total as f64;
    found = found
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
    if found.len() < 2 {
        return Vec::new();
    }
    if found[0].first <= 1 {
        found[0].first = 0;
    }
    let last = found.len() - 1;
    if found[last].end + 1 >= epochs.len() {
        found[last].end = epochs.len();
    }
    let mut covered: f64 = found.iter().map(|run| requests(run.first, run.end)).sum();
    for pair in found.windows(2) {
        if pair[1].first - pair[0].end == 1 {
            covered += requests(pair[0].end, pair[1].first);
        }
    }
    if covered < COVERED_SHARE * total as f64 {
        return Vec::new();
    }
    found[0].first = 0;
    found[last].end = epochs.len();
    found
}

/// A chain counts from the moment at which it is long, and then for all its requests: what an epoch counts too many
/// belongs to those before it.
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

/// Whether the shares of an epoch lie between those of two others.
fn between(left: &Epoch, middle: &Epoch, right: &Epoch) -> bool {
    let share = part(left, middle, right);
    let (l, m, r) = (shares(left), shares(middle), shares(right));
    let rest: f64 = (0..l.len())
        .map(|i| (m[i] - share * l[i] - (1.0 - share) * r[i]).powi(2))
        .sum();
    rest < 0.05
}

/// Requests without order are of two kinds, to a hot set or not: the epoch at which the one begins where the
/// other ended, if within the epochs re-access differs that much. Of the left part: whether it is the hot one.
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

/// The phases of a sequence, each at least 0.05 of it, neighbours of different class; none if it has no parts.
pub fn find(offsets: &[i64], sizes: &[i64]) -> Vec<Phase> {
    let n = offsets.len();
    let window = SMALLEST_WINDOW.max(n / WINDOWS);
    if n < 4 * window {
        return Vec::new();
    }
    let epochs = windows(offsets, sizes, window);
    let runs = runs(&epochs);
    let mut found: Vec<Phase> = Vec::new();
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
        let verdict = classify_whole(&offsets[first..end], &sizes[first..end]);
        push(&mut found, Phase::of(&verdict, first, end));
        first = end;
    }
    accepted(found, n)
}

/// Appends a phase, or lengthens the last one of the same class.
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

/// The phases if there are two or more, each of a class and of at least 0.05 of `n`, up to a border's width.
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

/// How much more the share that decides on a class varies from window to window than that of as many independent requests
/// would: at least 1. One interruption of a stream costs two steps or more, and interruptions come in bunches.
pub(crate) fn design_effect<'a>(class: Class, epochs: impl Iterator<Item = &'a Epoch>) -> f64 {
    /// Where there are too few windows to tell: what single interruptions do.
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
    // the quantile of Student's distribution for so many windows, as a multiple of the normal one
    let student = 1.0 + (Z * Z + 1.0) / (4.0 * (windows - 1.0));
    (squares * windows / (windows - 1.0) / (n * share * (1.0 - share)) * student.powi(2)).max(1.0)
}

/// Of an epoch: what the rule of a class counts, and of how many. None: the class has no such rule.
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

/// The same of a sequence's requests.
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

/// Fills in what an epoch shows of a hot set by itself, if it shows no order.
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

/// The request between `low` and `high` from which on the requests are rather like those after `high`.
///
/// Each request has six yes-or-no features; how often each is true in the window before `low` and after `high`
/// gives a likelihood for both sides, and the border is where their product is greatest.
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
    let mut found = Vec::with_capacity(offsets.len());
    for (&offset, &size) in offsets.iter().zip(sizes) {
        found.push(counter.features(offset, size));
    }
    found
}

/// Of the epoch between two runs, the part that belongs to the left one: where its shares lie between theirs.
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
