//! Construction of a run from workload and network.

use std::collections::{HashMap, VecDeque};

use penstock_station::{mix64, Op, Station};

use super::engine::{Engine, Host, Store};
use super::files::File;
use super::heap::EventHeap;
use super::lru::Lru;
use super::nodes::{Claim, Full, Nodes};
use super::number::Duration;
use super::outcome::Outcome;
use super::placed::on_hosts;
use super::platform::{within, HostText, Network, ServiceText};
use super::schedule::Scheduler;
use super::server::{Cover, Fifo, Service, Tally, NONE};
use super::shared::{fair_links, shared_links};
use super::task::Run;
use super::time::{Clock, HORIZON_S};
use super::workload::{HintsText, Workload};
use super::SimulationError;

fn bad(message: String) -> SimulationError {
    SimulationError(message)
}

/// Simulate the workload on the network once. With `detail` the outcome has rows of tasks and operations.
///
/// # Errors
/// The descriptions are inconsistent: an unknown machine or host, hints that the platform cannot fulfil, or a run
/// beyond the horizon. Failures during the run, such as a full store, are part of the outcome.
pub fn simulate(
    workload: &Workload,
    network: &Network,
    seed: u64,
    detail: bool,
) -> Result<Outcome, SimulationError> {
    let mut engine = Engine::new(workload, network, seed, detail)?;
    engine.run();
    Ok(engine.outcome())
}

/// Like [`simulate`], with network and outcome as JSON.
///
/// # Errors
/// As for [`simulate`], and for an invalid network.
pub fn simulate_json(
    workload: &Workload,
    network_json: &str,
    seed: u64,
    detail: bool,
) -> Result<String, SimulationError> {
    let network = Network::from_json(network_json)?;
    let outcome = simulate(workload, &network, seed, detail)?;
    serde_json::to_string(&outcome).map_err(|e| bad(e.to_string()))
}

fn service(text: &ServiceText, clock: Clock) -> Service {
    Service::new(&text.overhead.sampler(), text.s_per_byte, clock)
}

/// A time that is hardly ever exceeded, seconds.
fn far(duration: &Duration) -> f64 {
    duration.0.mean_s() + 10.0 * duration.0.quantile_s(0.999)
}

/// Approximate upper bound of the run's duration: all work in sequence, seconds.
fn bound_s(workload: &Workload, network: &Network) -> f64 {
    let (mut speed, mut rate) = (f64::INFINITY, f64::INFINITY);
    let (mut per_request, mut per_byte) = (0.0f64, 0.0f64);
    let mut latency = network.fabric.latency_s;
    let chunk = network.store.chunk_bytes;
    for host in &network.hosts {
        let link = &host.network;
        rate = rate
            .min(link.out_bps)
            .min(link.in_bps)
            .min(link.loopback_bps);
        latency = latency.max(network.fabric.latency_s + 2.0 * link.latency_s);
        let mut take = |text: &ServiceText| {
            per_request = per_request.max(far(&text.overhead));
            per_byte = per_byte.max(text.s_per_byte);
        };
        if let Some(client) = &host.client {
            speed = speed.min(client.speed);
            client.service.iter().for_each(&mut take);
        }
        host.manager.iter().for_each(|m| take(&m.service));
        if let Some(storage) = &host.storage {
            storage.read.iter().for_each(&mut take);
            storage.write.iter().for_each(&mut take);
            if let Some(profile) = &storage.profile {
                for op in [Op::Read, Op::Write] {
                    let mean = profile.mean_service_s(op, false, chunk);
                    per_request = per_request.max(10.0 * (mean + profile.interface_s(chunk)));
                }
            }
        }
    }
    for shared in [network.fabric.capacity_bps, network.fabric.rack_uplink_bps] {
        rate = rate.min(shared.unwrap_or(f64::INFINITY));
    }
    let replicas = f64::from(network.store.replicas) + 1.0;
    let operations = workload.operations[0].len() as f64;
    let requests = workload.moved_bytes / chunk as f64 + 4.0 * operations;
    let control = 4.0 * network.protocol.control_bytes as f64 / rate;
    let launch = &network.launch;
    let launches = workload.tasks() as f64 * (far(&launch.overhead) + far(&launch.locate))
        + far(&launch.stagger)
        + operations * far(&launch.tag);
    let moved = workload.moved_bytes * replicas * (4.0 / rate + per_byte);
    let service = requests * replicas * (per_request + control + 8.0 * latency);
    let slots = |host: &HostText| host.client.as_ref().map_or(0, |client| client.slots);
    let writers = network
        .hosts
        .iter()
        .map(|host| f64::from(slots(host)))
        .sum::<f64>();
    let contention = operations * writers * network.store.write_contention_s;
    let waits = network.scheduler.wait_s.unwrap_or(0.0) * workload.tasks() as f64;
    1.0 + workload.latest_s
        + 2.0 * (workload.compute_s / speed + moved + service + launches + contention + waits)
}

