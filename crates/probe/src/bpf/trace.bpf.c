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

#define S_IFMT 00170000
#define S_IFREG 0100000
#define O_APPEND 00002000
#define O_DSYNC 00010000
#define O_DIRECT 00040000
#define EBADF 9
#define TS_COMPAT 2
#define KNOWN 4
#define NO_STREAM 0xffffffff
#define NEAR_BYTES 131072
#define SAMPLE_MASK 15

extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym __weak;

/* Fixed at loading, so that the verifier removes the branches of the other mode. */
const volatile __u32 ring_mask = 0; /* records of one CPU's ring, less one */
const volatile __u32 patterns_only = 0;
const volatile __u32 stream_count = 0;
const volatile __u32 tid_limit = 0; /* size of threads_by_tid; 0: too many numbers, use task storage */

struct control control = {};

struct known_file {
	__u64 inode_pointer;
	__u64 super_pointer;
	__u64 inode;
	__u32 generation;
	__u32 file_id;
	__u32 stream[2];
};

struct thread_state {
	__u64 start_ns; /* of the call in flight; 0: none */
	__u32 epoch;
	__u32 pad;
	struct known_file known[KNOWN];
};

struct file_key {
	__u64 inode;
	__u32 device;
	__u32 generation;
};

struct stream_key {
	__u32 file_id;
	__u32 tid;
	__u32 direction;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread_state);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thread_state);
} threads_by_tid SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ledger);
} ledgers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct event);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stream);
} streams SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct file_key);
	__type(value, __u32);
} files SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct stream_key);
	__type(value, __u32);
} stream_numbers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65535);
	__type(key, __u64);
	__type(value, __u32);
} cgroups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 * 1024 * 1024);
} introductions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct introduction);
} drafts SEC(".maps");

/* read, write, pread64, pwrite64, readv, writev; preadv, pwritev, preadv2, pwritev2 */
static __always_inline bool of_family(__u64 number)
{
	if (number < 64)
		return (0x1e0003ULL >> number) & 1;
	number -= 295;
	return number < 64 && ((0x300000003ULL >> number) & 1);
}

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

static __always_inline struct ledger *ledger_here(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&ledgers, &cpu);
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
	return bpf_map_lookup_elem(&threads_by_tid, &tid);
}

SEC("tp_btf/sys_enter")
int BPF_PROG(enter, struct pt_regs *regs, long number)
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

struct walk {
	struct dentry *dentry;
	struct vfsmount *view;
	struct mount *mount;
	__u32 used;
	__u32 complete;
};

/* One step up: writes a component, or crosses a mount point. Ends (1) at the root of all. */
static long step_up(__u64 index, void *context)
{
	struct walk *walk = context;
	struct dentry *dentry = walk->dentry, *parent;
	struct mount *mount = walk->mount;
	struct vfsmount *view = walk->view;
	struct introduction *draft;
	const unsigned char *name;
	__u32 zero = 0, used = walk->used;
	long length;

	if (dentry == BPF_CORE_READ(view, mnt_root)) {
		struct mount *above = BPF_CORE_READ(mount, mnt_parent);

		if (above == mount) {
			walk->complete = 1;
			return 1;
		}
		walk->dentry = BPF_CORE_READ(mount, mnt_mountpoint);
		walk->mount = above;
		walk->view = (void *)above + bpf_core_field_offset(struct mount, mnt);
		return 0;
	}
	parent = BPF_CORE_READ(dentry, d_parent);
	if (parent == dentry) /* lazily unmounted, or never mounted */
		return 1;
	draft = bpf_map_lookup_elem(&drafts, &zero);
	if (!draft || used >= PATH_BYTES)
		return 1;
	name = BPF_CORE_READ(dentry, d_name.name);
	length = bpf_probe_read_kernel_str(&draft->path[used & (PATH_BYTES - 1)], NAME_BYTES, name);
	if (length < 0)
		return 1;
	walk->used = used + (length & 0x1ff);
	walk->dentry = parent;
	return 0;
}

