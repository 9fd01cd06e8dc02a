/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * System calls on files other than the read and write families: durability, metadata, copies inside the kernel.
 *
 * They use the same two hooks. All data is read at the exit, except for close, whose descriptor is gone by then. For
 * a call with a name (rename, unlink, link, truncate by path) a program here cannot reach the file. The names and the
 * directories they are relative to are sent to user space (names.py), which knows the paths.
 */
#ifndef PENSTOCK_RARE_H
#define PENSTOCK_RARE_H

#include "scope.h"
#include "files.h"
#include "operations.h"
#include "async.h"

enum {
	NR_OPEN = 2,
	NR_CLOSE = 3,
	NR_MSYNC = 26,
	NR_SENDFILE = 40,
	NR_FSYNC = 74,
	NR_FDATASYNC = 75,
	NR_TRUNCATE = 76,
	NR_FTRUNCATE = 77,
	NR_RENAME = 82,
	NR_CREAT = 85,
	NR_LINK = 86,
	NR_UNLINK = 87,
	NR_SYNC = 162,
	NR_IO_GETEVENTS = 208,
	NR_IO_SUBMIT = 209,
	NR_FADVISE64 = 221,
	NR_OPENAT = 257,
	NR_UNLINKAT = 263,
	NR_RENAMEAT = 264,
	NR_LINKAT = 265,
	NR_SPLICE = 275,
	NR_SYNC_FILE_RANGE = 277,
	NR_FALLOCATE = 285,
	NR_SYNCFS = 306,
	NR_RENAMEAT2 = 316,
	NR_COPY_FILE_RANGE = 326,
	NR_IO_PGETEVENTS = 333,
	NR_OPENAT2 = 437,
};

#define BIT64(number) (1ULL << ((number) & 63))
#define FMODE_CREATED (1 << 20)
#define AT_FDCWD (-100)
#define PAGE_SHIFT 12

/* One bit for each number below 512. */
static const volatile __u64 rare_numbers[8] = {
	BIT64(NR_OPEN) | BIT64(NR_CLOSE) | BIT64(NR_MSYNC) | BIT64(NR_SENDFILE),
	BIT64(NR_FSYNC) | BIT64(NR_FDATASYNC) | BIT64(NR_TRUNCATE) | BIT64(NR_FTRUNCATE) |
		BIT64(NR_RENAME) | BIT64(NR_CREAT) | BIT64(NR_LINK) | BIT64(NR_UNLINK),
	BIT64(NR_SYNC),
	BIT64(NR_FADVISE64) | BIT64(NR_IO_GETEVENTS) | BIT64(NR_IO_SUBMIT),
	BIT64(NR_OPENAT) | BIT64(NR_UNLINKAT) | BIT64(NR_RENAMEAT) | BIT64(NR_LINKAT) |
		BIT64(NR_SPLICE) | BIT64(NR_SYNC_FILE_RANGE) | BIT64(NR_FALLOCATE) |
		BIT64(NR_SYNCFS) | BIT64(NR_RENAMEAT2),
	BIT64(NR_COPY_FILE_RANGE) | BIT64(NR_IO_PGETEVENTS),
	BIT64(NR_OPENAT2),
};

static __always_inline bool rare_number(__u64 number)
{
	return number < 512 && ((rare_numbers[number >> 6] >> (number & 63)) & 1);
}

/* A separate function: if inlined, the compiler computes stack addresses that the verifier refuses. */
static __noinline int record_rare(struct call *call, struct known_file *known, struct books *books)
{
	record(call, known, bpf_get_current_task_btf(), books, SOURCE_RARE);
	return 0;
}

/*
 * Store an operation that is neither read nor write: sum it in every mode, and also record it in mode trace. Updates
 * the ledger, including `seen`.
 */
static __noinline int keep_rare(struct call *call, __u32 file_id, struct books *books)
{
	struct known_file known = { .file_id = file_id };

	COUNT(books, SOURCE_RARE, seen);
	/* with a filter, calls that only name their file are excluded; file_names has the changes of names */
	if (left_out(file_id, call->op) || (filtering_files() && !file_id)) {
		COUNT(books, SOURCE_RARE, filtered);
		return 0;
	}
	if (sum_up(call, file_id) && patterns_only) {
		COUNT(books, SOURCE_RARE, lost_storage);
		return 0;
	}
	if (patterns_only) {
		COUNT(books, SOURCE_RARE, kept);
		return 0;
	}
	return record_rare(call, &known, books);
}

