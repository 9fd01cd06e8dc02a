//! Changes of a device while it is at work.

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};

use crate::profile::{InvalidProfile, StorageProfile};
use crate::shape::{above_zero, Credits, Limits, Slow};

/// A key of a patch: absent leaves things as they are, `null` or `"max"` puts them back, a value sets them.
pub type Change<T> = Option<Option<T>>;

/// Reads a key of a patch; for `deserialize_with`, beside `default`.
///
/// # Errors
/// For a value that is none of its kind.
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

/// Changes of limits, each for itself; `null` or `"max"`: no limit.
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
    /// How much time each may catch up after a pause, seconds; `null`: the usual.
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

    /// These changes, and after them `later` ones.
    #[must_use]
    pub fn then(mut self, mut later: LimitsPatch) -> LimitsPatch {
        for (mine, later) in self.each().into_iter().zip(later.each()) {
            if later.is_some() {
                *mine = *later;
            }
        }
        self
    }

    /// The limits of a profile with these changes.
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

/// A change of the device: every key absent leaves things as they are.
///
/// `null` or `"max"` puts back: no limits, not slow; credits, servers, readahead and cache as the profile says; the
/// profile that the device began with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Patch {
    /// Another device. Limits, slowness and the other keys stay as they are.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub profile: Change<Box<StorageProfile>>,
    /// Upper limits.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub limits: Change<LimitsPatch>,
    /// Fail-slow.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub slow: Change<Slow>,
    /// Whether the device reads ahead.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub readahead: Change<bool>,
    /// Whether the device uses its write cache.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub cache: Change<bool>,
    /// How many requests are served at the same time.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub servers: Change<usize>,
    /// Credits.
    #[serde(deserialize_with = "change", skip_serializing_if = "Option::is_none")]
    pub credits: Change<Credits>,
}

impl Patch {
    /// The keys of a patch that concern the station.
    pub const KEYS: [&'static str; 7] = [
        "profile",
        "limits",
        "slow",
        "readahead",
        "cache",
        "servers",
        "credits",
    ];

    /// Reads and validates a patch.
    ///
    /// # Errors
    /// Not JSON, an unknown key, or a number that makes no sense.
    pub fn from_json(text: &str) -> Result<Self, InvalidProfile> {
        let patch: Patch = serde_json::from_str(text).map_err(|e| e.to_string())?;
        patch.validate()?;
        Ok(patch)
    }

    /// Checks every number.
    ///
    /// # Errors
    /// The first mistake, with the path of its key.
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

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Patch::default()
    }
}

/// What a device is at the moment: a profile and what was changed since.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The profile that it began with.
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

    /// Takes a valid patch over, at `t_ns`.
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

    /// The profile as changed: what the station is compiled from.
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

    /// Everything that was changed, in one patch.
    pub fn patched(&self) -> &Patch {
        &self.patched
    }
}

/// `null` undoes an earlier change.
fn keep<T: Copy>(kept: &mut Change<T>, change: Change<T>) {
    if let Some(value) = change {
        *kept = value.map(Some);
    }
}
