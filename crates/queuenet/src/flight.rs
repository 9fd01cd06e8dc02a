//! Operations in flight during changes of the device, which can move their completions.

use std::collections::HashMap;

use penstock_station::{Op, Retimed, Served};

/// An operation in flight, with its requests and their due times.
#[derive(Debug, Clone)]
struct Flying {
    op: Op,
    thread: u32,
    issue_ns: u64,
    requests: Vec<(u64, u64)>,
    due_ns: u64,
}

/// Operations in flight, by number.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    flying: HashMap<u64, Flying>,
    of_request: HashMap<u64, u64>,
}

impl Flight {
    /// Begin an operation.
    pub fn begin(&mut self, number: u64, op: Op, thread: u32, issue_ns: u64) {
        let flying = Flying {
            op,
            thread,
            issue_ns,
            requests: Vec::with_capacity(1),
            due_ns: issue_ns,
        };
        self.flying.insert(number, flying);
    }

    /// Add an accepted request to its operation.
    pub fn request(&mut self, number: u64, served: &Served) {
        if let Some(flying) = self.flying.get_mut(&number) {
            flying.requests.push((served.id, served.due_ns));
            flying.due_ns = flying.due_ns.max(served.due_ns);
            self.of_request.insert(served.id, number);
        }
    }

    /// Apply new times of requests. Return (time, number, thread) of each operation whose completion moved.
    pub fn moved(&mut self, moved: &[Retimed]) -> Vec<(u64, u64, u32)> {
        let mut numbers = Vec::new();
        for Retimed { served } in moved {
            let Some(number) = self.of_request.get(&served.id) else {
                continue;
            };
            let Some(flying) = self.flying.get_mut(number) else {
                continue;
            };
            for request in &mut flying.requests {
                if request.0 == served.id {
                    request.1 = served.due_ns;
                }
            }
            numbers.push(*number);
        }
        numbers.dedup();
        let mut later = Vec::new();
        for number in numbers {
            if let Some(flying) = self.flying.get_mut(&number) {
                let due_ns = flying.requests.iter().map(|r| r.1).max().unwrap_or(0);
                if due_ns != flying.due_ns {
                    flying.due_ns = due_ns;
                    later.push((due_ns, number, flying.thread));
                }
            }
        }
        later
    }

    /// Complete an operation at `t_ns` and return its type and latency; `None` if its completion moved.
    pub fn complete(&mut self, number: u64, t_ns: u64) -> Option<(Op, u64)> {
        if self.flying.get(&number)?.due_ns != t_ns {
            return None;
        }
        let flying = self.flying.remove(&number)?;
        for (id, _) in &flying.requests {
            self.of_request.remove(id);
        }
        Some((flying.op, t_ns - flying.issue_ns))
    }
}
