//! Python names of `tracefmt::tiles`.

use pyo3::prelude::*;

/// Adds the functions and classes of density tiles to `penstock._native`.
pub fn register(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
