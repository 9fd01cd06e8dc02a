// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Layers below the system calls: pages added to the page cache, pages dirtied, and requests to block devices with the
 * file of each.
 *
 * A request is identified by its address from its start (with the thread), through its issue, to its completion. At
 * completion its file is read from its pages: pages of the page cache refer to their file and index, and cannot be
 * removed before the request has ended. Direct requests use pages of the program. For these, file and offset are
 * noted when the call submits its parts (bios) to the block layer.
 *
 * Completions run in interrupts, and write-back in kernel threads. So only the programs for the start of something
 * use the current task.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "block.h"
#include "layers.h"

#define S_IFMT 00170000
#define S_IFREG 0100000
#define S_IFBLK 0060000
#define PAGE_SHIFT 12
#define BIOS 1024
#define IOCB_WRITE (1 << 18)

_Static_assert(sizeof(struct layer_record) == 104, "layers.rs and layers_join.py read records of this size");

struct layer_control layers = {};

struct in_flight {
	__u64 start_ns;
	__u64 issue_ns;
	__u64 cgroup_id;
	__u32 tid;
	__u32 pid;
	__u32 scoped;
	__u32 pad;
};

_Static_assert(__builtin_offsetof(struct in_flight, scoped) == 32, "layers.rs reads scoped there");

struct direct_part {
	__u64 inode;
	__u64 offset_bytes;
	__u64 base_bytes;
	__u64 sector;
	__u64 size_bytes;
	__u64 ended_by;
	__u32 device;
	__u32 generation;
};

struct direct_call {
	__u64 inode;
	__u64 base_bytes;
	__u64 done_bytes;
	__u64 left_bytes;
	__u64 call; /* the kernel's request */
	__u32 device;
	__u32 generation;
};

struct file_name {
	__u64 inode;
	__u32 device;
	__u32 pad;
};

struct device_op {
	__u32 disk;
	__u32 op;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct in_flight);
} requests SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct direct_part);
} direct_parts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct direct_call);
} direct_calls SEC(".maps");

/* Files that traced tasks dirtied or read: requests of kernel threads on these are reported. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 262144);
	__type(key, struct file_name);
	__type(value, __u32);
} files_of_interest SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct device_op);
	__type(value, struct device_count);
} device_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 32 * 1024 * 1024);
} layer_records SEC(".maps");

static __always_inline bool in_scope(void)
{
	return bpf_get_current_ancestor_cgroup_id(layers.target_level) == layers.target_id;
}

static __always_inline void tell(struct layer_record *record)
{
	__u64 seen = __sync_fetch_and_add(&layers.seen, 1) + 1;

	if (layers.drop_every && seen % layers.drop_every == 0) {
		__sync_fetch_and_add(&layers.lost_planted, 1);
		return;
	}
	if (bpf_ringbuf_output(&layer_records, record, sizeof(*record), BPF_RB_NO_WAKEUP))
		__sync_fetch_and_add(&layers.lost, 1);
	else
		__sync_fetch_and_add(&layers.kept, 1);
}

static __always_inline __u64 pages_of(struct folio *folio)
{
	struct folio___old *old = (void *)folio;
	unsigned long flags = 0;

	/* the flags are the first word, a structure of their own since Linux 6.18 */
	bpf_probe_read_kernel(&flags, sizeof(flags), folio);
	if (!(flags & (1UL << bpf_core_enum_value(enum pageflags, PG_head))))
		return 1;
	if (bpf_core_field_exists(old->_folio_order))
		return 1ULL << (BPF_CORE_READ(old, _folio_order) & 31);
	return 1ULL << (BPF_CORE_READ(folio, _flags_1) & 31);
}

/* Source of an inode's identity, and its numbers; BY_NOTHING for a file without storage. */
static __always_inline __u8 identify(struct inode *inode, __u64 *number, __u32 *device, __u32 *generation)
{
	__u32 mode = BPF_CORE_READ(inode, i_mode) & S_IFMT;

	*number = BPF_CORE_READ(inode, i_ino);
	*device = BPF_CORE_READ(inode, i_sb, s_dev);
	*generation = BPF_CORE_READ(inode, i_generation);
	return mode == S_IFREG ? BY_PAGE_CACHE : mode == S_IFBLK ? BY_METADATA : BY_NOTHING;
}

static __always_inline void of_interest(__u64 inode, __u32 device)
{
	struct file_name name = { .inode = inode, .device = device };
	__u32 one = 1;

	if (!bpf_map_lookup_elem(&files_of_interest, &name))
		bpf_map_update_elem(&files_of_interest, &name, &one, BPF_ANY);
}

