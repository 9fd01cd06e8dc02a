//! Platform: hosts, network, store (`penstock/network/1`; tables 2.1 and 3.1 of Costa 2014).

use penstock_station::StorageProfile;
use serde::Deserialize;

use super::choices::{
    Allocation, Fill, Forward, Inputs, ReadReplica, Replication, SchedulerKind, Sharing, Shuffle,
    Turn, Unit,
};
use super::number::{above_zero, at_least_zero, Duration};
use super::workload::PlacementKind;
use super::SimulationError;

/// Required value of the `schema` field of a network.
pub const NETWORK_SCHEMA: &str = "penstock/network/1";
const MAX_HOSTS: usize = 1 << 20;
const MAX_SERVERS: u32 = 65_536;

/// A platform as declared.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    pub schema: String,
    pub hosts: Vec<HostText>,
    #[serde(default)]
    pub fabric: Fabric,
    pub store: Store,
    #[serde(default)]
    pub protocol: Protocol,
    #[serde(default)]
    pub scheduler: Scheduler,
    #[serde(default)]
    pub launch: Launch,
    #[serde(default)]
    pub preprocess: Preprocess,
}

/// A machine: its network queues, and optionally client, storage and manager.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostText {
    pub name: String,
    #[serde(default)]
    pub group: Option<String>,
    #[serde(default)]
    pub rack: u32,
    pub network: Link,
    #[serde(default)]
    pub client: Option<Client>,
    #[serde(default)]
    pub storage: Option<Storage>,
    #[serde(default)]
    pub manager: Option<Manager>,
}

/// A host's two queues to the network and its loopback, bytes per second.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    pub out_bps: f64,
    pub in_bps: f64,
    pub loopback_bps: f64,
    #[serde(default)]
    pub latency_s: f64,
}

/// A service time: overhead in seconds plus seconds per byte.
#[derive(Debug, Clone)]
pub struct ServiceText {
    pub overhead: Duration,
    pub s_per_byte: f64,
}

impl Default for ServiceText {
    fn default() -> Self {
        ServiceText {
            overhead: Duration::default(),
            s_per_byte: 0.0,
        }
    }
}

impl<'de> Deserialize<'de> for ServiceText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::{self, value::MapAccessDeserializer, MapAccess, Visitor};
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Costs {
            #[serde(default)]
            overhead: Duration,
            #[serde(default)]
            s_per_byte: f64,
        }
        struct NumberOrMap;
        impl<'de> Visitor<'de> for NumberOrMap {
            type Value = ServiceText;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a number of seconds or {\"overhead\": …, \"s_per_byte\": …}")
            }
            fn visit_f64<E: de::Error>(self, value_s: f64) -> Result<ServiceText, E> {
                Ok(ServiceText {
                    overhead: Duration(penstock_station::Distribution::Constant { value_s }),
                    s_per_byte: 0.0,
                })
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<ServiceText, E> {
                self.visit_f64(value as f64)
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<ServiceText, E> {
                self.visit_f64(value as f64)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ServiceText, A::Error> {
                let full = Costs::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ServiceText {
                    overhead: full.overhead,
                    s_per_byte: full.s_per_byte,
                })
            }
        }
        deserializer.deserialize_any(NumberOrMap)
    }
}

fn one() -> u32 {
    1
}
fn full_speed() -> f64 {
    1.0
}

/// Client component, which runs tasks.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    #[serde(default = "one")]
    pub slots: u32,
    #[serde(default = "full_speed")]
    pub speed: f64,
    #[serde(default)]
    pub service: Option<ServiceText>,
}

/// Storage component: two service times and k servers, or a profile.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    #[serde(default)]
    pub read: Option<ServiceText>,
    #[serde(default)]
    pub write: Option<ServiceText>,
    #[serde(default)]
    pub servers: Option<u32>,
    #[serde(default)]
    pub profile: Option<Box<StorageProfile>>,
    #[serde(default)]
    pub seed: Option<u64>,
    #[serde(default)]
    pub capacity_bytes: Option<u64>,
}

/// Manager component, which has the metadata.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manager {
    pub service: ServiceText,
    #[serde(default = "one")]
    pub servers: u32,
}

/// Links that all hosts share.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    #[serde(default)]
    pub latency_s: f64,
    #[serde(default)]
    pub capacity_bps: Option<f64>,
    #[serde(default)]
    pub rack_uplink_bps: Option<f64>,
    #[serde(default)]
    pub sharing: Sharing,
}

