//! fio's I/O log, written (v3) and read (v2, v3).
