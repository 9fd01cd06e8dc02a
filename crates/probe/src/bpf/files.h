/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Look-up of the file of a descriptor, and announcement of files to user space. */
#ifndef PENSTOCK_FILES_H
#define PENSTOCK_FILES_H

#include "books.h"
#include "filter.h"

/* One step up: write a component, or cross a mount point. Ends (1) at the root of all file systems. */
static long step_up(__u64 index, void *context)
{
	struct work *work = bpf_map_lookup_elem(&works, context);
	struct introduction *draft = bpf_map_lookup_elem(&drafts, context);
	struct dentry *dentry, *parent;
	const unsigned char *name;
	struct vfsmount *view;
	struct mount *mount;
	struct walk *walk;
	__u32 used;
	long length;

	if (!work || !draft)
		return 1;
	walk = &work->walk;
	dentry = walk->dentry;
	used = walk->used;
	mount = walk->mount;
	view = walk->view;
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
	if (used >= PATH_BYTES)
		return 1;
	name = BPF_CORE_READ(dentry, d_name.name);
	length = bpf_probe_read_kernel_str(&draft->path[used & (PATH_BYTES - 1)], NAME_BYTES, name);
	if (length < 0)
		return 1;
	walk->used = used + (length & 0x1ff);
	walk->dentry = parent;
	return 0;
}

static __always_inline void key_of(struct inode *inode, struct file_key *key)
{
	key->inode = BPF_CORE_READ(inode, i_ino);
	key->device = BPF_CORE_READ(inode, i_sb, s_dev);
	key->generation = BPF_CORE_READ(inode, i_generation);
}

static __always_inline void begin_walk(struct walk *walk, struct dentry *dentry, struct vfsmount *view)
{
	walk->dentry = dentry;
	walk->view = view;
	walk->mount = (void *)view - bpf_core_field_offset(struct mount, mnt);
	walk->used = 0;
	walk->complete = 0;
}

/* True for a regular file, or a block device. */
static __always_inline bool of_storage(__u32 mode)
{
	return (mode & S_IFMT) == S_IFREG || (mode & S_IFMT) == S_IFBLK;
}

static __noinline int describe(struct file *file, struct introduction *draft)
{
	struct inode *inode = BPF_CORE_READ(file, f_inode);
	struct address_space *mapping = BPF_CORE_READ(inode, i_mapping);
	struct inode *contents = inode;
	__u32 kind = BPF_CORE_READ(inode, i_mode) & S_IFMT;

	draft->directory = kind == S_IFDIR;
	if (kind == S_IFBLK) { /* the device behind the node */
		mapping = BPF_CORE_READ(file, f_mapping);
		contents = BPF_CORE_READ(mapping, host);
	}
	draft->device = BPF_CORE_READ(inode, i_sb, s_dev);
	draft->magic = BPF_CORE_READ(inode, i_sb, s_magic);
	draft->inode = BPF_CORE_READ(inode, i_ino);
	draft->generation = BPF_CORE_READ(inode, i_generation);
	draft->size_bytes = BPF_CORE_READ(contents, i_size);
	draft->resident_pages = BPF_CORE_READ(mapping, nrpages);
	draft->t_ns = bpf_ktime_get_ns();
	return 0;
}

/* Send identity and path of a file to user space, by means of a draft. */
static __noinline int introduce(struct file *file, __u32 file_id, struct ledger *own, __u32 *number)
{
	struct introduction *draft = bpf_map_lookup_elem(&drafts, number);
	struct work *work = bpf_map_lookup_elem(&works, number);
	struct dentry *dentry = BPF_CORE_READ(file, f_path.dentry);
	struct vfsmount *view = BPF_CORE_READ(file, f_path.mnt);
	__u32 size;

	if (!draft || !work) {
		__sync_fetch_and_add(&own->nameless, 1);
		return 0;
	}
	draft->file_id = file_id;
	describe(file, draft);
	draft->unlinked = !BPF_CORE_READ(dentry, d_hash.pprev);
	begin_walk(&work->walk, dentry, view);
	bpf_loop(MOST_NAMES, step_up, number, 0);
	draft->complete = work->walk.complete;
	size = work->walk.used;
	if (size > PATH_BYTES)
		size = PATH_BYTES;
	draft->path_bytes = size;
	size += __builtin_offsetof(struct introduction, path);
	if (bpf_ringbuf_output(&introductions, draft, size, BPF_RB_NO_WAKEUP))
		__sync_fetch_and_add(&own->nameless, 1);
	return 0;
}

/*
 * Number of a file at its first use; UNWANTED if it fails the filters, 0 if there is no room for it.
 *
 * Not static, and with a number instead of a pointer, so that the verifier checks it once and not at every place
 * from which it can be reached.
 */
