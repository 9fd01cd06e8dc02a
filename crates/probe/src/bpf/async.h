/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Requests that continue after their submission: libaio and io_uring. A map stores their properties by request object
 * until the completion has the result. POSIX AIO needs nothing here, because the threads of the C library use
 * ordinary calls.
 *
 * In mode pattern reads and writes are counted at submission, as if transferred in full, in order of their issue.
 */
#ifndef PENSTOCK_ASYNC_H
#define PENSTOCK_ASYNC_H

#include "operations.h"

#define RWF_DSYNC 2
#define RWF_SYNC 4
#define RWF_NOWAIT 8
#define RWF_APPEND 16
#define EAGAIN 11
#define MOST_AT_ONCE 4096 /* requests of one io_submit that are examined: a program here must end soon */

struct request_key {
	__u64 object; /* the kernel's request, or the caller's iocb */
	__u64 context; /* of an iocb: the kernel's context, because addresses repeat in forked processes */
};

struct request {
	__u64 start_ns;
	__u64 end_ns; /* if known before the result */
	__u64 asked_bytes;
	__s64 offset_bytes;
	__s64 other_offset_bytes; /* of the second file of a splice */
	__u32 file_id; /* 0: the completion determines it */
	__u32 other_file_id;
	__u32 tid;
	__u32 pid;
	__u16 slot;
	__u8 op;
	__u8 flags;
	__u32 done; /* recorded, but not removed; the last field, read by names.rs */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct request_key);
	__type(value, struct request);
} requests SEC(".maps");

/* A separate function, as record_rare. */
static __noinline int record_async(struct call *call, struct known_file *known, struct books *books)
{
	record(call, known, bpf_get_current_task_btf(), books, SOURCE_ASYNC);
	return 0;
}

/*
 * Exactly one of kept, filtered and lost_* is incremented, after `seen`. Operations that are neither reads nor writes
 * are summed in any mode. With a filter of files, those that only name their file are excluded (see keep_rare).
 */
static __always_inline int keep_async(struct call *call, __u32 file_id, struct books *books)
{
	struct known_file known = { .file_id = file_id, .stream = { NO_STREAM, NO_STREAM } };

	COUNT(books, SOURCE_ASYNC, seen);
	if (call->op >= FIRST_SYNC) {
		bool failed;

		if (left_out(file_id, call->op) || (filtering_files() && !file_id)) {
			COUNT(books, SOURCE_ASYNC, filtered);
			return 0;
		}
		failed = sum_up(call, file_id);
		if (patterns_only) {
			if (failed)
				COUNT(books, SOURCE_ASYNC, lost_storage);
			else
				COUNT(books, SOURCE_ASYNC, kept);
			return 0;
		}
	}
	return record_async(call, &known, books);
}

/* In an interrupt: the interrupted code may own the CPU's ring and counts. */
static __noinline int keep_aside(struct call *call, __u32 file_id)
{
	struct ledger *ledger = ledger_of(cpu_count);
	struct source *counts;
	struct event event;
	__u64 seen;

	if (!ledger)
		return 0;
	counts = &ledger->sources[SOURCE_ASYNC];
	seen = __sync_fetch_and_add(&counts->seen, 1) + 1;
	if (left_out(file_id, call->op)) {
		__sync_fetch_and_add(&counts->filtered, 1);
		return 0;
	}
	if (control.drop_every && seen % control.drop_every == 0) {
		__sync_fetch_and_add(&counts->lost_planted, 1);
		return 0;
	}
	fill(&event, call, file_id);
	if (bpf_ringbuf_output(&overflow, &event, sizeof(event), BPF_RB_NO_WAKEUP)) {
		__sync_fetch_and_add(&counts->lost_ring, 1);
		return 0;
	}
	__sync_fetch_and_add(&ledger->overflowed, 1);
	__sync_fetch_and_add(&counts->kept, 1);
	return 0;
}

static __noinline int count_filtered(void)
{
	struct books books;

	if (!open_books(&books))
		return 0;
	COUNT(&books, SOURCE_ASYNC, seen);
	COUNT(&books, SOURCE_ASYNC, filtered);
	close_books(&books);
	return 0;
}

static __noinline int count_lost(bool storage)
{
	struct books books;

	if (!open_books(&books))
		return 0;
	COUNT(&books, SOURCE_ASYNC, seen);
	if (storage)
		COUNT(&books, SOURCE_ASYNC, lost_storage);
	else
		COUNT(&books, SOURCE_ASYNC, lost_unresolved);
	close_books(&books);
	return 0;
}

