/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Which tasks are traced, and what is kept of each. */
#ifndef PENSTOCK_SCOPE_H
#define PENSTOCK_SCOPE_H

#include "maps.h"

/* The slot of the task's control group if it is the target or inside it, else -1. */
static __always_inline int slot_of(struct task_struct *task)
{
	struct cgroup *group = task->cgroups->dfl_cgrp;
	__u64 id;
	__u32 *slot, next;

	if ((__u64)group == control.target_pointer)
		return 0;
	if (group->level < (int)control.target_level)
		return -1;
	id = group->kn->id;
	if (id == control.target_id) {
		control.target_pointer = (__u64)group;
		return 0;
	}
	if (group->level == (int)control.target_level)
		return -1;
	if (bpf_get_current_ancestor_cgroup_id(control.target_level) != control.target_id)
		return -1;
	slot = bpf_map_lookup_elem(&cgroups, &id);
	if (slot)
		return *slot & 0xffff;
	next = __sync_fetch_and_add(&control.next_cgroup, 1) + 1;
	if (next > 0xffff)
		return 0;
	bpf_map_update_elem(&cgroups, &id, &next, BPF_NOEXIST);
	slot = bpf_map_lookup_elem(&cgroups, &id);
	return slot ? *slot & 0xffff : 0;
}

/*
 * Where thread numbers are few (pid_max of 32768 is usual on small machines) an array indexed by them saves
 * the call of task storage. A thread always leaves its call before it ends, so that a number that is used
 * again finds no call in flight; what it finds of known files is checked against the inode at hand.
 */
static __always_inline struct thread_state *state_of(struct task_struct *task, __u64 flags)
{
	__u32 tid;

	if (!tid_limit)
		return bpf_task_storage_get(&threads, task, NULL, flags);
	tid = task->pid;
	return tid >= tid_limit ? NULL : AT(threads_by_tid, tid);
}

#endif
