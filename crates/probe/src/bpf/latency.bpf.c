// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Latency of requests to block devices: cumulative histograms by device and operation.
 *
 * A request is identified by its address from its issue to its completion. If the device requeues it, it is issued
 * again, and the last issue counts: the time before is queue time. The kernel itself records the start of a request
 * (start_time_ns, also used by /proc/diskstats), unless accounting is off for its queue.
 *
 * Completions run in interrupts, so nothing here uses the current task.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "block.h"
#include "latency.h"

_Static_assert(sizeof(struct latency_histogram) == 24 + 16 * BUCKETS, "latency.rs reads histograms of this size");
_Static_assert(sizeof(struct latency_control) == 32, "latency.rs reads a control block of this size");

struct disk_and_op {
	__u32 disk;
	__u32 op;
};

/* began_ns distinguishes a request from the next one at its address; 0: not recorded, the queue has accounting off. */
struct issue {
	__u64 issued_ns;
	__u64 began_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct issue);
} issues SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SLOTS);
	__type(key, struct disk_and_op);
	__type(value, __u32);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct latency_histogram);
} histograms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct latency_control);
} control SEC(".maps");

static __always_inline struct latency_control *the_control(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&control, &only);
}

static __always_inline void lose(void)
{
	struct latency_control *told = the_control();

	if (told)
		__sync_fetch_and_add(&told->lost, 1);
}

/* Measure one run in TIMED, selected by a hash of the clock. */
static __always_inline void account(__u64 began_ns)
{
	struct latency_control *told;

	if ((began_ns * 0x9e3779b97f4a7c15ULL) >> 58)
		return;
	told = the_control();
	if (!told)
		return;
	__sync_fetch_and_add(&told->timed_runs, 1);
	__sync_fetch_and_add(&told->timed_ns, bpf_ktime_get_ns() - began_ns);
}

static __always_inline __u32 octave_of(__u64 value)
{
	__u32 octave = 0;

	if (value >> 32) {
		value >>= 32;
		octave += 32;
	}
	if (value >> 16) {
		value >>= 16;
		octave += 16;
	}
	if (value >> 8) {
		value >>= 8;
		octave += 8;
	}
	if (value >> 4) {
		value >>= 4;
		octave += 4;
	}
	if (value >> 2) {
		value >>= 2;
		octave += 2;
	}
	return octave + (value >> 1);
}

/* Same as bucket_of in latency.rs. */
static __always_inline __u32 bucket_of(__u64 ns)
{
	__u64 value = ns ? ns - 1 : 0;
	__u32 octave;

	if (!(value >> FIRST_OCTAVE))
		return 0;
	if (value >> LAST_OCTAVE)
		return BUCKETS - 1;
	octave = octave_of(value);
	return 1 + (octave - FIRST_OCTAVE) * PARTS + ((value >> (octave - PART_BITS)) & (PARTS - 1));
}

static __always_inline struct latency_histogram *histogram_of(struct disk_and_op which)
{
	struct latency_histogram *histogram;
	struct latency_control *told;
	__u32 *slot = bpf_map_lookup_elem(&slots, &which), fresh;

	if (slot)
		return bpf_map_lookup_elem(&histograms, slot);
	told = the_control();
	if (!told || told->slots >= SLOTS)
		return NULL;
	fresh = __sync_fetch_and_add(&told->slots, 1);
	histogram = bpf_map_lookup_elem(&histograms, &fresh);
	if (!histogram)
		return NULL;
	histogram->disk = which.disk;
	histogram->op = which.op;
	/* if another CPU was first, this histogram stays empty */
	bpf_map_update_elem(&slots, &which, &fresh, BPF_NOEXIST);
	slot = bpf_map_lookup_elem(&slots, &which);
	return slot ? bpf_map_lookup_elem(&histograms, slot) : NULL;
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(latency_issued, struct request *request)
{
	struct issue issue = { .issued_ns = bpf_ktime_get_ns(), .began_ns = request->start_time_ns };
	__u64 key = (__u64)request;
	struct issue *before;

	if ((request->cmd_flags & 0xff) >= OPERATIONS)
		return 0;
	before = bpf_map_lookup_elem(&issues, &key);
	if (before && before->began_ns != issue.began_ns)
		lose(); /* an earlier request, whose completion was not observed */
	if (bpf_map_update_elem(&issues, &key, &issue, BPF_ANY))
		lose();
	account(issue.issued_ns);
	return 0;
}

static __always_inline int completed(struct request *request, unsigned int bytes)
{
	__u64 key = (__u64)request, now, device, queue;
	struct latency_histogram *histogram;
	struct disk_and_op which = {};
	struct gendisk *disk;
	struct issue *noted, issue;
	__u32 bucket;

	noted = bpf_map_lookup_elem(&issues, &key);
	if (!noted || bytes < request->__data_len)
		return 0; /* issue not observed, or a partial completion */
	now = bpf_ktime_get_ns();
	issue = *noted;
	bpf_map_delete_elem(&issues, &key);
	if (issue.began_ns != request->start_time_ns) {
		lose(); /* issue not observed, as for an empty write with a flush; the earlier request at this address is lost */
		return 0;
	}
	which.op = request->cmd_flags & 0xff;
	disk = request->q->disk;
	if (which.op >= OPERATIONS || !disk)
		return 0;
	which.disk = ((__u32)disk->major << 20) | (__u32)disk->first_minor;
	histogram = histogram_of(which);
	if (!histogram) {
		lose();
		return 0;
	}
	device = now > issue.issued_ns ? now - issue.issued_ns : 0;
	bucket = bucket_of(device);
	if (bucket < BUCKETS)
		__sync_fetch_and_add(&histogram->device[bucket], 1);
	__sync_fetch_and_add(&histogram->device_ns, device);
	if (issue.began_ns) {
		queue = issue.issued_ns > issue.began_ns ? issue.issued_ns - issue.began_ns : 0;
		bucket = bucket_of(queue);
		if (bucket < BUCKETS)
			__sync_fetch_and_add(&histogram->queue[bucket], 1);
		__sync_fetch_and_add(&histogram->queue_ns, queue);
	}
	account(now);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(latency_completed, struct request *request, int status, unsigned int bytes)
{
	return completed(request, bytes);
}

/*
 * The kernel skips a program if an interrupt occurs while it runs on that CPU. For example, the device's interrupt may
 * occur during completions in a softirq. This second program runs in that case; else it finds the request counted.
 */
SEC("tp_btf/block_rq_complete")
int BPF_PROG(latency_completed_meanwhile, struct request *request, int status, unsigned int bytes)
{
	return completed(request, bytes);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
