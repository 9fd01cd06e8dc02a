//! Verdicts from epochs, by the same rules as from requests.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::json;

use crate::chains::{Kind, StreamOf};
use crate::epoch::{block_hash, Counter, Epoch, LONG};
use crate::hotset::{self, HotSample};
use crate::phases::{self, best_cycle, cycle_share, part, Run};
use crate::verdict::{
    at_once, near_bytes, wilson, Class, Judgement, OwnWays, Phase, ThreadVerdict, Verdict, ENOUGH,
    MOST_OPEN,
};

/// Epochs of one sequence in order, and the distribution of its requests without order over blocks.
#[derive(Clone, Debug)]
pub struct Epochs {
    /// Epochs in order of time.
    pub list: Vec<Epoch>,
    /// Re-access counts of the epochs that no rule about order explains.
    pub hot: HotSample,
}

/// Maximum number of epochs of one sequence. Beyond it, neighbours are merged.
pub const MOST_EPOCHS: usize = 2048;

impl Epochs {
    /// Create an empty list. At most `blocks` blocks are distinguished.
    pub fn new(blocks: usize) -> Self {
        Self {
            list: Vec::new(),
            hot: HotSample::new(blocks),
        }
    }

    /// Append an epoch. With more than `most` epochs, neighbours are merged.
    pub fn push(&mut self, epoch: Epoch, most: usize) {
        if epoch.requests == 0 {
            return;
        }
        self.list.push(epoch);
        if self.list.len() > most {
            self.list = self
                .list
                .chunks(2)
                .map(|pair| {
                    let mut sum = pair[0].clone();
                    if let Some(later) = pair.get(1) {
                        sum.add(later);
                    }
                    sum
                })
                .collect();
        }
    }

    /// Append an epoch of the kernel. The kernel examined `looked` requests that jumped, and recorded the upper halves
    /// of the block hashes below `limit`.
    pub fn push_sampled(
        &mut self,
        mut epoch: Epoch,
        looked: u64,
        limit: u64,
        hashes: impl Iterator<Item = u32> + Clone,
        most: usize,
    ) {
        if phases::without_order(&epoch) {
            let mut within: Vec<u32> = hashes.clone().collect();
            (epoch.looked, epoch.again, epoch.top_fifth) = hotset::within(&mut within);
            if looked > 0 {
                let hashes = hashes.map(|hash| u64::from(hash) << 32);
                self.hot.offer_sampled(looked, limit, hashes);
            }
        }
        self.push(epoch, most);
    }

    /// Append the counts of the requests after these.
    pub fn append(&mut self, later: Self, most: usize) {
        for epoch in later.list {
            self.push(epoch, most);
        }
        self.hot.merge(&later.hot);
    }

    /// Number of requests.
    pub fn requests(&self) -> u64 {
        self.list.iter().map(|epoch| epoch.requests).sum()
    }
}

/// Classify one sequence.
pub fn classify_epochs(epochs: &Epochs) -> Verdict {
    let order: Vec<&Epoch> = epochs.list.iter().collect();
    with_phases(&order, &epochs.hot, &|part| {
        without_phases(order[part].iter().copied(), &epochs.hot)
    })
}

/// Detect phases, unless one simple rule explains the sequence. Then apply the rules to the complete sequence.
fn with_phases(
    epochs: &[&Epoch],
    hot: &HotSample,
    judge: &dyn Fn(Range<usize>) -> Verdict,
) -> Verdict {
    let mut verdict = judge(0..epochs.len());
    if matches!(
        verdict.class,
        Class::Consecutive | Class::Reverse | Class::Insufficient
    ) {
        return verdict;
    }
    let owned: Vec<Epoch> = epochs.iter().map(|&epoch| epoch.clone()).collect();
    let phases_found = bordered(&owned, &phases::runs(&owned), hot, judge);
    if phases_found.len() >= 2 {
        verdict.become_mixed(&phases_found);
    }
    verdict
}