/// Largest number of chunk requests of one run, and of frames.
const MOST_REQUESTS: f64 = 5e8;
const MOST_FRAMES: f64 = 1e11;

/// Reject runs of hours: chunks or frames that are much too small for the amount of data.
fn check_amount(workload: &Workload, network: &Network) -> Result<(), SimulationError> {
    let hinted = |hints: &HintsText| hints.chunk_bytes.unwrap_or(u64::MAX);
    let smallest = workload
        .files
        .iter()
        .map(|file| hinted(&file.hints))
        .chain(workload.hints.iter().map(hinted))
        .fold(network.store.chunk_bytes, u64::min);
    let requests = workload.moved_bytes / smallest as f64;
    if requests > MOST_REQUESTS {
        return Err(bad(format!(
            "{:.1e} bytes in chunks of {smallest} bytes are {requests:.1e} chunk requests; at most {MOST_REQUESTS:.0e} are expected: take larger chunks",
            workload.moved_bytes
        )));
    }
    let frame = network.protocol.frame_bytes as f64;
    let replicas = f64::from(network.store.replicas);
    let control = 4.0 * (requests + workload.operations[0].len() as f64) * replicas;
    let frames = workload.moved_bytes * replicas / frame
        + control * (network.protocol.control_bytes as f64 / frame).max(1.0);
    if frames > MOST_FRAMES {
        return Err(bad(format!(
            "{frames:.1e} frames of {frame} bytes; at most {MOST_FRAMES:.0e} are expected: take larger frames"
        )));
    }
    Ok(())
}

