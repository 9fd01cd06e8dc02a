/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Mode pattern: accesses of one thread to one file in one direction, as counts per epoch.
 *
 * An epoch ends after epoch_requests() requests, or when its page of block samples is full. It is sent through a ring
 * buffer, and the counts restart. If the buffer is full, the epoch continues, so that nothing is lost. User space reads
 * the epochs that are incomplete at the end from the maps.
 *
 * Only the stream's own thread writes to it, so nothing here needs to be atomic.
 */
#ifndef PENSTOCK_EPOCHS_H
#define PENSTOCK_EPOCHS_H

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

/* Hash of a block number or an offset (spread_bits in crates/pattern). */
static __always_inline __u64 spread(__u64 value)
{
	value *= 0x9e3779b97f4a7c15ULL;
	return (value ^ (value >> 29)) * 0xbf58476d1ce4e5b9ULL;
}

/*
 * Hash of the block in which a request starts. The block is not larger than the request, so that two requests in one
 * block share bytes. Blocks of different sizes have different hashes (block_hash in crates/pattern).
 */
static __always_inline __u64 block_hash(__s64 offset, __u32 bits)
{
	bits = bits > BLOCK_BITS ? BLOCK_BITS : bits;
	return spread((((__u64)offset >> bits) << 1 | 1) << bits);
}

static __always_inline __u32 stream_kind(__u8 op)
{
	if (op == OP_FAULT_READ || op == OP_FAULT_AROUND)
		return KIND_FAULT_READ;
	if (op == OP_FAULT_WRITE || op == OP_FAULT_AROUND_WRITE)
		return KIND_FAULT_WRITE;
	return op >= FIRST_WRITE ? KIND_WRITE : KIND_READ;
}

/* Next free stream and its number; NULL if all are in use. */
static __always_inline struct stream *new_stream(__u32 *number)
{
	if (control.next_stream >= stream_count)
		return NULL;
	*number = __sync_fetch_and_add(&control.next_stream, 1);
	return *number < stream_count ? bpf_map_lookup_elem(&streams, number) : NULL;
}

/*
 * The thread reads and writes the file: from now on both directions are also counted in a joint stream, which starts as
 * a copy of that of the first direction. Without room for another stream, the order between them is unknown.
 */
static __always_inline int join_directions(struct stream *own, struct stream *first, __u32 first_kind)
{
	struct notebook *book, *copy;
	struct stream *joint;
	__u32 number = 0, from, to;

	if (!own || !first)
		return 0;
	joint = new_stream(&number);
	if (!joint)
		return 0;
	__builtin_memcpy(joint, first, sizeof(*joint));
	joint->kind = KIND_JOINT + first_kind;
	joint->errors = 0;
	joint->empty = 0;
	joint->sampled = 0;
	joint->sampled_ns = 0;
	joint->joint = 0;
	joint->notebook = 0;
	if (first->notebook && control.next_notebook < notebook_count) {
		from = first->notebook - 1;
		to = __sync_fetch_and_add(&control.next_notebook, 1);
		book = bpf_map_lookup_elem(&notebooks, &from);
		copy = to < notebook_count ? bpf_map_lookup_elem(&notebooks, &to) : NULL;
		if (book && copy && !bpf_probe_read_kernel(copy, sizeof(*copy), book))
			joint->notebook = to + 1;
	}
	if (!joint->notebook) {
		joint->samples = 0;
		joint->looked = 0;
	}
	first->joint = number + 1;
	own->joint = number + 1;
	return 0;
}

/*
 * Number of the current thread's stream. Not static, as meet_file, so that the verifier checks it once and not at every
 * place from which it can be reached.
 */