fn bordered(
    epochs: &[Epoch],
    runs: &[Run],
    hot: &HotSample,
    judge: &dyn Fn(Range<usize>) -> Verdict,
) -> Vec<Phase> {
    let mut before = vec![0u64];
    for epoch in epochs {
        before.push(before[before.len() - 1] + epoch.requests);
    }
    let sum = |first: usize, end: usize| {
        let mut sum = Epoch::default();
        for epoch in &epochs[first..end] {
            sum.add(epoch);
        }
        sum
    };
    // epochs that certainly belong to a run: without those at its borders, if there are others
    let inner = |run: &Run| {
        let long = run.end - run.first > 2;
        (
            run.first + usize::from(long && run.first > 0),
            run.end - usize::from(long && run.end < epochs.len()),
        )
    };
    let n = before[epochs.len()] as usize;
    let mut phases_found: Vec<Phase> = Vec::new();
    let (mut first, mut first_ns) = (0usize, epochs.first().map_or(0, |e| e.first_ns));
    for (i, run) in runs.iter().enumerate() {
        let (low, high) = inner(run);
        let mut end = n;
        let mut end_ns = epochs.last().map_or(0, |e| e.last_ns);
        if let Some(next) = runs.get(i + 1) {
            let (next_low, next_high) = inner(next);
            let (left, right) = (sum(low, high), sum(next_low, next_high));
            let mut at = before[high] as f64;
            let mut at_ns = epochs[high].first_ns as f64;
            for middle in &epochs[high..next_low] {
                let share = part(&left, middle, &right);
                at += share * middle.requests as f64;
                at_ns += share * middle.last_ns.saturating_sub(middle.first_ns) as f64;
            }
            end = (at.round() as usize).min(n);
            end_ns = at_ns as u64;
        }
        let verdict = judge(low..high);
        let mut class = verdict.class;
        if class == Class::HotSet || class == Class::Random {
            // the sample of blocks covers all phases without order; if both kinds occur, the label of the run decides
            let kinds = |class| runs.iter().any(|run| run.class == class);
            class = if kinds(Class::HotSet) && kinds(Class::Random) {
                run.class
            } else if hot.spread(0).hot() {
                Class::HotSet
            } else {
                class
            };
        }
        phases::push(
            &mut phases_found,
            Phase {
                class,
                start_ns: first_ns,
                end_ns,
                ..Phase::of(&verdict, first, end)
            },
        );
        (first, first_ns) = (end, end_ns);
    }
    phases::accepted(phases_found, n)
}

