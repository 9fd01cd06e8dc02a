//! Changes to a running device.

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};

use crate::profile::{InvalidProfile, StorageProfile};
use crate::shape::{above_zero, Credits, Limits, Slow};

/// A key of a patch. An absent key changes nothing, `null` or `"max"` restores the default, a value sets it.
pub type Change<T> = Option<Option<T>>;

/// Deserialize a key of a patch, for `deserialize_with` together with `default`.
///
/// # Errors
/// The value has another type.
pub fn change<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    from: D,
) -> Result<Change<T>, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    if value.is_null() || value == "max" {
        return Ok(Some(None));
    }
    serde_json::from_value(value)
        .map(|value| Some(Some(value)))
        .map_err(D::Error::custom)
}

/// Changes to limits, each independent of the others. `null` or `"max"` removes a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsPatch {
    /// Bytes read per second.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub read_bps: Change<f64>,
    /// Bytes written per second.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub write_bps: Change<f64>,
    /// Reads per second.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub read_iops: Change<f64>,
    /// Writes per second.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub write_iops: Change<f64>,
    /// Time that each limit can catch up after a pause, seconds; `null` restores the default.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub burst_s: Change<f64>,
}

impl LimitsPatch {
    fn each(&mut self) -> [&mut Change<f64>; 5] {
        [
            &mut self.read_bps,
            &mut self.write_bps,
            &mut self.read_iops,
            &mut self.write_iops,
            &mut self.burst_s,
        ]
    }

    /// Combine these changes with `later` ones, which have precedence.
    #[must_use]
    pub fn then(mut self, mut later: LimitsPatch) -> LimitsPatch {
        for (current, later) in self.each().into_iter().zip(later.each()) {
            if later.is_some() {
                *current = *later;
            }
        }
        self
    }

    /// Limits of a profile after these changes.
    #[must_use]
    pub fn over(self, limits: Limits) -> Limits {
        Limits {
            read_bps: self.read_bps.unwrap_or(limits.read_bps),
            write_bps: self.write_bps.unwrap_or(limits.write_bps),
            read_iops: self.read_iops.unwrap_or(limits.read_iops),
            write_iops: self.write_iops.unwrap_or(limits.write_iops),
            burst_s: self.burst_s.unwrap_or(limits.burst_s),
        }
    }
}

/// A change to the device. An absent key changes nothing.
///
/// `null` or `"max"` restores a default: no limits, no slowness, the profile's credits, servers, read-ahead and cache,
/// or the device's initial profile.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Patch {
    /// Another profile. Limits, slowness and the other keys do not change.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub profile: Change<Box<StorageProfile>>,
    /// Upper limits.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub limits: Change<LimitsPatch>,
    /// Slowness of a failing device.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub slow: Change<Slow>,
    /// True if the device reads ahead.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub readahead: Change<bool>,
    /// True if the device uses its write cache.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub cache: Change<bool>,
    /// Number of requests served in parallel.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub servers: Change<usize>,
    /// Credits.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub credits: Change<Credits>,
}

impl Patch {
    /// Keys of a patch that apply to the station.
    pub const KEYS: [&'static str; 7] = [
        "profile",
        "limits",
        "slow",
        "readahead",
        "cache",
        "servers",
        "credits",
    ];

    /// Read and validate a patch.
    ///
    /// # Errors
    /// The text is not JSON, a key is unknown, or a number is invalid.
    pub fn from_json(text: &str) -> Result<Self, InvalidProfile> {
        let patch: Patch = serde_json::from_str(text).map_err(|e| e.to_string())?;
        patch.validate()?;
        Ok(patch)
    }

    /// Check all numbers.
    ///
    /// # Errors
    /// The first invalid number, with the path of its key.
    pub fn validate(&self) -> Result<(), InvalidProfile> {
        if let Some(Some(profile)) = &self.profile {
            profile.validate().map_err(|e| format!("profile.{e}"))?;
        }
        if let Some(Some(limits)) = &self.limits {
            let limits = limits.over(Limits::default());
            limits.validate().map_err(|e| format!("limits.{e}"))?;
        }
        if let Some(Some(slow)) = &self.slow {
            slow.validate().map_err(|e| format!("slow.{e}"))?;
        }
        if let Some(Some(credits)) = &self.credits {
            credits.validate().map_err(|e| format!("credits.{e}"))?;
        }
        if let Some(Some(servers)) = self.servers {
            above_zero("servers", Some(servers as f64))?;
            if servers > crate::profile::MAX_SERVERS {
                return Err(format!(
                    "servers is {servers}; at most {} is expected",
                    crate::profile::MAX_SERVERS
                )
                .into());
            }
        }
        Ok(())
    }

    /// True if the patch changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Patch::default()
    }
}

/// Current settings of a device: its initial profile and the changes since.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The initial profile.
    first: StorageProfile,
    profile: StorageProfile,
    patched: Patch,
}

impl Settings {
    pub fn new(profile: &StorageProfile) -> Settings {
        Settings {
            first: profile.clone(),
            profile: profile.clone(),
            patched: Patch::default(),
        }
    }

    /// Apply a valid patch at `t_ns`.
    pub fn take(&mut self, t_ns: u64, patch: &Patch) {
        let patched = &mut self.patched;
        match &patch.profile {
            None => {}
            Some(Some(profile)) => {
                self.profile = profile.as_ref().clone();
                patched.profile = patch.profile.clone();
            }
            Some(None) => {
                self.profile = self.first.clone();
                patched.profile = None;
            }
        }
        match patch.limits {
            None => {}
            Some(Some(limits)) => {
                let before = patched.limits.flatten().unwrap_or_default();
                patched.limits = Some(Some(before.then(limits)));
            }
            Some(None) => {
                let off = Some(None);
                patched.limits = Some(Some(LimitsPatch {
                    read_bps: off,
                    write_bps: off,
                    read_iops: off,
                    write_iops: off,
                    burst_s: off,
                }));
            }
        }
        if let Some(slow) = patch.slow {
            patched.slow = slow.map(|slow| {
                Some(Slow {
                    since_ns: Some(slow.since_ns.unwrap_or(t_ns)),
                    ..slow
                })
            });
        }
        keep(&mut patched.readahead, patch.readahead);
        keep(&mut patched.cache, patch.cache);
        keep(&mut patched.servers, patch.servers);
        keep(&mut patched.credits, patch.credits);
    }

    /// The profile after all changes, from which the station is compiled.
    pub fn effective(&self) -> StorageProfile {
        let mut profile = self.profile.clone();
        let patched = &self.patched;
        let own = profile.limits.unwrap_or_default();
        profile.limits = match patched.limits.flatten() {
            Some(limits) => Some(limits.over(own)),
            None => profile.limits,
        };
        if let Some(credits) = patched.credits.flatten() {
            profile.credits = Some(credits);
        }
        if let Some(servers) = patched.servers.flatten() {
            profile.servers = servers;
        }
        if patched.cache.flatten() == Some(false) {
            profile.write_cache = None;
        }
        profile
    }

    pub fn slow(&self) -> Option<Slow> {
        self.patched.slow.flatten()
    }

    pub fn reads_ahead(&self) -> bool {
        self.patched.readahead.flatten() != Some(false)
    }

    /// All changes as one patch.
    pub fn patched(&self) -> &Patch {
        &self.patched
    }
}

/// Apply a change to the accumulated one; `null` removes it.
fn keep<T: Copy>(accumulated: &mut Change<T>, change: Change<T>) {
    if let Some(value) = change {
        *accumulated = value.map(Some);
    }
}