static __noinline int introduce(struct file *file, __u32 file_id, struct ledger *ledger)
{
	struct introduction *draft;
	struct inode *inode = file->f_inode;
	struct dentry *dentry;
	struct vfsmount *view;
	struct walk walk = {};
	__u32 zero = 0, size;

	draft = bpf_map_lookup_elem(&drafts, &zero);
	if (!draft)
		return 0;
	draft->file_id = file_id;
	draft->device = inode->i_sb->s_dev;
	draft->magic = inode->i_sb->s_magic;
	draft->inode = inode->i_ino;
	draft->generation = inode->i_generation;
	draft->size_bytes = inode->i_size;
	dentry = file->f_path.dentry;
	view = file->f_path.mnt;
	draft->unlinked = !BPF_CORE_READ(dentry, d_hash.pprev);
	walk.dentry = dentry;
	walk.view = view;
	walk.mount = (void *)view - bpf_core_field_offset(struct mount, mnt);
	bpf_loop(4200, step_up, &walk, 0);
	draft->complete = walk.complete;
	size = walk.used;
	if (size > PATH_BYTES)
		size = PATH_BYTES;
	draft->path_bytes = size;
	size += __builtin_offsetof(struct introduction, path);
	if (bpf_ringbuf_output(&introductions, draft, size, BPF_RB_NO_WAKEUP))
		ledger->nameless++;
	return 0;
}

static __always_inline __u32 number_of_file(struct file *file, struct file_key *key,
					    struct ledger *ledger)
{
	__u32 *found = bpf_map_lookup_elem(&files, key);
	__u32 id;

	if (found)
		return *found;
	id = __sync_fetch_and_add(&control.next_file, 1) + 1;
	if (!bpf_map_update_elem(&files, key, &id, BPF_NOEXIST)) {
		introduce(file, id, ledger);
		return id;
	}
	found = bpf_map_lookup_elem(&files, key);
	return found ? *found : 0;
}