/* One half of a copy inside the kernel: a read or write like others; file_id is 0 if it is not recorded. */
static __noinline int keep_half(struct call *call, __u32 file_id, struct books *books)
{
	struct known_file known = { .file_id = file_id, .stream = { NO_STREAM, NO_STREAM } };

	COUNT(books, SOURCE_RARE, seen);
	if (!file_id) {
		COUNT(books, SOURCE_RARE, filtered);
		return 0;
	}
	return record_rare(call, &known, books);
}

/* There is no such descriptor, or another thread closed it during the call. */
static __noinline int no_file(struct call *call, struct books *books)
{
	COUNT(books, SOURCE_RARE, seen);
	if (call->result == -EBADF)
		COUNT(books, SOURCE_RARE, filtered);
	else
		COUNT(books, SOURCE_RARE, lost_unresolved);
	return 0;
}

static __always_inline bool of_aio(__u64 number)
{
	return number == NR_IO_SUBMIT || number == NR_IO_GETEVENTS || number == NR_IO_PGETEVENTS;
}

static __always_inline int aio_entry(struct pt_regs *regs, __u64 number)
{
	return number == NR_IO_SUBMIT ? aio_entered(regs) : 0;
}

static __always_inline int aio_exit(struct pt_regs *regs, long result, __u64 number)
{
	return number == NR_IO_SUBMIT ? aio_left(regs, result) : aio_fetched(regs, result);
}

static __always_inline int other_entry(struct pt_regs *regs, __u64 number)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *state;
	struct books books;
	struct file *file;

	if (slot_here() < 0 || (task->thread_info.status & TS_COMPAT))
		return 0;
	state = state_of(task, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!state) {
		if (open_books(&books)) {
			COUNT(&books, SOURCE_RARE, seen);
			COUNT(&books, SOURCE_RARE, lost_storage);
			close_books(&books);
		}
		return 0;
	}
	state->held_file = 0;
	if (number == NR_CLOSE) {
		file = file_of(regs->di);
		if (!file)
			return 0;
		state->held_file = number_if_known(FIELD(file, f_inode));
		if (!state->held_file)
			return 0;
	}
	state->start_ns = bpf_ktime_get_ns();
	return 0;
}

/* Send one piece of a name in a call: a text of the caller, or the directory that it is relative to. */
static __always_inline void send_piece(struct name_piece *piece, __u32 bytes, struct books *books)
{
	piece->file_id = 0;
	piece->bytes = bytes;
	if (bytes > PATH_BYTES)
		bytes = PATH_BYTES;
	if (bpf_ringbuf_output(&introductions, piece, bytes + sizeof(*piece), BPF_RB_NO_WAKEUP))
		tally(books, &books->ledger->nameless);
}

struct naming {
	struct call *call;
	const char *text;
	int directory;
	__u32 which; /* 0: the old or only name, 1: the new name */
	__u64 flags;
};

static __always_inline bool begins_with(const __u8 *text, const char *beginning, int length)
{
	for (int i = 0; i < length; i++)
		if (text[i] != (__u8)beginning[i])
			return false;
	return true;
}

/* The decimal number that the rest of the text consists of; -1 for other text. */
static __always_inline int number_at(const __u8 *text)
{
	int number = 0;

	for (int i = 0; i < 10; i++) {
		if (!text[i])
			return i ? number : -1;
		if (text[i] < '0' || text[i] > '9')
			return -1;
		number = 10 * number + text[i] - '0';
	}
	return -1;
}

#define SELF_FD "/proc/self/fd/"
#define THREAD_SELF_FD "/proc/thread-self/fd/"
#define DEV_FD "/dev/fd/"
#define AFTER(beginning) (sizeof(beginning) - 1)

/* Descriptor of the caller that a path denotes, as open(2) names a file of O_TMPFILE; -1: none. */
static __noinline int descriptor_named(const __u8 *text)
{
	if (begins_with(text, SELF_FD, AFTER(SELF_FD)))
		return number_at(text + AFTER(SELF_FD));
	if (begins_with(text, THREAD_SELF_FD, AFTER(THREAD_SELF_FD)))
		return number_at(text + AFTER(THREAD_SELF_FD));
	if (begins_with(text, DEV_FD, AFTER(DEV_FD)))
		return number_at(text + AFTER(DEV_FD));
	return -1;
}

