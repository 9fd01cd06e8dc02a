//! Rules in their order, and verdicts.

use serde::Serialize;
use serde_json::{json, Value};

use crate::chains::{self, Chains, Kind, StreamOf, MOST_STREAMS};
use crate::{hotset, phases};

/// Classes of access patterns, in the order of their rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Steps of 0 for at least 0.95 of the requests.
    Consecutive,
    /// Requests end at the start of the previous one, for at least 0.95.
    Reverse,
    /// Chains of 8 or more requests contain at least 0.95, and the median of open chains is 2 to 64.
    Interleaved,
    /// One start-to-start distance, or a cycle of 2 to 4 distances of one sign, for at least 0.90.
    Strided,
    /// Steps from 0 to W = max(128 KiB, 8 median sizes) for at least 0.95.
    Sequential,
    /// At least half of the requests are to blocks accessed before, and 0.8 to the most used fifth of the blocks.
    HotSet,
    /// Steps of 0 for at most 0.05, and 0.4 to 0.6 of the steps forward.
    Random,
    /// Phases of different classes, each with at least 0.05 of the requests.
    Mixed,
    /// No other class matches.
    Irregular,
    /// Fewer than 32 requests.
    Insufficient,
}

/// Minimum number of requests for a verdict.
pub const ENOUGH: usize = 32;
pub(crate) const MOST_OPEN: u32 = 64;

/// Section of requests with one class.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// Index of the first request.
    pub first: usize,
    /// Index after the last request.
    pub end: usize,
    /// Class of the section.
    pub class: Class,
    /// Number of open chains, for `interleaved`.
    pub k: Option<u32>,
    /// Start-to-start distances, for `strided`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub strides_bytes: Vec<i64>,
    /// Start of the section, CLOCK_MONOTONIC [ns]; 0 without times.
    pub start_ns: u64,
    /// End of the section [ns].
    pub end_ns: u64,
}

impl Default for Phase {
    fn default() -> Self {
        Self {
            first: 0,
            end: 0,
            class: Class::Insufficient,
            k: None,
            strides_bytes: Vec::new(),
            start_ns: 0,
            end_ns: 0,
        }
    }
}

impl Phase {
    /// Create a phase from the verdict on it.
    pub(crate) fn of(verdict: &Verdict, first: usize, end: usize) -> Self {
        let strides = verdict.evidence["strides_bytes"].as_array();
        Self {
            first,
            end,
            class: verdict.class,
            k: verdict.k,
            strides_bytes: strides
                .map(|values| values.iter().filter_map(Value::as_i64).collect())
                .unwrap_or_default(),
            ..Self::default()
        }
    }
}

/// Class of a sequence of requests, and its evidence. Shares are of the n − 1 steps.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Class of the sequence.
    pub class: Class,
    /// Number of open chains, for `interleaved`.
    pub k: Option<u32>,
    /// Number of classified requests.
    pub requests: u64,
    /// Bytes of these requests.
    pub bytes: u64,
    /// Lower bound of the 95 % Wilson interval of the deciding share.
    pub confidence: f64,
    /// Share of steps of 0.
    pub consecutive_share: f64,
    /// Share of steps of 0 or more.
    pub forward_share: f64,
    /// Share of steps from 0 to W.
    pub sequential_share: f64,
    /// Share of requests that end at the start of the previous one.
    pub reverse_share: f64,
    /// Median size [bytes].
    pub median_size_bytes: i64,
    /// Further evidence: W, chains, strides, spread, phases, Darshan's counters.
    pub evidence: Value,
}

impl Verdict {
    /// Set the start and end times of the phases.
    pub(crate) fn add_times(&mut self, times: &[u64]) {
        let Some(phases) = self
            .evidence
            .get_mut("phases")
            .and_then(Value::as_array_mut)
        else {
            return;
        };
        for phase in phases {
            let at = |name: &str| phase[name].as_u64().unwrap_or(0) as usize;
            let (first, end) = (at("first"), at("end"));
            if let (Some(start_ns), Some(end_ns)) =
                (times.get(first), times.get(end.wrapping_sub(1)))
            {
                phase["start_ns"] = json!(start_ns);
                phase["end_ns"] = json!(end_ns);
            }
        }
    }

