/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Structures shared by the programs and the reader. layout.rs has the same ones; a test compares the sizes. */
#ifndef PENSTOCK_LAYOUT_H
#define PENSTOCK_LAYOUT_H

/*
 * Operations in `op`: reads from 0, writes from 32, durability from 64, metadata from 96. layout.rs has the same
 * numbers, and a test compares them. A call that both reads and writes (sendfile, splice, copy_file_range) leaves two
 * events with the same time and thread, one for each half.
 */
enum {
	/* read */
	OP_READ = 0,
	OP_PREAD64,
	OP_READV,
	OP_PREADV,
	OP_PREADV2,
	OP_AIO_PREAD,
	OP_AIO_PREADV,
	OP_URING_READ,
	OP_URING_READV,
	OP_URING_READ_FIXED,
	OP_SENDFILE_IN,
	OP_SPLICE_IN,
	OP_COPY_IN,
	OP_FAULT_READ,
	OP_FAULT_AROUND,
	/* from the log of a disk or the trace of another tool, here and below: the programs record none */
	OP_DEVICE_READ = 31,
	/* write */
	OP_WRITE = 32,
	OP_PWRITE64,
	OP_WRITEV,
	OP_PWRITEV,
	OP_PWRITEV2,
	OP_AIO_PWRITE,
	OP_AIO_PWRITEV,
	OP_URING_WRITE,
	OP_URING_WRITEV,
	OP_URING_WRITE_FIXED,
	OP_SENDFILE_OUT,
	OP_SPLICE_OUT,
	OP_COPY_OUT,
	OP_FAULT_WRITE,
	/* mapped, and thereby dirtied, together with the page of a write fault */
	OP_FAULT_AROUND_WRITE,
	OP_DEVICE_WRITE = 63,
	/* sync */
	OP_FSYNC = 64,
	OP_FDATASYNC,
	OP_SYNC_FILE_RANGE,
	OP_SYNCFS,
	OP_SYNC,
	OP_MSYNC,
	OP_AIO_FSYNC,
	OP_AIO_FDSYNC,
	OP_URING_FSYNC,
	OP_DEVICE_FLUSH = 95,
	/* meta */
	OP_OPEN = 96,
	OP_CREATE,
	OP_CLOSE,
	OP_UNLINK,
	OP_RENAME,
	OP_LINK,
	OP_TRUNCATE,
	OP_FTRUNCATE,
	OP_FALLOCATE,
	OP_FADVISE,
	OP_MMAP,
	OP_MUNMAP,
};
#define FIRST_WRITE 32
#define FIRST_SYNC 64
#define FIRST_META 96

enum {
	FLAG_DIRECT = 1,
	FLAG_APPEND = 2,
	FLAG_SYNC = 4,
	FLAG_VECTORED = 8,
	FLAG_AT_POSITION = 16, /* the offset is the descriptor's position, not an argument */
	FLAG_NOWAIT = 32,
	FLAG_ASYNC = 64, /* the latency is from submission to completion */
	FLAG_REAPED = 128, /* the completion time is that of the program's fetch: an upper bound */

	/* of faults, in the same byte */
	FAULT_MAJOR = 1, /* waited for the device */
	FAULT_HUGE = 2,
	FAULT_PRIVATE = 4, /* created a private copy: not a write of the file */
};

/* One call. */
struct event {
	__u64 t_ns;
	__s64 offset_bytes;
	__u64 latency_ns;
	__u32 size_bytes; /* requested */
	__s32 done_bytes; /* or -errno */
	__u32 file_id;
	__u32 tid;
	__u32 pid;
	__u8 op;
	__u8 flags;
	__u16 cgroup_slot; /* 0: the target itself */
};