/* Fills the thread's entry for a file it has not used lately. */
static __noinline int recall(struct file *file, struct known_file *known, struct ledger *ledger)
{
	struct inode *inode = file->f_inode;
	struct super_block *super = inode->i_sb;
	struct file_key key = {};

	key.inode = inode->i_ino;
	key.device = super->s_dev;
	key.generation = inode->i_generation;
	known->file_id = number_of_file(file, &key, ledger);
	known->inode_pointer = (__u64)inode;
	known->super_pointer = (__u64)super;
	known->inode = key.inode;
	known->generation = key.generation;
	known->stream[0] = NO_STREAM;
	known->stream[1] = NO_STREAM;
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

static __always_inline struct file *file_of(struct task_struct *task, __u32 descriptor)
{
	struct fdtable *table = task->files->fdt;
	struct file **slot;

	if (descriptor >= table->max_fds)
		return NULL;
	slot = table->fd + descriptor;
	return ((struct kiocb *)bpf_rdonly_cast(slot, bpf_core_type_id_kernel(struct kiocb)))->ki_filp;
}

static __always_inline __u32 log2_of(__u32 value)
{
	__u32 result = 0;

	if (value >> 16) { value >>= 16; result += 16; }
	if (value >> 8) { value >>= 8; result += 8; }
	if (value >> 4) { value >>= 4; result += 4; }
	if (value >> 2) { value >>= 2; result += 2; }
	return result + (value >> 1);
}

static __noinline __u32 stream_number(__u32 file_id, struct task_struct *task, __u32 direction)
{
	struct stream_key key = { .file_id = file_id, .tid = task->pid, .direction = direction };
	__u32 *found = bpf_map_lookup_elem(&stream_numbers, &key);
	struct stream *stream;
	__u32 number;

	if (found)
		return *found;
	number = __sync_fetch_and_add(&control.next_stream, 1);
	if (number >= stream_count || bpf_map_update_elem(&stream_numbers, &key, &number, BPF_ANY))
		return NO_STREAM;
	stream = bpf_map_lookup_elem(&streams, &number);
	if (!stream)
		return NO_STREAM;
	stream->file_id = file_id;
	stream->tid = key.tid;
	stream->pid = task->tgid;
	stream->direction = direction;
	stream->first_ns = bpf_ktime_get_ns();
	return number;
}

/* Only the stream's own thread writes it, so nothing here needs to be atomic. */
static __always_inline void count(struct stream *s, __s64 offset, __u64 asked, __s64 done, __u64 start,
				  __u64 now)
{
	__u32 size = done > 0 ? done : 0;
	__s64 end = offset + size, distance;
	bool chained = false;
	__u32 class, i;

	if (start) {
		s->sampled++;
		s->sampled_ns += now - start;
		s->last_ns = now;
	}
	s->asked_bytes += asked;
	if (done < 0) {
		s->errors++;
		return;
	}
	s->done_bytes += size;
	class = log2_of(size);
	if (class < SIZE_CLASSES)
		s->size_class[class]++;
	if (s->requests++ == 0) {
		s->lowest = offset;
		s->highest = end;
		s->chain_end[0] = end;
		s->chain_requests[0] = 1;
		s->chain_next = 1;
	} else {
		distance = offset - s->last_end;
		if (distance >= 0) {
			s->forward++;
			if (distance <= NEAR_BYTES || distance <= 8 * (__s64)size)
				s->near++;
			if (distance == 0)
				s->consecutive++;
		} else if (end == s->last_offset) {
			s->reverse++;
		}
		if (offset - s->last_offset == s->last_step)
			s->same_step++;
		s->last_step = offset - s->last_offset;
		if (offset < s->lowest)
			s->lowest = offset;
		if (end > s->highest)
			s->highest = end;
#pragma unroll
		for (i = 0; i < CHAINS; i++) {
			if (!chained && s->chain_end[i] == (__u64)offset && s->chain_requests[i]) {
				s->chain_end[i] = end;
				s->chain_requests[i]++;
				chained = true;
			}
		}
		if (chained) {
			s->chained++;
		} else {
			i = s->chain_next++ & (CHAINS - 1);
			s->chain_end[i] = end;
			s->chain_requests[i] = 1;
		}
	}
	s->last_offset = offset;
	s->last_end = end;
	s->last_size = size;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(leave, struct pt_regs *regs, long result)
{
	__u64 number = regs->orig_ax, start, now = 0, asked, index;
	struct thread_state *state;
	struct known_file *known;
	struct ledger *ledger;
	struct task_struct *task;
	struct event *event;
	struct inode *inode;
	struct file *file;
	__u32 descriptor, cpu, flags, key, direction;
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
	direction = op >= OP_WRITE;
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
	} else if (direction && (flags & FLAG_APPEND)) {
		/* pwrite(2), BUGS: with O_APPEND the offset argument is not heeded */
		offset = inode->i_size - (result > 0 ? result : 0);
	}

	if (patterns_only) {
		struct stream *stream;

		if (known->stream[direction] == NO_STREAM)
			known->stream[direction] = stream_number(known->file_id, task, direction);
		key = known->stream[direction];
		stream = bpf_map_lookup_elem(&streams, &key);
		if (!stream) {
			ledger->lost_storage++;
			return 0;
		}
		count(stream, offset, asked, result, start, now);
		ledger->kept++;
		return 0;
	}

	if (control.drop_every && (ledger->seen % control.drop_every) == 0) {
		ledger->lost_planted++;
		return 0;
	}
	index = ledger->head;
	if (index - ledger->tail > ring_mask) {
		ledger->lost_ring++;
		return 0;
	}
	key = cpu * (ring_mask + 1) + (index & ring_mask);
	event = bpf_map_lookup_elem(&rings, &key);
	if (!event)
		return 0;
	event->t_ns = start;
	event->offset_bytes = offset;
	event->latency_ns = now - start;
	event->size_bytes = asked > 0xffffffff ? 0xffffffff : asked;
	event->done_bytes = result;
	event->file_id = known->file_id;
	event->tid = task->pid;
	event->pid = task->tgid;
	event->op = op;
	event->flags = flags;
	event->cgroup_slot = slot;
	/* x86 keeps stores in order: the record is there before the head says so */
	asm volatile("" ::: "memory");
	ledger->head = index + 1;
	ledger->kept++;
	return 0;
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