/* Number of an open file to which a link is created: by AT_EMPTY_PATH, or by the path of its descriptor. */
static __always_inline __u32 linked_by_descriptor(struct naming *naming, const __u8 *text)
{
	int descriptor = text[0] ? descriptor_named(text) : naming->directory;
	struct file *file = descriptor < 0 ? NULL : file_of(descriptor);

	return file ? number_if_known(FIELD(file, f_inode)) : 0;
}

static __noinline int send_name(struct naming *naming, struct books *books)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct introduction *draft;
	struct name_piece *piece;
	struct dentry *dentry;
	struct vfsmount *view;
	struct ledger *own;
	struct file *file;
	struct work *work;
	__u32 number;
	long length;

	own = ledger_of(books->cpu);
	if (!own)
		return 0;
	number = __sync_fetch_and_add(&own->drafting, 1);
	draft = bpf_map_lookup_elem(&drafts, &number);
	work = bpf_map_lookup_elem(&works, &number);
	if (!draft || !work) {
		tally(books, &books->ledger->nameless);
		goto out;
	}
	piece = (void *)draft;
	piece->t_ns = naming->call->start_ns;
	piece->tid = naming->call->tid;
	piece->op = naming->call->op;
	piece->result = naming->call->result;
	piece->which = naming->which;
	piece->flags = naming->flags;
	length = bpf_probe_read_user_str(draft->path, 4096, naming->text);
	if (length <= 0)
		goto out;
	piece->directory = 0;
	piece->complete = 1;
	piece->link_of = 0;
	if (naming->call->op == OP_LINK && !naming->which)
		piece->link_of = linked_by_descriptor(naming, draft->path);
	send_piece(piece, length, books);
	if (draft->path[0] == '/') {
		dentry = BPF_CORE_READ(task, fs, root.dentry);
		view = BPF_CORE_READ(task, fs, root.mnt);
	} else if (naming->directory == AT_FDCWD) {
		dentry = BPF_CORE_READ(task, fs, pwd.dentry);
		view = BPF_CORE_READ(task, fs, pwd.mnt);
	} else {
		file = file_of(naming->directory);
		if (!file)
			goto out;
		dentry = BPF_CORE_READ(file, f_path.dentry);
		view = BPF_CORE_READ(file, f_path.mnt);
	}
	begin_walk(&work->walk, dentry, view);
	bpf_loop(MOST_NAMES, step_up, &number, 0);
	piece->directory = 1;
	piece->complete = work->walk.complete;
	send_piece(piece, work->walk.used, books);
out:
	__sync_fetch_and_add(&own->drafting, -1);
	return 0;
}

struct found_range {
	__u64 address;
	__u64 bytes;
	__s64 offset_bytes;
	__u32 file_id;
};

/* File and offset of the first mapping in the range; a range over several files is attributed to the first. */
static long in_mapping(struct task_struct *task, struct vm_area_struct *area, struct found_range *found)
{
	struct file *file = area->vm_file;
	struct inode *inode;

	if (!file)
		return 0;
	inode = BPF_CORE_READ(file, f_inode);
	if (!probe_reads)
		inode = bpf_rdonly_cast(inode, bpf_core_type_id_kernel(struct inode));
	found->file_id = number_if_known(inode);
	found->offset_bytes = ((__s64)area->vm_pgoff << PAGE_SHIFT) + (found->address - area->vm_start);
	return 0;
}

static __noinline int msync_left(struct pt_regs *regs, __u64 number, struct call *call, struct books *books)
{
	struct found_range found = { .address = regs->di };

	bpf_find_vma(bpf_get_current_task_btf(), found.address, in_mapping, &found, 0);
	call->op = OP_MSYNC;
	call->offset_bytes = found.offset_bytes;
	call->asked_bytes = regs->si;
	return keep_rare(call, found.file_id, books);
}