/* Count requests of one submission beyond the number that is examined. */
static __noinline int count_beyond(__u64 requests)
{
	struct source *counts;
	struct books books;

	if (!open_books(&books))
		return 0;
	counts = &books.ledger->sources[SOURCE_ASYNC];
	__sync_fetch_and_add(&counts->seen, requests);
	__sync_fetch_and_add(&counts->lost_storage, requests);
	close_books(&books);
	return 0;
}

static __always_inline __u32 flags_of_request(__u32 rwf)
{
	return (rwf & (RWF_DSYNC | RWF_SYNC) ? FLAG_SYNC : 0) | (rwf & RWF_NOWAIT ? FLAG_NOWAIT : 0) |
	       (rwf & RWF_APPEND ? FLAG_APPEND : 0);
}

struct lengths {
	struct iovec *vectors;
	__u64 bytes;
};

static long add_length(__u64 index, void *context)
{
	struct lengths *lengths = context;
	unsigned long length = 0;

	if (bpf_probe_read_user(&length, sizeof(length), &lengths->vectors[index].iov_len))
		return 1;
	lengths->bytes += length;
	return 0;
}

static __noinline __u64 sum_of_vectors(__u64 address, __u64 count)
{
	struct lengths lengths = { .vectors = (void *)address };

	if (count == 1)
		add_length(0, &lengths);
	else if (count <= 1024)
		bpf_loop(count, add_length, &lengths, 0);
	return lengths.bytes;
}

static __always_inline void to_call(const struct request *request, struct call *call)
{
	call->start_ns = request->start_ns;
	call->asked_bytes = request->asked_bytes;
	call->offset_bytes = request->offset_bytes;
	call->tid = request->tid;
	call->pid = request->pid;
	call->slot = request->slot;
	call->op = request->op;
	call->flags = request->flags | FLAG_ASYNC;
}

static __noinline int hold(struct request_key *key, struct request *request)
{
	struct request *stale = bpf_map_lookup_elem(&requests, key);

	if (stale && !stale->done)
		count_lost(false); /* its end was not observed: fetched from shared memory, or without completion */
	if (bpf_map_update_elem(&requests, key, request, BPF_ANY))
		count_lost(true);
	return 0;
}

/* ---- libaio ---- */

static __always_inline int aio_op(__u16 code)
{
	switch (code) {
	case 0:
		return OP_AIO_PREAD;
	case 1:
		return OP_AIO_PWRITE;
	case 2:
		return OP_AIO_FSYNC;
	case 3:
		return OP_AIO_FDSYNC;
	case 7:
		return OP_AIO_PREADV;
	case 8:
		return OP_AIO_PWRITEV;
	default:
		return -1;
	}
}

struct context_search {
	struct kioctx_table *table;
	__u64 user_id;
	__u64 found;
};

static long context_at(__u64 index, void *context)
{
	struct context_search *search = context;
	struct kioctx *candidate = NULL;

	bpf_probe_read_kernel(&candidate, sizeof(candidate),
			      (void *)search->table + bpf_core_field_offset(struct kioctx_table, table) +
				      index * sizeof(candidate));
	if (!candidate || BPF_CORE_READ(candidate, user_id) != search->user_id)
		return 0;
	search->found = (__u64)candidate;
	return 1;
}

/*
 * The kernel's context of a program's context number. The number is an address at which the program can read the
 * context's index in the table. Before the first access to that page this fails, and all contexts are tried.
 */
static __noinline __u64 aio_context(__u64 user_id)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct kioctx_table *table = BPF_CORE_READ(task, mm, ioctx_table);
	struct context_search search = { .table = table, .user_id = user_id };
	__u32 index = 0, count;

	if (!table)
		return 0;
	count = BPF_CORE_READ(table, nr);
	if (!bpf_probe_read_user(&index, sizeof(index), (void *)user_id) && index < count)
		context_at(index, &search);
	if (!search.found)
		bpf_loop(count > 4096 ? 4096 : count, context_at, &search, 0);
	return search.found;
}

struct batch {
	__u64 context;
	__u64 list; /* address of the caller's list of pointers */
	__u64 now_ns;
	__u32 count;
	int slot;
};