    /// Change the class to `interleaved`: offsets alone show no order, but `k` concurrent threads each have one.
    pub(crate) fn interleaved_by_threads(&mut self, k: u32, own: &OwnWays, basis: &str) {
        let n = self.requests as f64;
        self.class = Class::Interleaved;
        self.k = Some(k);
        self.confidence = wilson(own.requests as f64, n);
        self.evidence["basis"] = json!(basis);
        self.evidence["held_by_threads_share"] = json!(own.requests as f64 / n);
        self.evidence["streams"] = json!(own.streams(n));
        if let Some(evidence) = self.evidence.as_object_mut() {
            evidence.remove("phases");
        }
    }
}

impl Verdict {
    /// Change the class to `mixed`: the phases have different classes and cover all requests.
    pub(crate) fn become_mixed(&mut self, phases: &[Phase]) {
        let n = self.requests as f64;
        let largest = phases.iter().map(|p| p.end - p.first).max().unwrap_or(0);
        self.class = Class::Mixed;
        self.k = None;
        self.confidence = wilson(n, n);
        self.evidence["largest_phase_share"] = json!(largest as f64 / n);
        self.evidence["phases"] = json!(phases);
    }
}

/// Verdict of one thread.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadVerdict {
    /// Thread number.
    pub tid: u32,
    /// Start of the thread, if an earlier one had its number [ns].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_ns: Option<u64>,
    /// Verdict on the requests of this thread alone.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Verdicts on all threads together and on each.