fn host(
    text: &HostText,
    network: &Network,
    clock: Clock,
    seed: u64,
) -> Result<Host, SimulationError> {
    let per_byte = |rate: f64| clock.per_s() / rate;
    let frame = network.protocol.frame_bytes as f64;
    let store = match &text.storage {
        None => Store::Absent,
        Some(storage) => match (&storage.profile, &storage.read, &storage.write) {
            (Some(profile), ..) => Store::Profile {
                station: Box::new(
                    Station::new(profile, storage.seed.unwrap_or(seed))
                        .map_err(|e| bad(e.message))?,
                ),
                tally: Tally::default(),
                servers: profile.servers as u32,
            },
            (None, Some(read), Some(write)) => {
                let servers = storage.servers.unwrap_or(1);
                Store::Servers {
                    read: service(read, clock),
                    write: service(write, clock),
                    queue: Fifo::new(servers),
                    servers,
                }
            }
            _ => Store::Absent,
        },
    };
    let (out_per_byte, in_per_byte) = (
        per_byte(text.network.out_bps),
        per_byte(text.network.in_bps),
    );
    let slots = text.client.as_ref().map_or(0, |client| client.slots);
    let cache_bytes = network.preprocess.cache_bytes;
    Ok(Host {
        out_free: 0,
        out_frame: (frame * out_per_byte).round() as u64,
        out_per_byte,
        out_active: NONE,
        out_head: NONE,
        out_tail: NONE,
        in_free: 0,
        in_frame: (frame * in_per_byte).round() as u64,
        in_per_byte,
        trains: VecDeque::new(),
        due_head: NONE,
        due_tail: NONE,
        latency: clock.ticks(text.network.latency_s),
        rack: 0,
        loop_per_byte: per_byte(text.network.loopback_bps),
        loop_free: 0,
        loop_active: NONE,
        loop_head: NONE,
        loop_tail: NONE,
        out: Tally::default(),
        inn: Tally::default(),
        looped: Tally::default(),
        busy: Cover::default(),
        sent: 0,
        received: 0,
        store,
        store_busy: Cover::default(),
        manager: text.manager.as_ref().map(|manager| {
            Box::new((
                service(&manager.service, clock),
                Fifo::new(manager.servers),
                manager.servers,
            ))
        }),
        client: text.client.as_ref().map(|client| {
            let text = client.service.clone().unwrap_or_default();
            Box::new((service(&text, clock), Fifo::new(1)))
        }),
        slots,
        slots_free: slots,
        speed: text.client.as_ref().map_or(1.0, |client| client.speed),
        slot_tally: Tally::default(),
        computing: 0.0,
        tasks: 0,
        cache: (cache_bytes > 0 && slots > 0).then(|| Box::new(Lru::new(cache_bytes))),
    })
}

/// Number of the host that hints name, after a check of the other hints.
fn resolve(
    place: &str,
    hints: &HintsText,
    network: &Network,
    hosts: &HashMap<&str, u32>,
) -> Result<Option<u32>, SimulationError> {
    let storage = network.hosts.iter().filter(|h| h.storage.is_some()).count();
    within(
        &format!("{place}: stripe_width"),
        hints.stripe_width,
        storage,
    )
    .map_err(bad)?;
    within(&format!("{place}: replicas"), hints.replicas, storage).map_err(bad)?;
    let Some(name) = &hints.host else {
        return Ok(None);
    };
    match hosts.get(name.as_str()) {
        Some(host) if network.hosts[*host as usize].storage.is_some() => Ok(Some(*host)),
        Some(_) => Err(bad(format!("{place}: host \"{name}\" has no storage"))),
        None => Err(bad(format!("{place}: there is no host \"{name}\""))),
    }
}

