//! Density tiles of offset figures.
