/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What latency.bpf.c and its reader share; the same in latency.rs. */
#ifndef PENSTOCK_LATENCY_H
#define PENSTOCK_LATENCY_H

/*
 * Buckets are (lower, upper]: the first one to 2^10 ns, then eight in each octave to 2^36 ns (69 s), and the last
 * one for what is longer. So a bucket is at most an eighth of its lower end wide.
 */
#define FIRST_OCTAVE 10
#define LAST_OCTAVE 36
#define PART_BITS 3
#define PARTS (1 << PART_BITS)
#define BUCKETS ((LAST_OCTAVE - FIRST_OCTAVE) * PARTS + 2)

#define OPERATIONS 4 /* as the kernel numbers them: read, write, flush, discard */
#define SLOTS 512 /* pairs of device and operation */
#define TIMED 64 /* one run in so many takes its own time */

struct latency_histogram {
	__u32 disk; /* major << 20 | minor */
	__u32 op;
	__u64 device_ns; /* sums: issue to completion */
	__u64 queue_ns; /* the request's beginning to its last issue */
	__u64 device[BUCKETS];
	__u64 queue[BUCKETS];
};

struct latency_control {
	__u32 slots; /* taken; may pass SLOTS */
	__u32 pad;
	__u64 lost; /* requests without room, or whose completion was not told */
	__u64 timed_runs; /* of our programs, one run in TIMED */
	__u64 timed_ns; /* what those took */
};

#endif