/// Apply the rules in their order, without phases.
fn without_phases<'a>(epochs: impl Iterator<Item = &'a Epoch> + Clone, hot: &HotSample) -> Verdict {
    let mut sum = Epoch::default();
    for epoch in epochs.clone() {
        sum.add(epoch);
    }
    let n = sum.requests as f64;
    let chained = (sum.chained as f64 / n.max(1.0)).min(1.0);
    let median = sum.median_size_bytes();
    let mut verdict = Verdict {
        class: Class::Insufficient,
        k: None,
        requests: sum.requests,
        bytes: sum.bytes,
        confidence: 0.0,
        consecutive_share: sum.share(sum.zero),
        forward_share: sum.share(sum.forward),
        sequential_share: sum.share(sum.near),
        reverse_share: sum.share(sum.reverse),
        median_size_bytes: median,
        evidence: json!({
            "basis": "epochs",
            "epochs": epochs.clone().count(),
            "near_bytes": near_bytes(median),
            "darshan_consec": sum.zero,
            "darshan_seq": sum.higher,
        }),
    };
    if sum.requests < ENOUGH as u64 {
        return verdict;
    }
    let k = open_median(epochs.clone());
    let (period, cycle) = (best_cycle(&sum).0, cycle_share(&sum));
    if sum.chains > 0 {
        verdict.evidence["chains"] = json!({
            "held_share": chained,
            "count": sum.chains,
            "open_median": k,
            "backward_share": sum.backward as f64 / n,
        });
    }
    let all = epochs.clone();
    let strides = (cycle >= 0.90)
        .then(|| strides(epochs, period))
        .flatten()
        .filter(|values| values.iter().all(|&v| v > 0) || values.iter().all(|&v| v < 0));
    let mut low = None;
    let (class, deciding) = if verdict.consecutive_share >= 0.95 {
        (Class::Consecutive, verdict.consecutive_share)
    } else if verdict.reverse_share >= 0.95 {
        (Class::Reverse, verdict.reverse_share)
    } else if chained >= 0.95 && (2..=MOST_OPEN).contains(&k) {
        verdict.k = Some(k);
        verdict.evidence["streams"] = json!(streams_by_kind(&sum));
        (Class::Interleaved, chained)
    } else if let Some(values) = strides {
        verdict.evidence["strides_bytes"] = json!(values);
        (Class::Strided, cycle)
    } else if verdict.sequential_share >= 0.95 {
        (Class::Sequential, verdict.sequential_share)
    } else {
        let spread = hot.spread(median);
        if hot.offered() > 0 {
            verdict.evidence["spread"] = json!(spread);
        }
        if spread.hot() && hot.offered() as f64 >= 0.5 * n {
            low = Some(spread.top_fifth_low);
            (Class::HotSet, spread.top_fifth_share)
        } else if verdict.consecutive_share <= 0.05 && (0.4..=0.6).contains(&verdict.forward_share)
        {
            (Class::Random, 1.0 - verdict.consecutive_share)
        } else {
            (Class::Irregular, 0.5)
        }
    };
    let steps = sum.steps.max(1) as f64;
    verdict.class = class;
    verdict.confidence = low.unwrap_or_else(|| {
        let effect = phases::design_effect(class, all);
        wilson(deciding * steps / effect, steps / effect)
    });
    verdict
}

/// Streams of each kind together, as far as epochs distinguish them.
fn streams_by_kind(sum: &Epoch) -> Vec<StreamOf> {
    let chained = sum.chained.min(sum.requests);
    let (reverse, strided) = (sum.backward.min(chained), sum.strided.min(chained));
    let adjacent = chained.saturating_sub(reverse + strided);
    [
        (Kind::Adjacent, adjacent),
        (Kind::Reverse, reverse),
        (Kind::Strided, strided),
    ]
    .into_iter()
    .filter(|&(_, requests)| requests > 0)
    .map(|(kind, requests)| StreamOf {
        kind,
        requests,
        share: requests as f64 / sum.requests.max(1) as f64,
        ..StreamOf::default()
    })
    .collect()
}

/// Median over the requests of the chains open at once.
fn open_median<'a>(epochs: impl Iterator<Item = &'a Epoch>) -> u32 {
    let mut open: Vec<(u32, u64)> = epochs
        .map(|epoch| {
            let mean = epoch.open();
            // all chains became long here and stayed open: their number is exact, the mean omits their beginning
            let all = epoch.chains as f64;
            let k = if all >= mean && all <= 1.15 * mean + 0.5 {
                all
            } else {
                mean.round()
            };
            (k as u32, epoch.requests)
        })
        .collect();
    open.sort_unstable();
    let half = open.iter().map(|one| one.1).sum::<u64>().div_ceil(2);
    let mut sum = 0;
    for (k, requests) in open {
        sum += requests;
        if sum >= half {
            return k;
        }
    }
    0
}

/// Cycle of distances at the end of the epochs, weighted by their requests.
fn strides<'a>(epochs: impl Iterator<Item = &'a Epoch>, period: usize) -> Option<Vec<i64>> {
    let mut votes: BTreeMap<Vec<i64>, u64> = BTreeMap::new();
    for epoch in epochs.filter(|epoch| epoch.steps > 2 * period as u64) {
        let mut values: Vec<i64> = epoch.distances[..period].to_vec();
        values.reverse();
        let least = (0..period).min_by_key(|&i| values[i].unsigned_abs())?;
        values.rotate_left(least);
        *votes.entry(values).or_default() += epoch.requests;
    }
    votes
        .into_iter()
        .max_by_key(|vote| vote.1)
        .map(|vote| vote.0)
}

