/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The read and write families of system calls. */
#ifndef PENSTOCK_CALLS_H
#define PENSTOCK_CALLS_H

#include "scope.h"
#include "files.h"
#include "record.h"
#include "rare.h"

/* read, write, pread64, pwrite64, readv, writev; preadv, pwritev, preadv2, pwritev2 */
static __always_inline bool of_family(__u64 number)
{
	if (number < 64)
		return (0x1e0003ULL >> number) & 1;
	number -= 295;
	return number < 64 && ((0x300000003ULL >> number) & 1);
}

/* At the entry of a call of the read and write families. */
static __always_inline int call_entered(struct pt_regs *regs, __u64 number)
{
	struct task_struct *task;
	struct thread_state *state;
	struct books books;

	if (!control.armed)
		return 0;
	meter(METER_CALLS);
	if (!of_family(number))
		return rare_number(number) ? rare_entered(regs, number) : 0;
	if (patterns_only && !drawn())
		return 0;
	task = bpf_get_current_task_btf();
	if (slot_of(task) < 0)
		return 0;
	state = state_of(task, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (state) {
		state->start_ns = bpf_ktime_get_ns();
		return 0;
	}
	if (!patterns_only && open_books(&books)) {
		COUNT(&books, SOURCE_CALLS, seen);
		COUNT(&books, SOURCE_CALLS, lost_storage);
		close_books(&books);
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

static __always_inline __u32 op_of(__u64 number)
{
	switch (number) {
	case 0:
		return OP_READ;
	case 1:
		return OP_WRITE;
	case 17:
		return OP_PREAD64;
	case 18:
		return OP_PWRITE64;
	case 19:
		return OP_READV;
	case 20:
		return OP_WRITEV;
	case 295:
		return OP_PREADV;
	case 296:
		return OP_PWRITEV;
	case 327:
		return OP_PREADV2;
	default:
		return OP_PWRITEV2;
	}
}

/* Call it with the books open: exactly one of kept, filtered and lost_* is incremented. */
static __always_inline void call_counted(struct pt_regs *regs, long result, __u64 number, int slot,
					 struct task_struct *task, struct books *books)
{
	__u64 start, now = 0, asked;
	struct thread_state *state;
	struct known_file *known;
	struct call call;
	struct inode *inode;
	struct file *file;
	__u32 descriptor, flags, op, mode;
	__s64 offset;

	COUNT(books, SOURCE_CALLS, seen);
	state = state_of(task, patterns_only ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	if (!state) {
		if (patterns_only)
			COUNT(books, SOURCE_CALLS, lost_storage);
		else
			COUNT(books, SOURCE_CALLS, filtered); /* armed during the call */
		return;
	}
	start = state->start_ns;
	if (start)
		state->start_ns = 0;
	if ((!start && !patterns_only) || (result <= -512 && result >= -516)) {
		COUNT(books, SOURCE_CALLS, filtered); /* as above; or interrupted, and about to be restarted */
		return;
	}
	descriptor = regs->di;
	file = file_at(task, descriptor, result >= 0);
	if (!file) {
		if (result == -EBADF)
			COUNT(books, SOURCE_CALLS, filtered);
		else
			COUNT(books, SOURCE_CALLS, lost_unresolved);
		return;
	}
	if (start)
		now = bpf_ktime_get_ns();

	inode = FIELD(file, f_inode);
	known = &state->known[descriptor & (KNOWN - 1)];
	if (known->inode_pointer != (__u64)inode || known->epoch != control.epoch ||
	    known->inode != FIELD(inode, i_ino) || known->generation != FIELD(inode, i_generation) ||
	    known->super_pointer != (__u64)FIELD(inode, i_sb)) {
		mode = FIELD(inode, i_mode);
		if (!of_storage(mode)) {
			COUNT(books, SOURCE_CALLS, filtered);
			if ((mode & S_IFMT) == S_IFCHR && number == 1 && result > 0 && takes_marks(inode))
				take_mark(task, (void *)regs->si, result, start, books);
			return;
		}
		if (state->met != control.epoch)
			meet_thread(task, state, start, books);
		recall(file, known, books);
	}
	if (known->file_id == UNWANTED) {
		COUNT(books, SOURCE_CALLS, filtered);
		return;
	}

	op = op_of(number);
	asked = regs->dx;
	/* mode pattern needs flags only for the offset of an appending call */
	flags = !patterns_only || op == OP_PWRITE64 || op == OP_PWRITEV || op == OP_PWRITEV2 ? FIELD(file, f_flags) : 0;
	flags = (flags & O_DIRECT ? FLAG_DIRECT : 0) | (flags & O_APPEND ? FLAG_APPEND : 0) |
		(flags & O_DSYNC ? FLAG_SYNC : 0);
	if (number >= 19) {
		asked = asked_by_vectors(regs);
		flags |= FLAG_VECTORED;
	}
	if (number >= 327)
		flags |= flags_of_request(regs->r9);
	offset = regs->r10;
	if (op == OP_READ || op == OP_WRITE || op == OP_READV || op == OP_WRITEV ||
	    (offset == -1 && number >= 327)) {
		flags |= FLAG_AT_POSITION;
		offset = FIELD(file, f_pos) - (result > 0 ? result : 0);
	} else if (op >= FIRST_WRITE && (flags & FLAG_APPEND)) {
		/* pwrite(2), BUGS: with O_APPEND the offset argument is ignored */
		offset = FIELD(inode, i_size) - (result > 0 ? result : 0);
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
	record(&call, known, task, books, SOURCE_CALLS);
}

/*
 * The same as a separate function. Programs that read through helpers use more stack, and the stack of a program and
 * its functions is limited. The rare calls must not share the stack frame of this one.
 */
static __noinline int call_counted_apart(struct pt_regs *regs, long result, __u64 number_and_slot,
					 struct books *books)
{
	call_counted(regs, result, number_and_slot & 0xffff, number_and_slot >> 16,
		     bpf_get_current_task_btf(), books);
	return 0;
}

/* At the exit of a call of the read and write families. */
static __always_inline int call_left(struct pt_regs *regs, long result, __u64 number)
{
	struct task_struct *task;
	struct books books;
	int slot;

	if (!control.armed)
		return 0;
	meter(METER_CALLS);
	if (!of_family(number))
		return rare_number(number) ? rare_left(regs, result, number) : 0;
	task = bpf_get_current_task_btf();
	slot = slot_of(task);
	if (slot < 0 || !open_books(&books))
		return 0;
	if (task->thread_info.status & TS_COMPAT)
		tally(&books, &books.ledger->compat);
	else if (probe_reads)
		call_counted_apart(regs, result, number | (__u64)slot << 16, &books);
	else
		call_counted(regs, result, number, slot, task, &books);
	close_books(&books);
	return 0;
}

#endif
