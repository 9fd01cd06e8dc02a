//! Python names of the `tracefmt` crate.

use pyo3::prelude::*;

/// Adds this crate's functions and classes to `penstock._native`.
pub fn register(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