__noinline int meet_file(__u64 file_address)
{
	struct file *file = (void *)file_address;
	struct ledger *own = ledger_of(bpf_get_smp_processor_id());
	struct file_key key = {};
	__u32 *found, number, id = 1, generation;

	key_of(BPF_CORE_READ(file, f_inode), &key);
	found = bpf_map_lookup_elem(&files, &key);
	if (found)
		return *found;
	if (!own)
		return 0;
	number = __sync_fetch_and_add(&own->drafting, 1);
	if (filtering_files()) {
		if (bpf_map_lookup_elem(&unwanted_files, &key)) {
			id = UNWANTED;
			goto out;
		}
		generation = key.generation;
		key.generation = 0; /* the key then has the layout of a place */
		if (!wanted(file, (struct place *)&key, &number)) {
			key.generation = generation;
			bpf_map_update_elem(&unwanted_files, &key, &id, BPF_ANY);
			id = UNWANTED;
			goto out;
		}
		key.generation = generation;
	}
	id = __sync_fetch_and_add(&control.next_file, 1) + 1;
	if (!bpf_map_update_elem(&files, &key, &id, BPF_NOEXIST)) {
		introduce(file, id, own, &number);
	} else {
		found = bpf_map_lookup_elem(&files, &key);
		id = found ? *found : 0;
	}
out:
	__sync_fetch_and_add(&own->drafting, -1);
	return id;
}

/* Names of files with several names that were announced to user space. A name that the map evicts is sent again. */
struct told_name {
	__u64 directory;
	__u32 file_id;
	__u32 hash;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct told_name);
	__type(value, __u32);
} told_names SEC(".maps");

/* Announce the name by which a file with several names (hard links) is opened, once. Separate, as meet_file. */
__noinline int meet_name(__u64 file_address, __u32 file_id)
{
	struct file *file = (void *)file_address;
	struct ledger *own = ledger_of(bpf_get_smp_processor_id());
	struct dentry *dentry = BPF_CORE_READ(file, f_path.dentry);
	struct told_name name = { .file_id = file_id };
	__u32 number, one = 1;

	name.directory = BPF_CORE_READ(dentry, d_parent, d_inode, i_ino);
	name.hash = BPF_CORE_READ(dentry, d_name.hash);
	if (!own || bpf_map_lookup_elem(&told_names, &name))
		return 0;
	bpf_map_update_elem(&told_names, &name, &one, BPF_ANY);
	number = __sync_fetch_and_add(&own->drafting, 1);
	introduce(file, file_id, own, &number);
	__sync_fetch_and_add(&own->drafting, -1);
	return 0;
}

/* Number of a file, with the same special values as meet_file. */
static __always_inline __u32 number_of(struct file *file)
{
	__u64 address = 0;

	if (!probe_reads) {
		struct inode *inode = FIELD(file, f_inode);
		struct super_block *super = FIELD(inode, i_sb);
		struct file_key key = {};
		__u32 *found;

		key.inode = FIELD(inode, i_ino);
		key.device = FIELD(super, s_dev);
		key.generation = FIELD(inode, i_generation);
		found = bpf_map_lookup_elem(&files, &key);
		if (found)
			return *found;
	}
	/* through a helper, so that the verifier treats it as a number */
	bpf_probe_read_kernel(&address, sizeof(address), &file);
	return meet_file(address);
}

/* Fill the thread's entry for a file that it has not used recently. */
static __always_inline int recall(struct file *file, struct known_file *known, struct books *books)
{
	struct inode *inode = FIELD(file, f_inode);
	struct super_block *super = FIELD(inode, i_sb);
	struct file_key key = {};
	__u64 address = 0;
	__u32 *found;

	key.inode = FIELD(inode, i_ino);
	key.device = FIELD(super, s_dev);
	key.generation = FIELD(inode, i_generation);
	found = bpf_map_lookup_elem(&files, &key);
	if (found) {
		known->file_id = *found;
	} else {
		/* through a helper, so that the verifier treats it as a number */
		bpf_probe_read_kernel(&address, sizeof(address), &file);
		known->file_id = meet_file(address);
	}
	known->inode_pointer = (__u64)inode;
	known->super_pointer = (__u64)super;
	known->inode = key.inode;
	known->generation = key.generation;
	known->epoch = control.epoch;
#pragma unroll
	for (int i = 0; i < KINDS; i++)
		known->stream[i] = NO_STREAM;
	return 0;
}

/*
 * `certain`: the kernel found a file at this descriptor during this call. Tables never shrink, so the descriptor is in
 * range, and the slot contains a file or NULL.
 */
static __always_inline struct file *file_at(struct task_struct *task, __u32 descriptor, bool certain)
{
	struct fdtable *table = task->files->fdt;
	struct file **slot, *file = NULL;

	if (!certain && descriptor >= table->max_fds)
		return NULL;
	slot = table->fd + descriptor;
	if (!probe_reads)
		return ((struct kiocb *)bpf_rdonly_cast(slot, bpf_core_type_id_kernel(struct kiocb)))->ki_filp;
	bpf_probe_read_kernel(&file, sizeof(file), slot);
	return file;
}

/*
 * Address of the file at a descriptor of the current task, 0 if there is none. Not static, and a number, so that the
 * verifier checks it once.
 */
__noinline __u64 address_of_file(__u32 descriptor)
{
	struct fdtable *table = bpf_get_current_task_btf()->files->fdt;
	struct file *file = NULL;

	if (descriptor < table->max_fds)
		bpf_probe_read_kernel(&file, sizeof(file), table->fd + descriptor);
	return (__u64)file;
}

static __always_inline struct file *file_of(__u32 descriptor)
{
	__u64 address = address_of_file(descriptor);

	if (!address)
		return NULL;
	return probe_reads ? (struct file *)address :
			     bpf_rdonly_cast((void *)address, bpf_core_type_id_kernel(struct file));
}

#endif
