/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Selection of traced tasks, and the state of each. */
#ifndef PENSTOCK_SCOPE_H
#define PENSTOCK_SCOPE_H

#include "books.h"

#define NO_CONTROLLER 0xffffffff

/* Fixed at loading. */
const volatile __u32 by_process = 0;
const volatile __u32 v1_controller = NO_CONTROLLER; /* number of the controller whose v1 hierarchy has the group */
const volatile __u32 observers[2] = {};		    /* processes never traced: those of the tracer */

/* Traced processes, one bit each: process numbers are below 2^22 (PID_MAX_LIMIT). Mapped by user space. */
#define MEMBER_WORDS 65536
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} members SEC(".maps");

static __always_inline bool is_member(__u32 process)
{
	__u32 word = process >> 6;
	__u64 *bits = bpf_map_lookup_elem(&members, &word);

	return bits && ((*bits >> (process & 63)) & 1);
}

static __always_inline void set_member(__u32 process, bool member)
{
	__u32 word = process >> 6;
	__u64 *bits = bpf_map_lookup_elem(&members, &word), bit = 1ULL << (process & 63);

	if (!bits)
		return;
	if (member)
		__sync_fetch_and_or(bits, bit);
	else
		__sync_fetch_and_and(bits, ~bit);
}

static __always_inline struct cgroup *group_of(struct task_struct *task)
{
	struct css_set *set = task->cgroups;
	struct cgroup_subsys_state **controllers;

	if (v1_controller == NO_CONTROLLER)
		return set->dfl_cgrp;
	controllers = (void *)set + bpf_core_field_offset(struct css_set, subsys);
	return controllers[v1_controller]->cgroup;
}

/* Number of the ancestor of `group` at the target's level; only for a group at a deeper level. */
static __always_inline __u64 group_above(struct cgroup *group)
{
	__u32 level = control.target_level;
	struct cgroup *above = NULL;
	void *place;

	if (v1_controller == NO_CONTROLLER)
		return bpf_get_current_ancestor_cgroup_id(level);
	place = (void *)group + bpf_core_field_offset(struct cgroup, ancestors) + level * sizeof(above);
	bpf_probe_read_kernel(&above, sizeof(above), place);
	return BPF_CORE_READ(above, kn, id);
}

/* Slot of the task's control group if it is the target or a descendant, else -1. */
static __always_inline int slot_of(struct task_struct *task)
{
	struct cgroup *group;
	__u64 id;
	__u32 *slot, next;

	if (by_process && !is_member(task->tgid))
		return -1;
	if (observers[0] && (task->tgid == observers[0] || task->tgid == observers[1]))
		return -1;
	group = group_of(task);
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
	if (group_above(group) != control.target_id)
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
 * The same for the current task, as a function with its own stack, for callers with little stack. Not static, so that
 * the verifier checks it once and not at every call.
 */
__noinline int slot_here(void)
{
	return slot_of(bpf_get_current_task_btf());
}

/* At the start of every program: count the run if the target caused it. See meter.rs. */
static __always_inline void meter(__u32 which)
{
	if (control.metering && slot_here() >= 0)
		__sync_fetch_and_add(&metered[which], 1);
}

/* As slot_of for any task: true if it is traced. */
static __always_inline bool in_target(struct task_struct *task)
{
	struct cgroup *group, *above = NULL;
	__u32 level = control.target_level;

	if (by_process && !is_member(task->tgid))
		return false;
	if (observers[0] && (task->tgid == observers[0] || task->tgid == observers[1]))
		return false;
	group = group_of(task);
	if (BPF_CORE_READ(group, kn, id) == control.target_id)
		return true;
	if (BPF_CORE_READ(group, level) <= (int)level || !bpf_core_field_exists(group->ancestors))
		return false;
	bpf_probe_read_kernel(&above, sizeof(above),
			      (void *)group + bpf_core_field_offset(struct cgroup, ancestors) +
				      level * sizeof(above));
	return above && BPF_CORE_READ(above, kn, id) == control.target_id;
}

/*
 * If thread numbers are few (pid_max of 32768 is usual on small machines), an array indexed by them saves the call of
 * task storage. A thread always leaves its call before it ends, so a reused number has no call in flight. Its entries
 * of known files are checked against the actual inode.
 */
static __always_inline struct thread_state *state_of(struct task_struct *task, __u64 flags)
{
	__u32 tid;

	if (!tid_limit)
		return bpf_task_storage_get(&threads, task, NULL, flags);
	tid = task->pid;
	return tid >= tid_limit ? NULL : AT(threads_by_tid, tid);
}

/* First call of a thread in a recording, or since it executed another program. */
static __noinline int meet_thread(struct task_struct *task, struct thread_state *state, __u64 t_ns,
				  struct books *books)
{
	struct notice *notice;

	state->met = control.epoch;
	notice = bpf_ringbuf_reserve(&introductions, sizeof(*notice), 0);
	if (!notice) {
		tally(books, &books->ledger->nameless);
		return 0;
	}
	notice->notice = NOTICE;
	notice->kind = NOTICE_THREAD;
	notice->t_ns = t_ns ? t_ns : bpf_ktime_get_ns();
	notice->tid = task->pid;
	notice->pid = task->tgid;
	notice->started_ns = task->start_time;
	__builtin_memset(notice->text, 0, sizeof(notice->text));
	bpf_probe_read_kernel_str(notice->text, sizeof(task->comm), task->comm);
	bpf_ringbuf_submit(notice, BPF_RB_NO_WAKEUP);
	return 0;
}

/* True if a character device is the one to which the traced program writes its marks. */
static __always_inline bool takes_marks(struct inode *inode)
{
	struct super_block *super;

	if (FIELD(inode, i_ino) != control.marks_inode)
		return false;
	super = FIELD(inode, i_sb);
	return FIELD(super, s_dev) == control.marks_device;
}

/* Record a mark: a line that the traced program wrote to the device, with its time. */
static __noinline int take_mark(struct task_struct *task, const void *text, __u64 bytes, __u64 t_ns,
				struct books *books)
{
	struct notice *notice;

	if (__sync_fetch_and_add(&control.marks, 1) >= MOST_MARKS) {
		__sync_fetch_and_add(&control.marks_lost, 1);
		return 0;
	}
	notice = bpf_ringbuf_reserve(&introductions, sizeof(*notice), 0);
	if (!notice) {
		tally(books, &books->ledger->nameless);
		return 0;
	}
	notice->notice = NOTICE;
	notice->kind = NOTICE_MARK;
	notice->t_ns = t_ns ? t_ns : bpf_ktime_get_ns();
	notice->tid = task->pid;
	notice->pid = task->tgid;
	notice->started_ns = 0;
	__builtin_memset(notice->text, 0, sizeof(notice->text));
	if (bytes > sizeof(notice->text))
		bytes = sizeof(notice->text);
	bpf_probe_read_user(notice->text, bytes, text);
	bpf_ringbuf_submit(notice, BPF_RB_NO_WAKEUP);
	return 0;
}

#endif
