/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Filter of files: by name, by number, by directory, by ending. A file is evaluated once, at its first use. Later uses
 * find the result in the thread's state or in a map.
 *
 * A requested path is an anchor (an existing directory, identified by device and inode number) and the components
 * that must follow below it, so that files and directories created later match too.
 */
#ifndef PENSTOCK_FILTER_H
#define PENSTOCK_FILTER_H

#include "books.h"

#define UNWANTED 0xffffffff /* as file_id */
#define BY_NUMBER 1
#define BY_PATH 2
#define INSIDE 4
#define MOST_NAMES 4200
#define ENDINGS 16
#define ENDING_WORDS 3
#define TAIL_WORDS 32
#define RULES 64

/* Set before loading: number of rules of each kind. Kinds combine by AND, rules of one kind by OR. */
const volatile __u32 number_rules = 0;
const volatile __u32 path_rules = 0;
const volatile __u32 directory_rules = 0;
const volatile __u32 ending_rules = 0;
const volatile __u32 rule_count = 0;	/* paths and directories together */
const volatile __u32 only_direction = 0; /* 0 both, 1 reads, 2 writes and the operations that make them durable */

struct place {
	__u64 inode;
	__u32 device;
	__u32 pad;
};

/* Path below an anchor: components from the last to the first, each with a zero byte. */
struct rule {
	__u32 whole; /* 1: a path, nothing may follow; 0: a directory */
	__u32 bytes;
	__u64 tail[TAIL_WORDS];
	__u64 mask[TAIL_WORDS]; /* of the significant bytes */
};

struct ending {
	__u32 bytes;
	__u32 pad;
	__u64 text[ENDING_WORDS];
	__u64 mask[ENDING_WORDS];
};

/* Rules of each anchor directory, as bits. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, RULES);
	__type(key, struct place);
	__type(value, __u64);
} anchors SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RULES);
	__type(key, __u32);
	__type(value, struct rule);
} rules SEC(".maps");

/* Files by number: BY_NUMBER if the user specified it, BY_PATH if it had the path at the start of tracing. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct place);
	__type(value, __u32);
} wanted_numbers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENDINGS);
	__type(key, __u32);
	__type(value, struct ending);
} endings SEC(".maps");

/* Files that failed the filter. If the map evicts one, it is evaluated again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct file_key);
	__type(value, __u32);
} unwanted_files SEC(".maps");

struct search {
	struct dentry *dentry;
	struct vfsmount *view;
	struct mount *mount; /* NULL: up to the root of the file system, regardless of mounts */
	__u64 candidates;    /* rules that begin at this dentry */
	__u32 used;	     /* bytes of components in the draft */
	__u32 name_bytes;    /* of the last component */
	__u32 found;	     /* BY_PATH, INSIDE */
	__u32 equal;
};

/* State of the walk from a file upwards that writes its path. */
struct walk {
	struct dentry *dentry;
	struct vfsmount *view;
	struct mount *mount;
	__u32 used;
	__u32 complete;
};

/*
 * Working memory of the functions below, by number of the draft. It is not on the stack, because a program and its
 * functions share 512 bytes of stack.
 */
struct work {
	struct search search;
	struct walk walk;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DRAFTS);
	__type(key, __u32);
	__type(value, struct work);
} works SEC(".maps");

/*
 * True if the text is at this position of the draft. It compares word by word without a branch, so that the verifier
 * follows a single path. Calls may be nested at most eight deep.
 */
static __always_inline bool lies_at(struct introduction *draft, __u32 from, const __u64 *text,
				    const __u64 *mask, __u32 words)
{
	__u64 difference = 0;
	__u32 i;

	for (i = 0; i < words; i++) {
		__u32 place = (from + i * sizeof(__u64)) & (PATH_BYTES - 1);

		difference |= (*(__u64 *)&draft->path[place] ^ text[i]) & mask[i];
	}
	return !difference;
}

static __noinline int place_of(struct inode *inode, struct place *place)
{
	place->inode = BPF_CORE_READ(inode, i_ino);
	place->device = BPF_CORE_READ(inode, i_sb, s_dev);
	place->pad = 0;
	return 0;
}

static long try_rule(__u64 index, void *context)
{
	struct work *work = bpf_map_lookup_elem(&works, context);
	struct introduction *draft = bpf_map_lookup_elem(&drafts, context);
	struct search *search;
	struct rule *rule;
	__u32 at = index;

	rule = bpf_map_lookup_elem(&rules, &at);
	if (!rule || !draft || !work)
		return 1;
	search = &work->search;
	if (!((search->candidates >> (index & 63)) & 1))
		return 0;
	if (rule->bytes > search->used || (rule->whole && rule->bytes != search->used))
		return 0;
	if (lies_at(draft, search->used - rule->bytes, rule->tail, rule->mask, TAIL_WORDS))
		search->found |= rule->whole ? BY_PATH : INSIDE;
	return 0;
}