/* Set by user space. Arming sets `armed` last, disarming clears it first. */
struct control {
	__u32 armed;
	__u32 epoch; /* incremented by every arming */
	__u32 target_level;
	__u32 drop_every; /* injected loss; 0: none */
	__u64 target_id;
	__u64 target_pointer; /* of the target's cgroup, determined by the first call inside it */
	__u32 next_file;
	__u32 next_stream;
	__u32 next_cgroup;
	__u32 marks_device; /* of the device node to which the traced program writes its marks */
	__u32 next_notebook;
	__u32 metering; /* the kernel measures programs: count the runs that the target caused */
	__u64 marks_inode;
	__u64 marks;
	__u64 marks_lost; /* beyond MOST_MARKS */
};
#define MOST_MARKS 4096

/* Places where operations are observed. Each source balances separately: seen = kept + filtered + lost_*. */
enum {
	SOURCE_CALLS = 0, /* the read and write families */
	SOURCE_RARE, /* durability, metadata, copies within the kernel */
	SOURCE_ASYNC, /* libaio, io_uring */
	SOURCE_FAULTS, /* of mapped files */
	SOURCES = 6,
};

struct source {
	__u64 seen;
	__u64 kept;
	__u64 filtered;
	__u64 lost_ring; /* the ring was full, because the reader was too slow */
	__u64 lost_planted;
	__u64 lost_unresolved; /* the descriptor was closed during the call */
	__u64 lost_storage; /* no memory for the thread's state, or no number left for the file */
	__u64 spare;
};

/*
 * Ledger of one CPU: its counts, and the position in its ring. The last ledger is shared by programs that find
 * the CPU's own ledger in use by a task or program that they interrupted (books.h).
 */
struct ledger {
	__u64 head; /* written by the programs: records put in since loading */
	__u64 busy; /* nonzero while a program uses this ledger and its ring */
	__u64 drafting; /* number of drafts of the CPU in use */
	__u64 overflowed; /* records that went to the overflow ring (shared ledger only) */
	__u64 compat; /* 32-bit calls of the target: not decoded */
	__u64 nameless; /* files whose path was lost */
	__u64 draws; /* random draws for the latency sample */
	__u64 spare;
	struct source sources[SOURCES];
	__u64 tail; /* written by the reader; on a cache line of its own */
	__u64 spare_too[7];
};

/* Pages of a mapped file that a process had: one bit for each of 512. */
struct presence {
	__u32 pid;
	__u32 file_id;
	__u64 first_page;
	__u32 before; /* 1 at the start of tracing; 0 at the end of the process or of the trace */
	__u32 pad;
	__u64 bits[8];
};

/* Announcement of a file, once: `path` has the components from the file upwards, each with a zero byte. */
#define PATH_BYTES 8192
#define NAME_BYTES 256
struct introduction {
	__u32 file_id;
	__u32 device;
	__u64 inode;
	__s64 size_bytes;
	__u64 t_ns; /* of its first use */
	__u64 resident_pages; /* in the page cache at that time */
	__u32 generation;
	__u32 magic; /* of the file system */
	__u32 path_bytes;
	__u8 unlinked;
	__u8 complete; /* the walk reached the root */
	__u8 directory; /* a directory that was flushed */
	__u8 pad;
	__u8 path[PATH_BYTES + NAME_BYTES];
};

/*
 * In the same stream, with file_id 0: a name in a call. `path` follows as in an introduction. It is a text of the
 * caller, or (directory 1) the components of the directory that the name is relative to.
 */
struct name_piece {
	__u32 file_id; /* 0 */
	__u32 tid;
	__u64 t_ns; /* of the call: together with the thread it links the pieces and the event */
	__s64 result;
	__u32 op;
	__u32 which; /* 0: the old or only name, 1: the new name */
	__u32 bytes;
	__u8 directory;
	__u8 complete; /* the walk reached the root */
	__u8 pad[2];
	__u64 flags; /* of renameat2 */
	__u64 link_of; /* the open file that a link names by its descriptor; 0: none, or unknown */
};
_Static_assert(sizeof(struct name_piece) == __builtin_offsetof(struct introduction, path), "the path follows both");

