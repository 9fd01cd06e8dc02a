//! When samples are due.

/// The deadlines `t0 + k * interval`.
#[derive(Debug, Clone)]
pub struct Schedule {
    start_ns: i64,
    interval_ns: i64,
    next: i64,
    made: u64,
    missed: u64,
}

/// A sample that is to be made now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Its number.
    pub number: i64,
    /// Its deadline, ns.
    pub due_ns: i64,
    /// How long ago that was, ns.
    pub lateness_ns: i64,
}

impl Schedule {
    /// Deadlines from `start_ns` on.
    pub fn new(start_ns: i64, interval_ns: i64) -> Self {
        Self {
            start_ns,
            interval_ns,
            next: 0,
            made: 0,
            missed: 0,
        }
    }

    /// The next deadline, ns.
    pub fn next_ns(&self) -> i64 {
        self.start_ns + self.next * self.interval_ns
    }

    /// At `now_ns`: the latest sample whose deadline has come, if any; those before it are missed.
    ///
    /// ```
    /// use penstock_sampler::schedule::Schedule;
    /// let mut schedule = Schedule::new(1_000, 100);
    /// assert_eq!(schedule.take(1_000).unwrap().number, 0);
    /// assert_eq!(schedule.take(1_099), None);
    /// let late = schedule.take(1_350).unwrap(); // 1 and 2 are lost, 3 was due at 1300
    /// assert_eq!((late.number, late.lateness_ns), (3, 50));
    /// assert_eq!(schedule.missed(), 2);
    /// ```
    pub fn take(&mut self, now_ns: i64) -> Option<Due> {
        if now_ns < self.next_ns() {
            return None;
        }
        let number = (now_ns - self.start_ns) / self.interval_ns;
        self.missed += (number - self.next) as u64;
        self.made += 1;
        self.next = number + 1;
        let due_ns = self.start_ns + number * self.interval_ns;
        Some(Due {
            number,
            due_ns,
            lateness_ns: now_ns - due_ns,
        })
    }

    /// Samples made.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Deadlines missed so far.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// At the end: counts the deadlines that passed before `end_ns` without a sample as missed too.
    pub fn close(&mut self, end_ns: i64) {
        while self.next_ns() + self.interval_ns <= end_ns {
            self.missed += 1;
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_and_missed_add_up_to_the_deadlines_that_passed() {
        let (interval, end) = (100, 10_000);
        let mut schedule = Schedule::new(0, interval);
        let mut now = 0;
        let mut step = 1;
        while now < end {
            if let Some(due) = schedule.take(now) {
                assert_eq!(due.due_ns % interval, 0);
                assert!((0..interval).contains(&due.lateness_ns));
            }
            step = step * 7 % 331;
            now += step;
        }
        schedule.close(end);
        let expected = (end / interval) as u64;
        assert!(schedule.missed() > 0);
        assert!((schedule.made() + schedule.missed()).abs_diff(expected) <= 1);
    }
}