#[derive(Clone, Debug, Serialize)]
pub struct Judgement {
    /// Verdict on all requests in order of time.
    pub together: Verdict,
    /// Verdicts on each thread, by thread number.
    pub threads: Vec<ThreadVerdict>,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Steps {
    pub zero: u64,
    pub near: u64,
    pub forward: u64,
    pub reverse: u64,
    pub higher: u64,
}

pub(crate) fn steps(offsets: &[i64], sizes: &[i64], near_bytes: i64) -> Steps {
    let mut counts = Steps::default();
    for (o, s) in offsets.windows(2).zip(sizes.windows(2)) {
        let distance = o[1] - o[0] - s[0];
        counts.zero += u64::from(distance == 0);
        counts.forward += u64::from(distance >= 0);
        counts.near += u64::from((0..=near_bytes).contains(&distance));
        counts.reverse += u64::from(o[1] + s[1] == o[0]);
        counts.higher += u64::from(o[1] > o[0]);
    }
    counts
}

/// 97.5 % quantile of the standard normal distribution.
pub(crate) const Z: f64 = 1.959_963_984_540_054;

/// Lower bound of the 95 % Wilson score interval (Wilson 1927) of `hits` out of `n`.
pub(crate) fn wilson(hits: f64, n: f64) -> f64 {
    if n <= 0.0 {
        return 0.0;
    }
    let p = hits / n;
    let z2 = Z * Z / n;
    ((p + z2 / 2.0 - Z * (p * (1.0 - p) / n + z2 / (4.0 * n)).sqrt()) / (1.0 + z2)).max(0.0)
}

pub(crate) fn near_bytes(median_size_bytes: i64) -> i64 {
    (128 * 1024).max(8 * median_size_bytes)
}

pub(crate) fn median(sizes: &[i64]) -> i64 {
    if sizes.is_empty() {
        return 0;
    }
    if sizes.iter().all(|&size| size == sizes[0]) {
        return sizes[0];
    }
    let mut copy = sizes.to_vec();
    let middle = copy.len() / 2;
    *copy.select_nth_unstable(middle).1
}

/// Classify one sequence: offsets and sizes [bytes] of the completed requests, in order.
///
/// Detect phases, unless one simple rule explains the sequence. Then apply the rules to the complete sequence.
pub fn classify(offsets: &[i64], sizes: &[i64]) -> Verdict {
    let mut verdict = classify_single_phase(offsets, sizes);
    if matches!(
        verdict.class,
        Class::Consecutive | Class::Reverse | Class::Insufficient
    ) {
        return verdict;
    }
    let phases_found = phases::find(offsets, sizes);
    if phases_found.len() > 1 {
        verdict.become_mixed(&phases_found);
    }
    verdict
}

/// Apply the rules without phases.
pub(crate) fn classify_single_phase(offsets: &[i64], sizes: &[i64]) -> Verdict {
    let n = offsets.len().min(sizes.len());
    let (offsets, sizes) = (&offsets[..n], &sizes[..n]);
    let median_size_bytes = median(sizes);
    let near = near_bytes(median_size_bytes);
    let step_counts = steps(offsets, sizes, near);
    let of_steps = n.saturating_sub(1).max(1) as f64;
    let share = |hits: u64| hits as f64 / of_steps;
    let mut verdict = Verdict {
        class: Class::Insufficient,
        k: None,
        requests: n as u64,
        bytes: sizes.iter().sum::<i64>().max(0) as u64,
        confidence: 0.0,
        consecutive_share: share(step_counts.zero),
        forward_share: share(step_counts.forward),
        sequential_share: share(step_counts.near),
        reverse_share: share(step_counts.reverse),
        median_size_bytes,
        evidence: json!({
            "near_bytes": near,
            "darshan_consec": step_counts.zero,
            "darshan_seq": step_counts.higher,
        }),
    };
    if n < ENOUGH {
        return verdict;
    }
    let decided = |verdict: &mut Verdict, class, deciding: f64| {
        verdict.class = class;
        let effect = if deciding < 1.0 {
            phases::design_effect_of(class, offsets, sizes)
        } else {
            1.0
        };
        verdict.confidence = wilson(deciding * of_steps / effect, of_steps / effect);
    };
    if verdict.consecutive_share >= 0.95 {
        let deciding = verdict.consecutive_share;
        decided(&mut verdict, Class::Consecutive, deciding);
        return verdict;
    }
    if verdict.reverse_share >= 0.95 {
        let deciding = verdict.reverse_share;
        decided(&mut verdict, Class::Reverse, deciding);
        return verdict;
    }
    if let Some(chains) = best_chains(offsets, sizes) {
        let held_share = chains.requests as f64 / n as f64;
        verdict.evidence["chains"] = json!({
            "held_share": held_share,
            "count": chains.count,
            "open_median": chains.open_median,
            "backward_share": chains.backward as f64 / n as f64,
        });
        verdict.evidence["main_stream_share"] = json!(chains.longest as f64 / n as f64);
        if held_share >= 0.95 && (2..=MOST_OPEN).contains(&chains.open_median) {
            verdict.evidence["streams"] = json!(chains.streams);
            verdict.k = Some(chains.open_median);
            decided(&mut verdict, Class::Interleaved, held_share);
            return verdict;
        }
    }
    if let Some((strides, deciding)) = strides(offsets) {
        verdict.evidence["strides_bytes"] = json!(strides);
        decided(&mut verdict, Class::Strided, deciding);
        return verdict;
    }
    if verdict.sequential_share >= 0.95 {
        let deciding = verdict.sequential_share;
        decided(&mut verdict, Class::Sequential, deciding);
        return verdict;
    }
    let spread = hotset::spread(offsets, sizes, median_size_bytes);
    verdict.evidence["spread"] = json!(spread);
    if spread.hot() {
        verdict.class = Class::HotSet;
        verdict.confidence = spread.top_fifth_low;
        return verdict;
    }
    if verdict.consecutive_share <= 0.05 && (0.4..=0.6).contains(&verdict.forward_share) {
        verdict.evidence["uniformity"] = uniformity(offsets);
        let deciding = 1.0 - verdict.consecutive_share;
        decided(&mut verdict, Class::Random, deciding);
        return verdict;
    }
    verdict.class = Class::Irregular;
    verdict.confidence = wilson(of_steps / 2.0, of_steps);
    verdict
}

/// Length of the section of a long sequence that is tested first. If it has hardly any chains, the sequence has too
/// few.
const STRETCH: usize = 100_000;

fn best_chains(offsets: &[i64], sizes: &[i64]) -> Option<Chains> {
    if offsets.len() > 4 * STRETCH {
        let first = (offsets.len() - STRETCH) / 2;
        let middle = first..first + STRETCH;
        let tried = chains::find(&offsets[middle.clone()], &sizes[middle], true)?;
        if 2 * tried.requests < STRETCH as u64 {
            return None;
        }
    }
    let forward = chains::find(offsets, sizes, false);
    let enough = |c: &Chains| c.requests as f64 >= 0.95 * offsets.len() as f64;
    if forward.as_ref().is_some_and(enough) {
        return forward;
    }
    let both = chains::find(offsets, sizes, true);
    let best = match (forward, both) {
        (Some(one), Some(other)) if one.requests >= other.requests => Some(one),
        (one, other) => other.or(one),
    };
    if best.as_ref().is_some_and(enough) {
        return best;
    }
    chains::find_mixed(offsets, sizes).filter(enough).or(best)
}

/// Start-to-start distances and their share: one distance, or a cycle of 2 to 4 different ones of one sign.
fn strides(offsets: &[i64]) -> Option<(Vec<i64>, f64)> {
    let distance = |i: usize| offsets[i + 1] - offsets[i];
    let count = offsets.len() - 1;
    for period in 1..=4usize {
        if count <= 2 * period {
            break;
        }
        let same = (period..count)
            .filter(|&i| distance(i) == distance(i - period))
            .count();
        let share = same as f64 / (count - period) as f64;
        if share < 0.90 {
            continue;
        }
        let at = (period..count - period + 1)
            .find(|&i| (i..i + period).all(|j| distance(j) == distance(j - period)))?;
        let values: Vec<i64> = (at..at + period).map(distance).collect();
        let hits = (0..count)
            .filter(|&i| values.contains(&distance(i)))
            .count();
        if (hits as f64) < 0.90 * count as f64 {
            return None;
        }
        let one_sign = values.iter().all(|&v| v > 0) || values.iter().all(|&v| v < 0);
        return one_sign.then_some((values, share));
    }
    None
}

/// Chi-squared statistic of the starts over sixteen equal parts of the accessed range, 15 degrees of freedom.
fn uniformity(offsets: &[i64]) -> Value {
    const PARTS: usize = 16;
    let (low, high) = offsets
        .iter()
        .fold((i64::MAX, i64::MIN), |(l, h), &o| (l.min(o), h.max(o)));
    let range = (high - low + 1) as f64;
    let mut counts = [0u64; PARTS];
    for &offset in offsets {
        counts[(((offset - low) as f64 / range * PARTS as f64) as usize).min(PARTS - 1)] += 1;
    }
    let expected = offsets.len() as f64 / PARTS as f64;
    let chi_squared: f64 = counts
        .iter()
        .map(|&count| (count as f64 - expected).powi(2) / expected)
        .sum();
    json!({"chi_squared": chi_squared, "degrees_of_freedom": PARTS - 1})
}

/// Classify the requests of all threads together, in order of time, and of each thread alone.
///
/// Threads that each follow an order of their own are `interleaved` if at least two run concurrently, even if the
/// offsets alone do not show it.
///
/// `times` [ns] are used for the phases; it may be empty.
pub fn judge(offsets: &[i64], sizes: &[i64], tids: &[u32], times: &[u64]) -> Judgement {
    let mut together = classify(offsets, sizes);
    together.add_times(times);
    let mut order: Vec<u32> = (0..tids.len() as u32).collect();
    if tids.iter().any(|&tid| tid != tids[0]) {
        order.sort_by_key(|&i| tids[i as usize]);
    } else {
        let threads = tids.first().map(|&tid| ThreadVerdict {
            tid,
            started_ns: None,
            verdict: together.clone(),
        });
        return Judgement {
            together,
            threads: threads.into_iter().collect(),
        };
    }
    let mut threads = Vec::new();
    let mut spans = Vec::new();
    for run in order.chunk_by(|&a, &b| tids[a as usize] == tids[b as usize]) {
        let own =
            |values: &[i64]| -> Vec<i64> { run.iter().map(|&i| values[i as usize]).collect() };
        spans.push((run[0], run[run.len() - 1] + 1));
        let mut verdict = classify(&own(offsets), &own(sizes));
        if verdict.class == Class::Mixed && !times.is_empty() {
            let own: Vec<u64> = run.iter().map(|&i| times[i as usize]).collect();
            verdict.add_times(&own);
        }
        threads.push(ThreadVerdict {
            tid: tids[run[0] as usize],
            started_ns: None,
            verdict,
        });
    }
    let mut own = OwnWays::default();
    for thread in &threads {
        own.take(&thread.verdict);
    }
    let n = offsets.len();
    let unclear = matches!(
        together.class,
        Class::Random | Class::HotSet | Class::Irregular | Class::Mixed
    );
    if unclear {
        let k = open_median(&spans, n);
        if own.explain(n as u64, k) {
            together.interleaved_by_threads(k, &own, "threads");
        }
    }
    Judgement { together, threads }
}

/// Threads that each follow an order of their own: forward, backward, or strided next to one of these.
#[derive(Default)]
pub(crate) struct OwnWays {
    /// Number of their requests.
    pub requests: u64,
    streams: Vec<StreamOf>,
    contiguous: bool,
}

impl OwnWays {
    /// Add the verdict of a thread. Return true if the thread follows an order of its own.
    pub fn take(&mut self, verdict: &Verdict) -> bool {
        let kind = match verdict.class {
            Class::Consecutive | Class::Sequential => Kind::Adjacent,
            Class::Reverse => Kind::Reverse,
            Class::Strided => Kind::Strided,
            _ => return false,
        };
        self.contiguous |= kind != Kind::Strided;
        self.requests += verdict.requests;
        self.streams.push(StreamOf {
            kind,
            requests: verdict.requests,
            share: 0.0,
            size_bytes: Some(verdict.bytes / verdict.requests.max(1)),
            stride_bytes: verdict.evidence["strides_bytes"][0].as_i64(),
        });
        true
    }