static __always_inline __u64 listed(struct batch *batch, __u64 index)
{
	__u64 address = 0;

	bpf_probe_read_user(&address, sizeof(address), (void *)(batch->list + 8 * index));
	return address;
}

/* Properties of a request, and its descriptor; -1 for an unknown operation. Its own stack frame is freed afterwards. */
static __noinline long aio_details(__u64 object, struct request *request)
{
	struct iocb iocb = {};
	int op;

	if (bpf_probe_read_user(&iocb, sizeof(iocb), (void *)object))
		return -2;
	op = aio_op(iocb.aio_lio_opcode);
	if (op < 0)
		return -1;
	request->op = op;
	request->flags = flags_of_request(iocb.aio_rw_flags);
	request->asked_bytes = iocb.aio_nbytes;
	request->offset_bytes = iocb.aio_offset;
	if (op == OP_AIO_PREADV || op == OP_AIO_PWRITEV) {
		request->flags |= FLAG_VECTORED;
		request->asked_bytes = sum_of_vectors(iocb.aio_buf, iocb.aio_nbytes);
	}
	return iocb.aio_fildes;
}

/* Mode pattern: count a request at its submission, as if it were transferred in full. */
static __noinline int aio_count(struct request *request)
{
	struct call call = {};
	struct books books;

	if (!open_books(&books))
		return 0;
	to_call(request, &call);
	call.result = request->op >= FIRST_SYNC ? 0 : request->asked_bytes;
	keep_async(&call, request->file_id, &books);
	close_books(&books);
	return 0;
}

/* One request of an io_submit: add it to the map, or in mode pattern count it. */
static long aio_submit_one(__u64 index, void *context)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct batch *batch = context;
	struct request_key key = { .context = batch->context, .object = listed(batch, index) };
	struct request request = {};
	struct inode *inode;
	struct file *file;
	long descriptor = aio_details(key.object, &request);

	if (descriptor == -2)
		return 0;
	file = descriptor < 0 ? NULL : file_of(descriptor);
	if (!file) {
		count_filtered();
		return 0;
	}
	inode = FIELD(file, f_inode);
	if (!has_storage(inode)) {
		count_filtered();
		return 0;
	}
	request.flags |= call_flags(file);
	if (request.op >= FIRST_SYNC)
		request.asked_bytes = request.offset_bytes = 0;
	else if (request.op >= FIRST_WRITE && (request.flags & FLAG_APPEND))
		request.offset_bytes = FIELD(inode, i_size);
	request.tid = task->pid;
	request.pid = task->tgid;
	request.slot = batch->slot;
	request.file_id = number_of(file);
	if (patterns_only) {
		aio_count(&request);
		return 0;
	}
	request.start_ns = bpf_ktime_get_ns();
	hold(&key, &request);
	return 0;
}

static __always_inline bool aio_batch(struct pt_regs *regs, struct batch *batch)
{
	struct task_struct *task = bpf_get_current_task_btf();

	batch->slot = slot_here();
	if (batch->slot < 0 || (task->thread_info.status & TS_COMPAT))
		return false;
	batch->context = aio_context(regs->di);
	batch->list = regs->dx;
	batch->count = regs->si > MOST_AT_ONCE ? MOST_AT_ONCE : regs->si;
	return batch->context;
}

static __noinline int aio_entered(struct pt_regs *regs)
{
	struct batch batch = {};

	if (patterns_only || !aio_batch(regs, &batch))
		return 0;
	bpf_loop(batch.count, aio_submit_one, &batch, 0);
	return 0;
}

/* Remove a request that the kernel did not accept. */
static long aio_withdraw_one(__u64 index, void *context)
{
	struct batch *batch = context;
	struct request_key key = { .context = batch->context, .object = listed(batch, index) };

	bpf_map_delete_elem(&requests, &key);
	return 0;
}

/* A request through the page cache is served within its submission, so it has ended by now. */
static long aio_served_one(__u64 index, void *context)
{
	struct batch *batch = context;
	struct request_key key = { .context = batch->context, .object = listed(batch, index) };
	struct request *request = bpf_map_lookup_elem(&requests, &key);

	if (!request || (request->flags & FLAG_DIRECT) || request->op >= FIRST_SYNC || request->end_ns)
		return 0;
	request->end_ns = batch->now_ns;
	if (batch->count > 1)
		request->flags |= FLAG_REAPED;
	return 0;
}

