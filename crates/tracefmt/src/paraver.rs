//! Paraver `.prv`, `.pcf` and `.row`.