/// Classify one file and direction from the epochs of each thread, without the order between threads.
///
/// Concurrent threads that each move forward are `interleaved`.
pub fn judge_epochs(threads: &[(u32, Epochs)]) -> Judgement {
    let verdicts: Vec<ThreadVerdict> = threads
        .iter()
        .map(|(tid, epochs)| ThreadVerdict {
            tid: *tid,
            started_ns: None,
            verdict: classify_epochs(epochs),
        })
        .collect();
    let together = match verdicts.as_slice() {
        [one] => one.verdict.clone(),
        _ => {
            let sequences: Vec<&Epochs> = threads.iter().map(|one| &one.1).collect();
            judge_together(&sequences)
        }
    };
    Judgement {
        together,
        threads: verdicts,
    }
}

/// Classify the epochs of several threads as one sequence, without the order between threads.
pub fn judge_together(sequences: &[&Epochs]) -> Verdict {
    let mut hot = sequences
        .first()
        .map_or_else(|| HotSample::new(64), |one| one.hot.clone());
    for epochs in sequences.iter().skip(1) {
        hot.merge(&epochs.hot);
    }
    let (short, long): (Vec<_>, Vec<_>) = (0u32..)
        .zip(sequences)
        .partition(|(_, epochs)| epochs.requests() < ENOUGH as u64);
    let joined = joined(short.iter().flat_map(|(_, epochs)| epochs.list.iter()));
    hot.merge(&joined.hot);
    let mut order: Vec<(&Epoch, u32)> = long
        .iter()
        .flat_map(|(number, epochs)| epochs.list.iter().map(|epoch| (epoch, *number)))
        .chain(joined.list.iter().map(|epoch| (epoch, u32::MAX)))
        .collect();
    order.sort_by_key(|(epoch, _)| epoch.first_ns / 2 + epoch.last_ns / 2);
    let sorted: Vec<&Epoch> = order.iter().map(|one| one.0).collect();
    let of_all = |part: Range<usize>| side_by_side(&order[part], &hot);
    let mut together = of_all(0..order.len());
    if together.class != Class::Interleaved {
        together = with_phases(&sorted, &hot, &of_all);
    }
    together
}

/// Join threads with too few requests for a verdict into one sequence, such as processes that each append a line to a
/// log. If an epoch only moves forward, its start and length are known. The steps between epochs are then those of the
/// requests, unless the threads run concurrently.
fn joined<'a>(epochs: impl Iterator<Item = &'a Epoch>) -> Epochs {
    let mut order: Vec<&Epoch> = epochs.collect();
    order.sort_by_key(|epoch| epoch.first_ns);
    let mut counter = Counter::default();
    let mut result = Epochs::new(1 << 13);
    let (mut inner, mut blocks) = (Epoch::default(), Vec::new());
    for (i, &epoch) in order.iter().enumerate() {
        let one_run = epoch.zero == epoch.steps;
        let size = if one_run {
            epoch.bytes as i64
        } else {
            epoch.high - epoch.low + epoch.median_size_bytes()
        };
        let jumped = counter.push(epoch.low, size.max(1), epoch.first_ns);
        if jumped && one_run {
            blocks.push(block_hash(epoch.low, epoch.median_size_bytes()));
        }
        inner.add(epoch);
        if !counter.full() && i + 1 < order.len() {
            continue;
        }
        let runs = counter.cut();
        let mut total = std::mem::take(&mut inner);
        let each = total.requests as f64 / runs.requests as f64;
        for (sum, more) in [
            (&mut total.steps, runs.steps),
            (&mut total.zero, runs.zero),
            (&mut total.near, runs.near),
            (&mut total.forward, runs.forward),
            (&mut total.reverse, runs.reverse),
            (&mut total.higher, runs.higher),
        ] {
            *sum += more;
        }
        for (sum, more) in total.cycle.iter_mut().zip(runs.cycle) {
            *sum += more;
        }
        total.distances = runs.distances;
        total.chained = total.chained.max((runs.chained as f64 * each) as u64);
        total.open_sum = total.open_sum.max((runs.open_sum as f64 * each) as u64);
        total.backward = (runs.backward as f64 * each) as u64;
        total.chains = total.chains.max(runs.chains);
        total.longest = total.longest.max(runs.longest);
        let sampled = std::mem::take(&mut blocks);
        if phases::without_order(&total) {
            phases::look_within(&mut total, sampled.iter().copied());
            sampled.into_iter().for_each(|hash| result.hot.offer(hash));
        }
        result.push(total, MOST_EPOCHS);
    }
    result
}

