//! Intervals in which events were lost: those between two checks of the counts.

use serde_json::{json, Value};

/// Maximum number of separate gaps; later ones are merged into the last.
const MOST: usize = 1000;

/// An interval in which events were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    start_ns: u64,
    end_ns: u64,
    lost: u64,
}

/// Gaps of a recording.
#[derive(Debug, Default)]
pub struct Gaps {
    lost: u64,
    looked_ns: u64,
    gaps: Vec<Gap>,
}

impl Gaps {
    /// Start with a recording that begins at `now_ns`.
    pub fn new(now_ns: u64) -> Self {
        Self {
            looked_ns: now_ns,
            ..Self::default()
        }
    }

    /// Update with the total number of lost events so far.
    pub fn look(&mut self, now_ns: u64, lost: u64) {
        let start_ns = std::mem::replace(&mut self.looked_ns, now_ns);
        let more = lost.saturating_sub(std::mem::replace(&mut self.lost, lost));
        if more == 0 {
            return;
        }
        let full = self.gaps.len() >= MOST;
        match self.gaps.last_mut() {
            Some(last) if full || last.end_ns == start_ns => {
                last.end_ns = now_ns;
                last.lost += more;
            }
            _ => self.gaps.push(Gap {
                start_ns,
                end_ns: now_ns,
                lost: more,
            }),
        }
    }

    /// Statistics for the final report.
    pub fn report(&self) -> Vec<Value> {
        self.gaps
            .iter()
            .map(|gap| json!({"start_ns": gap.start_ns, "end_ns": gap.end_ns, "lost": gap.lost}))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loss_is_in_one_gap() {
        let mut gaps = Gaps::new(100);
        for (now, lost) in [(120, 0), (140, 5), (160, 9), (180, 9), (200, 10)] {
            gaps.look(now, lost);
        }
        assert_eq!(
            gaps.report(),
            vec![
                json!({"start_ns": 120, "end_ns": 160, "lost": 9}),
                json!({"start_ns": 180, "end_ns": 200, "lost": 1}),
            ]
        );
        for i in 0..5000 {
            gaps.look(300 + 20 * i, 10 + i / 2);
        }
        assert!(gaps.gaps.len() <= MOST);
        let sum: u64 = gaps.gaps.iter().map(|gap| gap.lost).sum();
        assert_eq!(sum, gaps.lost);
    }
}
