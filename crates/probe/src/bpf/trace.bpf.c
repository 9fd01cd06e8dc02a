// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Reads and writes of one control group's tasks on regular files, observed at the entry and exit of the system
 * call. The same bodies are attached to four kinds of hook (hooks.rs chooses among them).
 *
 * The entry records the time only. All else is still available at exit: the number and the arguments are in the
 * saved registers. If a call uses the descriptor's position, its offset is the position at exit minus the bytes
 * transferred. For shared descriptors this is more accurate than the position at entry, because the kernel holds the
 * position lock only in between.
 *
 * Since Linux 6.13 system-call tracepoints may fault. BPF programs on them still run with preemption off, so a CPU's
 * ring has one producer at a time. Programs on fentry and fexit can be preempted: see books.h.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "layout.h"
#include "calls.h"
#include "faults.h"
#include "processes.h"

SEC("tp_btf/sys_enter")
int BPF_PROG(enter, struct pt_regs *regs, long number)
{
	return call_entered(regs, number);
}

SEC("tp_btf/sys_exit")
int BPF_PROG(leave, struct pt_regs *regs, long result)
{
	return call_left(regs, result, regs->orig_ax);
}

/* Raw and classic tracepoints: the registers that the task saved on its stack. */
static __always_inline struct pt_regs *registers(void)
{
	return (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
}

SEC("raw_tp/sys_enter")
int raw_enter(struct bpf_raw_tracepoint_args *context)
{
	return call_entered(registers(), context->args[1]);
}

SEC("raw_tp/sys_exit")
int raw_leave(struct bpf_raw_tracepoint_args *context)
{
	struct pt_regs *regs = registers();

	return call_left(regs, context->args[1], regs->orig_ax);
}

SEC("tracepoint/raw_syscalls/sys_enter")
int classic_enter(struct classic_enter *context)
{
	return call_entered(registers(), context->number);
}

SEC("tracepoint/raw_syscalls/sys_exit")
int classic_leave(struct classic_exit *context)
{
	return call_left(registers(), context->result, context->number);
}

/* One pair of programs per call, so that other calls have no overhead, and other processes have little. */
#define ON_FUNCTION(name, number) \
	SEC("fentry/__x64_sys_" #name) \
	int BPF_PROG(in_##name, struct pt_regs *regs) \
	{ \
		return call_entered(regs, number); \
	} \
	SEC("fexit/__x64_sys_" #name) \
	int BPF_PROG(out_##name, struct pt_regs *regs, long result) \
	{ \
		return call_left(regs, result, number); \
	}

ON_FUNCTION(read, 0)
ON_FUNCTION(write, 1)
ON_FUNCTION(pread64, 17)
ON_FUNCTION(pwrite64, 18)
ON_FUNCTION(readv, 19)
ON_FUNCTION(writev, 20)
ON_FUNCTION(preadv, 295)
ON_FUNCTION(pwritev, 296)
ON_FUNCTION(preadv2, 327)
ON_FUNCTION(pwritev2, 328)

/* The overhead of the hooks themselves: the baseline of bench/trace_overhead.py. */
SEC("tp_btf/sys_enter")
int BPF_PROG(empty_enter, struct pt_regs *regs, long number)
{
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(empty_leave, struct pt_regs *regs, long result)
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