__noinline int stream_number(__u32 file_id, __u32 kind)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct stream_key key = { .file_id = file_id, .tid = task->pid, .kind = kind };
	struct stream *stream, *other;
	__u32 *found, number = 0;

	key.started_ns = task->start_time;
	found = bpf_map_lookup_elem(&stream_numbers, &key);

	if (found)
		return *found;
	stream = new_stream(&number);
	if (!stream || bpf_map_update_elem(&stream_numbers, &key, &number, BPF_ANY))
		return NO_STREAM; /* its calls are recorded individually (record_aside) */
	stream->file_id = file_id;
	stream->tid = key.tid;
	stream->pid = task->tgid;
	stream->kind = kind;
	stream->started_ns = key.started_ns;
	key.kind = kind ^ 1;
	found = bpf_map_lookup_elem(&stream_numbers, &key);
	if (found) {
		other = bpf_map_lookup_elem(&streams, found);
		join_directions(stream, other, kind ^ 1);
	}
	return number;
}

/* Short epochs at first, to resolve the phases of short streams. */
static __always_inline __u32 epoch_requests(__u32 number)
{
	return number < 4096 ? 256 : number < 16384 ? 512 : EPOCH_REQUESTS;
}

/* Extend the chain of the current request by it. */
static __always_inline void grow(struct stream *s)
{
	__u32 count = ++s->hot_count, gap = (s->number - s->hot_last) & 0xffffff;

	s->hot_last = s->number;
	if (count > LONG) {
		s->chained++;
		s->open_sum += gap;
	} else if (count == LONG) {
		s->chained += LONG;
		s->open_sum += gap * LONG;
		s->chains++;
	}
	if (count > s->longest)
		s->longest = count;
}

static __always_inline struct notebook *notebook_of(struct stream *s)
{
	__u32 number = s->notebook;

	if (!number) {
		/* streams of a few requests have no notebook */
		if (s->number < 2 * LONG || control.next_notebook >= notebook_count)
			return NULL;
		number = __sync_fetch_and_add(&control.next_notebook, 1) + 1;
		if (number > notebook_count)
			return NULL;
		s->notebook = number;
	}
	number--;
	return bpf_map_lookup_elem(&notebooks, &number);
}

/*
 * The request does not continue where the last one ended. Store the last chain under its end, and remove the chain that
 * ended at the start of the request, if there is one. In a full set the shortest chain is replaced. Not static, so that
 * the verifier checks it once.
 */
__noinline int jump(struct stream *s, __s64 offset, __u32 bits)
{
	struct notebook *book;
	__u64 hash, least = ~0ULL, entry;
	__u32 set, way, at = 0, count, i;

	if (!s)
		return 0;
	book = notebook_of(s);
	if (!book) {
		s->hot_count = 1;
		s->hot_last = s->number;
		return 0;
	}
	hash = spread(s->last_end);
	set = (hash >> 58) * CHAIN_WAYS;
#pragma unroll
	for (way = 0; way < CHAIN_WAYS; way++) {
		i = (set + way) & (CHAIN_SETS * CHAIN_WAYS - 1);
		if (book->chains[i] < least) {
			least = book->chains[i];
			at = i;
		}
	}
	count = s->hot_count > 255 ? 255 : s->hot_count;
	entry = (__u64)count << 56 | (__u64)(s->hot_last & 0xffffff) << 32 | (__u32)hash;
	book->chains[at & (CHAIN_SETS * CHAIN_WAYS - 1)] = entry;

	hash = spread(offset);
	set = (hash >> 58) * CHAIN_WAYS;
	s->hot_count = 0;
#pragma unroll
	for (way = 0; way < CHAIN_WAYS; way++) {
		i = (set + way) & (CHAIN_SETS * CHAIN_WAYS - 1);
		entry = book->chains[i];
		if ((__u32)entry == (__u32)hash && entry && !s->hot_count) {
			s->hot_count = entry >> 56;
			s->hot_last = (entry >> 32) & 0xffffff;
			book->chains[i] = 0;
		}
	}
	if (s->hot_count) {
		grow(s);
	} else {
		s->hot_count = 1;
		s->hot_last = s->number;
	}

	if (s->samples >= SAMPLES)
		return 0;
	s->looked++;
	hash = block_hash(offset, bits);
	if (!(hash >> 62))
		book->samples[s->samples++ & (SAMPLES - 1)] = hash >> 32;
	return 0;
}

