//! Schedule of the samples.

/// Period after the start with additional samples, ns. A run that ends within it is plotted from these.
pub const BEGINNING_NS: i64 = 10_000_000_000;
/// Longest time between samples in that period, ns.
pub const CLOSE_NS: i64 = 100_000_000;

/// Deadlines `t0 + k * interval`, and additional samples evenly between them at the beginning of a recording.
///
/// Only the deadlines of the interval are mandatory. An additional sample that is not taken is not missed.
#[derive(Debug, Clone)]
pub struct Schedule {
    start_ns: i64,
    interval_ns: i64,
    parts: i64,
    next: i64,
    next_ns: i64,
    completed: u64,
    missed: u64,
    between: u64,
}

/// A sample that is due now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Number of its interval.
    pub number: i64,
    /// Its deadline, ns.
    pub due_ns: i64,
    /// Time since the deadline, ns.
    pub lateness_ns: i64,
    /// True if it lies between two deadlines of the interval.
    pub between: bool,
}

impl Schedule {
    /// Create a schedule whose first deadline is `start_ns`.
    pub fn new(start_ns: i64, interval_ns: i64) -> Self {
        Self {
            start_ns,
            interval_ns,
            parts: (interval_ns + CLOSE_NS - 1) / CLOSE_NS,
            next: 0,
            next_ns: start_ns,
            completed: 0,
            missed: 0,
            between: 0,
        }
    }

    /// The next deadline, ns.
    pub fn next_ns(&self) -> i64 {
        self.next_ns
    }

    /// Time between samples at the beginning, ns. It is the interval if that is short enough.
    pub fn close_ns(&self) -> i64 {
        self.interval_ns / self.parts
    }

    /// Return the latest sample whose deadline is at or before `now_ns`, if any. Earlier ones are counted as missed.
    ///
    /// ```
    /// use penstock_sampler::schedule::Schedule;
    /// let mut schedule = Schedule::new(1_000, 100);
    /// assert_eq!(schedule.take(1_000).unwrap().number, 0);
    /// assert_eq!(schedule.take(1_099), None);
    /// let late = schedule.take(1_350).unwrap(); // 1 and 2 are missed, 3 was due at 1300
    /// assert_eq!((late.number, late.lateness_ns), (3, 50));
    /// assert_eq!(schedule.missed(), 2);
    /// ```
    pub fn take(&mut self, now_ns: i64) -> Option<Due> {
        if now_ns < self.next_ns {
            return None;
        }
        let number = (now_ns - self.start_ns) / self.interval_ns;
        let first_ns = self.start_ns + number * self.interval_ns;
        let between = number < self.next;
        let close_ns = self.close_ns();
        let part = ((now_ns - first_ns) / close_ns).min(self.parts - 1);
        let mut due_ns = first_ns;
        if between {
            self.between += 1;
            due_ns += part * close_ns;
        } else {
            self.missed += (number - self.next) as u64;
            self.completed += 1;
            self.next = number + 1;
        }
        self.next_ns = first_ns + self.interval_ns;
        if part + 1 < self.parts && now_ns - self.start_ns < BEGINNING_NS {
            self.next_ns = first_ns + (part + 1) * close_ns;
        }
        Some(Due {
            number,
            due_ns,
            lateness_ns: now_ns - due_ns,
            between,
        })
    }

    /// Samples taken at deadlines of the interval.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Deadlines of the interval missed so far.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Samples taken between deadlines of the interval.
    pub fn between(&self) -> u64 {
        self.between
    }

    /// End the schedule: also count as missed the deadlines before `end_ns` that have no sample.
    pub fn close(&mut self, end_ns: i64) {
        while self.start_ns + (self.next + 1) * self.interval_ns <= end_ns {
            self.missed += 1;
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn completed_and_missed_add_up_to_past_deadlines() {
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
        assert!((schedule.completed() + schedule.missed()).abs_diff(expected) <= 1);
    }

    #[test]
    fn a_recording_begins_with_samples_close_together() {
        for (interval, close) in [(SECOND, CLOSE_NS), (250_000_000, 83_333_333)] {
            let mut schedule = Schedule::new(7, interval);
            assert_eq!(schedule.close_ns(), close);
            let mut on_time = Vec::new();
            for _ in 0..300 {
                on_time.push(schedule.take(schedule.next_ns()).unwrap());
            }
            assert!(on_time.iter().all(|due| due.lateness_ns == 0));
            let scheduled = on_time.iter().filter(|due| !due.between);
            assert!(scheduled
                .enumerate()
                .all(|(k, due)| due.due_ns == 7 + k as i64 * interval));
            for pair in on_time.windows(2) {
                let interval_ns = pair[1].due_ns - pair[0].due_ns;
                let beginning = pair[0].due_ns - 7 < BEGINNING_NS;
                let planned = if beginning { close } else { interval };
                // the last part of an interval includes the remainder of the division
                assert!((0..=2).contains(&(interval_ns - planned)), "{pair:?}");
            }
            assert!(schedule.between() > 0 && schedule.missed() == 0);
        }
    }

    #[test]
    fn skipped_additional_samples_are_not_missed() {
        let mut schedule = Schedule::new(0, SECOND);
        assert!(!schedule.take(0).unwrap().between);
        let late = schedule.take(730_000_000).unwrap();
        assert_eq!((late.between, late.lateness_ns), (true, 30_000_000));
        let overdue = schedule.take(1_250_000_000).unwrap();
        assert_eq!((overdue.between, overdue.lateness_ns), (false, 250_000_000));
        assert_eq!(schedule.next_ns(), 1_300_000_000);
        assert_eq!(
            (schedule.completed(), schedule.missed(), schedule.between()),
            (2, 0, 1)
        );
        schedule.take(3_100_000_000);
        assert_eq!(schedule.missed(), 1);
    }
}