static __noinline int aio_left(struct pt_regs *regs, long result)
{
	struct batch batch = {};
	__u32 taken = result > 0 ? result : 0;

	if (!aio_batch(regs, &batch))
		return 0;
	if (taken > batch.count) {
		count_beyond(taken - batch.count);
		taken = batch.count;
	}
	if (patterns_only) {
		bpf_loop(taken, aio_submit_one, &batch, 0);
		return 0;
	}
	batch.now_ns = bpf_ktime_get_ns();
	bpf_loop(taken, aio_served_one, &batch, 0);
	batch.list += 8ULL * taken;
	bpf_loop(batch.count - taken, aio_withdraw_one, &batch, 0);
	return 0;
}

/* One event from io_getevents: record its result, unless that was done at the completion. */
static long aio_fetch_one(__u64 index, void *context)
{
	struct batch *batch = context;
	struct request_key key = { .context = batch->context };
	struct fetched_event event = {};
	struct request *request;
	struct books books;
	struct call call = {};

	bpf_probe_read_user(&event, sizeof(event), (void *)(batch->list + sizeof(event) * index));
	key.object = event.obj;
	request = bpf_map_lookup_elem(&requests, &key);
	if (!request)
		return 0;
	if (!request->done && open_books(&books)) {
		to_call(request, &call);
		call.now_ns = request->end_ns ? request->end_ns : batch->now_ns;
		if (!request->end_ns)
			call.flags |= FLAG_REAPED;
		call.result = event.res;
		keep_async(&call, request->file_id, &books);
		close_books(&books);
	}
	bpf_map_delete_elem(&requests, &key);
	return 0;
}

static __noinline int aio_fetched(struct pt_regs *regs, long result)
{
	struct batch batch = {};

	if (patterns_only || result <= 0 || result > 65536 || slot_here() < 0)
		return 0;
	batch.context = aio_context(regs->di);
	batch.list = regs->r10;
	batch.now_ns = bpf_ktime_get_ns();
	bpf_loop(result, aio_fetch_one, &batch, 0);
	return 0;
}

/* Its address, 0 if unknown. As a __ksym, libbpf would read all symbols of the kernel at each load, in any mode. */
const volatile __u64 aio_complete_rw = 0;

/* At a completion, usually in an interrupt. */
static __always_inline int aio_completed(struct kiocb *kiocb, long result)
{
	struct aio_kiocb *aio = (void *)kiocb;
	struct request_key key = {};
	struct request *request;
	struct call call = {};
	__u32 file_id;

	if (!control.armed)
		return 0;
	key.object = BPF_CORE_READ(aio, ki_res.obj);
	key.context = (__u64)BPF_CORE_READ(aio, ki_ctx);
	request = bpf_map_lookup_elem(&requests, &key);
	if (!request || request->done)
		return 0;
	to_call(request, &call);
	call.now_ns = bpf_ktime_get_ns();
	call.result = result;
	if ((call.flags & FLAG_APPEND) && call.op >= FIRST_WRITE && result > 0)
		call.offset_bytes = BPF_CORE_READ(kiocb, ki_pos) - result;
	file_id = request->file_id;
	request->done = 1;
	bpf_map_delete_elem(&requests, &key);
	keep_aside(&call, file_id);
	return 0;
}

SEC("fentry/aio_complete_rw")
int BPF_PROG(aio_done, struct kiocb *kiocb, long result)
{
	meter(METER_OTHERS);
	return aio_completed(kiocb, result);
}

SEC("tp_btf/iomap_dio_complete")
int BPF_PROG(aio_direct_done, struct kiocb *kiocb, int error, long result)
{
	if ((__u64)BPF_CORE_READ(kiocb, ki_complete) != aio_complete_rw)
		return 0;
	return aio_completed(kiocb, result);
}

/* ---- io_uring ---- */

enum {
	URING_READV = 1,
	URING_WRITEV = 2,
	URING_FSYNC = 3,
	URING_READ_FIXED = 4,
	URING_WRITE_FIXED = 5,
	URING_SYNC_FILE_RANGE = 8,
	URING_FALLOCATE = 17,
	URING_OPENAT = 18,
	URING_CLOSE = 19,
	URING_READ = 22,
	URING_WRITE = 23,
	URING_FADVISE = 24,
	URING_OPENAT2 = 28,
	URING_SPLICE = 30,
	URING_RENAMEAT = 35,
	URING_UNLINKAT = 36,
	URING_LINKAT = 39,
	URING_FTRUNCATE = 55,
	URING_READV_FIXED = 60,
	URING_WRITEV_FIXED = 61,
};