/// Configuration of the store.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Store {
    pub chunk_bytes: u64,
    #[serde(default)]
    pub stripe_width: Option<u32>,
    #[serde(default = "one")]
    pub replicas: u32,
    #[serde(default)]
    pub replication: Replication,
    #[serde(default)]
    pub forward: Forward,
    #[serde(default = "striped")]
    pub placement: PlacementKind,
    #[serde(default)]
    pub shuffle: Shuffle,
    #[serde(default)]
    pub round_robin: Turn,
    #[serde(default)]
    pub placement_unit: Option<Unit>,
    #[serde(default)]
    pub window: Option<u32>,
    /// Additional time of a write for each other task that writes at the same time.
    #[serde(default)]
    pub write_contention_s: f64,
    #[serde(default)]
    pub allocation: Allocation,
    #[serde(default)]
    pub read_replica: ReadReplica,
}

fn striped() -> PlacementKind {
    PlacementKind::Striped
}

/// Sizes of messages.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Protocol {
    pub frame_bytes: u64,
    pub control_bytes: u64,
    pub merge_frames: bool,
}

impl Default for Protocol {
    fn default() -> Self {
        Protocol {
            frame_bytes: 65_536,
            control_bytes: 1024,
            merge_frames: true,
        }
    }
}

/// Configuration of the scheduler.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheduler {
    #[serde(default)]
    pub kind: SchedulerKind,
    /// Longest wait of a task for its preferred machine; `null`: no limit.
    #[serde(default = "not_at_all")]
    pub wait_s: Option<f64>,
    #[serde(default)]
    pub inputs: Inputs,
    #[serde(default)]
    pub fill: Fill,
}

fn not_at_all() -> Option<f64> {
    Some(0.0)
}

impl Default for Scheduler {
    fn default() -> Self {
        Scheduler {
            kind: SchedulerKind::Workqueue,
            wait_s: Some(0.0),
            inputs: Inputs::Read,
            fill: Fill::Spread,
        }
    }
}

/// Costs of starting a task (Costa 2014).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Launch {
    /// Time before each task's first operation, on its machine.
    pub overhead: Duration,
    /// Delay after the start of the run until a task without predecessors becomes ready.
    pub stagger: Duration,
    /// Time for each file with tags that the task writes, to set them before the task begins.
    pub tag: Duration,
    /// Time to locate the output of an earlier task, if the scheduler places tasks by data.
    pub locate: Duration,
}

/// Transformations of operations before the simulation.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Preprocess {
    pub aggregate: bool,
    pub cache_bytes: u64,
    pub prefetch_chunks: u64,
}

impl Default for Preprocess {
    fn default() -> Self {
        Preprocess {
            aggregate: true,
            cache_bytes: 0,
            prefetch_chunks: 0,
        }
    }
}

fn service(place: &str, service: &ServiceText) -> Result<(), String> {
    service.overhead.check(&format!("{place}.overhead"))?;
    at_least_zero(&format!("{place}.s_per_byte"), service.s_per_byte)
}

fn count(place: &str, value: u32) -> Result<(), String> {
    if value == 0 || value > MAX_SERVERS {
        return Err(format!(
            "{place} is {value}; 1 to {MAX_SERVERS} are expected"
        ));
    }
    Ok(())
}

impl Network {
    /// Read and check `penstock/network/1`.
    ///
    /// # Errors
    /// The text is not JSON, has an unknown field or an invalid number, or lacks a client, storage or a required
    /// manager.
    pub fn from_json(text: &str) -> Result<Self, SimulationError> {
        let network: Network =
            serde_json::from_str(text).map_err(|e| SimulationError(format!("network: {e}")))?;
        network.checked()
    }

    /// Return the network if it is valid.
    pub(super) fn checked(self) -> Result<Self, SimulationError> {
        self.check()
            .map_err(|e| SimulationError(format!("network: {e}")))?;
        Ok(self)
    }