/* Send a full epoch and begin the next one. Not static, as above. */
__noinline int hand_over(struct stream *s)
{
	struct notebook *book = NULL;
	struct full_epoch *full;
	__u32 number, bytes;

	if (!s)
		return 0;
	number = s->notebook - 1;
	full = bpf_ringbuf_reserve(&epochs, sizeof(*full), 0);
	if (!full)
		return 0;
	s->last_ns = bpf_ktime_get_ns();
	__builtin_memcpy(&full->stream, s, sizeof(*s));
	bytes = (s->samples & (2 * SAMPLES - 1)) * sizeof(__u32);
	if (s->notebook)
		book = bpf_map_lookup_elem(&notebooks, &number);
	if (book && bytes && bytes <= sizeof(full->samples))
		bpf_probe_read_kernel(full->samples, bytes, book->samples);
	bpf_ringbuf_submit(full, BPF_RB_NO_WAKEUP);
	__builtin_memset(&s->requests, 0,
			 __builtin_offsetof(struct stream, distances) - __builtin_offsetof(struct stream, requests));
	return 0;
}

/* Count the position of a request relative to the last one. */
static __always_inline void step_to(struct stream *s, __s64 offset, __s64 end, __u32 size, __u32 class)
{
	__s64 step = offset - s->last_end, distance = offset - s->last_offset;

	s->steps++;
	if (step >= 0) {
		s->forward++;
		if (step <= NEAR_BYTES || step <= 8 * (__s64)size)
			s->near++;
	} else if (end == s->last_offset) {
		s->reverse++;
	}
	if (distance > 0)
		s->higher++;
#pragma unroll
	for (int i = 0; i < 4; i++)
		if (distance == s->distances[i])
			s->cycle[i]++;
	s->distances[3] = s->distances[2];
	s->distances[2] = s->distances[1];
	s->distances[1] = s->distances[0];
	s->distances[0] = distance;
	if (step == 0) {
		s->zero++;
		grow(s);
	} else {
		jump(s, offset, class);
	}
}

/* Count an operation of a stream. `start` and `now` are 0 unless its latency is in the sample. */
static __always_inline void count(struct stream *s, __u8 op, __u8 flags, __s64 offset, __s64 done, __u64 start,
				  __u64 now)
{
	__u32 size = done > 0 ? done : 0;
	__s64 end = offset + size;
	__u32 class;

	if (start) {
		s->sampled++;
		s->sampled_ns += now - start;
		s->last_ns = now;
	}
	if (done < 0) {
		s->errors++;
		return;
	}
	/* a private copy is not a write of the file */
	if (!size || (op == OP_FAULT_WRITE && (flags & FAULT_PRIVATE))) {
		s->empty++;
		return;
	}
	if ((s->kind & (KIND_JOINT - 1)) >= KIND_FAULT_READ && s->number) {
		/* the requested page and the range mapped around it are one access */
		if (offset >= s->last_offset && end <= s->last_end) {
			s->empty++;
			return;
		}
		if (offset <= s->last_offset && end >= s->last_end) {
			s->done_bytes += size - (s->last_end - s->last_offset);
			s->last_end = end;
			s->empty++;
			return;
		}
	}
	s->done_bytes += size;
	class = log2_of(size);
	s->size_class[class & (SIZE_CLASSES - 1)]++;
	s->number++;
	if (s->requests++ == 0) {
		s->first_ns = now ? now : bpf_ktime_get_ns();
		s->lowest = offset;
		s->highest = offset;
		s->least_size = size;
		s->most_size = size;
	}
	if (offset < s->lowest)
		s->lowest = offset;
	if (offset > s->highest)
		s->highest = offset;
	if (size < s->least_size)
		s->least_size = size;
	if (size > s->most_size)
		s->most_size = size;
	if (s->number == 1) {
		s->hot_count = 1;
		s->hot_last = 1;
	} else {
		step_to(s, offset, end, size, class);
	}
	s->last_offset = offset;
	s->last_end = end;
	if (s->requests >= epoch_requests(s->number) || s->samples >= SAMPLES)
		hand_over(s);
}

#endif