/* Calls by path: user space determines the file. */
static __noinline int names_left(struct pt_regs *regs, __u64 number, struct call *call, struct books *books)
{
	struct naming naming = { .call = call, .directory = AT_FDCWD };
	const char *other = NULL;
	int directory = AT_FDCWD;

	naming.text = (void *)regs->di;
	call->op = OP_RENAME;
	switch (number) {
	case NR_OPEN:
	case NR_CREAT:
		call->op = OP_OPEN;
		break;
	case NR_OPENAT:
	case NR_OPENAT2:
		call->op = OP_OPEN;
		naming.directory = regs->di;
		naming.text = (void *)regs->si;
		break;
	case NR_UNLINK:
		call->op = OP_UNLINK;
		break;
	case NR_TRUNCATE:
		call->op = OP_TRUNCATE;
		call->offset_bytes = regs->si;
		break;
	case NR_UNLINKAT:
		call->op = OP_UNLINK;
		naming.directory = regs->di;
		naming.text = (void *)regs->si;
		break;
	case NR_LINK:
		call->op = OP_LINK;
		other = (void *)regs->si;
		break;
	case NR_RENAME:
		other = (void *)regs->si;
		break;
	default: /* renameat, renameat2, linkat */
		if (number == NR_LINKAT)
			call->op = OP_LINK;
		if (number == NR_RENAMEAT2)
			naming.flags = (__u32)regs->r8;
		naming.directory = regs->di;
		naming.text = (void *)regs->si;
		directory = regs->dx;
		other = (void *)regs->r10;
		break;
	}
	send_name(&naming, books);
	if (other) {
		naming.text = other;
		naming.directory = directory;
		naming.which = 1;
		send_name(&naming, books);
	}
	return keep_rare(call, 0, books);
}

static __noinline int open_left(struct pt_regs *regs, __u64 number, struct call *call, struct books *books)
{
	struct known_file known = {};
	struct file *file;

	call->op = OP_OPEN;
	if (call->result < 0)
		return keep_rare(call, 0, books);
	file = file_of(call->result);
	if (!file || !has_storage(FIELD(file, f_inode))) {
		COUNT(books, SOURCE_RARE, seen);
		COUNT(books, SOURCE_RARE, filtered); /* a directory or terminal; or closed by another thread */
		return 0;
	}
	call->result = 0;
	if (FIELD(file, f_mode) & FMODE_CREATED)
		call->op = OP_CREATE;
	call->flags = call_flags(file);
	recall(file, &known, books);
	if (known.file_id && known.file_id != UNWANTED && BPF_CORE_READ(file, f_inode, i_nlink) > 1) {
		__u64 address = 0;

		bpf_probe_read_kernel(&address, sizeof(address), &file);
		meet_name(address, known.file_id);
	}
	return keep_rare(call, known.file_id, books);
}

static __noinline int by_descriptor(struct pt_regs *regs, __u64 number, struct call *call, struct books *books)
{
	struct known_file known = {};
	struct file *file = file_of(regs->di);
	struct inode *inode;
	__u32 mode;

	switch (number) {
	case NR_FSYNC:
		call->op = OP_FSYNC;
		break;
	case NR_FDATASYNC:
		call->op = OP_FDATASYNC;
		break;
	case NR_SYNC_FILE_RANGE:
		call->op = OP_SYNC_FILE_RANGE;
		call->offset_bytes = regs->si;
		call->asked_bytes = regs->dx;
		break;
	case NR_SYNCFS:
		call->op = OP_SYNCFS;
		break;
	case NR_FTRUNCATE:
		call->op = OP_FTRUNCATE;
		call->offset_bytes = regs->si;
		break;
	case NR_FALLOCATE:
		call->op = OP_FALLOCATE;
		call->offset_bytes = regs->dx;
		call->asked_bytes = regs->r10;
		break;
	default:
		call->op = OP_FADVISE;
		call->offset_bytes = regs->si;
		call->asked_bytes = regs->dx;
		break;
	}
	if (!file)
		return no_file(call, books);
	inode = FIELD(file, f_inode);
	mode = FIELD(inode, i_mode);
	if (!of_storage(mode)) {
		if (call->op == OP_SYNCFS)
			return keep_rare(call, 0, books); /* of a directory: stands for the file system */
		/* fsync of a directory makes its names durable */
		if ((mode & S_IFMT) != S_IFDIR || (call->op != OP_FSYNC && call->op != OP_FDATASYNC)) {
			COUNT(books, SOURCE_RARE, seen);
			COUNT(books, SOURCE_RARE, filtered);
			return 0;
		}
	}
	call->flags = call_flags(file);
	recall(file, &known, books);
	return keep_rare(call, known.file_id, books);
}

