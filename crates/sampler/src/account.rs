//! Duration and success of the readings of each source.

use std::collections::BTreeMap;

use serde_json::{json, Value};

use crate::spool::Sink;

/// Statistics of one source. Each complete sample reports the readings since the previous complete sample.
#[derive(Debug)]
pub(crate) struct Account {
    name: &'static str,
    series: Option<[u64; 2]>,
    longest_ns: i64,
    up: bool,
    readings: u64,
    failed: u64,
    total_ns: i64,
    longest_of_all_ns: i64,
}

impl Account {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            series: None,
            longest_ns: 0,
            up: true,
            readings: 0,
            failed: 0,
            total_ns: 0,
            longest_of_all_ns: 0,
        }
    }

    /// Add a reading.
    pub(crate) fn note(&mut self, took_ns: i64, success: bool) {
        self.readings += 1;
        self.total_ns += took_ns;
        self.longest_ns = self.longest_ns.max(took_ns);
        self.longest_of_all_ns = self.longest_of_all_ns.max(took_ns);
        if !success {
            self.failed += 1;
            self.up = false;
        }
    }

    /// Report the longest reading since the last report, and whether all readings succeeded.
    pub(crate) fn tell(&mut self, sink: &mut dyn Sink) {
        let Self { name, series, .. } = self;
        let [seconds, up] = *series.get_or_insert_with(|| {
            let entity = format!("source={name}");
            [("source_seconds", "s"), ("source_up", "1")]
                .map(|(metric, unit)| sink.series("sampler", &entity, metric, unit, false))
        });
        sink.put(seconds, self.longest_ns as f64 / 1e9);
        sink.put(up, f64::from(u8::from(self.up)));
        (self.longest_ns, self.up) = (0, true);
    }
}

/// Statistics of all sources for the final report, by name.
pub(crate) fn statistics(accounts: &[Account]) -> Value {
    let of = accounts.iter().map(|a| {
        let stats = json!({
            "readings": a.readings,
            "failed": a.failed,
            "ns": a.total_ns,
            "longest_ns": a.longest_of_all_ns,
        });
        (a.name, stats)
    });
    json!(of.collect::<BTreeMap<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::testing::Memory;

    #[test]
    fn failures_are_reported_in_the_next_complete_sample() {
        let (mut account, mut memory) = (Account::new("disk"), Memory::default());
        account.note(3_000, true);
        account.tell(&mut memory);
        let up = "sampler/source=disk/source_up";
        assert_eq!((memory.get(up), account.failed), (1.0, 0));
        account.note(9_000, false);
        account.note(1_000, true);
        account.tell(&mut memory);
        assert_eq!(memory.get(up), 0.0);
        assert_eq!(memory.get("sampler/source=disk/source_seconds"), 9e-6);
        account.note(2_000, true);
        account.tell(&mut memory);
        assert_eq!(memory.get(up), 1.0);
        assert_eq!(memory.get("sampler/source=disk/source_seconds"), 2e-6);
        let stats = json!({"readings": 4, "failed": 1, "ns": 15_000, "longest_ns": 9_000});
        assert_eq!(statistics(&[account]), json!({"disk": stats}));
    }
}