    fn check(&self) -> Result<(), String> {
        if self.schema != NETWORK_SCHEMA {
            return Err(format!(
                "schema is \"{}\"; \"{NETWORK_SCHEMA}\" is expected",
                self.schema
            ));
        }
        if self.hosts.len() > MAX_HOSTS {
            return Err(format!(
                "{} hosts; at most {MAX_HOSTS} are expected",
                self.hosts.len()
            ));
        }
        let mut names = std::collections::HashSet::new();
        for host in &self.hosts {
            if !names.insert(&host.name) {
                return Err(format!("host \"{}\" is described twice", host.name));
            }
            check_host(host).map_err(|e| format!("host \"{}\": {e}", host.name))?;
        }
        let storage = self.hosts.iter().filter(|h| h.storage.is_some()).count();
        if storage == 0 {
            return Err("no host has storage; at least one storage host is expected".into());
        }
        if !self.hosts.iter().any(|h| h.client.is_some()) {
            return Err(
                "no host has a client; at least one host that runs tasks is expected".into(),
            );
        }
        if self.store.allocation == Allocation::Manager
            && !self.hosts.iter().any(|h| h.manager.is_some())
        {
            return Err(
                "no host has a manager; one is expected (or store.allocation \"none\")".into(),
            );
        }
        self.check_store(storage)?;
        at_least_zero("fabric.latency_s", self.fabric.latency_s)?;
        if let Some(rate) = self.fabric.capacity_bps {
            above_zero("fabric.capacity_bps", rate)?;
        }
        if let Some(rate) = self.fabric.rack_uplink_bps {
            above_zero("fabric.rack_uplink_bps", rate)?;
        }
        let protocol = &self.protocol;
        if protocol.frame_bytes == 0 || protocol.frame_bytes > 1 << 40 {
            return Err(format!(
                "protocol.frame_bytes is {}; 1 to 2^40 are expected",
                protocol.frame_bytes
            ));
        }
        if protocol.control_bytes > 1 << 40 {
            return Err(format!(
                "protocol.control_bytes is {}; at most 2^40 are expected",
                protocol.control_bytes
            ));
        }
        if let Some(wait_s) = self.scheduler.wait_s {
            at_least_zero("scheduler.wait_s", wait_s)?;
        }
        self.launch.overhead.check("launch.overhead")?;
        self.launch.stagger.check("launch.stagger")?;
        self.launch.tag.check("launch.tag")?;
        self.launch.locate.check("launch.locate")
    }

    fn check_store(&self, storage: usize) -> Result<(), String> {
        let store = &self.store;
        if store.chunk_bytes == 0 || store.chunk_bytes > 1 << 50 {
            return Err(format!(
                "store.chunk_bytes is {}; 1 to 2^50 are expected",
                store.chunk_bytes
            ));
        }
        within("store.stripe_width", store.stripe_width, storage)?;
        within("store.replicas", Some(store.replicas), storage)?;
        if store.placement == PlacementKind::Host {
            return Err("store.placement is host, which only a file's tags can name".into());
        }
        if store.placement_unit == Some(Unit::Bytes(0)) {
            return Err("store.placement_unit is 0; at least 1 is expected".into());
        }
        at_least_zero("store.write_contention_s", store.write_contention_s)?;
        if store.window == Some(0) {
            return Err("store.window is 0; at least 1 is expected (null for no limit)".into());
        }
        Ok(())
    }
}

/// Check that there are enough storage hosts for a width or a level.
pub(super) fn within(place: &str, value: Option<u32>, storage: usize) -> Result<(), String> {
    match value {
        Some(0) => Err(format!("{place} is 0; at least 1 is expected")),
        Some(n) if n as usize > storage => Err(format!(
            "{place} is {n}; there are only {storage} storage hosts"
        )),
        _ => Ok(()),
    }
}

fn check_host(host: &HostText) -> Result<(), String> {
    above_zero("network.out_bps", host.network.out_bps)?;
    above_zero("network.in_bps", host.network.in_bps)?;
    above_zero("network.loopback_bps", host.network.loopback_bps)?;
    at_least_zero("network.latency_s", host.network.latency_s)?;
    if let Some(client) = &host.client {
        count("client.slots", client.slots)?;
        above_zero("client.speed", client.speed)?;
        if let Some(text) = &client.service {
            service("client.service", text)?;
        }
    }
    if let Some(manager) = &host.manager {
        count("manager.servers", manager.servers)?;
        service("manager.service", &manager.service)?;
    }
    let Some(storage) = &host.storage else {
        return Ok(());
    };
    match (&storage.profile, &storage.read, &storage.write) {
        (Some(profile), None, None) => {
            if storage.servers.is_some() {
                return Err("storage.servers beside a profile; the profile has its own".into());
            }
            profile
                .validate()
                .map_err(|e| format!("storage.profile: {}", e.message))
        }
        (None, Some(read), Some(write)) => {
            if storage.seed.is_some() {
                return Err("storage.seed is for a profile; there is none".into());
            }
            count("storage.servers", storage.servers.unwrap_or(1))?;
            service("storage.read", read)?;
            service("storage.write", write)
        }
        _ => Err(
            "storage has neither read and write nor a profile alone; one of the two is expected"
                .into(),
        ),
    }
}