static __always_inline int page_event(__u8 kind, struct folio *folio, struct address_space *mapping)
{
	struct layer_record record = {};
	struct inode *inode;
	__u64 who;

	if (!layers.armed || !in_scope())
		return 0;
	inode = BPF_CORE_READ(mapping, host);
	if (!inode || identify(inode, &record.inode, &record.device, &record.generation) != BY_PAGE_CACHE)
		return 0;
	who = bpf_get_current_pid_tgid();
	record.kind = kind;
	record.t_ns = bpf_ktime_get_ns();
	record.offset_bytes = BPF_CORE_READ(folio, index) << PAGE_SHIFT;
	record.size_bytes = pages_of(folio) << PAGE_SHIFT;
	record.tid = who;
	record.pid = who >> 32;
	record.cgroup_id = bpf_get_current_cgroup_id();
	of_interest(record.inode, record.device);
	tell(&record);
	return 0;
}

SEC("tp_btf/mm_filemap_add_to_page_cache")
int BPF_PROG(layer_added, struct folio *folio)
{
	return page_event(RECORD_ADDED, folio, BPF_CORE_READ(folio, mapping));
}

SEC("tp_btf/writeback_dirty_folio")
int BPF_PROG(layer_dirtied, struct folio *folio, struct address_space *mapping)
{
	if (!mapping)
		return 0;
	return page_event(RECORD_DIRTIED, folio, mapping);
}

/* Maximum length of a direct read: up to the end of the file's last block. */
static __always_inline __u64 within_file(struct inode *inode, __u64 from, __u64 asked)
{
	__u64 size = BPF_CORE_READ(inode, i_size);
	__u64 block = 1ULL << (BPF_CORE_READ((struct inode___io *)inode, i_blkbits) & 31);
	__u64 most;

	if (from >= size)
		return 0;
	most = ((size + block - 1) & ~(block - 1)) - from;
	return asked < most ? asked : most;
}

/* Start of a direct call: until its end, parts that the thread submits to the block layer belong to this file. */
SEC("tp_btf/iomap_dio_rw_begin")
int BPF_PROG(layer_direct, struct kiocb *call, struct iov_iter *vectors)
{
	struct kiocb___io *io = (void *)call;
	struct direct_call direct = {};
	struct inode *inode;
	__u32 tid;

	if (!layers.armed || !in_scope())
		return 0;
	inode = BPF_CORE_READ(call, ki_filp, f_inode);
	if (!inode || !identify(inode, &direct.inode, &direct.device, &direct.generation))
		return 0;
	tid = bpf_get_current_pid_tgid();
	direct.base_bytes = BPF_CORE_READ(io, ki_pos);
	direct.left_bytes = BPF_CORE_READ(vectors, count);
	direct.call = (__u64)call;
	if (!(BPF_CORE_READ(io, ki_flags) & IOCB_WRITE))
		direct.left_bytes = within_file(inode, direct.base_bytes, direct.left_bytes);
	bpf_map_update_elem(&direct_calls, &tid, &direct, BPF_ANY);
	of_interest(direct.inode, direct.device);
	return 0;
}

/*
 * End of a direct call, possibly with fewer parts than requested bytes (the rest was a hole): later parts of the
 * thread belong to something else. The end of an asynchronous call runs in any thread, usually in an interrupt.
 */
SEC("tp_btf/iomap_dio_complete")
int BPF_PROG(layer_direct_ended, struct kiocb *ended)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct direct_call *call;

	if (!layers.armed)
		return 0;
	call = bpf_map_lookup_elem(&direct_calls, &tid);
	if (call && call->call == (__u64)ended)
		bpf_map_delete_elem(&direct_calls, &tid);
	return 0;
}

/* The call continues asynchronously: all its parts were submitted. */
SEC("tp_btf/iomap_dio_rw_queued")
int BPF_PROG(layer_direct_queued)
{
	__u32 tid = bpf_get_current_pid_tgid();

	if (layers.armed)
		bpf_map_delete_elem(&direct_calls, &tid);
	return 0;
}

extern const void iomap_dio_bio_end_io __ksym __weak;

/* Inode that the first page of a part maps; NULL for pages of programs and buffers of drivers. */
static __always_inline struct inode *file_of_part(struct bio *bio, __u64 *offset)
{
	unsigned int index = BPF_CORE_READ(bio, bi_iter.bi_idx);
	struct bio_vec *vector = BPF_CORE_READ(bio, bi_io_vec);
	struct page *page, *head;
	struct address_space *mapping;
	struct folio *folio;
	__u64 compound;

	vector = (void *)vector + (__u64)index * bpf_core_type_size(struct bio_vec);
	page = BPF_CORE_READ(vector, bv_page);
	if (!page)
		return NULL;
	compound = BPF_CORE_READ(page, compound_head);
	head = compound & 1 ? (struct page *)(compound - 1) : page;
	folio = (struct folio *)head;
	mapping = BPF_CORE_READ(folio, mapping);
	if (!mapping || ((__u64)mapping & 3))
		return NULL;
	*offset = (BPF_CORE_READ(folio, index) << PAGE_SHIFT) +
		  ((((__u64)page - (__u64)head) / bpf_core_type_size(struct page)) << PAGE_SHIFT) +
		  BPF_CORE_READ(vector, bv_offset) + BPF_CORE_READ(bio, bi_iter.bi_bvec_done);
	return BPF_CORE_READ(mapping, host);
}

