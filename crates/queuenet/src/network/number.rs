//! Numbers in the JSON of workloads and networks.

use penstock_station::{Distribution, Sampler};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A duration in seconds, or a distribution of durations.
#[derive(Debug, Clone, PartialEq)]
pub struct Duration(pub Distribution);

impl Default for Duration {
    fn default() -> Self {
        Duration(Distribution::Constant { value_s: 0.0 })
    }
}

impl Duration {
    /// Check the distribution.
    pub fn check(&self, place: &str) -> Result<(), String> {
        match &self.0 {
            Distribution::Constant { value_s } => at_least_zero(place, *value_s),
            other => other.validate().map_err(|e| format!("{place}: {e}")),
        }
    }

    /// Compile the distribution for fast draws.
    pub fn sampler(&self) -> Sampler {
        self.0.sampler()
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrMap;
        impl<'de> Visitor<'de> for NumberOrMap {
            type Value = Duration;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a number of seconds or a distribution {\"kind\": …}")
            }
            fn visit_f64<E: de::Error>(self, value_s: f64) -> Result<Duration, E> {
                Ok(Duration(Distribution::Constant { value_s }))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Duration, E> {
                self.visit_f64(value as f64)
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Duration, E> {
                self.visit_f64(value as f64)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Duration, A::Error> {
                Distribution::deserialize(de::value::MapAccessDeserializer::new(map)).map(Duration)
            }
        }
        deserializer.deserialize_any(NumberOrMap)
    }
}

/// Check a time or cost: finite and not negative.
pub fn at_least_zero(place: &str, value: f64) -> Result<(), String> {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(format!(
            "{place} is {value}; a finite number of at least 0 is expected"
        ))
    }
}

/// Check a rate or speed: finite and above zero.
pub fn above_zero(place: &str, value: f64) -> Result<(), String> {
    if value.is_finite() && value > 0.0 {
        Ok(())
    } else {
        Err(format!(
            "{place} is {value}; a finite number above 0 is expected"
        ))
    }
}
