/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Mode pattern: what one thread does to one file in one direction, as counters. */
#ifndef PENSTOCK_STREAMS_H
#define PENSTOCK_STREAMS_H

#include "maps.h"

static __always_inline __u32 log2_of(__u32 value)
{
	__u32 result = 0;

	if (value >> 16) { value >>= 16; result += 16; }
	if (value >> 8) { value >>= 8; result += 8; }
	if (value >> 4) { value >>= 4; result += 4; }
	if (value >> 2) { value >>= 2; result += 2; }
	return result + (value >> 1);
}

static __noinline __u32 stream_number(__u32 file_id, struct task_struct *task, __u32 direction)
{
	struct stream_key key = { .file_id = file_id, .tid = task->pid, .direction = direction };
	__u32 *found = bpf_map_lookup_elem(&stream_numbers, &key);
	struct stream *stream;
	__u32 number;

	if (found)
		return *found;
	number = __sync_fetch_and_add(&control.next_stream, 1);
	if (number >= stream_count || bpf_map_update_elem(&stream_numbers, &key, &number, BPF_ANY))
		return NO_STREAM;
	stream = bpf_map_lookup_elem(&streams, &number);
	if (!stream)
		return NO_STREAM;
	stream->file_id = file_id;
	stream->tid = key.tid;
	stream->pid = task->tgid;
	stream->direction = direction;
	stream->first_ns = bpf_ktime_get_ns();
	return number;
}

/* Only the stream's own thread writes it, so nothing here needs to be atomic. */
static __always_inline void count(struct stream *s, __s64 offset, __u64 asked, __s64 done, __u64 start,
				  __u64 now)
{
	__u32 size = done > 0 ? done : 0;
	__s64 end = offset + size, distance;
	bool chained = false;
	__u32 class, i;

	if (start) {
		s->sampled++;
		s->sampled_ns += now - start;
		s->last_ns = now;
	}
	s->asked_bytes += asked;
	if (done < 0) {
		s->errors++;
		return;
	}
	s->done_bytes += size;
	class = log2_of(size);
	if (class < SIZE_CLASSES)
		s->size_class[class]++;
	if (s->requests++ == 0) {
		s->lowest = offset;
		s->highest = end;
		s->chain_end[0] = end;
		s->chain_requests[0] = 1;
		s->chain_next = 1;
	} else {
		distance = offset - s->last_end;
		if (distance >= 0) {
			s->forward++;
			if (distance <= NEAR_BYTES || distance <= 8 * (__s64)size)
				s->near++;
			if (distance == 0)
				s->consecutive++;
		} else if (end == s->last_offset) {
			s->reverse++;
		}
		if (offset - s->last_offset == s->last_step)
			s->same_step++;
		s->last_step = offset - s->last_offset;
		if (offset < s->lowest)
			s->lowest = offset;
		if (end > s->highest)
			s->highest = end;
#pragma unroll
		for (i = 0; i < CHAINS; i++) {
			if (!chained && s->chain_end[i] == (__u64)offset && s->chain_requests[i]) {
				s->chain_end[i] = end;
				s->chain_requests[i]++;
				chained = true;
			}
		}
		if (chained) {
			s->chained++;
		} else {
			i = s->chain_next++ & (CHAINS - 1);
			s->chain_end[i] = end;
			s->chain_requests[i] = 1;
		}
	}
	s->last_offset = offset;
	s->last_end = end;
	s->last_size = size;
}

#endif
