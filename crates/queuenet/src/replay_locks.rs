//! Detection of places of a traced program that only one thread at a time can use, such as its logs.

use std::collections::{HashMap, HashSet};

use crate::replay::{median, Kind, Program, LONG_GAP_NS, WAKE_UP_NS};

/// A place is exclusive if at most this share of its sections overlap,
const OVERLAP_SHARE: f64 = 0.03;
/// and if at least this many would overlap in independent threads.
const OVERLAPS_EXPECTED: f64 = 5.0;

impl Program {
    /// Find sections (the writes to a place and the flush that follows) and the places where one waits for another.
    pub(crate) fn take_flushes_of_places(&mut self) {
        struct Section {
            first: u32,
            last: u32,
            thread: usize,
        }
        let mut places: HashMap<u32, Vec<Section>> = HashMap::new();
        for (number, thread) in self.threads.iter().enumerate() {
            for at in thread.first..thread.end {
                let step = &self.steps[at as usize];
                if step.kind != Kind::Sync {
                    continue;
                }
                let place = self.files[step.file as usize].place;
                let mut first = at;
                while first > thread.first {
                    let before = &self.steps[first as usize - 1];
                    let same = self.files[before.file as usize].place == place;
                    if before.kind != Kind::Write || !same {
                        break;
                    }
                    first -= 1;
                }
                places.entry(place).or_default().push(Section {
                    first,
                    last: at,
                    thread: number,
                });
            }
        }
        let mut order: Vec<u32> = places.keys().copied().collect();
        order.sort_unstable();
        for place in order {
            let Some(mut sections) = places.remove(&place) else {
                continue;
            };
            let began = |s: &Section| self.steps[s.first as usize].began_ns;
            let ended = |s: &Section| self.steps[s.last as usize].ended_ns;
            sections.sort_by_key(began);
            let mut busy: HashMap<usize, u64> = HashMap::new();
            for s in &sections {
                *busy.entry(s.thread).or_default() += ended(s) - began(s);
            }
            let (Some(start), Some(end)) = (
                sections.first().map(began),
                sections.iter().map(ended).max(),
            ) else {
                continue;
            };
            let all: u64 = busy.values().sum();
            let mut overlaps = 0u32;
            let mut expected = 0.0;
            let mut latest = (0u64, usize::MAX);
            for s in &sections {
                overlaps += u32::from(began(s) < latest.0 && latest.1 != s.thread);
                expected += (all - busy[&s.thread]) as f64 / (end - start).max(1) as f64;
                latest = latest.max((ended(s), s.thread));
            }
            if expected < OVERLAPS_EXPECTED
                || f64::from(overlaps) > OVERLAP_SHARE * sections.len() as f64
            {
                continue;
            }
            self.analysis.locks.push(place);
            let mut lasted: Vec<u64> = sections.iter().map(|s| ended(s) - began(s)).collect();
            let usual_ns = median(&mut lasted).unwrap_or(0);
            // a section that began while another was active waited; the others show the usual gap before a section
            let mut alone = Vec::new();
            let mut handovers = Vec::new();
            let mut waited = Vec::new();
            for (n, s) in sections.iter().enumerate() {
                let gap = self.steps[s.first as usize].think_ns;
                let arrival_ns = began(s) - gap;
                let before = sections[..n].iter().rev().take(8);
                let holder = before
                    .filter(|o| o.thread != s.thread && ended(o) > arrival_ns)
                    .map(&ended)
                    .max();
                match holder {
                    Some(end)
                        if end <= began(s) && began(s) - end <= WAKE_UP_NS.max(usual_ns / 10) =>
                    {
                        handovers.push(began(s) - end);
                        if !self.threads[s.thread].background {
                            waited.push(s.first);
                        }
                    }
                    Some(_) => {}
                    // a long gap of a thread that does not compute is a wait for something else
                    None if s.first > self.threads[s.thread].first
                        && !(self.analysis.idle && gap > LONG_GAP_NS) =>
                    {
                        alone.push(gap);
                    }
                    None => {}
                }
            }
            let usual = if alone.len() >= 5 {
                median(&mut alone)
            } else {
                // no section began at an unused place: use the gap before the threads' other steps
                let starts: HashSet<u32> = sections.iter().map(|s| s.first).collect();
                let threads: HashSet<usize> = sections.iter().map(|s| s.thread).collect();
                let steps = threads
                    .iter()
                    .flat_map(|&t| self.threads[t].first + 1..self.threads[t].end);
                let others = steps.filter(|at| !starts.contains(at));
                let gaps = others.map(|at| self.steps[at as usize].think_ns);
                median(&mut gaps.filter(|gap| *gap > 0).collect::<Vec<_>>())
            };
            let usual = usual.unwrap_or(0);
            let handover = median(&mut handovers).unwrap_or(0);
            for first in waited {
                let step = &mut self.steps[first as usize];
                step.think_ns = step.think_ns.min(usual);
            }
            self.analysis.waits += handovers.len() as u64;
            self.handover_ns.insert(place, handover);
            for s in &sections {
                self.steps[s.first as usize].takes = Some(place);
                self.steps[s.last as usize].gives = Some(place);
            }
        }
    }
}
