/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the programs and the reader share. The same structures are in layout.rs; a test compares the sizes. */
#ifndef PENSTOCK_LAYOUT_H
#define PENSTOCK_LAYOUT_H

/*
 * Operations, as recorded in `op`: reads from 0, writes from 32, durability from 64, metadata from 96.
 * layout.rs has the same numbers, and a test that compares them. A call that both reads and writes
 * (sendfile, splice, copy_file_range) leaves two events with one time and thread, its halves.
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
	/* of a disk's log or another tool's trace, here and below: the programs record none */
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
	/* mapped, and so dirtied, together with the page of a write fault */
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
	FLAG_REAPED = 128, /* and its end is when the program fetched it: an upper bound */

	/* of faults, in the same byte */
	FAULT_MAJOR = 1, /* waited for the device */
	FAULT_HUGE = 2,
	FAULT_PRIVATE = 4, /* a private copy was made: not a write of the file */
};

/* One call. */
struct event {
	__u64 t_ns;
	__s64 offset_bytes;
	__u64 latency_ns;
	__u32 size_bytes; /* asked */
	__s32 done_bytes; /* or -errno */
	__u32 file_id;
	__u32 tid;
	__u32 pid;
	__u8 op;
	__u8 flags;
	__u16 cgroup_slot; /* 0: the target itself */
};

/* Set by user space. Arming is the last store, disarming the first. */
struct control {
	__u32 armed;
	__u32 epoch; /* one more with every arming */
	__u32 target_level;
	__u32 drop_every; /* planted loss; 0: none */
	__u64 target_id;
	__u64 target_pointer; /* of the target's cgroup, found out by the first call inside it */
	__u32 next_file;
	__u32 next_stream;
	__u32 next_cgroup;
	__u32 marks_device; /* of the device node that the traced program writes its marks into */
	__u32 next_notebook;
	__u32 metering; /* the kernel takes the time of programs: count those that the target caused */
	__u64 marks_inode;
	__u64 marks;
	__u64 marks_lost; /* beyond MOST_MARKS */
};
#define MOST_MARKS 4096

/* Where operations are seen. Each source balances by itself: seen = kept + filtered + lost_*. */
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
	__u64 lost_ring; /* no room: the reader was too slow */
	__u64 lost_planted;
	__u64 lost_unresolved; /* the descriptor was closed during the call */
	__u64 lost_storage; /* no memory for the thread's state, or no number left for the file */
	__u64 spare;
};

/*
 * Of one CPU: the place in its ring, and its counts. One more, the last, is shared by those who find the
 * CPU's own in use by a task or program they interrupted (books.h).
 */
struct ledger {
	__u64 head; /* written by the programs: records put in since loading */
	__u64 busy; /* somebody is at work in this ledger and its ring */
	__u64 drafting; /* how many drafts of the CPU are in use */
	__u64 overflowed; /* records that went to the overflow ring (shared ledger only) */
	__u64 compat; /* 32-bit calls of the target: not decoded */
	__u64 nameless; /* files whose path could not be handed over */
	__u64 draws; /* of the latency sample */
	__u64 spare;
	struct source sources[SOURCES];
	__u64 tail; /* written by the reader; on a cache line of its own */
	__u64 spare_too[7];
};

/* Which pages of a mapped file a process had: one bit for each of 512. */
struct presence {
	__u32 pid;
	__u32 file_id;
	__u64 first_page;
	__u32 before; /* when tracing began; else when the process or the trace ended */
	__u32 pad;
	__u64 bits[8];
};

/* A file, announced once: `path` holds the components from the file up, each ended by a zero byte. */
#define PATH_BYTES 8192
#define NAME_BYTES 256
struct introduction {
	__u32 file_id;
	__u32 device;
	__u64 inode;
	__s64 size_bytes;
	__u64 t_ns; /* of its first use */
	__u64 resident_pages; /* in the page cache then */
	__u32 generation;
	__u32 magic; /* of the file system */
	__u32 path_bytes;
	__u8 unlinked;
	__u8 complete; /* the walk reached the root */
	__u8 directory; /* one that was flushed */
	__u8 pad;
	__u8 path[PATH_BYTES + NAME_BYTES];
};

/*
 * In the same stream, with file_id 0: what a call said about names. `path` follows as in an introduction: a
 * text of the caller, or (directory 1) the components of the directory it starts from.
 */
