/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Sums of the operations that are neither reads nor writes, and look-ups of files for them. */
#ifndef PENSTOCK_OPERATIONS_H
#define PENSTOCK_OPERATIONS_H

#include "scope.h"
#include "files.h"
#include "record.h"

/* Sums of each file's rare operations, in every mode. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct operation_key);
	__type(value, struct operation_sum);
} operations SEC(".maps");

static __always_inline bool has_storage(struct inode *inode)
{
	return of_storage(FIELD(inode, i_mode));
}

static __always_inline void file_key_of(struct inode *inode, struct file_key *key)
{
	key->inode = FIELD(inode, i_ino);
	key->device = BPF_CORE_READ(inode, i_sb, s_dev);
	key->generation = FIELD(inode, i_generation);
}

static __always_inline __u32 call_flags(struct file *file)
{
	__u32 flags = FIELD(file, f_flags);

	return (flags & O_DIRECT ? FLAG_DIRECT : 0) | (flags & O_APPEND ? FLAG_APPEND : 0) |
	       (flags & O_DSYNC ? FLAG_SYNC : 0);
}

static __noinline int sum_up(struct call *call, __u32 file_id)
{
	struct operation_key key = { .file_id = file_id, .op = call->op };
	struct operation_sum none = {}, *sum = bpf_map_lookup_elem(&operations, &key);
	__u64 took = call->start_ns ? call->now_ns - call->start_ns : 0;

	if (!sum) {
		bpf_map_update_elem(&operations, &key, &none, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(&operations, &key);
	}
	if (!sum)
		return 1;
	__sync_fetch_and_add(&sum->calls, 1);
	__sync_fetch_and_add(&sum->time_ns, took);
	if (call->result < 0)
		__sync_fetch_and_add(&sum->errors, 1);
	if (took > sum->longest_ns)
		sum->longest_ns = took;
	return 0;
}

/* Number of a file that the target has used; 0 for other files. */
static __noinline __u32 number_if_known(struct inode *inode)
{
	struct file_key key = {};
	__u32 *found;

	if (!has_storage(inode))
		return 0;
	file_key_of(inode, &key);
	found = bpf_map_lookup_elem(&files, &key);
	return found ? *found : 0;
}

#endif
