//! Histograms of the latency of requests to block devices, by BPF (`penstock_probe::latency`).
//!
//! The entity of a bucket is `DEVICE le=SECONDS`, that of a sum is `DEVICE`, and that of the cost of the programs is
//! `all`. A bucket has no series before its first request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use penstock_probe::latency::{BlockLatency, Cost, Key};
use serde_json::{json, Value};

use super::{Entities, Metric, Source};
use crate::error::Error;
use crate::spool::Sink;

const SOURCE: &str = "block_latency";
const OWN: [Metric; 4] = [
    Metric("lost", "1", true),
    Metric("runs", "1", true),
    Metric("run_time", "ns", true),
    Metric("reading_time", "ns", false),
];

/// The BPF programs; they stay loaded from one recording to the next.
pub(crate) type Shared = Arc<Mutex<BlockLatency>>;

pub(super) fn sources(shared: &Shared) -> Box<dyn Source> {
    let before = locked(shared, |latency| latency.cost()).unwrap_or_default();
    Box::new(Histograms {
        shared: Arc::clone(shared),
        series: HashMap::new(),
        counts: Vec::new(),
        own: Entities::new(SOURCE, &OWN),
        before,
        after: before,
    })
}

struct Histograms {
    shared: Shared,
    series: HashMap<Key, u64>,
    counts: Vec<(Key, u64)>,
    own: Entities,
    before: Cost,
    after: Cost,
}

fn locked<T>(shared: &Shared, act: impl FnOnce(&mut BlockLatency) -> T) -> Result<T, Error> {
    let mut latency = (shared.lock()).map_err(|_| Error::State("the sampling thread panicked"))?;
    Ok(act(&mut latency))
}

impl Source for Histograms {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        let Self {
            shared,
            series,
            counts,
            own,
            after,
            ..
        } = self;
        locked(shared, |latency| {
            counts.clear();
            latency.read(|key, value| counts.push((key, value)));
            for &(key, value) in &*counts {
                let series = *series.entry(key).or_insert_with(|| {
                    let device = latency.device(key);
                    let entity = match key.le() {
                        Some(le) => format!("{device} le={le}"),
                        None => device.to_owned(),
                    };
                    sink.series(SOURCE, &entity, key.metric(), key.unit(), true)
                });
                sink.put(series, value as f64);
            }
            *after = latency.cost();
            let first = own.first(b"all", sink);
            let counters = [after.lost, after.runs, after.run_ns, after.reading_ns];
            for (series, value) in (first..).zip(counters) {
                sink.put(series, value as f64);
            }
        })
    }

    fn reads(&self) -> u64 {
        0
    }

    fn stats(&self) -> Option<(&'static str, Value)> {
        let (before, after) = (self.before, self.after);
        let stats = json!({
            "lost": after.lost - before.lost,
            "runs": after.runs - before.runs,
            "run_ns": after.run_ns - before.run_ns,
        });
        Some((SOURCE, stats))
    }
}