SEC("tp_btf/block_bio_queue")
int BPF_PROG(layer_part, struct bio *bio)
{
	struct direct_part part = {};
	struct direct_call *call;
	struct inode *inode;
	__u64 key = (__u64)bio, offset, size, number;
	__u32 tid, device, generation;
	__u8 how;

	if (!layers.armed || !in_scope())
		return 0;
	tid = bpf_get_current_pid_tgid();
	call = bpf_map_lookup_elem(&direct_calls, &tid);
	size = BPF_CORE_READ(bio, bi_iter.bi_size);
	if (!call || !size || call->left_bytes < size)
		return 0;
	/*
	 * The file's own cached pages are written first. Pages of another file are readahead or write-back, unless
	 * the program's buffer is a mapping of that file. The completion function of the part distinguishes these.
	 */
	inode = file_of_part(bio, &offset);
	if (inode) {
		how = identify(inode, &number, &device, &generation);
		if (how == BY_METADATA || (number == call->inode && device == call->device))
			return 0;
		if ((const void *)BPF_CORE_READ(bio, bi_end_io) != &iomap_dio_bio_end_io)
			return 0;
	}
	part.inode = call->inode;
	part.device = call->device;
	part.generation = call->generation;
	part.base_bytes = call->base_bytes;
	part.offset_bytes = call->base_bytes + call->done_bytes;
	part.sector = BPF_CORE_READ(bio, bi_iter.bi_sector);
	part.size_bytes = size;
	part.ended_by = (__u64)BPF_CORE_READ(bio, bi_end_io);
	call->done_bytes += size;
	call->left_bytes -= size;
	bpf_map_update_elem(&direct_parts, &key, &part, BPF_ANY);
	return 0;
}

/* For devices without requests only; for others direct_part_of checks whether an entry is still valid. */
SEC("tp_btf/block_bio_complete")
int BPF_PROG(layer_part_done, struct request_queue *queue, struct bio *bio)
{
	__u64 key = (__u64)bio;

	if (layers.armed)
		bpf_map_delete_elem(&direct_parts, &key);
	return 0;
}

static __always_inline void request_begins(struct request *request)
{
	struct in_flight flight = {}, *previous;
	__u64 key = (__u64)request, who = bpf_get_current_pid_tgid();

	previous = bpf_map_lookup_elem(&requests, &key);
	if (previous && previous->scoped)
		__sync_fetch_and_add(&layers.unfinished, 1);
	flight.start_ns = bpf_ktime_get_ns();
	flight.tid = who;
	flight.pid = who >> 32;
	flight.scoped = in_scope();
	flight.cgroup_id = bpf_get_current_cgroup_id();
	bpf_map_update_elem(&requests, &key, &flight, BPF_ANY);
}

SEC("tp_btf/block_io_start")
int BPF_PROG(layer_request, struct request *request)
{
	if (layers.armed)
		request_begins(request);
	return 0;
}

