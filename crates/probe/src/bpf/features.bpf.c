// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Empty programs, one per kind of hook, to test whether the kind loads and attaches. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

SEC("tp_btf/sys_enter")
int tp_btf(void *context)
{
	return 0;
}

SEC("raw_tp/sys_enter")
int raw_tp(void *context)
{
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_pread64")
int tracepoint(void *context)
{
	return 0;
}

SEC("fentry/vfs_read")
int fentry(void *context)
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
