/* Makes a known number of calls on a file and says which: FILE READS THREADS. Every thread reads its own
 * offsets in its own order; then one thread writes and appends. Prints "thread offset size" of the first
 * thread's reads in order, for comparison with what a tracer saw. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { STEP = 4096, BLOCKS = 64 };

static int file;
static long reads;

static long place(long thread, long i)
{
	return ((i * 37 + thread * 11) % BLOCKS) * STEP;
}

static void *read_all(void *argument)
{
	long thread = (long)argument;
	static __thread char buffer[STEP];

	if (thread == 0)
		printf("first %ld\n", syscall(SYS_gettid));
	for (long i = 0; i < reads; i++)
		if (pread(file, buffer, STEP, place(thread, i)) != STEP)
			exit(3);
	return NULL;
}

int main(int count, char **words)
{
	static char text[BLOCKS * STEP];
	struct iovec two[2] = { { text, 1000 }, { text + 1000, 24 } };
	long threads = count == 4 ? atol(words[3]) : 0;
	pthread_t running[64];

	if (threads < 1 || threads > 64)
		return 2;
	reads = atol(words[2]);
	file = open(words[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (file < 0 || write(file, text, sizeof text) != sizeof text)
		return 3;
	for (long i = 0; i < threads; i++)
		pthread_create(&running[i], NULL, read_all, (void *)i);
	for (long i = 0; i < threads; i++)
		pthread_join(running[i], NULL);
	if (pwrite(file, text, 100, 8192) != 100 || pwritev(file, two, 2, 16384) != 1024)
		return 3;
	if (preadv2(file, two, 2, 512, 0) != 1024 || pread(file, text, 10, sizeof text) != 0)
		return 3;
	if (pread(file, (void *)8, 10, 0) != -1 || read(-1, text, 1) != -1)
		return 3;
	for (long i = 0; i < reads && i < 1000; i++)
		printf("offset %ld\n", place(0, i));
	return 0;
}
