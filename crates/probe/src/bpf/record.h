/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* One operation into the ring, or into the counters of its stream. */
#ifndef PENSTOCK_RECORD_H
#define PENSTOCK_RECORD_H

#include "maps.h"
#include "streams.h"

/* One finished operation on a regular file, wherever it was seen. */
struct call {
	__u64 start_ns; /* 0 in mode pattern: its latency is not in the sample */
	__u64 now_ns; /* its end; 0 as above */
	__u64 asked_bytes;
	__s64 offset_bytes;
	__s64 result; /* bytes done, or -errno */
	__u32 tid;
	__u32 pid;
	__u16 slot; /* of the control group */
	__u8 op;
	__u8 flags;
};

/*
 * Keeps a call as the mode says and balances the ledger: exactly one of kept and lost_* grows. To be called
 * in the context of a task, with preemption off, after `seen` was counted.
 */
static __always_inline void record(struct call *call, struct known_file *known, struct task_struct *task,
				   struct ledger *ledger, __u32 cpu)
{
	__u32 key, direction = call->op >= FIRST_WRITE;
	struct event *event;
	__u64 index;

	if (patterns_only) {
		struct stream *stream;

		if (known->stream[direction] == NO_STREAM)
			known->stream[direction] = stream_number(known->file_id, task, direction);
		key = known->stream[direction];
		stream = bpf_map_lookup_elem(&streams, &key);
		if (!stream) {
			ledger->lost_storage++;
			return;
		}
		count(stream, call->offset_bytes, call->asked_bytes, call->result, call->start_ns, call->now_ns);
		ledger->kept++;
		return;
	}

	if (control.drop_every && (ledger->seen % control.drop_every) == 0) {
		ledger->lost_planted++;
		return;
	}
	index = ledger->head;
	if (index - ledger->tail > ring_mask) {
		ledger->lost_ring++;
		return;
	}
	key = cpu * (ring_mask + 1) + (index & ring_mask);
	event = bpf_map_lookup_elem(&rings, &key);
	if (!event)
		return;
	event->t_ns = call->start_ns;
	event->offset_bytes = call->offset_bytes;
	event->latency_ns = call->now_ns - call->start_ns;
	event->size_bytes = call->asked_bytes > 0xffffffff ? 0xffffffff : call->asked_bytes;
	event->done_bytes = call->result;
	event->file_id = known->file_id;
	event->tid = call->tid;
	event->pid = call->pid;
	event->op = call->op;
	event->flags = call->flags;
	event->cgroup_slot = call->slot;
	/* x86 keeps stores in order: the record is there before the head says so */
	asm volatile("" ::: "memory");
	ledger->head = index + 1;
	ledger->kept++;
}

#endif
