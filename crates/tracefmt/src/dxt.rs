//! The text of darshan-dxt-parser.
