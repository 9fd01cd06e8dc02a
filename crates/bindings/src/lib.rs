//! Python module `penstock._native`: one file per crate, each of which registers its own names.

use pyo3::prelude::*;

mod chunks;
mod disk;
mod epochs;
mod network;
mod pattern;
mod points;
mod probe;
mod relay;
mod replay;
mod sampler;
mod singles;
mod station;
mod tiles;
mod tracefmt;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    station::register(module)?;
    network::register(module)?;
    chunks::register(module)?;
    disk::register(module)?;
    probe::register(module)?;
    pattern::register(module)?;
    epochs::register(module)?;
    points::register(module)?;
    relay::register(module)?;
    replay::register(module)?;
    sampler::register(module)?;
    tracefmt::register(module)?;
    tiles::register(module)?;
    Ok(())
}
