// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Reads and writes of one control group's tasks on regular files, taken at the entry and exit of the
 * system call.
 *
 * At entry only the time is noted. Everything else is still there at exit: the number and the arguments in
 * the saved registers, and for calls that use the descriptor's position that position less what was done,
 * which is closer to the truth than the position before the call when descriptors are shared, because the
 * kernel holds the position lock only in between.
 *
 * Since Linux 6.13 system-call tracepoints may fault; BPF programs on them still run with preemption off,
 * so a CPU's ring has one producer at a time.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "layout.h"
#include "calls.h"

SEC("tp_btf/sys_enter")
int BPF_PROG(enter, struct pt_regs *regs, long number)
{
	return call_entered(number);
}

SEC("tp_btf/sys_exit")
int BPF_PROG(leave, struct pt_regs *regs, long result)
{
	return call_left(regs, result);
}

/* What the hooks cost by themselves: the base of every figure in bench/trace_overhead.py. */
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
