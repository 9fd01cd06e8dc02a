/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Maps of the programs, and the constants set before loading. */
#ifndef PENSTOCK_MAPS_H
#define PENSTOCK_MAPS_H

#define S_IFMT 00170000
#define S_IFREG 0100000
#define S_IFBLK 0060000
#define S_IFDIR 0040000
#define S_IFCHR 0020000
#define O_APPEND 00002000
#define O_DSYNC 00010000
#define O_DIRECT 00040000
#define EBADF 9
#define TS_COMPAT 2
#define KNOWN 4
#define NO_STREAM 0xffffffff
#define NEAR_BYTES 131072
#define LONG 8 /* minimum length of a chain that counts */
#define BLOCK_BITS 12
#define DRAFTS 4 /* per CPU: of a task, and of programs that interrupted it */

/*
 * A field of a kernel structure. It is a plain load if the verifier knows the pointer's type, from the current task or
 * from bpf_rdonly_cast.
 */
#define FIELD(pointer, field) \
	({ \
		typeof(pointer) here = (pointer); \
		probe_reads ? BPF_CORE_READ(here, field) : here->field; \
	})

extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym __weak;

/* Set before loading, so that the verifier removes the branches of other modes. */
const volatile __u32 ring_mask = 0; /* records of one CPU's ring, minus one */
const volatile __u32 patterns_only = 0; /* no events: modes pattern and count */
const volatile __u32 counts_only = 0; /* a subset of the above: no streams either */
const volatile __u32 lanes = 1; /* counters of one file and direction: a power of two, one per CPU if possible */
const volatile __u32 stream_count = 0;
const volatile __u32 notebook_count = 0;
const volatile bool hot_files = false; /* mode trace: calls on files marked cold are counted in their streams */
const volatile __u32 tid_limit = 0; /* size of threads_by_tid; 0: too many thread numbers, use task storage */
const volatile __u32 cpu_count = 0; /* also the number of the shared ledger */
const volatile bool interruptible = false; /* another program may run on this CPU before this one has ended */
const volatile bool probe_reads = false; /* no bpf_rdonly_cast (before 6.2): read through helpers */

struct control control = {};

/* Runs of programs that the target caused while the kernel measured them: of calls, of all others. */
enum { METER_CALLS = 0, METER_OTHERS };
__u64 metered[2] = {};

struct known_file {
	__u64 inode_pointer;
	__u64 super_pointer;
	__u64 inode;
	__u32 generation;
	__u32 file_id;
	__u32 stream[KINDS];
	__u32 epoch; /* of the recording in which this was noted */
	__u32 spare;
};

struct thread_state {
	__u64 start_ns; /* of the call in flight; 0: none */
	__u32 held_file; /* of the close in progress */
	__u32 met; /* epoch of the recording in which it was introduced */
	__u64 spare[2];
	struct known_file known[KNOWN];
};

struct file_key {
	__u64 inode;
	__u32 device;
	__u32 generation;
};

/* A thread number may be reused; together with the start it is unique. */
struct stream_key {
	__u32 file_id;
	__u32 tid;
	__u32 kind;
	__u32 pad;
	__u64 started_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread_state);
} threads SEC(".maps");

/*
 * Two arrays that every call needs, in data sections (one array map each, enlarged before loading). Their addresses
 * are constants of the programs, which saves the look-up. AT hides the declared length.
 */
struct thread_state threads_by_tid[1] SEC(".bss.threads");
struct ledger ledgers[1] SEC(".bss.ledgers");

#define AT(array, number) \
	({ \
		typeof(&(array)[0]) first = (array); \
		asm volatile("" : "+r"(first)); \
		first + (number); \
	})

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
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct notebook);
} notebooks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 * 1024 * 1024);
} epochs SEC(".maps");

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
	__uint(max_entries, DRAFTS);
	__type(key, __u32);
	__type(value, struct introduction);
} drafts SEC(".maps");

/* Records of programs that found the CPU's own ring in use. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1024 * 1024);
} overflow SEC(".maps");

/* Cold files, whose calls are counted instead of recorded: one bit each, set by user space (hot.rs). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} cold_files SEC(".maps");

/* Mode count: counters by file number, direction and lane. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

#endif
