/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Kernel types that the programs read, with only the fields that they read. CO-RE relocates the offsets to those of
 * the running kernel, so order and padding are irrelevant here.
 * x86-64 only: the system-call arguments are in the registers of that architecture.
 */
#ifndef PENSTOCK_KERNEL_H
#define PENSTOCK_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
	BPF_F_NO_PREALLOC = 1,
	BPF_F_MMAPABLE = 1024,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
	BPF_RB_NO_WAKEUP = 1,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct pt_regs {
	unsigned long di;
	unsigned long si;
	unsigned long dx;
	unsigned long r10;
	unsigned long r8;
	unsigned long r9;
	unsigned long orig_ax;
};

struct qstr {
	__u32 hash;
	const unsigned char *name;
};

struct hlist_bl_node {
	struct hlist_bl_node **pprev;
};

struct dentry {
	struct hlist_bl_node d_hash;
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
};

struct super_block {
	__u32 s_dev;
	unsigned long s_magic;
};

struct inode {
	unsigned short i_mode;
	unsigned int i_nlink;
	struct super_block *i_sb;
	struct address_space *i_mapping;
	unsigned long i_ino;
	long long i_size;
	__u32 i_generation;
};

struct address_space {
	struct inode *host;
	unsigned long nrpages;
};

struct vfsmount {
	struct dentry *mnt_root;
};

struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct file {
	struct inode *f_inode;
	unsigned int f_flags;
	unsigned int f_mode;
	long long f_pos;
	struct path f_path;
	struct address_space *f_mapping;
};

/*
 * Also a stand-in for a slot of a descriptor table: its first field is a file pointer, from which the verifier derives
 * the type of the slot's contents.
 */
struct kiocb {
	struct file *ki_filp;
	long long ki_pos;
	void (*ki_complete)(struct kiocb *request, long result);
};

struct io_event {
	__u64 data;
	__u64 obj;
	__s64 res;
};

struct kioctx {
	unsigned long user_id;
};

struct kioctx_table {
	unsigned int nr;
	struct kioctx *table[];
};

/* Its first field is its kiocb. */
struct aio_kiocb {
	struct kioctx *ki_ctx;
	struct io_event ki_res;
};

struct io_cqe {
	int fd;
};

struct io_sq_data {
	int task_tgid;
};

/* The table of registered files since 6.13, and before. */
struct io_rsrc_node___since_6_13 {
	unsigned long file_ptr;
};

struct io_rsrc_data___since_6_13 {
	unsigned int nr;
	struct io_rsrc_node___since_6_13 **nodes;
};

struct io_file_table___since_6_13 {
	struct io_rsrc_data___since_6_13 data;
};

struct io_fixed_file {
	unsigned long file_ptr;
};

struct io_file_table___before_6_13 {
	struct io_fixed_file *files;
};

struct io_file_table {
	unsigned int alloc_hint;
};

struct io_ring_ctx {
	unsigned int flags;
	struct io_sq_data *sq_data;
	struct io_file_table file_table;
};

struct io_kiocb {
	struct file *file;
	__u8 opcode;
	__u64 flags;
	struct io_cqe cqe;
	struct io_ring_ctx *ctx;
};

struct io_uring_cqe {
	__s32 res;
};

/* Operation-specific part of a request; each is at its start. */
struct io_rw {
	struct kiocb kiocb;
	__u64 addr;
	__u32 len;
	__u32 flags;
};

struct io_sync {
	long long len;
	long long off;
	int flags;
};

struct io_splice {
	struct file *file_out;
	long long off_out;
	long long off_in;
	__u64 len;
	int splice_fd_in;
	unsigned int flags;
};

struct io_fadvise {
	__u64 offset;
	__u64 len;
};

struct io_ftrunc {
	long long len;
};

struct io_close {
	int fd;
	__u32 file_slot;
};

struct seqcount {
	unsigned int sequence;
};

struct atomic {
	int counter;
};

/* x86: the number is unique to one memory, while addresses of mm_struct are reused. */
typedef struct {
	__u64 ctx_id;
} mm_context_t;

struct mm_struct {
	mm_context_t context;
	struct atomic mm_users;
	struct seqcount mm_lock_seq;
	void *pgd;
	struct kioctx_table *ioctx_table;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_flags;
	unsigned long vm_pgoff;
	struct file *vm_file;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct fs_struct {
	struct path root;
	struct path pwd;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	int level;
	struct kernfs_node *kn;
	struct cgroup *ancestors[1];
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct css_set {
	struct cgroup_subsys_state *subsys[1];
	struct cgroup *dfl_cgrp;
};

struct thread_info {
	__u32 status;
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live; /* threads */
};

struct task_struct {
	struct thread_info thread_info;
	int pid;
	int tgid;
	struct fs_struct *fs;
	struct mm_struct *mm;
	struct files_struct *files;
	struct css_set *cgroups;
	struct signal_struct *signal;
	char comm[16];
	__u64 start_time;
};

#pragma clang attribute pop

/* Context of the iterator over the mappings of all processes. */
struct bpf_iter__task_vma {
	void *meta;
	struct task_struct *task;
	struct vm_area_struct *vma;
};

/* Contexts of raw and classic tracepoints (for the latter see /sys/kernel/tracing/events/raw_syscalls). */
struct bpf_raw_tracepoint_args {
	__u64 args[2];
};

struct classic_enter {
	__u64 common;
	long number;
	unsigned long arguments[6];
};

struct classic_exit {
	__u64 common;
	long number;
	long result;
};

/* of a program on a perf event: after the registers in user-space format */
struct bpf_perf_event_data {
	unsigned long regs[21];
	__u64 sample_period;
	__u64 addr;
};

/* of user space */
struct iovec {
	void *iov_base;
	unsigned long iov_len;
};

/* of linux/aio_abi.h */
struct iocb {
	__u64 aio_data;
	__u32 aio_key;
	__u32 aio_rw_flags;
	__u16 aio_lio_opcode;
	__s16 aio_reqprio;
	__u32 aio_fildes;
	__u64 aio_buf;
	__u64 aio_nbytes;
	__s64 aio_offset;
	__u64 aio_reserved2;
	__u32 aio_flags;
	__u32 aio_resfd;
};

struct fetched_event {
	__u64 data;
	__u64 obj;
	__s64 res;
	__s64 res2;
};

#endif
