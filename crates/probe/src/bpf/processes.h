/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Start and end of threads: the set of traced processes, and threads to announce again. */
#ifndef PENSTOCK_PROCESSES_H
#define PENSTOCK_PROCESSES_H

#include "scope.h"

/* Clear the thread's cached state; its next call looks everything up again. */
static __always_inline void forget(struct thread_state *state)
{
	state->met = 0;
#pragma unroll
	for (int i = 0; i < KNOWN; i++)
		state->known[i].inode_pointer = 0;
}

static __always_inline int came(struct task_struct *child)
{
	struct task_struct *parent = bpf_get_current_task_btf();
	__u32 process, thread;

	if (!control.armed)
		return 0;
	meter(METER_OTHERS);
	if (tid_limit) {
		/* the state under this number belongs to a thread that has ended */
		thread = FIELD(child, pid);
		if (thread < tid_limit)
			forget(AT(threads_by_tid, thread));
	}
	if (by_process && is_member(parent->tgid)) {
		process = FIELD(child, tgid);
		if (process != parent->tgid)
			set_member(process, true);
	}
	return 0;
}

static __always_inline int became_another(void)
{
	struct thread_state *state;

	if (!control.armed)
		return 0;
	meter(METER_OTHERS);
	state = state_of(bpf_get_current_task_btf(), 0);
	if (state)
		forget(state);
	return 0;
}

/* Runs for each thread; the count of live threads has already been decremented. */
static __always_inline int went(void)
{
	struct task_struct *task;

	if (!control.armed)
		return 0;
	meter(METER_OTHERS);
	if (!by_process)
		return 0;
	task = bpf_get_current_task_btf();
	if (task->signal->live.counter == 0)
		set_member(task->tgid, false);
	return 0;
}

/* Runs before the child's first instruction. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(forked, struct task_struct *parent, struct task_struct *child)
{
	return came(child);
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(executed)
{
	return became_another();
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(ended)
{
	return went();
}

SEC("raw_tp/sched_process_fork")
int raw_forked(struct bpf_raw_tracepoint_args *context)
{
	return came((void *)context->args[1]);
}

SEC("raw_tp/sched_process_exec")
int raw_executed(void *context)
{
	return became_another();
}

SEC("raw_tp/sched_process_exit")
int raw_ended(void *context)
{
	return went();
}

#endif