impl<'a> Engine<'a> {
    fn new(
        workload: &'a Workload,
        network: &'a Network,
        seed: u64,
        detail: bool,
    ) -> Result<Self, SimulationError> {
        check_amount(workload, network)?;
        let bound = bound_s(workload, network);
        if bound.is_nan() || bound >= HORIZON_S {
            return Err(bad(format!(
                "the run may last {bound:.1e} s of virtual time; less than {HORIZON_S:.0e} s are expected"
            )));
        }
        let clock = Clock::for_run_of(bound);
        let mut hosts = Vec::with_capacity(network.hosts.len());
        for (i, text) in network.hosts.iter().enumerate() {
            hosts.push(host(text, network, clock, mix64(seed ^ mix64(i as u64)))?);
        }
        let (shared, core, racks) = shared_links(network, &mut hosts, clock);
        let fair = fair_links(network, &hosts, &shared, core);
        let by_name: HashMap<&str, u32> = network
            .hosts
            .iter()
            .enumerate()
            .map(|(i, host)| (host.name.as_str(), i as u32))
            .collect();
        let mut files = Vec::with_capacity(workload.files.len());
        let mut hint_hosts = Vec::new();
        for spec in &workload.files {
            let place = format!("file \"{}\"", spec.name);
            let host = resolve(&place, &spec.hints, network, &by_name)?;
            let mut file = File::default();
            file.hints.set(&spec.hints, host);
            files.push(file);
            hint_hosts.push(host);
        }
        for (file, extents) in on_hosts(workload, network, &by_name)? {
            files[file as usize].placed = Some(extents);
        }
        for hints in &workload.hints {
            hint_hosts.push(resolve("set_xattr", hints, network, &by_name)?);
        }
        let clients: Vec<u32> = (0..hosts.len() as u32)
            .filter(|host| hosts[*host as usize].slots > 0)
            .collect();
        let mut classes = vec![clients.clone()];
        for name in &workload.machines {
            let members: Vec<u32> = clients
                .iter()
                .copied()
                .filter(|host| {
                    let text = &network.hosts[*host as usize];
                    text.name == *name || text.group.as_ref() == Some(name)
                })
                .collect();
            if members.is_empty() {
                let task = workload.tasks.iter().find(|t| {
                    t.machine
                        .is_some_and(|m| workload.machines[m as usize] == *name)
                });
                return Err(bad(format!(
                    "task \"{}\" is to run on \"{name}\"; no client host or group has this name",
                    task.map_or("", |t| &t.name)
                )));
            }
            classes.push(members);
        }
        let capacity: Vec<Option<Option<u64>>> = network
            .hosts
            .iter()
            .map(|host| host.storage.as_ref().map(|storage| storage.capacity_bytes))
            .collect();
        let merged_range = usize::from(network.preprocess.aggregate);
        let first = network.hosts[0].network.latency_s;
        let same_latency =
            !shared.is_empty() || network.hosts.iter().all(|h| h.network.latency_s == first);
        Ok(Engine {
            workload,
            network,
            operations: &workload.operations[merged_range],
            merged_range,
            seed,
            clock,
            frame: network.protocol.frame_bytes,
            control: network.protocol.control_bytes,
            merge: network.protocol.merge_frames,
            same_latency,
            latency: clock.ticks(network.fabric.latency_s),
            heap: EventHeap::default(),
            order: 0,
            messages: Vec::new(),
            unused: Vec::new(),
            spills: Vec::new(),
            spills_unused: Vec::new(),
            shared,
            fair,
            core,
            racks,
            managers: (0..hosts.len() as u32)
                .filter(|host| hosts[*host as usize].manager.is_some())
                .collect(),
            writers: 0,
            files,
            nodes: Nodes::new(seed, &capacity),
            hint_hosts,
            runs: workload
                .tasks
                .iter()
                .map(|task| Run::new(task.predecessors, task.machine.map_or(0, |m| m + 1)))
                .collect(),
            scheduler: Scheduler::new(hosts.len(), &classes, &clients, network.scheduler.fill),
            hosts,
            unfinished: workload.tasks(),
            makespan: 0,
            last_task: 0,
            freed: NONE,
            events: 0,
            requests: 0,
            bytes: super::outcome::Bytes::default(),
            latencies: Default::default(),
            operation_ticks: [0.0; 3],
            failure: None,
            detail,
        })
    }

    /// Place files that exist before the run as if they had just been written.
    pub(super) fn preload(&mut self) {
        for (i, spec) in self.workload.files.iter().enumerate() {
            if !spec.preloaded || spec.size == 0 {
                continue;
            }
            let claim = Claim {
                file: i as u32,
                offset: 0,
                size: spec.size,
                client: None,
            };
            let placed = self
                .nodes
                .allocate(&mut self.files[i], &self.network.store, claim);
            if let Err(full) = placed {
                self.full("before the run".into(), i as u32, full);
                return;
            }
        }
    }

    /// End the run because the storage is full.
    pub(super) fn full(&mut self, who: String, file: u32, full: Full) {
        let name = &self.workload.files[file as usize].name;
        let what = match full.host {
            Some(host) => format!(
                "host \"{}\" {}",
                self.network.hosts[host as usize].name, full.what
            ),
            None => full.what,
        };
        self.fail("full", format!("{who} file \"{name}\": {what}"));
    }
}
