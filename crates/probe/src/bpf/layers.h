/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Structures shared by layers.bpf.c and its reader, also in layers.rs and observe/trace/layers/tables.py. */
#ifndef PENSTOCK_LAYERS_H
#define PENSTOCK_LAYERS_H

enum {
	RECORD_REQUEST = 1, /* a request, or the part of a request for one range of one file */
	RECORD_ADDED, /* pages were added to the page cache */
	RECORD_DIRTIED, /* pages of the page cache became dirty */
};

/* Source of the identity of a request's file. */
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
	__u64 base_bytes; /* of a direct request: offset at which its call began */
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
	__u8 part; /* number of the part in its request */
	__u8 pad[6];
};

struct layer_control {
	__u64 target_id;
	__u32 target_level;
	__u32 armed;
	__u32 drop_every; /* injected loss; 0: none */
	__u32 begins_at_issue; /* no hook observes the start of a request before its issue */
	__u64 seen;
	__u64 kept;
	__u64 lost;
	__u64 lost_planted;
	__u64 unfinished; /* traced requests without an observed completion whose address was reused */
};

struct device_count {
	__u64 requests;
	__u64 bytes;
};

#endif