struct name_piece {
	__u32 file_id; /* 0 */
	__u32 tid;
	__u64 t_ns; /* of the call: with the thread, what ties the pieces and the event together */
	__s64 result;
	__u32 op;
	__u32 which; /* 0: the old or only name, 1: the new */
	__u32 bytes;
	__u8 directory;
	__u8 complete; /* the walk reached the root */
	__u8 pad[2];
	__u64 flags; /* of renameat2 */
	__u64 link_of; /* the open file that a link names by its descriptor; 0: none, or not a known one */
};
_Static_assert(sizeof(struct name_piece) == __builtin_offsetof(struct introduction, path), "the path follows both");

/* What the rare operations of one kind on one file came to. */
struct operation_key {
	__u32 file_id; /* 0: none, or not known in the kernel */
	__u32 op;
};

struct operation_sum {
	__u64 calls;
	__u64 errors;
	__u64 time_ns;
	__u64 longest_ns;
};

/* Mode count: what one CPU (or a few) did to one file in one direction. */
struct counter {
	__u64 calls;
	__u64 errors;
	__u64 asked_bytes;
	__u64 done_bytes;
};

/* Anything else worth telling, in the same stream: its first field is what no file has for a number. */
#define NOTICE 0xffffffff
enum {
	NOTICE_THREAD = 1, /* text: the program's name */
	NOTICE_MARK = 2,   /* text: what was written */
};
struct notice {
	__u32 notice; /* NOTICE */
	__u32 kind;
	__u64 t_ns;
	__u32 tid;
	__u32 pid;
	__u64 started_ns; /* of the thread: with its number, which may be used again, what identifies it */
	__u8 text[64];
};

/*
 * Mode pattern: what one thread did to one file in one direction since its last epoch ended. crates/pattern,
 * epoch.rs, keeps the same counts of requests that user space has.
 */
#define EPOCH_REQUESTS 1024
#define SIZE_CLASSES 32
#define SAMPLES 512
struct stream {
	__u32 file_id;
	__u32 tid;
	__u32 pid;
	__u32 kind; /* KIND_* */
	/* of the epoch under way */
	__u32 requests; /* that did something */
	__u32 errors;
	__u32 empty; /* neither failed nor did anything */
	__u32 steps; /* from one request to the next */
	__u32 zero; /* steps of 0 */
	__u32 near; /* 0 <= step <= W */
	__u32 forward; /* step >= 0 */
	__u32 reverse; /* ends where the last one began */
	__u32 higher; /* starts beyond the last one's start */
	__u32 cycle[4]; /* start-to-start distances equal to the one 1 to 4 before */
	__u32 chained; /* requests in chains of LONG or more */
	__u32 chains; /* chains that became that long */
	__u32 longest;
	__u64 open_sum; /* over the requests, of the long chains open at once */
	__u64 done_bytes;
	__u64 first_ns;
	__u64 last_ns; /* of a sampled call, or the epoch's end */
	__u64 sampled_ns; /* latency of the sampled calls */
	__u32 sampled;
	__u32 least_size;
	__u32 most_size;
	__u32 samples; /* in the notebook */
	__u32 looked; /* requests of which a sample was to be taken */
	__u32 spare;
	__s64 lowest;
	__s64 highest;
	__u32 size_class[SIZE_CLASSES]; /* by floor(log2(done)) */
	/* lasting */
	__s64 distances[4]; /* the newest first */
	__s64 last_offset;
	__s64 last_end;
	__u32 number; /* of the last request */
	__u32 hot_count; /* of the chain it is in */
	__u32 hot_last; /* that chain's last request */
	__u32 notebook; /* one more than its number; 0: none */
	__u64 started_ns; /* of the thread */
	__u32 joint; /* one more than the number of the stream of both directions; 0: none */
	__u32 spare_too;
};

/* What mode pattern remembers of a stream that jumps: ends of chains, and blocks touched in the epoch. */
#define CHAIN_SETS 64
#define CHAIN_WAYS 4
struct notebook {
	__u64 chains[CHAIN_SETS * CHAIN_WAYS]; /* count 8 bits, last request 24, tag of the end 32; 0: free */
	__u32 samples[SAMPLES]; /* upper half of the hash of the block, of every fourth block */
};

enum {
	KIND_READ = 0,
	KIND_WRITE,
	KIND_FAULT_READ,
	KIND_FAULT_WRITE,
	KINDS,
	/* reads and writes together: this and the kind of the stream that it was begun as a copy of */
	KIND_JOINT = KINDS,
};

/* An epoch that is full, on its way to user space. */
struct full_epoch {
	struct stream stream;
	__u32 samples[SAMPLES];
};

#endif
