//! Changes of a live disk: patches, which are applied at once, read back and recorded.
//!
//! A patch is a JSON object. An absent key changes nothing, `null` or `"max"` restores the default, and any
//! other value sets the key. The station has the keys `profile`, `limits`, `slow`, `readahead`, `cache`,
//! `servers` and `credits` ([`penstock_station::Patch`]). The disk has the keys `faults`, `bad_space`,
//! `read_only`, `full` and `fail_stop` ([`crate::faults`]), `volatile` and `power_cut` ([`crate::unsynced`]).

use std::sync::PoisonError;

use penstock_daemon::clock::now_ns;
use penstock_daemon::Error;
use penstock_station::{change, Change, Patch};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{json, Map, Value};

use crate::change::{Applied, Cause};
use crate::disk::Disk;
use crate::faults::{BadSpace, Fault, Faults};
use crate::timer::Timers;
use crate::unsynced::{CutMode, LIMIT_BYTES};

/// Maximum number of recorded changes. Beyond it, the oldest are dropped.
const MOST_EVENTS: usize = 100_000;

/// Options of a power cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PowerCut {
    /// Fate of unflushed data.
    pub mode: CutMode,
    /// Seed of the random draws of a torn cut.
    pub seed: u64,
}

fn power_cut<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PowerCut>, D::Error> {
    match Value::deserialize(from)? {
        Value::Null | Value::Bool(false) => Ok(None),
        Value::Bool(true) => Ok(Some(PowerCut::default())),
        other => serde_json::from_value(other)
            .map(Some)
            .map_err(D::Error::custom),
    }
}

/// Keys of the disk itself.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Own {
    #[serde(deserialize_with = "change")]
    faults: Change<Vec<Fault>>,
    #[serde(deserialize_with = "change")]
    bad_space: Change<BadSpace>,
    #[serde(deserialize_with = "change")]
    read_only: Change<bool>,
    #[serde(deserialize_with = "change")]
    full: Change<bool>,
    #[serde(deserialize_with = "change")]
    fail_stop: Change<bool>,
    #[serde(deserialize_with = "change")]
    volatile: Change<bool>,
    #[serde(deserialize_with = "power_cut")]
    power_cut: Option<PowerCut>,
}

const OWN_KEYS: [&str; 7] = [
    "faults",
    "bad_space",
    "read_only",
    "full",
    "fail_stop",
    "volatile",
    "power_cut",
];

/// A valid patch.
#[derive(Debug, Clone)]
pub struct DiskPatch {
    /// The patch as received.
    pub asked: Value,
    /// Cause of the change.
    pub cause: Cause,
    station: Patch,
    own: Own,
}

impl DiskPatch {
    /// Parse a patch. Refuse unknown keys and invalid values with a message.
    pub fn read(document: &Value) -> Result<Self, Error> {
        let bad = |why: String| Error::Bad(format!("patch: {why}"));
        let Value::Object(keys) = document else {
            return Err(bad(format!("{document}; an object is expected")));
        };
        let (mut station, mut own) = (Map::new(), Map::new());
        for (key, value) in keys {
            if Patch::KEYS.contains(&key.as_str()) {
                station.insert(key.clone(), value.clone());
            } else if OWN_KEYS.contains(&key.as_str()) {
                own.insert(key.clone(), value.clone());
            } else {
                let expected = [&Patch::KEYS[..], &OWN_KEYS[..]].concat().join(", ");
                return Err(bad(format!("key \"{key}\"; one of {expected} is expected")));
            }
        }
        let own: Own =
            serde_json::from_value(Value::Object(own)).map_err(|why| bad(why.to_string()))?;
        let station = Patch::from_json(&Value::Object(station).to_string())
            .map_err(|why| bad(why.message))?;
        if own.power_cut.is_some() && keys.len() > 1 {
            return Err(bad("power_cut stands alone in its patch".into()));
        }
        let patch = DiskPatch {
            asked: document.clone(),
            cause: Cause::new("request", ""),
            station,
            own,
        };
        patch
            .faults_over(&Faults::default())
            .validate()
            .map_err(bad)?;
        Ok(patch)
    }

    /// Power cut of the patch, if any.
    pub fn power_cut(&self) -> Option<PowerCut> {
        self.own.power_cut
    }