/*
 * Record one half. Its start is computed from its end, which the kernel stores in the caller's variable or in the
 * descriptor's position.
 */
static __always_inline void one_half(struct call *call, struct file *file, const void *variable,
				     struct books *books)
{
	__u32 file_id = 0;
	__s64 end = 0;

	if (variable) {
		bpf_probe_read_user(&end, sizeof(end), variable);
		call->flags = 0;
	} else {
		end = BPF_CORE_READ(file, f_pos);
		call->flags = FLAG_AT_POSITION;
	}
	call->offset_bytes = end - (call->result > 0 ? call->result : 0);
	if (has_storage(FIELD(file, f_inode))) {
		call->flags |= call_flags(file);
		/* not in keep_half: the stack of both functions together would exceed the limit */
		file_id = number_of(file);
	}
	keep_half(call, file_id, books);
}

static __noinline int copy_left(struct pt_regs *regs, __u64 number, struct call *call, struct books *books)
{
	__u32 from = regs->di, to = regs->dx, op_in, op_out;
	const void *from_at = (void *)regs->si, *to_at = (void *)regs->r10;
	struct file *file;

	call->asked_bytes = regs->r8;
	if (number == NR_SENDFILE) {
		to = regs->di;
		from = regs->si;
		from_at = (void *)regs->dx;
		to_at = NULL;
		call->asked_bytes = regs->r10;
		op_in = OP_SENDFILE_IN;
	} else if (number == NR_SPLICE) {
		op_in = OP_SPLICE_IN;
	} else {
		op_in = OP_COPY_IN;
	}
	op_out = op_in - OP_SENDFILE_IN + OP_SENDFILE_OUT;
	file = file_of(from);
	if (file) {
		call->op = op_in;
		one_half(call, file, from_at, books);
	} else {
		no_file(call, books);
	}
	file = file_of(to);
	if (file) {
		call->op = op_out;
		one_half(call, file, to_at, books);
	} else {
		no_file(call, books);
	}
	return 0;
}

static __always_inline int close_left(struct call *call, struct thread_state *state, struct books *books)
{
	__u32 file_id = state ? state->held_file : 0;

	if (!file_id) {
		COUNT(books, SOURCE_RARE, seen);
		COUNT(books, SOURCE_RARE, filtered);
		return 0;
	}
	state->held_file = 0;
	call->op = OP_CLOSE;
	return keep_rare(call, file_id, books);
}

/* Call it with the books open. */
static __always_inline int rare_counted(struct pt_regs *regs, long result, __u64 number, int slot,
					struct books *books)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *state = state_of(task, 0);
	struct call call = {};

	if (state) {
		call.start_ns = state->start_ns;
		state->start_ns = 0;
	}
	if ((!call.start_ns && !patterns_only) || (result <= -512 && result >= -516)) {
		COUNT(books, SOURCE_RARE, seen);
		COUNT(books, SOURCE_RARE, filtered); /* begun before arming; close of an untraced file; to be restarted */
		return 0;
	}
	call.now_ns = bpf_ktime_get_ns();
	call.result = result;
	call.tid = task->pid;
	call.pid = task->tgid;
	call.slot = slot;
	switch (number) {
	case NR_OPEN:
	case NR_OPENAT:
	case NR_OPENAT2:
	case NR_CREAT:
		/* with a filter of files, failed opens are excluded */
		if (result < 0 && !patterns_only && !filtering_files())
			return names_left(regs, number, &call, books);
		return open_left(regs, number, &call, books);
	case NR_CLOSE:
		return close_left(&call, state, books);
	case NR_MSYNC:
		return msync_left(regs, number, &call, books);
	case NR_SENDFILE:
	case NR_SPLICE:
	case NR_COPY_FILE_RANGE:
		return copy_left(regs, number, &call, books);
	case NR_SYNC:
		call.op = OP_SYNC;
		return keep_rare(&call, 0, books);
	case NR_TRUNCATE:
	case NR_RENAME:
	case NR_LINK:
	case NR_UNLINK:
	case NR_UNLINKAT:
	case NR_RENAMEAT:
	case NR_LINKAT:
	case NR_RENAMEAT2:
		return names_left(regs, number, &call, books);
	default:
		return by_descriptor(regs, number, &call, books);
	}
}

