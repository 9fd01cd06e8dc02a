/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Which file a descriptor means, and how user space learns its name. */
#ifndef PENSTOCK_FILES_H
#define PENSTOCK_FILES_H

#include "maps.h"

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

static __always_inline struct file *file_of(struct task_struct *task, __u32 descriptor)
{
	struct fdtable *table = task->files->fdt;
	struct file **slot;

	if (descriptor >= table->max_fds)
		return NULL;
	slot = table->fd + descriptor;
	return ((struct kiocb *)bpf_rdonly_cast(slot, bpf_core_type_id_kernel(struct kiocb)))->ki_filp;
}

#endif