    fn faults_over(&self, faults: &Faults) -> Faults {
        let own = &self.own;
        let mut faults = faults.clone();
        if let Some(rules) = &own.faults {
            faults.faults = rules.clone().unwrap_or_default();
        }
        if let Some(bad_space) = &own.bad_space {
            faults.bad_space = bad_space.clone();
        }
        for (flag, switch) in [
            (&mut faults.read_only, own.read_only),
            (&mut faults.full, own.full),
            (&mut faults.fail_stop, own.fail_stop),
        ] {
            if let Some(switch) = switch {
                *flag = switch.unwrap_or(false);
            }
        }
        faults
    }
}

/// True if the values read back match the patch; `null` and `"max"` match any value.
fn agrees(requested: &Value, actual: &Value) -> bool {
    match (requested, actual) {
        (Value::Null, _) => true,
        (Value::String(word), _) if word == "max" => true,
        (Value::Object(requested), Value::Object(actual)) => requested
            .iter()
            .all(|(key, value)| agrees(value, actual.get(key).unwrap_or(&Value::Null))),
        (Value::Array(requested), Value::Array(actual)) => {
            requested.len() == actual.len()
                && requested.iter().zip(actual).all(|(a, f)| agrees(a, f))
        }
        (Value::Number(requested), Value::Number(actual)) => requested.as_f64() == actual.as_f64(),
        _ => requested == actual,
    }
}

impl Disk {
    /// Apply a patch now and read it back. Waiting requests that are due later follow the new speed.
    /// `planned_ns` is the planned time of the change.
    pub fn patch(&self, timers: &Timers, planned_ns: u64, patch: &DiskPatch) -> Applied {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut error = None;
        let applied_ns = {
            let mut state = self.state();
            let applied_ns = state.next_arrival_ns(now_ns());
            if !patch.station.is_empty() {
                match state.change(applied_ns, &patch.station) {
                    Ok(moved) => self.move_answers(&mut state, timers, moved),
                    Err(why) => error = Some(why.message),
                }
            }
            if error.is_none() {
                let faults = patch.faults_over(&self.gate.faults());
                self.gate.set_faults(faults);
            }
            applied_ns
        };
        if error.is_none() {
            if let Some(volatile) = patch.own.volatile {
                let on = volatile.unwrap_or(false);
                self.gate.set_volatile(on.then_some(LIMIT_BYTES));
            }
        }
        let actual = self.actual(&patch.asked);
        if error.is_none() && !agrees(&patch.asked, &actual) {
            error = Some("what was read back is not what was asked for".into());
        }
        let applied = Applied {
            planned_ns,
            applied_ns,
            verified_ns: now_ns(),
            asked: patch.asked.clone(),
            found: actual,
            error,
            active: self.active(),
            cause: patch.cause.clone(),
        };
        self.note(applied.clone());
        applied
    }