#define FIXED_FILE 1 /* flag of the request: its descriptor is an index in the ring's table */
#define NO_COMPLETION 64
#define SETUP_SQPOLL 2
#define FSYNC_DATASYNC 1
#define SPLICE_FIXED (1U << 31)

/* Our operation plus 1; 0 for none. A table, because the verifier follows every case of a switch to the end. */
const volatile __u8 uring_ops[64] = {
	[URING_READV] = 1 + OP_URING_READV,
	[URING_WRITEV] = 1 + OP_URING_WRITEV,
	[URING_FSYNC] = 1 + OP_URING_FSYNC,
	[URING_READ_FIXED] = 1 + OP_URING_READ_FIXED,
	[URING_WRITE_FIXED] = 1 + OP_URING_WRITE_FIXED,
	[URING_SYNC_FILE_RANGE] = 1 + OP_SYNC_FILE_RANGE,
	[URING_FALLOCATE] = 1 + OP_FALLOCATE,
	[URING_OPENAT] = 1 + OP_OPEN,
	[URING_CLOSE] = 1 + OP_CLOSE,
	[URING_READ] = 1 + OP_URING_READ,
	[URING_WRITE] = 1 + OP_URING_WRITE,
	[URING_FADVISE] = 1 + OP_FADVISE,
	[URING_OPENAT2] = 1 + OP_OPEN,
	[URING_SPLICE] = 1 + OP_SPLICE_OUT,
	[URING_RENAMEAT] = 1 + OP_RENAME,
	[URING_UNLINKAT] = 1 + OP_UNLINK,
	[URING_LINKAT] = 1 + OP_LINK,
	[URING_FTRUNCATE] = 1 + OP_FTRUNCATE,
	[URING_READV_FIXED] = 1 + OP_URING_READV,
	[URING_WRITEV_FIXED] = 1 + OP_URING_WRITEV,
};

static __always_inline int uring_op(__u8 code)
{
	return code < sizeof(uring_ops) ? (int)uring_ops[code] - 1 : -1;
}

/* A file registered with the ring. */
static __noinline __u64 registered_file(struct io_ring_ctx *ring, __u32 index)
{
	struct io_file_table *table = (void *)ring + bpf_core_field_offset(struct io_ring_ctx, file_table);
	struct io_file_table___since_6_13 *since = (void *)table;
	struct io_file_table___before_6_13 *before = (void *)table;
	unsigned long pointer = 0;

	if (bpf_core_field_exists(since->data)) {
		struct io_rsrc_node___since_6_13 **nodes, *node = NULL;

		if (index >= BPF_CORE_READ(since, data.nr))
			return 0;
		nodes = BPF_CORE_READ(since, data.nodes);
		bpf_probe_read_kernel(&node, sizeof(node), nodes + index);
		if (node)
			pointer = BPF_CORE_READ(node, file_ptr);
	} else if (bpf_core_field_exists(before->files)) {
		struct io_fixed_file *files = BPF_CORE_READ(before, files);

		if (files)
			bpf_probe_read_kernel(&pointer, sizeof(pointer), files + index);
	}
	return pointer & ~7UL; /* the low bits are flags */
}

/* Fill in the properties of a file. Return its number, or 0 if it is not recorded. */
static __noinline __u32 tell_file(struct file *file, struct request *request)
{
	struct inode *inode;

	if (!file)
		return 0;
	if (!probe_reads)
		file = bpf_rdonly_cast(file, bpf_core_type_id_kernel(struct file));
	inode = BPF_CORE_READ(file, f_inode);
	if (!inode || !of_storage(BPF_CORE_READ(inode, i_mode)))
		return 0;
	request->flags |= call_flags(file);
	if (request->offset_bytes == -1) {
		request->flags |= FLAG_AT_POSITION;
		request->offset_bytes = BPF_CORE_READ(file, f_pos);
	} else if ((request->flags & FLAG_APPEND) && request->op >= FIRST_WRITE && request->op < FIRST_SYNC) {
		request->offset_bytes = BPF_CORE_READ(inode, i_size);
	}
	return number_of(file);
}

/* The file behind a descriptor of a request. */
static __always_inline struct file *file_of_request(struct io_kiocb *req, int descriptor, bool registered)
{
	if (registered)
		return (void *)registered_file(BPF_CORE_READ(req, ctx), descriptor);
	return file_of(descriptor);
}