/* Sums of the rare operations of one kind on one file. */
struct operation_key {
	__u32 file_id; /* 0: none, or unknown to the kernel side */
	__u32 op;
};

struct operation_sum {
	__u64 calls;
	__u64 errors;
	__u64 time_ns;
	__u64 longest_ns;
};

/* Mode count: counts of one file in one direction, on one CPU or a few. */
struct counter {
	__u64 calls;
	__u64 errors;
	__u64 asked_bytes;
	__u64 done_bytes;
};

/* Other announcements, in the same stream. The first field has a value that no file has as its number. */
#define NOTICE 0xffffffff
enum {
	NOTICE_THREAD = 1, /* text: the program's name */
	NOTICE_MARK = 2,   /* text: the mark */
};
struct notice {
	__u32 notice; /* NOTICE */
	__u32 kind;
	__u64 t_ns;
	__u32 tid;
	__u32 pid;
	__u64 started_ns; /* of the thread: identifies it together with its number, which may be reused */
	__u8 text[64];
};

/*
 * Mode pattern: current epoch of one thread on one file in one direction. crates/pattern, epoch.rs, computes the same
 * counts from requests in user space.
 */
#define EPOCH_REQUESTS 1024
#define SIZE_CLASSES 32
#define SAMPLES 512
struct stream {
	__u32 file_id;
	__u32 tid;
	__u32 pid;
	__u32 kind; /* KIND_* */
	/* current epoch */
	__u32 requests; /* that transferred bytes */
	__u32 errors;
	__u32 empty; /* neither failed nor transferred bytes */
	__u32 steps; /* from one request to the next */
	__u32 zero; /* steps of 0 */
	__u32 near; /* 0 <= step <= W */
	__u32 forward; /* step >= 0 */
	__u32 reverse; /* ends at the start of the previous one */
	__u32 higher; /* starts after the start of the previous one */
	__u32 cycle[4]; /* start-to-start distances equal to that of 1 to 4 steps earlier */
	__u32 chained; /* requests in chains of LONG or more */
	__u32 chains; /* chains that reached that length */
	__u32 longest;
	__u64 open_sum; /* over the requests, of the number of long chains open at the same time */
	__u64 done_bytes;
	__u64 first_ns;
	__u64 last_ns; /* of a sampled call, or the end of the previous epoch */
	__u64 sampled_ns; /* latency of the sampled calls */
	__u32 sampled;
	__u32 least_size;
	__u32 most_size;
	__u32 samples; /* in the notebook */
	__u32 looked; /* requests for which a sample was due */
	__u32 spare;
	__s64 lowest;
	__s64 highest;
	__u32 size_class[SIZE_CLASSES]; /* by floor(log2(done)) */
	/* preserved across epochs */
	__s64 distances[4]; /* the newest first */
	__s64 last_offset;
	__s64 last_end;
	__u32 number; /* of the last request */
	__u32 hot_count; /* of the current chain */
	__u32 hot_last; /* last request of that chain */
	__u32 notebook; /* its number plus one; 0: none */
	__u64 started_ns; /* of the thread */
	__u32 joint; /* number, plus one, of the stream of both directions; 0: none */
	__u32 spare_too;
};

/* Notebook of a non-sequential stream in mode pattern: ends of chains, and blocks touched in the epoch. */
#define CHAIN_SETS 64
#define CHAIN_WAYS 4
struct notebook {
	__u64 chains[CHAIN_SETS * CHAIN_WAYS]; /* count 8 bits, last request 24, tag of the end 32; 0: free */
	__u32 samples[SAMPLES]; /* upper half of the hash of the block, for every fourth block */
};

enum {
	KIND_READ = 0,
	KIND_WRITE,
	KIND_FAULT_READ,
	KIND_FAULT_WRITE,
	KINDS,
	/* reads and writes together: this plus the kind of the stream that it began as a copy of */
	KIND_JOINT = KINDS,
};

/* A full epoch for user space. */
struct full_epoch {
	struct stream stream;
	__u32 samples[SAMPLES];
};

#endif
