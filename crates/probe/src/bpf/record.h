/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Recording of one operation: into the ring, or into the counters of its stream. */
#ifndef PENSTOCK_RECORD_H
#define PENSTOCK_RECORD_H

#include "books.h"
#include "epochs.h"
#include "filter.h"

/* One completed operation on a file or block device, from any source. */
struct call {
	__u64 start_ns; /* 0 in mode pattern: no latency sample of this call */
	__u64 now_ns; /* end; 0 as above */
	__u64 asked_bytes;
	__s64 offset_bytes;
	__s64 result; /* bytes done, or -errno */
	__u32 tid;
	__u32 pid;
	__u16 slot; /* of the control group */
	__u8 op;
	__u8 flags;
};

static __always_inline void fill(struct event *event, const struct call *call, __u32 file_id)
{
	event->t_ns = call->start_ns;
	event->offset_bytes = call->offset_bytes;
	event->latency_ns = call->now_ns - call->start_ns;
	event->size_bytes = call->asked_bytes > 0xffffffff ? 0xffffffff : call->asked_bytes;
	event->done_bytes = call->result;
	event->file_id = file_id;
	event->tid = call->tid;
	event->pid = call->pid;
	event->op = call->op;
	event->flags = call->flags;
	event->cgroup_slot = call->slot;
}

/*
 * Record without the CPU's own ring: if the ring is in use, and in mode pattern if no stream is free. Slower, but safe
 * in any context. A call whose time was not measured has latency 0.
 */
static __noinline int record_aside(struct call *call, __u32 file_id, struct books *books, __u32 source)
{
	struct event event;

	if (source >= SOURCES)
		return 0;
	fill(&event, call, file_id);
	if (patterns_only && !event.t_ns)
		event.t_ns = bpf_ktime_get_ns();
	if (bpf_ringbuf_output(&overflow, &event, sizeof(event), BPF_RB_NO_WAKEUP)) {
		COUNT(books, source, lost_ring);
		return 0;
	}
	tally(books, &books->ledger->overflowed);
	COUNT(books, source, kept);
	return 0;
}

/* Count in the stream of both directions. Not static, so that the verifier checks it once. */
__noinline int count_jointly(__u32 number, __u32 op_and_flags, __s64 offset, __s64 done, __u64 now)
{
	struct stream *stream = bpf_map_lookup_elem(&streams, &number);

	if (stream && done > 0)
		count(stream, op_and_flags & 0xff, op_and_flags >> 8, offset, done, 0, now);
	return 0;
}

/* Mode count. Atomic if a lane serves several CPUs, or if a CPU may be interrupted. */
static __always_inline void count_call(const struct call *call, __u32 file_id, struct books *books,
				       __u32 source)
{
	__u32 direction = call->op >= FIRST_WRITE;
	__u32 key = (2 * file_id + direction) * lanes + (books->cpu & (lanes - 1));
	struct counter *counter = bpf_map_lookup_elem(&counters, &key);
	__u64 done = call->result > 0 ? call->result : 0;

	if (!counter) {
		COUNT(books, source, lost_storage);
		return;
	}
	if (interruptible || lanes < cpu_count) {
		__sync_fetch_and_add(&counter->calls, 1);
		__sync_fetch_and_add(&counter->asked_bytes, call->asked_bytes);
		__sync_fetch_and_add(&counter->done_bytes, done);
		if (call->result < 0)
			__sync_fetch_and_add(&counter->errors, 1);
	} else {
		counter->calls++;
		counter->asked_bytes += call->asked_bytes;
		counter->done_bytes += done;
		counter->errors += call->result < 0;
	}
	COUNT(books, source, kept);
}

/*
 * True if the operation is counted in its stream although events are recorded. Only for sources that report in the
 * order and thread of the requests: completions and faults of cold files stay events. `source` is a constant.
 */
static __always_inline bool is_cold(__u32 file_id, __u32 op, __u32 source)
{
	__u32 word = file_id / 64;
	__u64 *bits;

	if (!hot_files || (source != SOURCE_CALLS && source != SOURCE_RARE) || op >= FIRST_SYNC)
		return false;
	bits = bpf_map_lookup_elem(&cold_files, &word);
	return bits && (*bits >> (file_id & 63)) & 1;
}

/*
 * Record or count a call, depending on the mode, and balance the source's counts: exactly one of kept, filtered and
 * lost_* is incremented. Call it with the books open, after counting `seen`. `source` is a constant.
 */
static __always_inline void record(struct call *call, struct known_file *known, struct task_struct *task,
				   struct books *books, __u32 source)
{
	__u32 key, kind;
	struct ledger *ledger = books->ledger;
	struct event *event;
	__u64 index;

	if (left_out(known->file_id, call->op)) {
		COUNT(books, source, filtered);
		return;
	}
	if (counts_only) {
		count_call(call, known->file_id, books, source);
		return;
	}
	if (patterns_only || is_cold(known->file_id, call->op, source)) {
		struct stream *stream;

		kind = stream_kind(call->op);
		if (known->stream[kind] == NO_STREAM && known->file_id)
			known->stream[kind] = stream_number(known->file_id, kind);
		key = known->stream[kind];
		stream = bpf_map_lookup_elem(&streams, &key);
		if (stream) {
			count(stream, call->op, call->flags, call->offset_bytes, call->result, call->start_ns,
			      call->now_ns);
			COUNT(books, source, kept);
			if (stream->joint)
				count_jointly(stream->joint - 1, call->op | (__u32)call->flags << 8,
					      call->offset_bytes, call->result, call->now_ns);
			return;
		}
		if (patterns_only) {
			if (known->file_id)
				record_aside(call, known->file_id, books, source);
			else
				COUNT(books, source, lost_storage);
			return;
		}
	}

	if (control.drop_every && (ledger->sources[source].seen % control.drop_every) == 0) {
		COUNT(books, source, lost_planted);
		return;
	}
	if (interruptible && books->shared) {
		record_aside(call, known->file_id, books, source);
		return;
	}
	index = ledger->head;
	key = books->cpu * (ring_mask + 1) + (index & ring_mask);
	event = index - ledger->tail > ring_mask ? NULL : bpf_map_lookup_elem(&rings, &key);
	if (!event) {
		COUNT(books, source, lost_ring);
		return;
	}
	fill(event, call, known->file_id);
	/* x86 preserves the order of stores: the record is visible before the new head */
	asm volatile("" ::: "memory");
	ledger->head = index + 1;
	COUNT(books, source, kept);
}

#endif
