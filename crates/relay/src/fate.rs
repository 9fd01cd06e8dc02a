//! Fate of a frame in one direction of a link, drawn from a seed, the direction and the frame's number in it.

use penstock_station::Draws;

use crate::config::Impairment;
use crate::jitter::Jitter;

/// Fate of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fate {
    /// The frame is lost.
    pub lost: bool,
    /// The frame arrives twice.
    pub twice: bool,
    /// Random number that selects the bit to flip; None without corruption.
    pub turned: Option<u64>,
    /// The frame is not delayed and overtakes others.
    pub overtakes: bool,
    /// Delay in nanoseconds.
    pub delay_ns: u64,
}

impl Fate {
    /// No impairment.
    pub const PLAIN: Fate = Fate {
        lost: false,
        twice: false,
        turned: None,
        overtakes: false,
        delay_ns: 0,
    };
}

/// One direction of a link: its impairments and the number of frames so far.
#[derive(Debug, Clone)]
pub struct Way {
    impairment: Impairment,
    jitter: Jitter,
    seed: u64,
    key: u64,
    frames: u64,
    plain: bool,
}

impl Way {
    /// Direction without impairments; `key` is its number.
    pub fn new(seed: u64, key: u64) -> Self {
        Way {
            impairment: Impairment::default(),
            jitter: Jitter::default(),
            seed,
            key,
            frames: 0,
            plain: true,
        }
    }

    /// Impairments of this direction.
    pub fn impairment(&self) -> &Impairment {
        &self.impairment
    }

    /// Change the impairments. The sequence of draws continues.
    pub fn ask(&mut self, impairment: Impairment) {
        self.jitter = Jitter::new(impairment.delay);
        self.plain = impairment == Impairment::default();
        self.impairment = impairment;
    }

    /// Fate of the next frame.
    pub fn next(&mut self) -> Fate {
        if self.plain {
            return Fate::PLAIN;
        }
        self.frames += 1;
        // one draw each for every setting: a higher loss does not change the delays of other frames
        let mut draws = Draws::keyed(self.seed, 0, self.key, self.frames);
        let mut happens = |share: f64| draws.uniform() < share;
        let lost = happens(self.impairment.loss);
        let twice = happens(self.impairment.duplicate);
        let corrupt = happens(self.impairment.corrupt);
        let overtakes = happens(self.impairment.reorder);
        let delay_ns = self.jitter.draw_ns(draws.uniform());
        Fate {
            lost,
            twice,
            turned: corrupt.then(|| (draws.uniform() * (1u64 << 53) as f64) as u64),
            overtakes,
            delay_ns: if overtakes { 0 } else { delay_ns },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Delay, Distribution};

    fn way(seed: u64) -> Way {
        let mut way = Way::new(seed, 7);
        way.ask(Impairment {
            delay: Delay {
                mean_s: 0.01,
                jitter_s: 0.002,
                distribution: Distribution::Uniform,
            },
            loss: 0.1,
            duplicate: 0.05,
            corrupt: 0.02,
            reorder: 0.25,
        });
        way
    }

    #[test]
    fn observed_shares_match_the_impairment() {
        let mut way = way(3);
        let n = 100_000;
        let fates: Vec<Fate> = (0..n).map(|_| way.next()).collect();
        for (share, expected) in [
            (fates.iter().filter(|f| f.lost).count(), 0.1),
            (fates.iter().filter(|f| f.twice).count(), 0.05),
            (fates.iter().filter(|f| f.turned.is_some()).count(), 0.02),
            (fates.iter().filter(|f| f.overtakes).count(), 0.25),
        ] {
            let observed = share as f64 / f64::from(n);
            // five standard deviations of a binomial
            let width = 5.0 * (expected * (1.0 - expected) / f64::from(n)).sqrt();
            assert!(
                (observed - expected).abs() < width,
                "{observed} for {expected}"
            );
        }
        assert!(fates
            .iter()
            .all(|f| f.overtakes == (f.delay_ns == 0) && f.delay_ns <= 12_000_000));
    }

    #[test]
    fn the_same_seed_gives_the_same_fates() {
        let (mut a, mut b, mut c) = (way(3), way(3), way(4));
        let same: Vec<Fate> = (0..1000).map(|_| a.next()).collect();
        assert_eq!(same, (0..1000).map(|_| b.next()).collect::<Vec<_>>());
        assert_ne!(same, (0..1000).map(|_| c.next()).collect::<Vec<_>>());
    }
}
