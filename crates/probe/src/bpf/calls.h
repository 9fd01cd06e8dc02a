/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The read and write families of system calls. */
#ifndef PENSTOCK_CALLS_H
#define PENSTOCK_CALLS_H

#include "scope.h"
#include "files.h"
#include "record.h"

/* read, write, pread64, pwrite64, readv, writev; preadv, pwritev, preadv2, pwritev2 */
static __always_inline bool of_family(__u64 number)
{
	if (number < 64)
		return (0x1e0003ULL >> number) & 1;
	number -= 295;
	return number < 64 && ((0x300000003ULL >> number) & 1);
}

/* At the entry of a call of the read and write families. */
static __always_inline int call_entered(long number)
{
	struct task_struct *task;
	struct thread_state *state;
	struct ledger *ledger;

	if (!control.armed || !of_family(number))
		return 0;
	task = bpf_get_current_task_btf();
	if (slot_of(task) < 0)
		return 0;
	if (patterns_only) {
		ledger = ledger_here();
		if (!ledger || (ledger->draws++ & SAMPLE_MASK))
			return 0;
	}
	state = state_of(task, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (state) {
		state->start_ns = bpf_ktime_get_ns();
		return 0;
	}
	ledger = ledger_here();
	if (ledger && !patterns_only) {
		ledger->seen++;
		ledger->lost_storage++;
	}
	return 0;
}

struct sum {
	struct iovec *vectors;
	__u64 bytes;
};

static long add_vector(__u64 index, void *context)
{
	struct sum *sum = context;
	unsigned long length = 0;

	if (bpf_probe_read_user(&length, sizeof(length), &sum->vectors[index].iov_len))
		return 1;
	sum->bytes += length;
	return 0;
}

static __always_inline __u64 asked_by_vectors(struct pt_regs *regs)
{
	struct sum sum = { .vectors = (void *)regs->si };
	__u64 count = regs->dx;

	if (count == 1)
		add_vector(0, &sum);
	else if (count <= 1024)
		bpf_loop(count, add_vector, &sum, 0);
	return sum.bytes;
}

/* At the exit of a call of the read and write families. */
static __always_inline int call_left(struct pt_regs *regs, long result)
{
	__u64 number = regs->orig_ax, start, now = 0, asked;
	struct thread_state *state;
	struct known_file *known;
	struct ledger *ledger;
	struct task_struct *task;
	struct call call;
	struct inode *inode;
	struct file *file;
	__u32 descriptor, cpu, flags;
	__s64 offset;
	int slot, op;

	if (!control.armed || !of_family(number))
		return 0;
	task = bpf_get_current_task_btf();
	slot = slot_of(task);
	if (slot < 0)
		return 0;
	cpu = bpf_get_smp_processor_id();
	ledger = bpf_map_lookup_elem(&ledgers, &cpu);
	if (!ledger)
		return 0;
	if (task->thread_info.status & TS_COMPAT) {
		ledger->compat++;
		return 0;
	}
	ledger->seen++;
	state = state_of(task, patterns_only ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	if (!state) {
		if (patterns_only)
			ledger->lost_storage++;
		else
			ledger->filtered++; /* armed while the call was under way */
		return 0;
	}
	start = state->start_ns;
	state->start_ns = 0;
	if ((!start && !patterns_only) || (result <= -512 && result >= -516)) {
		ledger->filtered++; /* as above; or interrupted, and about to be made again */
		return 0;
	}
	descriptor = regs->di;
	file = file_of(task, descriptor);
	if (!file) {
		if (result == -EBADF)
			ledger->filtered++;
		else
			ledger->lost_unresolved++;
		return 0;
	}
	inode = file->f_inode;
	if ((inode->i_mode & S_IFMT) != S_IFREG) {
		ledger->filtered++;
		return 0;
	}
	if (start)
		now = bpf_ktime_get_ns();

	if (state->epoch != control.epoch) {
		state->epoch = control.epoch;
#pragma unroll
		for (int i = 0; i < KNOWN; i++)
			state->known[i].inode_pointer = 0;
	}
	known = &state->known[descriptor & (KNOWN - 1)];
	if (known->inode_pointer != (__u64)inode || known->inode != inode->i_ino ||
	    known->generation != inode->i_generation || known->super_pointer != (__u64)inode->i_sb)
		recall(file, known, ledger);

	flags = file->f_flags;
	asked = regs->dx;
	switch (number) {
	case 0:
		op = OP_READ;
		break;
	case 1:
		op = OP_WRITE;
		break;
	case 17:
		op = OP_PREAD64;
		break;
	case 18:
		op = OP_PWRITE64;
		break;
	case 19:
		op = OP_READV;
		break;
	case 20:
		op = OP_WRITEV;
		break;
	case 295:
		op = OP_PREADV;
		break;
	case 296:
		op = OP_PWRITEV;
		break;
	case 327:
		op = OP_PREADV2;
		break;
	default:
		op = OP_PWRITEV2;
		break;
	}
	flags = (flags & O_DIRECT ? FLAG_DIRECT : 0) | (flags & O_APPEND ? FLAG_APPEND : 0) |
		(flags & O_DSYNC ? FLAG_SYNC : 0);
	if (number >= 19) {
		asked = asked_by_vectors(regs);
		flags |= FLAG_VECTORED;
	}
	offset = regs->r10;
	if (op == OP_READ || op == OP_WRITE || op == OP_READV || op == OP_WRITEV ||
	    (offset == -1 && number >= 327)) {
		flags |= FLAG_AT_POSITION;
		offset = file->f_pos - (result > 0 ? result : 0);
	} else if (op >= FIRST_WRITE && (flags & FLAG_APPEND)) {
		/* pwrite(2), BUGS: with O_APPEND the offset argument is not heeded */
		offset = inode->i_size - (result > 0 ? result : 0);
	}

	call.start_ns = start;
	call.now_ns = now;
	call.asked_bytes = asked;
	call.offset_bytes = offset;
	call.result = result;
	call.tid = task->pid;
	call.pid = task->tgid;
	call.slot = slot;
	call.op = op;
	call.flags = flags;
	record(&call, known, task, ledger, cpu);
	return 0;
}

#endif