/* Properties of a request. */
static __noinline int uring_details(struct io_kiocb *req, struct request *request)
{
	struct io_rw *rw = (void *)req;
	struct io_sync *sync = (void *)req;
	struct io_splice *splice = (void *)req;
	struct io_fadvise *advice = (void *)req;
	struct io_ftrunc *cut = (void *)req;

	switch (request->op) {
	case OP_URING_READ:
	case OP_URING_WRITE:
	case OP_URING_READV:
	case OP_URING_WRITEV:
	case OP_URING_READ_FIXED:
	case OP_URING_WRITE_FIXED:
		request->offset_bytes = BPF_CORE_READ(rw, kiocb.ki_pos);
		request->asked_bytes = BPF_CORE_READ(rw, len);
		request->flags = flags_of_request(BPF_CORE_READ(rw, flags));
		if (request->op == OP_URING_READV || request->op == OP_URING_WRITEV) {
			request->flags |= FLAG_VECTORED;
			request->asked_bytes =
				sum_of_vectors(BPF_CORE_READ(rw, addr), request->asked_bytes);
		}
		break;
	case OP_URING_FSYNC:
		if (BPF_CORE_READ(sync, flags) & FSYNC_DATASYNC)
			request->op = OP_FDATASYNC;
		/* fall through */
	case OP_SYNC_FILE_RANGE:
	case OP_FALLOCATE:
		request->offset_bytes = BPF_CORE_READ(sync, off);
		request->asked_bytes = BPF_CORE_READ(sync, len);
		break;
	case OP_FADVISE:
		request->offset_bytes = BPF_CORE_READ(advice, offset);
		request->asked_bytes = BPF_CORE_READ(advice, len);
		break;
	case OP_FTRUNCATE:
		if (bpf_core_type_exists(struct io_ftrunc)) /* since 6.9, like the operation */
			request->offset_bytes = BPF_CORE_READ(cut, len);
		break;
	case OP_SPLICE_OUT:
		request->offset_bytes = BPF_CORE_READ(splice, off_out);
		request->other_offset_bytes = BPF_CORE_READ(splice, off_in);
		request->asked_bytes = BPF_CORE_READ(splice, len);
		break;
	}
	return 0;
}

static __noinline int splice_source(struct io_kiocb *req, struct request *request)
{
	struct io_splice *splice = (void *)req;
	int descriptor = BPF_CORE_READ(splice, splice_fd_in);
	bool registered = BPF_CORE_READ(splice, flags) & SPLICE_FIXED;
	struct request source = { .op = OP_SPLICE_IN, .offset_bytes = request->other_offset_bytes };

	request->other_file_id = tell_file(file_of_request(req, descriptor, registered), &source);
	request->other_offset_bytes = source.offset_bytes;
	return 0;
}

/*
 * If the kernel's poller of the queue submits a request, it is attributed to the main thread of the process that owns
 * the ring, because the thread that filled the queue is unknown.
 */
static __always_inline void attribute(struct io_kiocb *req, struct task_struct *task, struct request *request)
{
	struct io_ring_ctx *ring = BPF_CORE_READ(req, ctx);
	struct io_sq_data *poller;

	request->tid = task->pid;
	request->pid = task->tgid;
	if (!(BPF_CORE_READ(ring, flags) & SETUP_SQPOLL))
		return;
	poller = BPF_CORE_READ(ring, sq_data);
	if (!poller)
		return;
	request->pid = BPF_CORE_READ(poller, task_tgid);
	request->tid = request->pid;
}

static __noinline int count_submitted(struct request *request, bool source)
{
	struct call call = {};
	struct books books;

	if (!open_books(&books))
		return 0;
	to_call(request, &call);
	if (source) {
		call.op = OP_SPLICE_IN;
		call.offset_bytes = request->other_offset_bytes;
	}
	call.result = request->asked_bytes;
	keep_async(&call, source ? request->other_file_id : request->file_id, &books);
	close_books(&books);
	return 0;
}