    /// True if the threads together are `interleaved`, with `requests` requests and `k` concurrent threads.
    pub fn explain(&self, requests: u64, k: u32) -> bool {
        self.contiguous
            && requests >= ENOUGH as u64
            && self.requests as f64 >= 0.95 * requests as f64
            && (2..=MOST_OPEN).contains(&k)
    }

    fn streams(&self, n: f64) -> Vec<StreamOf> {
        let mut largest = self.streams.clone();
        largest.sort_by_key(|stream| std::cmp::Reverse(stream.requests));
        largest.truncate(MOST_STREAMS);
        for stream in &mut largest {
            stream.share = stream.requests as f64 / n;
        }
        largest
    }
}

/// Median number of concurrent threads, over the requests. `spans` has the first time, last time and requests of each
/// thread.
pub(crate) fn at_once(spans: &[(u64, u64, u64)]) -> u32 {
    let mut edges: Vec<(u64, i32, f64)> = Vec::with_capacity(2 * spans.len());
    for &(first, last, requests) in spans {
        let rate = requests as f64 / (last - first).max(1) as f64;
        edges.push((first, 1, rate));
        edges.push((last, -1, -rate));
    }
    edges.sort_by_key(|edge| (edge.0, edge.1));
    let mut spent = vec![0.0; spans.len() + 1];
    let (mut open, mut rate, mut at) = (0usize, 0.0, 0);
    for (edge, change, more) in edges {
        spent[open] += rate * (edge - at) as f64;
        open = open.wrapping_add_signed(change as isize);
        rate += more;
        at = edge;
    }
    let half = spent.iter().sum::<f64>() / 2.0;
    let mut sum = 0.0;
    for (open, requests) in spent.iter().enumerate() {
        sum += requests;
        if sum >= half && sum > 0.0 {
            return open as u32;
        }
    }
    0
}

/// Median, over the requests, of the number of threads between their first and last request.
fn open_median(spans: &[(u32, u32)], n: usize) -> u32 {
    let mut change = vec![0i32; n + 1];
    for &(first, end) in spans {
        change[first as usize] += 1;
        change[end as usize] -= 1;
    }
    let mut spent = vec![0usize; spans.len() + 1];
    let mut open = 0i32;
    for step in &change[..n] {
        open += step;
        spent[open as usize] += 1;
    }
    let mut sum = 0;
    for (open, count) in spent.iter().enumerate() {
        sum += count;
        if 2 * sum >= n {
            return open as u32;
        }
    }
    0
}
