//! Verdicts from counters kept while the requests went by, without the requests themselves.

use serde_json::json;

use crate::verdict::{wilson, Class, Judgement, ThreadVerdict, Verdict, ENOUGH};

/// What was counted of one thread on one file in one direction.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Thread.
    pub tid: u32,
    /// Completed requests.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Steps of 0.
    pub consecutive: u64,
    /// Steps from 0 to W.
    pub near: u64,
    /// Steps of 0 or more.
    pub forward: u64,
    /// Ends where the last one began.
    pub reverse: u64,
    /// Start-to-start step as the one before.
    pub same_step: u64,
    /// The last such step [bytes].
    pub last_step: i64,
    /// Starts where one of the chains in the table ended.
    pub chained: u64,
    /// Chains of at least 8 requests in the table at the end.
    pub long_chains: u32,
    /// Requests by floor(log2(size)).
    pub size_class: Vec<u64>,
    /// First and last time seen [ns].
    pub span_ns: (u64, u64),
}

impl Counters {
    /// Middle of the class that holds the median size [bytes]; exact for powers of two.
    fn median_size_bytes(&self) -> i64 {
        let half = self.requests.div_ceil(2);
        let mut sum = 0;
        for (class, count) in self.size_class.iter().enumerate() {
            sum += count;
            if sum >= half && sum > 0 {
                let mean = self.bytes / self.requests.max(1);
                let (low, high) = (1u64 << class, (2u64 << class) - 1);
                return if (low..=high).contains(&mean) {
                    mean
                } else {
                    low
                } as i64;
            }
        }
        0
    }

    fn verdict(&self) -> Verdict {
        let of_steps = self.requests.saturating_sub(1).max(1) as f64;
        let share = |hits: u64| hits as f64 / of_steps;
        let mut verdict = Verdict {
            class: Class::Insufficient,
            k: None,
            requests: self.requests,
            bytes: self.bytes,
            confidence: 0.0,
            consecutive_share: share(self.consecutive),
            forward_share: share(self.forward),
            sequential_share: share(self.near),
            reverse_share: share(self.reverse),
            median_size_bytes: self.median_size_bytes(),
            evidence: json!({
                "basis": "counters",
                "chained_share": share(self.chained),
                "same_step_share": share(self.same_step),
            }),
        };
        if self.requests < ENOUGH as u64 {
            return verdict;
        }
        let (class, deciding) = if verdict.consecutive_share >= 0.95 {
            (Class::Consecutive, verdict.consecutive_share)
        } else if verdict.reverse_share >= 0.95 {
            (Class::Reverse, verdict.reverse_share)
        } else if share(self.chained) >= 0.95 && self.long_chains >= 2 {
            verdict.k = Some(self.long_chains);
            (Class::Interleaved, share(self.chained))
        } else if share(self.same_step) >= 0.90 && self.last_step != 0 {
            verdict.evidence["strides_bytes"] = json!([self.last_step]);
            (Class::Strided, share(self.same_step))
        } else if verdict.sequential_share >= 0.95 {
            (Class::Sequential, verdict.sequential_share)
        } else if verdict.consecutive_share <= 0.05 && (0.4..=0.6).contains(&verdict.forward_share)
        {
            (Class::Random, 1.0 - verdict.consecutive_share)
        } else {
            (Class::Irregular, 0.5)
        };
        verdict.class = class;
        verdict.confidence = wilson(deciding * of_steps, of_steps);
        verdict
    }

    fn with(mut self, other: &Self) -> Self {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.consecutive += other.consecutive;
        self.near += other.near;
        self.forward += other.forward;
        self.reverse += other.reverse;
        self.same_step += other.same_step;
        self.chained += other.chained;
        self.long_chains += other.long_chains;
        let classes = self.size_class.len().max(other.size_class.len());
        self.size_class.resize(classes, 0);
        for (sum, count) in self.size_class.iter_mut().zip(&other.size_class) {
            *sum += count;
        }
        self.span_ns = (
            self.span_ns.0.min(other.span_ns.0),
            self.span_ns.1.max(other.span_ns.1),
        );
        self
    }
}

/// Judges one file and direction from its threads' counters. Threads that each go forward, at work at once, are
/// `interleaved`: the order among threads was not kept.
pub fn judge_counters(threads: &[Counters]) -> Judgement {
    let sum = threads
        .iter()
        .skip(1)
        .fold(threads.first().cloned().unwrap_or_default(), |sum, one| {
            sum.with(one)
        });
    let mut together = sum.verdict();
    let verdicts: Vec<ThreadVerdict> = threads
        .iter()
        .map(|one| ThreadVerdict {
            tid: one.tid,
            verdict: one.verdict(),
        })
        .collect();
    if threads.len() > 1 && sum.requests >= ENOUGH as u64 {
        let orderly: Vec<&Counters> = threads
            .iter()
            .zip(&verdicts)
            .filter(|(_, v)| {
                matches!(
                    v.verdict.class,
                    Class::Consecutive | Class::Reverse | Class::Sequential
                )
            })
            .map(|(one, _)| one)
            .collect();
        let held: u64 = orderly.iter().map(|one| one.requests).sum();
        let k = at_once(&orderly);
        if held as f64 >= 0.95 * sum.requests as f64 && k >= 2 {
            together.class = Class::Interleaved;
            together.k = Some(k);
            together.confidence = wilson(held as f64, sum.requests as f64);
            together.evidence["basis"] = json!("counters of each thread");
        }
    }
    Judgement {
        together,
        threads: verdicts,
    }
}

/// Most threads whose spans overlap.
fn at_once(threads: &[&Counters]) -> u32 {
    let mut edges: Vec<(u64, i32)> = threads
        .iter()
        .flat_map(|one| {
            [
                (one.span_ns.0, 1),
                (one.span_ns.1.max(one.span_ns.0 + 1), -1),
            ]
        })
        .collect();
    edges.sort_unstable();
    let (mut open, mut most) = (0, 0);
    for (_, change) in edges {
        open += change;
        most = most.max(open);
    }
    most as u32
}
