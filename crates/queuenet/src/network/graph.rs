//! Dependencies between tasks.

use super::workload::TaskSpec;
use super::SimulationError;

/// Add the dependencies to the tasks. Rejects cycles.
pub fn link(tasks: &mut [TaskSpec], edges: Vec<(u32, u32)>) -> Result<Vec<u32>, SimulationError> {
    let mut successors = Vec::with_capacity(edges.len());
    let mut at = 0;
    for (index, task) in tasks.iter_mut().enumerate() {
        let begin = successors.len() as u32;
        while at < edges.len() && edges[at].0 as usize == index {
            successors.push(edges[at].1);
            at += 1;
        }
        task.successors = (begin, successors.len() as u32);
    }
    for after in &successors {
        tasks[*after as usize].predecessors += 1;
    }
    let mut remaining: Vec<u32> = tasks.iter().map(|task| task.predecessors).collect();
    let mut ready: Vec<usize> = (0..tasks.len()).filter(|i| remaining[*i] == 0).collect();
    let mut done = 0;
    while let Some(index) = ready.pop() {
        done += 1;
        let (begin, end) = tasks[index].successors;
        for after in &successors[begin as usize..end as usize] {
            remaining[*after as usize] -= 1;
            if remaining[*after as usize] == 0 {
                ready.push(*after as usize);
            }
        }
    }
    if done < tasks.len() {
        return Err(SimulationError(cycle(tasks, &edges, &remaining)));
    }
    Ok(successors)
}

/// Names of the tasks of one cycle.
fn cycle(tasks: &[TaskSpec], edges: &[(u32, u32)], remaining: &[u32]) -> String {
    let before = |after: u32| {
        edges
            .iter()
            .find(|(b, a)| *a == after && remaining[*b as usize] > 0)
            .map_or(after, |(b, _)| *b)
    };
    let mut path: Vec<u32> = Vec::new();
    let mut at = remaining.iter().position(|n| *n > 0).unwrap_or(0) as u32;
    while !path.contains(&at) {
        path.push(at);
        at = before(at);
    }
    path.retain({
        let mut inside = false;
        move |task| {
            inside |= *task == at;
            inside
        }
    });
    path.push(at);
    path.reverse();
    let shown: Vec<String> = path
        .iter()
        .take(8)
        .map(|task| format!("\"{}\"", tasks[*task as usize].name))
        .collect();
    format!(
        "tasks wait for each other in a circle: {}{}",
        shown.join(" before "),
        if path.len() > 8 { " …" } else { "" }
    )
}
