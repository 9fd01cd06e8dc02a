//! Outcome of a completed run.

use std::collections::HashMap;

use super::engine::{shared_station, station, Engine, Leg, Store, FABRIC, KINDS, KIND_NAMES};
use super::outcome::{HostRow, OperationRow, Operations, Outcome, Stage, StationRow, TaskRow};
use super::server::{Tally, NONE};

impl Engine<'_> {
    /// Build the outcome of the run.
    pub fn outcome(mut self) -> Outcome {
        if self.failure.is_some() {
            let next = self.heap.peek();
            let last = next.map_or(0, |(now, ..)| now);
            self.makespan = self.makespan.max(last);
        }
        let seconds = |ticks: u64| self.clock.seconds(ticks);
        let (critical, critical_tasks) = self.critical();
        let makespan_s = seconds(self.makespan);
        let mut bytes = self.bytes;
        bytes.stored = self.nodes.used.iter().sum();
        let operation = |which: usize| {
            let latencies = &self.latencies[which];
            let n = latencies.n();
            OperationRow {
                n,
                mean_s: if n == 0 {
                    0.0
                } else {
                    self.operation_ticks[which] / n as f64 / self.clock.per_s()
                },
                p50_s: latencies.quantile_ns(0.5) / 1e9,
                p99_s: latencies.quantile_ns(0.99) / 1e9,
            }
        };
        let hosts = self
            .hosts
            .iter()
            .zip(&self.network.hosts)
            .enumerate()
            .map(|(i, (host, text))| HostRow {
                name: text.name.clone(),
                app_s: host.computing / self.clock.per_s() / f64::from(host.slots.max(1)),
                storage_s: seconds(host.store_busy.total),
                network_s: seconds(host.busy.total),
                stored_bytes: self.nodes.used_on(i as u32),
                sent_bytes: host.sent,
                received_bytes: host.received,
                tasks: host.tasks,
            })
            .collect();
        Outcome {
            makespan_s,
            events: self.events,
            requests: self.requests,
            error: self.failure.clone(),
            bytes,
            stages: self.stages(),
            stations: self.stations(&critical),
            hosts,
            operations: Operations {
                open: operation(0),
                read: operation(1),
                write: operation(2),
            },
            tasks: self.detail.then(|| self.task_rows(&critical_tasks)),
        }
    }

    /// Time by station along the critical path to the task that ended last, and the tasks on that path.
    fn critical(&self) -> (HashMap<u32, f64>, Vec<bool>) {
        let mut by_station = HashMap::new();
        let mut on_it = vec![false; self.runs.len()];
        let mut task = self.last_task;
        while task != NONE && self.runs[task as usize].is_done() {
            on_it[task as usize] = true;
            let run = &self.runs[task as usize];
            for Leg { station, ticks } in &run.path {
                *by_station.entry(*station).or_insert(0.0) += f64::from(*ticks);
            }
            task = run.cause;
        }
        (by_station, on_it)
    }

    fn stages(&self) -> Vec<Stage> {
        let seconds = |ticks: u64| self.clock.seconds(ticks);
        let mut stages: Vec<Stage> = self
            .workload
            .stages
            .iter()
            .map(|name| Stage {
                name: name.clone(),
                start_s: f64::INFINITY,
                ..Stage::default()
            })
            .collect();
        for (run, task) in self.runs.iter().zip(&self.workload.tasks) {
            if !run.is_done() {
                continue;
            }
            let stage = &mut stages[task.stage as usize];
            let (spent, took) = (&run.spent, seconds(run.end - run.start));
            stage.tasks += 1;
            stage.start_s = stage.start_s.min(seconds(run.start));
            stage.end_s = stage.end_s.max(seconds(run.end));
            stage.task_mean_s += took;
            stage.task_max_s = stage.task_max_s.max(took);
            stage.launch_s += seconds(spent.launch);
            stage.compute_s += seconds(spent.compute);
            stage.read_s += seconds(spent.read);
            stage.write_s += seconds(spent.write);
            stage.manager_s += seconds(spent.manager);
            stage.read_bytes += spent.read_bytes;
            stage.written_bytes += spent.written_bytes;
            let local = spent.read_local + spent.written_local;
            stage.local_bytes += local;
            stage.remote_bytes += (spent.read_bytes + spent.written_bytes).saturating_sub(local);
        }
        for stage in &mut stages {
            if stage.tasks == 0 {
                stage.start_s = 0.0;
            } else {
                stage.task_mean_s /= stage.tasks as f64;
            }
        }
        stages
    }

    fn stations(&self, critical: &HashMap<u32, f64>) -> Vec<StationRow> {
        let makespan = self.makespan as f64;
        let row = |number: u32, name: String, host: &str, kind, servers: u32, tally: &Tally| {
            let busy = tally.busy as f64;
            let waited = tally.waited;
            let requests = tally.requests;
            let over = |x: f64, y: f64| if y > 0.0 { x / y } else { 0.0 };
            StationRow {
                name,
                host: host.to_owned(),
                kind,
                servers,
                requests,
                busy_s: busy / self.clock.per_s(),
                utilisation: over(busy, makespan * f64::from(servers)),
                wait_mean_s: over(waited, requests as f64) / self.clock.per_s(),
                wait_max_s: self.clock.seconds(tally.wait_max),
                queue_mean: over(waited, makespan),
                queue_max: tally.waiting_max,
                critical_s: critical.get(&number).copied().unwrap_or(0.0) / self.clock.per_s(),
            }
        };
        let mut rows = Vec::new();
        for (i, (host, text)) in self.hosts.iter().zip(&self.network.hosts).enumerate() {
            let manager = host.manager.as_ref().map(|m| (&m.1.tally, m.2));
            let storage = match &host.store {
                Store::Absent => None,
                Store::Servers { queue, servers, .. } => Some((&queue.tally, *servers)),
                Store::Profile { tally, servers, .. } => Some((tally, *servers)),
            };
            let client = host
                .client
                .as_ref()
                .filter(|client| !client.0.is_nothing())
                .map(|client| (&client.1.tally, 1));
            let all = [
                Some((&host.out, 1)),
                Some((&host.inn, 1)),
                Some((&host.looped, 1)),
                storage,
                manager,
                client,
                (host.slots > 0).then_some((&host.slot_tally, host.slots)),
            ];
            for (which, station_of) in all.into_iter().enumerate() {
                if let Some((tally, servers)) = station_of {
                    rows.push(row(
                        station(i as u32, which as u32),
                        format!("{}/{}", text.name, KINDS[which]),
                        &text.name,
                        KIND_NAMES[which],
                        servers,
                        tally,
                    ));
                }
            }
        }
        for (link, shared) in self.shared.iter().enumerate() {
            rows.push(row(
                shared_station(link as u32),
                shared.name.clone(),
                "",
                "fabric",
                1,
                &shared.tally,
            ));
        }
        if critical.contains_key(&FABRIC) {
            let crossed = row(FABRIC, "fabric".into(), "", "fabric", 1, &Tally::default());
            rows.push(crossed);
        }
        rows
    }

    fn task_rows(&self, critical: &[bool]) -> Vec<TaskRow> {
        let seconds = |ticks: u64| self.clock.seconds(ticks);
        let mut rows = Vec::with_capacity(self.runs.len());
        for (i, (run, task)) in self.runs.iter().zip(&self.workload.tasks).enumerate() {
            if !run.is_done() {
                continue;
            }
            let spent = &run.spent;
            let local = spent.read_local + spent.written_local;
            rows.push(TaskRow {
                name: task.name.clone(),
                stage: self.workload.stages[task.stage as usize].clone(),
                host: self.network.hosts[run.host as usize].name.clone(),
                ready_s: seconds(run.ready),
                start_s: seconds(run.start),
                end_s: seconds(run.end),
                launch_s: seconds(spent.launch),
                compute_s: seconds(spent.compute),
                read_s: seconds(spent.read),
                write_s: seconds(spent.write),
                manager_s: seconds(spent.manager),
                read_bytes: spent.read_bytes,
                written_bytes: spent.written_bytes,
                local_bytes: local,
                remote_bytes: (spent.read_bytes + spent.written_bytes).saturating_sub(local),
                critical: critical[i],
                spans: run.spans.clone(),
            });
        }
        rows
    }
}