static __always_inline int uring_submitted(struct io_kiocb *req)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct request_key key = { .object = (__u64)req };
	struct request request = {};
	struct io_close *closing = (void *)req;
	int op, descriptor, slot;
	struct file *file;
	__u64 flags;

	if (!control.armed)
		return 0;
	slot = slot_here();
	if (slot < 0)
		return 0;
	op = uring_op(BPF_CORE_READ(req, opcode));
	if (op < 0)
		return 0;
	request.op = op;
	request.slot = slot;
	attribute(req, task, &request);
	uring_details(req, &request);
	flags = BPF_CORE_READ(req, flags);
	descriptor = BPF_CORE_READ(req, cqe.fd);
	if (op == OP_CLOSE) {
		file = file_of(BPF_CORE_READ(closing, fd));
		if (file)
			request.file_id = number_if_known(FIELD(file, f_inode));
		if (!request.file_id)
			return count_filtered();
	} else if (op != OP_OPEN && op != OP_RENAME && op != OP_UNLINK && op != OP_LINK) {
		file = file_of_request(req, descriptor, flags & FIXED_FILE);
		request.file_id = tell_file(file, &request);
	}
	if (op == OP_SPLICE_OUT)
		splice_source(req, &request);
	if (patterns_only && op < FIRST_SYNC) {
		if (request.other_file_id)
			count_submitted(&request, true);
		if (request.file_id)
			return count_submitted(&request, false);
		return request.other_file_id ? 0 : count_filtered();
	}
	if (flags & NO_COMPLETION)
		return count_lost(false);
	request.start_ns = bpf_ktime_get_ns();
	return hold(&key, &request);
}

static __noinline int keep_completed(struct request *request, bool source, long result, __u64 now)
{
	struct call call = {};
	struct books books;

	if (!open_books(&books))
		return 0;
	to_call(request, &call);
	if (source) {
		call.op = OP_SPLICE_IN;
		call.flags = FLAG_ASYNC;
		call.offset_bytes = request->other_offset_bytes;
	}
	call.now_ns = now;
	call.result = result;
	keep_async(&call, source ? request->other_file_id : request->file_id, &books);
	close_books(&books);
	return 0;
}

/* Result of a request, in the context of its submitter or of a worker. */
static __noinline int uring_completed(struct io_kiocb *req, int result)
{
	struct request_key key = { .object = (__u64)req };
	struct request *held, request;
	struct io_rw *rw = (void *)req;
	__u64 now;

	if (!control.armed)
		return 0;
	held = bpf_map_lookup_elem(&requests, &key);
	if (!held || held->done)
		return 0;
	now = bpf_ktime_get_ns();
	request = *held;
	held->done = 1;
	bpf_map_delete_elem(&requests, &key);
	if (request.op == OP_OPEN) {
		if (result >= 0) {
			request.file_id = tell_file(file_of(result), &request);
			if (!request.file_id)
				return count_filtered();
			result = 0;
		}
	} else if (!request.file_id && request.op != OP_RENAME && request.op != OP_UNLINK && request.op != OP_LINK) {
		request.file_id = tell_file(BPF_CORE_READ(req, file), &request);
		if (!request.file_id && !request.other_file_id)
			return count_filtered();
	}
	if (request.other_file_id) {
		keep_completed(&request, true, result, now);
		if (!request.file_id)
			return 0;
	}
	if (result > 0 && request.op < FIRST_SYNC && request.op != OP_SPLICE_OUT &&
	    ((request.flags & FLAG_AT_POSITION) ||
	     ((request.flags & FLAG_APPEND) && request.op >= FIRST_WRITE)))
		request.offset_bytes = BPF_CORE_READ(rw, kiocb.ki_pos) - result;
	return keep_completed(&request, false, result, now);
}

SEC("tp_btf/io_uring_submit_req")
int BPF_PROG(uring_submit, struct io_kiocb *req)
{
	meter(METER_OTHERS);
	return uring_submitted(req);
}

SEC("tp_btf/io_uring_submit_sqe")
int BPF_PROG(uring_submit_before_6_4, struct io_kiocb *req)
{
	meter(METER_OTHERS);
	return uring_submitted(req);
}

/* The plain load makes the verifier refuse this program if the third argument is not yet a completion entry. */
SEC("tp_btf/io_uring_complete")
int BPF_PROG(uring_complete, struct io_ring_ctx *ring, struct io_kiocb *req, struct io_uring_cqe *entry)
{
	meter(METER_OTHERS);
	return control.armed ? uring_completed(req, entry->res) : 0;
}

SEC("tp_btf/io_uring_complete")
int BPF_PROG(uring_complete_before_6_11, void *ring, struct io_kiocb *req, __u64 user_data, int result)
{
	meter(METER_OTHERS);
	return control.armed ? uring_completed(req, result) : 0;
}

#endif
