//! Phases: stretches of one class, found over windows and bordered to the request.

use crate::verdict::{classify_whole, median, near_bytes, steps, Class, Phase};

const WINDOWS: usize = 200;
const SMALLEST_WINDOW: usize = 64;
const LEAST_SHARE: f64 = 0.05;

/// The phases of a sequence, each at least 0.05 of it, neighbours of different class; one or none if it has no parts.
pub fn find(offsets: &[i64], sizes: &[i64]) -> Vec<Phase> {
    let n = offsets.len();
    let window = SMALLEST_WINDOW.max(n / WINDOWS);
    if n < 4 * window {
        return Vec::new();
    }
    let near = near_bytes(median(sizes));
    let labels: Vec<(usize, usize, Option<Class>)> = (0..n)
        .step_by(window)
        .map(|first| {
            let end = (first + window).min(n);
            (
                first,
                end,
                label(&offsets[first..end], &sizes[first..end], near),
            )
        })
        .collect();
    let mut runs: Vec<Phase> = Vec::new();
    for run in labels.chunk_by(|a, b| a.2 == b.2) {
        let (first, end) = (run[0].0, run[run.len() - 1].1);
        let (Some(class), true) = (run[0].2, (end - first) as f64 >= LEAST_SHARE * n as f64) else {
            continue;
        };
        match runs.last_mut() {
            Some(last) if last.class == class => last.end = end,
            _ => runs.push(Phase { first, end, class }),
        }
    }
    let covered: usize = runs.iter().map(|run| run.end - run.first).sum();
    if runs.len() < 2 || (covered as f64) < 0.9 * n as f64 {
        return Vec::new();
    }
    runs[0].first = 0;
    let last = runs.len() - 1;
    runs[last].end = n;
    for i in 0..last {
        let (left, right) = (runs[i].class, runs[i + 1].class);
        let low = runs[i].end.saturating_sub(window).max(1);
        let high = (runs[i + 1].first + window).min(n);
        let border = border(offsets, sizes, near, (left, right), low, high);
        runs[i].end = border;
        runs[i + 1].first = border;
    }
    for run in &mut runs {
        run.class = classify_whole(&offsets[run.first..run.end], &sizes[run.first..run.end]).class;
    }
    runs
}

fn label(offsets: &[i64], sizes: &[i64], near: i64) -> Option<Class> {
    let found = steps(offsets, sizes, near);
    let of = offsets.len().saturating_sub(1).max(1) as f64;
    let share = |hits: u64| hits as f64 / of;
    if share(found.zero) >= 0.95 {
        Some(Class::Consecutive)
    } else if share(found.reverse) >= 0.95 {
        Some(Class::Reverse)
    } else if share(found.near) >= 0.95 {
        Some(Class::Sequential)
    } else if share(found.zero) <= 0.1 && (0.3..=0.7).contains(&share(found.forward)) {
        Some(Class::Random)
    } else {
        None
    }
}

/// The request at which steps cease to fit the left class and begin to fit the right one.
fn border(
    offsets: &[i64],
    sizes: &[i64],
    near: i64,
    (left, right): (Class, Class),
    low: usize,
    high: usize,
) -> usize {
    let fits = |i: usize, class: Class| {
        let distance = offsets[i] - offsets[i - 1] - sizes[i - 1];
        match class {
            Class::Consecutive => distance == 0,
            Class::Reverse => offsets[i] + sizes[i] == offsets[i - 1],
            Class::Sequential => (0..=near).contains(&distance),
            _ => !(0..=near).contains(&distance) && offsets[i] + sizes[i] != offsets[i - 1],
        }
    };
    let mut score = 0i64;
    let mut best = (i64::MIN, low);
    for i in low..high {
        if score > best.0 {
            best = (score, i);
        }
        score += i64::from(fits(i, left)) - i64::from(fits(i, right));
    }
    if score > best.0 {
        best.1 = high;
    }
    best.1
}
