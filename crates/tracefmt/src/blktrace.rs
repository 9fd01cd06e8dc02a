//! The binary files of blktrace, one per CPU.
