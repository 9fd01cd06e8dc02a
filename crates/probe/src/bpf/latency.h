/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Structures shared by latency.bpf.c and its reader, also in latency.rs. */
#ifndef PENSTOCK_LATENCY_H
#define PENSTOCK_LATENCY_H

/*
 * Buckets are (lower, upper]. The first one ends at 2^10 ns. Each octave up to 2^36 ns (69 s) has eight, and the last
 * one has all longer times. So a bucket is at most an eighth of its lower bound wide.
 */
#define FIRST_OCTAVE 10
#define LAST_OCTAVE 36
#define PART_BITS 3
#define PARTS (1 << PART_BITS)
#define BUCKETS ((LAST_OCTAVE - FIRST_OCTAVE) * PARTS + 2)

#define OPERATIONS 4 /* in the numbering of the kernel: read, write, flush, discard */
#define SLOTS 512 /* pairs of device and operation */
#define TIMED 64 /* one run in TIMED measures its own time */

struct latency_histogram {
	__u32 disk; /* major << 20 | minor */
	__u32 op;
	__u64 device_ns; /* sums: issue to completion */
	__u64 queue_ns; /* the start of the request to its last issue */
	__u64 device[BUCKETS];
	__u64 queue[BUCKETS];
};

struct latency_control {
	__u32 slots; /* in use; may exceed SLOTS */
	__u32 pad;
	__u64 lost; /* requests without room, or without an observed completion */
	__u64 timed_runs; /* number of runs in the sample, one run in TIMED */
	__u64 timed_ns; /* their total time */
};

#endif
