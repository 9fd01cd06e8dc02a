/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Kernel types of the page cache and the block layer; see kernel.h. */
#ifndef PENSTOCK_BLOCK_H
#define PENSTOCK_BLOCK_H

#include "kernel.h"

enum pageflags {
	PG_head = 6,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct page {
	unsigned long compound_head;
};

struct folio {
	struct address_space *mapping;
	unsigned long index;
	unsigned long _flags_1;
};

/* before Linux 6.6 */
struct folio___old {
	unsigned char _folio_order;
};

struct bio_vec {
	struct page *bv_page;
	unsigned int bv_len;
	unsigned int bv_offset;
};

struct bvec_iter {
	__u64 bi_sector;
	unsigned int bi_size;
	unsigned int bi_idx;
	unsigned int bi_bvec_done;
};

struct bio {
	struct bio *bi_next;
	struct bvec_iter bi_iter;
	void *bi_private;
	void (*bi_end_io)(struct bio *bio);
	struct bio_vec *bi_io_vec;
};

struct gendisk {
	int major;
	int first_minor;
};

struct request_queue {
	struct gendisk *disk;
};

struct request {
	struct request_queue *q;
	unsigned int cmd_flags;
	unsigned int __data_len;
	__u64 __sector;
	struct bio *bio;
	struct block_device *part;
	__u64 start_time_ns;
};

struct iov_iter {
	unsigned long count;
};

struct kiocb___io {
	struct file *ki_filp;
	long long ki_pos;
	int ki_flags;
};

struct inode___io {
	unsigned char i_blkbits;
};

#pragma clang attribute pop

#endif
