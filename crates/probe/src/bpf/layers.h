/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What layers.bpf.c and its reader share; the same in layers.rs and observe/trace/layers/tables.py. */
#ifndef PENSTOCK_LAYERS_H
#define PENSTOCK_LAYERS_H

enum {
	RECORD_REQUEST = 1, /* a request, or the part of one that is about one range of one file */
	RECORD_ADDED, /* pages came into the page cache */
	RECORD_DIRTIED, /* pages of the page cache became dirty */
};

/* How a request's file is known. */
enum {
	BY_NOTHING = 0,
	BY_PAGE_CACHE,
	BY_DIRECT,
	BY_METADATA, /* pages of the device itself: the file system's own */
};

struct layer_record {
	__u64 t_ns;
	__u64 inode;
	__u64 offset_bytes; /* in the file */
	__u64 size_bytes;
	__u64 base_bytes; /* of a direct request: where its call began */
	__u64 sector;
	__u64 queue_ns;
	__u64 device_ns;
	__u64 cgroup_id;
	__u32 device; /* of the file system */
	__u32 generation;
	__u32 disk;
	__u32 tid;
	__u32 pid;
	__u8 kind;
	__u8 op; /* 0 read, 1 write */
	__u8 how;
	__u8 failed;
	__u8 scoped; /* begun by a traced task */
	__u8 part; /* number of the part within the request */
	__u8 pad[6];
};

struct layer_control {
	__u64 target_id;
	__u32 target_level;
	__u32 armed;
	__u32 drop_every; /* planted loss; 0: none */
	__u32 begins_at_issue; /* no hook tells of a request before */
	__u64 seen;
	__u64 kept;
	__u64 lost;
	__u64 lost_planted;
	__u64 unfinished; /* traced requests whose completion no program saw: their address was used again */
};

struct device_count {
	__u64 requests;
	__u64 bytes;
};

#endif