static __always_inline int other_exit(struct pt_regs *regs, long result, __u64 number)
{
	struct task_struct *task = bpf_get_current_task_btf();
	int slot = slot_here();
	struct books books;

	if (slot < 0)
		return 0;
	if (!open_books(&books))
		return 0;
	if (task->thread_info.status & TS_COMPAT)
		tally(&books, &books.ledger->compat);
	else
		rare_counted(regs, result, number, slot, &books);
	close_books(&books);
	return 0;
}

static __noinline int other_entered(struct pt_regs *regs, __u64 number)
{
	return other_entry(regs, number);
}

/* From the hooks of all calls. A separate function, so that the frequent calls have a short program. */
static __noinline int other_left(struct pt_regs *regs, long result, __u64 number)
{
	return other_exit(regs, result, number);
}

/* libaio has deep functions, which must not be on the stack of the other calls' function. */
static __always_inline int rare_entered(struct pt_regs *regs, __u64 number)
{
	return of_aio(number) ? aio_entry(regs, number) : other_entered(regs, number);
}

static __always_inline int rare_left(struct pt_regs *regs, long result, __u64 number)
{
	return of_aio(number) ? aio_exit(regs, result, number) : other_left(regs, result, number);
}

/* The same in a program for one call, whose number is a constant. */
static __always_inline int rare_entry(struct pt_regs *regs, __u64 number)
{
	return of_aio(number) ? aio_entry(regs, number) : other_entry(regs, number);
}

static __always_inline int rare_exit(struct pt_regs *regs, long result, __u64 number)
{
	return of_aio(number) ? aio_exit(regs, result, number) : other_exit(regs, result, number);
}

/* Program on a function of its own: the number is a constant, so the program contains only the code for that call. */
#define ON_RARE(name, number) \
	SEC("fentry/__x64_sys_" #name) \
	int BPF_PROG(in_##name, struct pt_regs *regs) \
	{ \
		if (!control.armed) \
			return 0; \
		meter(METER_CALLS); \
		return rare_entry(regs, number); \
	} \
	SEC("fexit/__x64_sys_" #name) \
	int BPF_PROG(out_##name, struct pt_regs *regs, long result) \
	{ \
		if (!control.armed) \
			return 0; \
		meter(METER_CALLS); \
		return rare_exit(regs, result, number); \
	}

ON_RARE(open, NR_OPEN)
ON_RARE(close, NR_CLOSE)
ON_RARE(msync, NR_MSYNC)
ON_RARE(sendfile64, NR_SENDFILE)
ON_RARE(fsync, NR_FSYNC)
ON_RARE(fdatasync, NR_FDATASYNC)
ON_RARE(truncate, NR_TRUNCATE)
ON_RARE(ftruncate, NR_FTRUNCATE)
ON_RARE(rename, NR_RENAME)
ON_RARE(creat, NR_CREAT)
ON_RARE(link, NR_LINK)
ON_RARE(unlink, NR_UNLINK)

/* sync has no arguments, and some kernels have no type information for its entry. */
SEC("fentry/ksys_sync")
int BPF_PROG(in_sync)
{
	return control.armed ? rare_entry(NULL, NR_SYNC) : 0;
}

SEC("fexit/ksys_sync")
int BPF_PROG(out_sync)
{
	return control.armed ? rare_exit(NULL, 0, NR_SYNC) : 0;
}

ON_RARE(fadvise64, NR_FADVISE64)
ON_RARE(io_submit, NR_IO_SUBMIT)
ON_RARE(io_getevents, NR_IO_GETEVENTS)
ON_RARE(io_pgetevents, NR_IO_PGETEVENTS)
ON_RARE(openat, NR_OPENAT)
ON_RARE(unlinkat, NR_UNLINKAT)
ON_RARE(renameat, NR_RENAMEAT)
ON_RARE(linkat, NR_LINKAT)
ON_RARE(splice, NR_SPLICE)
ON_RARE(sync_file_range, NR_SYNC_FILE_RANGE)
ON_RARE(fallocate, NR_FALLOCATE)
ON_RARE(syncfs, NR_SYNCFS)
ON_RARE(renameat2, NR_RENAMEAT2)
ON_RARE(copy_file_range, NR_COPY_FILE_RANGE)
ON_RARE(openat2, NR_OPENAT2)

#endif