    /// Record a change.
    pub fn note(&self, applied: Applied) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() >= MOST_EVENTS {
            events.pop_front();
        }
        events.push_back(applied);
    }

    /// Recorded changes, oldest first.
    pub fn events(&self) -> Vec<Applied> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.iter().cloned().collect()
    }

    /// Current values of the keys of `requested`.
    fn actual(&self, requested: &Value) -> Value {
        let state = self.state();
        let (effective, changed) = (state.station.effective(), state.station.changed().clone());
        drop(state);
        let faults = self.gate.faults();
        let limits = || {
            let all = json!(effective.limits.unwrap_or_default());
            match requested.get("limits").and_then(Value::as_object) {
                Some(keys) => keys
                    .keys()
                    .map(|key| (key.clone(), all[key].clone()))
                    .collect(),
                None => all,
            }
        };
        let key = |key: &str| match key {
            // Compare by name, because a patch sets the profile as one value.
            "profile" => match requested[key].get("name") {
                Some(name) if *name == effective.name => requested[key].clone(),
                _ => json!(effective.name),
            },
            "limits" => limits(),
            "slow" => json!(changed.slow.flatten()),
            "readahead" => json!(changed.readahead.flatten().unwrap_or(true)),
            "cache" => json!(changed.cache.flatten().unwrap_or(true)),
            "servers" => json!(effective.servers),
            // With all fields, because the patch may contain default values.
            "credits" => json!(effective.credits.map(|credits| credits.in_full())),
            "faults" => json!(faults.faults),
            "bad_space" => json!(faults.bad_space),
            "read_only" => json!(faults.read_only),
            "full" => json!(faults.full),
            "fail_stop" => json!(faults.fail_stop),
            "volatile" => json!(self.gate.unsynced().is_some()),
            _ => Value::Null,
        };
        let keys = requested.as_object().into_iter().flat_map(Map::keys);
        keys.map(|name| (name.clone(), key(name))).collect()
    }

    /// Names of the settings in force besides the profile.
    pub fn active(&self) -> Vec<String> {
        let mut active = Vec::new();
        let state = self.state();
        let limits = state.station.effective().limits;
        let changed = json!(state.station.changed());
        drop(state);
        if let Value::Object(limits) = json!(limits.unwrap_or_default()) {
            active.extend(limits.keys().map(|key| format!("limits.{key}")));
        }
        for key in ["slow", "readahead", "cache", "servers", "credits"] {
            if !changed[key].is_null() && !is_over(key, &changed[key]) {
                active.push(key.to_owned());
            }
        }
        let faults = json!(*self.gate.faults());
        for (key, value) in faults.as_object().into_iter().flatten() {
            if !(value.is_null() || *value == json!(false) || *value == json!([])) {
                active.push(key.clone());
            }
        }
        if self.gate.unsynced().is_some() {
            active.push("volatile".to_owned());
        }
        active
    }

    /// Settings in force, for users and for the description of a disk.
    pub fn settings(&self) -> Value {
        let mut settings = {
            let state = self.state();
            let mut changed = json!(state.station.changed());
            changed["limits"] = json!(state.station.effective().limits);
            if let Some(keys) = changed.as_object_mut() {
                keys.remove("profile");
                keys.retain(|key, value| !is_over(key, value));
            }
            changed
        };
        if let (Some(settings), Value::Object(faults)) =
            (settings.as_object_mut(), json!(*self.gate.faults()))
        {
            settings.extend(faults);
            settings.insert("volatile".into(), json!(self.gate.unsynced().is_some()));
            settings.retain(|_, value| {
                !(value.is_null() || *value == json!(false) || *value == json!([]))
            });
        }
        settings
    }
}

/// True if the change restored the normal behaviour of the device.
fn is_over(key: &str, value: &Value) -> bool {
    key == "slow"
        && value["factor"] == json!(1.0)
        && ["stall", "random"].iter().all(|part| value[part].is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(patch: &Value) -> String {
        DiskPatch::read(patch).unwrap_err().to_string()
    }

    #[test]
    fn invalid_patches_are_refused_atomically() {
        assert!(refused(&json!({"limit": 3})).contains("one of profile, limits"));
        assert!(refused(&json!({"limits": {"read_bps": -1.0}})).contains("read_bps"));
        assert!(refused(&json!({"limits": {"reads": 1.0}})).contains("reads"));
        assert!(refused(&json!({"read_only": "yes"})).contains("yes"));
        assert!(refused(&json!({"bad_space": {"share": 2.0, "mode": "zero"}})).contains("share"));
        assert!(refused(&json!({"power_cut": true, "full": true})).contains("alone"));
        assert!(refused(&json!([1])).contains("object"));
    }

    #[test]
    fn absent_keys_keep_their_value_and_max_resets() {
        let read = |patch: Value| DiskPatch::read(&patch).unwrap();
        let first = read(json!({"read_only": true, "faults": [{"op": "read"}]}));
        let faults = first.faults_over(&Faults::default());
        assert!(faults.read_only && faults.faults.len() == 1);
        let second = read(json!({"faults": "max", "full": true})).faults_over(&faults);
        assert!(second.read_only && second.full && second.faults.is_empty());
        let third = read(json!({"read_only": null, "full": false})).faults_over(&second);
        assert!(!third.any());
    }

    #[test]
    fn ineffective_values_are_detected() {
        let requested = json!({"limits": {"read_bps": 1e6, "write_bps": "max"}, "servers": 2});
        let mut actual =
            json!({"limits": {"read_bps": 1_000_000, "write_bps": null}, "servers": 2});
        assert!(agrees(&requested, &actual));
        actual["servers"] = json!(1);
        assert!(!agrees(&requested, &actual));
        actual["servers"] = json!(2);
        actual["limits"]["read_bps"] = json!(999_999.0);
        assert!(!agrees(&requested, &actual));
    }
}