/* Step from the root of a mount to its mount point: 1; -1: not mounted on anything; 0: not the root of a mount. */
static __noinline int cross(struct search *search)
{
	struct dentry *dentry = search->dentry;
	struct vfsmount *view = search->view;
	struct mount *mount = search->mount, *above;

	if (dentry != BPF_CORE_READ(view, mnt_root))
		return 0;
	above = BPF_CORE_READ(mount, mnt_parent);
	if (above == mount)
		return -1;
	search->dentry = BPF_CORE_READ(mount, mnt_mountpoint);
	search->mount = above;
	search->view = (void *)above + bpf_core_field_offset(struct mount, mnt);
	return 1;
}

/* One step up from a file: check for an anchor, add the component, continue with the parent. */
static long search_up(__u64 index, void *context)
{
	struct work *work = bpf_map_lookup_elem(&works, context);
	struct introduction *draft = bpf_map_lookup_elem(&drafts, context);
	struct dentry *dentry, *parent;
	struct search *search;
	struct place place = {};
	struct inode *inode;
	int crossed;
	__u64 *candidates;
	__u32 used;
	long length;

	if (!work || !draft)
		return 1;
	search = &work->search;
	dentry = search->dentry;
	used = search->used;
	inode = BPF_CORE_READ(dentry, d_inode);
	if (inode) {
		place_of(inode, &place);
		candidates = bpf_map_lookup_elem(&anchors, &place);
		if (candidates) {
			search->candidates = *candidates;
			bpf_loop(rule_count, try_rule, context, 0);
		}
	}
	if (search->mount) {
		crossed = cross(search);
		if (crossed)
			return crossed < 0;
	}
	parent = BPF_CORE_READ(dentry, d_parent);
	if (parent == dentry || used >= PATH_BYTES)
		return 1;
	length = bpf_probe_read_kernel_str(&draft->path[used & (PATH_BYTES - 1)], NAME_BYTES,
					   BPF_CORE_READ(dentry, d_name.name));
	if (length < 0)
		return 1;
	length &= 0x1ff;
	if (!index)
		search->name_bytes = length ? length - 1 : 0;
	search->used = used + length;
	search->dentry = parent;
	/* endings need the last component only */
	return !path_rules && !directory_rules;
}

static long try_ending(__u64 index, void *context)
{
	struct work *work = bpf_map_lookup_elem(&works, context);
	struct introduction *draft = bpf_map_lookup_elem(&drafts, context);
	struct search *search;
	struct ending *ending;
	__u32 at = index;

	ending = bpf_map_lookup_elem(&endings, &at);
	if (!draft || !ending || !work)
		return 1;
	search = &work->search;
	if (ending->bytes > search->name_bytes ||
	    !lies_at(draft, search->name_bytes - ending->bytes, ending->text, ending->mask, ENDING_WORDS))
		return 0;
	search->equal = 1;
	return 1;
}

/*
 * Search for a directory on the path within the file's own file system first, and then across the mounts through which
 * the file was opened. So a bind mount hides neither path.
 */
static __always_inline bool search_file(struct file *file, struct search *search, __u32 *number)
{
	struct vfsmount *view;

	search->dentry = BPF_CORE_READ(file, f_path.dentry);
	bpf_loop(MOST_NAMES, search_up, number, 0);
	if (ending_rules) {
		search->equal = 0;
		bpf_loop(ending_rules, try_ending, number, 0);
		if (!search->equal)
			return false;
	}
	if ((path_rules && !(search->found & BY_PATH)) ||
	    (directory_rules && !(search->found & INSIDE))) {
		view = BPF_CORE_READ(file, f_path.mnt);
		search->used = 0;
		search->dentry = BPF_CORE_READ(file, f_path.dentry);
		search->view = view;
		search->mount = (void *)view - bpf_core_field_offset(struct mount, mnt);
		bpf_loop(MOST_NAMES, search_up, number, 0);
	}
	if (path_rules && !(search->found & BY_PATH))
		return false;
	return !directory_rules || (search->found & INSIDE);
}

/* True if a file passes all filters. `number` is that of the draft for its path. */
static __always_inline bool wanted(struct file *file, struct place *place, __u32 *number)
{
	struct work *work;
	__u32 *numbered, by = 0;

	numbered = bpf_map_lookup_elem(&wanted_numbers, place);
	if (numbered)
		by = *numbered;
	if (number_rules && !(by & BY_NUMBER))
		return false;
	if (!path_rules && !directory_rules && !ending_rules)
		return true;
	work = bpf_map_lookup_elem(&works, number);
	if (!work)
		return true; /* if in doubt, trace the file */
	__builtin_memset(&work->search, 0, sizeof(work->search));
	work->search.found = by & BY_PATH;
	return search_file(file, &work->search, number);
}

static __always_inline bool filtering_files(void)
{
	return number_rules || path_rules || directory_rules || ending_rules;
}

/* True if an operation is excluded by its file or by its direction. */
static __always_inline bool left_out(__u32 file_id, __u32 op)
{
	if (file_id == UNWANTED)
		return true;
	if (only_direction == 1)
		return op >= FIRST_WRITE;
	if (only_direction == 2)
		return op < FIRST_WRITE || op >= FIRST_META;
	return false;
}

#endif
