/*
 * Calls that no common program makes, for tests of the tracer: `odd_calls CASE FILE`. What each case does to the
 * file is told beside it; the tests expect just that. io_uring is used by its system calls, without a library.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char *buffer;

static void check(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(3);
	}
}

/* ---- a ring ---- */
static struct ring {
	int fd;
	struct io_uring_params params;
	unsigned *tail, *mask, *array, *flags, *done_head, *done_tail, *done_mask;
	struct io_uring_sqe *entries;
	struct io_uring_cqe *done;
} ring;

static void make_ring(unsigned flags)
{
	struct io_uring_params *p = &ring.params;
	char *queue;

	p->flags = flags;
	p->sq_thread_idle = 1000;
	ring.fd = syscall(SYS_io_uring_setup, 64, p);
	check(ring.fd >= 0, "io_uring_setup");
	queue = mmap(NULL, p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQ_RING);
	check(queue != MAP_FAILED, "mmap");
	ring.entries = mmap(NULL, p->sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQES);
	ring.tail = (void *)(queue + p->sq_off.tail);
	ring.mask = (void *)(queue + p->sq_off.ring_mask);
	ring.array = (void *)(queue + p->sq_off.array);
	ring.flags = (void *)(queue + p->sq_off.flags);
	ring.done_head = (void *)(queue + p->cq_off.head);
	ring.done_tail = (void *)(queue + p->cq_off.tail);
	ring.done_mask = (void *)(queue + p->cq_off.ring_mask);
	ring.done = (void *)(queue + p->cq_off.cqes);
}

static struct io_uring_sqe *put(int op, int fd, void *address, unsigned length, long long offset)
{
	unsigned index = *ring.tail & *ring.mask;
	struct io_uring_sqe *entry = &ring.entries[index];

	memset(entry, 0, sizeof(*entry));
	entry->opcode = op;
	entry->fd = fd;
	entry->addr = (unsigned long)address;
	entry->len = length;
	entry->off = offset;
	ring.array[index] = index;
	return entry;
}

static void push(void)
{
	__atomic_store_n(ring.tail, *ring.tail + 1, __ATOMIC_RELEASE);
}

static void submit(unsigned count)
{
	unsigned flags = IORING_ENTER_GETEVENTS;

	if (ring.params.flags & IORING_SETUP_SQPOLL) {
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		if (*ring.flags & IORING_SQ_NEED_WAKEUP)
			flags |= IORING_ENTER_SQ_WAKEUP;
	}
	check(syscall(SYS_io_uring_enter, ring.fd, count, count, flags, NULL, 0) >= 0, "io_uring_enter");
}

static int result(void)
{
	int got;

	while (*ring.done_head == __atomic_load_n(ring.done_tail, __ATOMIC_ACQUIRE))
		check(syscall(SYS_io_uring_enter, ring.fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) >= 0, "wait");
	got = ring.done[*ring.done_head & *ring.done_mask].res;
	__atomic_store_n(ring.done_head, *ring.done_head + 1, __ATOMIC_RELEASE);
	return got;
}

/* 37 reads of 1000 bytes at 4096 i into registered buffers, of a registered file */
static void fixed(int fd)
{
	struct iovec place = { buffer, 65536 };

	make_ring(0);
	check(!syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &place, 1), "buffers");
	check(!syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_FILES, &fd, 1), "files");
	for (int i = 0; i < 37; i++) {
		put(IORING_OP_READ_FIXED, 0, buffer, 1000, 4096 * i)->flags = IOSQE_FIXED_FILE;
		push();
		submit(1);
		check(result() == 1000, "read");
	}
}

/* 41 reads of 512 bytes at 1024 i by the kernel's poller */
static void polled(int fd)
{
	make_ring(IORING_SETUP_SQPOLL);
	check(!syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_FILES, &fd, 1), "files");
	for (int i = 0; i < 41; i++) {
		put(IORING_OP_READ, 0, buffer, 512, 1024 * i)->flags = IOSQE_FIXED_FILE;
		push();
		submit(0);
		check(result() == 512, "read");
	}
}