/* The part was merged into the request before it and does not complete separately. */
SEC("tp_btf/block_rq_merge")
int BPF_PROG(layer_merged, struct request *request)
{
	__u64 key = (__u64)request;

	if (layers.armed)
		bpf_map_delete_elem(&requests, &key);
	return 0;
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(layer_issued, struct request *request)
{
	__u64 key = (__u64)request;
	struct in_flight *flight;

	if (!layers.armed)
		return 0;
	flight = bpf_map_lookup_elem(&requests, &key);
	if (!flight && layers.begins_at_issue) {
		request_begins(request);
		flight = bpf_map_lookup_elem(&requests, &key);
	}
	if (flight && !flight->issue_ns)
		flight->issue_ns = bpf_ktime_get_ns();
	return 0;
}

struct parts {
	struct bio *bio;
	struct in_flight *flight;
	struct layer_record record; /* accumulated for one file and range */
};

static __always_inline void flush_part(struct parts *parts)
{
	struct file_name name = { .inode = parts->record.inode, .device = parts->record.device };

	if (!parts->record.size_bytes)
		return;
	if (parts->flight->scoped || (parts->record.how != BY_NOTHING && bpf_map_lookup_elem(&files_of_interest, &name)))
		tell(&parts->record);
}

/*
 * Entry of a part from its submission. Its address may have been reused for a part of another file. In that case the
 * position on the device or the completion function differs.
 */
static __always_inline struct direct_part *direct_part_of(__u64 key, __u64 sector)
{
	struct direct_part *part = bpf_map_lookup_elem(&direct_parts, &key);

	if (!part || sector < part->sector || (sector - part->sector) << 9 >= part->size_bytes)
		return NULL;
	return part->ended_by == (__u64)BPF_CORE_READ((struct bio *)key, bi_end_io) ? part : NULL;
}

/* One part of a request. It extends the current range, or begins one of another file or place. */
static long add_part(__u64 index, void *context)
{
	struct parts *parts = context;
	struct bio *bio = parts->bio;
	struct direct_part *direct;
	struct inode *inode;
	__u64 offset = 0, number = 0, base = 0, sector;
	__u32 device = 0, generation = 0, size;
	__u8 how = BY_NOTHING;

	if (!bio)
		return 1;
	size = BPF_CORE_READ(bio, bi_iter.bi_size);
	sector = BPF_CORE_READ(bio, bi_iter.bi_sector);
	direct = direct_part_of((__u64)bio, sector);
	if (!direct) /* a part split from the front of another refers to that one */
		direct = direct_part_of((__u64)BPF_CORE_READ(bio, bi_private), sector);
	if (direct) {
		how = BY_DIRECT;
		number = direct->inode;
		device = direct->device;
		generation = direct->generation;
		base = direct->base_bytes;
		offset = direct->offset_bytes + ((sector - direct->sector) << 9);
	} else {
		inode = file_of_part(bio, &offset);
		if (inode)
			how = identify(inode, &number, &device, &generation);
	}
	if (parts->record.size_bytes && parts->record.how == how && parts->record.inode == number &&
	    parts->record.device == device && parts->record.base_bytes == base &&
	    (how == BY_NOTHING || parts->record.offset_bytes + parts->record.size_bytes == offset)) {
		parts->record.size_bytes += size;
	} else {
		flush_part(parts);
		parts->record.how = how;
		parts->record.inode = number;
		parts->record.device = device;
		parts->record.generation = generation;
		parts->record.offset_bytes = offset;
		parts->record.base_bytes = base;
		parts->record.size_bytes = size;
		parts->record.sector = sector;
		parts->record.part = index > 255 ? 255 : index;
	}
	parts->bio = BPF_CORE_READ(bio, bi_next);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(layer_completed, struct request *request, int status, unsigned int bytes)
{
	__u64 key = (__u64)request, now;
	struct in_flight *flight;
	struct device_count *count, none = {};
	struct device_op which = {};
	struct parts parts = {};
	struct gendisk *disk;

	if (!layers.armed)
		return 0;
	which.op = BPF_CORE_READ(request, cmd_flags) & 0xff;
	if (which.op >= 32)
		return 0; /* commands of drivers */
	disk = BPF_CORE_READ(request, q, disk);
	if (disk)
		which.disk = ((__u32)BPF_CORE_READ(disk, major) << 20) | (__u32)BPF_CORE_READ(disk, first_minor);
	count = bpf_map_lookup_elem(&device_counts, &which);
	if (!count) {
		bpf_map_update_elem(&device_counts, &which, &none, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&device_counts, &which);
	}
	if (count) {
		__sync_fetch_and_add(&count->requests, 1);
		__sync_fetch_and_add(&count->bytes, bytes);
	}
	flight = bpf_map_lookup_elem(&requests, &key);
	if (!flight)
		return 0;
	now = bpf_ktime_get_ns();
	if (which.op <= 1 && bytes) {
		parts.flight = flight;
		parts.bio = BPF_CORE_READ(request, bio);
		parts.record.kind = RECORD_REQUEST;
		parts.record.op = which.op;
		parts.record.failed = status != 0;
		parts.record.disk = which.disk;
		parts.record.t_ns = flight->start_ns;
		parts.record.queue_ns = flight->issue_ns ? flight->issue_ns - flight->start_ns : 0;
		parts.record.device_ns = now - (flight->issue_ns ? flight->issue_ns : flight->start_ns);
		parts.record.tid = flight->tid;
		parts.record.pid = flight->pid;
		parts.record.cgroup_id = flight->cgroup_id;
		parts.record.scoped = flight->scoped;
		bpf_loop(BIOS, add_part, &parts, 0);
		flush_part(&parts);
	}
	if (bytes >= BPF_CORE_READ(request, __data_len))
		bpf_map_delete_elem(&requests, &key);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