fn side_by_side(epochs: &[(&Epoch, u32)], hot: &HotSample) -> Verdict {
    let mut verdict = without_phases(epochs.iter().map(|epoch| epoch.0), hot);
    if verdict.class == Class::Insufficient {
        return verdict;
    }
    let mut threads: BTreeMap<u32, Vec<&Epoch>> = BTreeMap::new();
    for &(epoch, tid) in epochs {
        threads.entry(tid).or_default().push(epoch);
    }
    let mut spans = Vec::new();
    let mut ways = OwnWays::default();
    for own in threads.values() {
        let own_verdict = without_phases(own.iter().copied(), hot);
        if ways.take(&own_verdict) {
            let first = own.iter().map(|e| e.first_ns).min().unwrap_or(0);
            let last = own.iter().map(|e| e.last_ns).max().unwrap_or(0);
            spans.push((first, last.max(first + 1), own_verdict.requests));
        }
    }
    let k = at_once(&spans);
    if ways.explain(verdict.requests, k) {
        verdict.interleaved_by_threads(k, &ways, "epochs of each thread");
    }
    verdict
}

/// Classify requests in order of time as mode `pattern` does: epochs of each thread, sampled blocks, no order between
/// threads. It mirrors the tracer's kernel programs, for comparison.
pub fn judge_as_in_kernel(
    offsets: &[i64],
    sizes: &[i64],
    tids: &[u32],
    times: &[u64],
) -> Judgement {
    const SAMPLES: usize = 512;
    const LIMIT: u64 = 1 << 62;
    const FIRST_SAMPLED: u64 = 2 * LONG as u64;
    type Thread = (Counter, Vec<u32>, u64, Epochs);
    let mut threads: BTreeMap<u32, Thread> = BTreeMap::new();
    let hand_over = |(counter, samples, looked, epochs): &mut Thread| {
        let (sampled, looked) = (std::mem::take(samples), std::mem::take(looked));
        let sampled = sampled.into_iter();
        epochs.push_sampled(counter.cut(), looked, LIMIT, sampled, MOST_EPOCHS);
    };
    for i in 0..offsets.len() {
        let thread = threads.entry(tids[i]).or_insert_with(|| {
            let epochs = Epochs::new(1 << 13);
            (Counter::as_in_kernel(), Vec::new(), 0, epochs)
        });
        let jumped = thread.0.push(offsets[i], sizes[i], times[i]);
        // threads with few requests get no page for samples
        if jumped && thread.0.seen() >= FIRST_SAMPLED && thread.1.len() < SAMPLES {
            thread.2 += 1;
            let hash = block_hash(offsets[i], sizes[i]);
            if hash < LIMIT {
                thread.1.push((hash >> 32) as u32);
            }
        }
        if thread.0.full() || thread.1.len() >= SAMPLES {
            hand_over(thread);
        }
    }
    threads.values_mut().for_each(hand_over);
    let threads: Vec<(u32, Epochs)> = threads.into_iter().map(|(tid, t)| (tid, t.3)).collect();
    judge_epochs(&threads)
}