/*
 * Linked: a write of 4096 at 0, then fsync, then a read of 2 × 1024 at 512. A chain that breaks: a read into a bad
 * address, and one that is therefore cancelled. By the position: two reads of 100 from 5000. To the end: a read of
 * 1000, 300 before it.
 */
static void linked(int fd)
{
	struct iovec two[2] = { { buffer, 1024 }, { buffer + 1024, 1024 } };
	long long size = lseek(fd, 0, SEEK_END);

	make_ring(0);
	put(IORING_OP_WRITE, fd, buffer, 4096, 0)->flags = IOSQE_IO_LINK;
	push();
	put(IORING_OP_FSYNC, fd, NULL, 0, 0)->flags = IOSQE_IO_LINK;
	push();
	put(IORING_OP_READV, fd, two, 2, 512);
	push();
	submit(3);
	check(result() == 4096 && result() == 0 && result() == 2048, "chain");
	put(IORING_OP_READ, fd, (void *)8, 4096, 4096)->flags = IOSQE_IO_LINK;
	push();
	put(IORING_OP_READ, fd, buffer, 4096, 8192);
	push();
	submit(2);
	check(result() == -EFAULT && result() == -ECANCELED, "broken chain");
	lseek(fd, 5000, SEEK_SET);
	for (int i = 0; i < 2; i++) {
		put(IORING_OP_READ, fd, buffer, 100, -1);
		push();
		submit(1);
		check(result() == 100, "position");
	}
	put(IORING_OP_READ, fd, buffer, 1000, size - 300);
	push();
	submit(1);
	check(result() == 300, "end");
}

/* a splice of 5000 bytes at 10000 into a pipe, by a worker thread */
static void spliced(int fd)
{
	struct io_uring_sqe *entry;
	int ends[2];

	check(!pipe(ends), "pipe");
	make_ring(0);
	entry = put(IORING_OP_SPLICE, ends[1], NULL, 5000, -1);
	entry->splice_fd_in = fd;
	entry->splice_off_in = 10000;
	push();
	submit(1);
	check(result() == 5000, "splice");
}

/* ---- threads ---- */
static int shared_fd;

static void *reader(void *argument)
{
	char small[64];

	for (long i = 0, count = (long)argument; i < count; i++)
		pread(shared_fd, small, 64, 64 * (i & 1023));
	return NULL;
}

/* 8 threads, one descriptor, 1,000,003 reads of 64 bytes */
static void threads(int fd)
{
	pthread_t all[8];

	shared_fd = fd;
	for (long i = 0; i < 8; i++)
		pthread_create(&all[i], NULL, reader, (void *)(i < 7 ? 125000L : 125003L));
	for (int i = 0; i < 8; i++)
		pthread_join(all[i], NULL);
}

/* preadv2 not to wait; pwritev2 durable; pwritev2 appending, offset 0 ignored; a read into a bad address */
static void flagged(int fd)
{
	struct iovec one = { buffer, 4096 };

	pread(fd, buffer, 4096, 0);
	check(preadv2(fd, &one, 1, 0, RWF_NOWAIT) == 4096, "nowait");
	check(pwritev2(fd, &one, 1, 4096, RWF_DSYNC) == 4096, "dsync");
	check(pwritev2(fd, &one, 1, 0, RWF_APPEND) == 4096, "append");
	check(pread(fd, (void *)8, 4096, 8192) == -1 && errno == EFAULT, "fault");
}

int main(int count, char **words)
{
	static const struct {
		const char *name;
		void (*run)(int);
	} cases[] = { { "fixed", fixed },     { "polled", polled },   { "linked", linked },
		      { "spliced", spliced }, { "threads", threads }, { "flagged", flagged } };
	int fd;

	check(count == 3, "odd_calls CASE FILE");
	check(!posix_memalign((void **)&buffer, 4096, 65536), "memory");
	memset(buffer, 7, 65536);
	fd = open(words[2], O_RDWR);
	check(fd >= 0, words[2]);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		if (!strcmp(cases[i].name, words[1])) {
			cases[i].run(fd);
			return 0;
		}
	return 2;
}
