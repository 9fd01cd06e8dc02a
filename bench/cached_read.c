/* Reads a cached file in 4 KiB steps, over and over: FILE OPERATIONS [ANSWER [CALLS]]. Prints CPU and wall ns per
 * operation: medians over blocks of the run, so that what the machine does meanwhile weighs little; then the
 * 99.9th percentile of single operations' wall ns, over TIMED more of them. With CALLS each read of the blocks is
 * followed by so many calls of getppid: what a planted tracer costs. ANSWER `-` is stdout. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { STEP = 4096, FILE_BYTES = 4 << 20, BLOCKS = 51, TIMED = 100000 };

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static int read_all(int fd, long operations, long calls)
{
	static char buffer[STEP];

	for (long i = 0; i < operations; i++) {
		if (pread(fd, buffer, STEP, (i * STEP) % FILE_BYTES) != STEP)
			return 1;
		for (long call = 0; call < calls; call++)
			syscall(SYS_getppid);
	}
	return 0;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double tail(int fd)
{
	static double took[TIMED];
	static char buffer[STEP];

	for (long i = 0; i < TIMED; i++) {
		double began = now(CLOCK_MONOTONIC);

		if (pread(fd, buffer, STEP, (i * STEP) % FILE_BYTES) != STEP)
			return 0;
		took[i] = now(CLOCK_MONOTONIC) - began;
	}
	qsort(took, TIMED, sizeof(double), by_value);
	return took[TIMED - TIMED / 1000];
}

int main(int count, char **words)
{
	static double cpu[BLOCKS], wall[BLOCKS];
	double late;
	int fd = count >= 3 ? open(words[1], O_RDONLY) : -1;
	long operations = fd < 0 ? 0 : atol(words[2]) / BLOCKS, calls = count > 4 ? atol(words[4]) : 0;

	if (operations <= 0 || read_all(fd, operations, calls)) {
		fprintf(stderr, "usage: cached_read FILE OPERATIONS [ANSWER [CALLS]] (a file of 4 MiB)\n");
		return 2;
	}
	for (int i = 0; i < BLOCKS; i++) {
		cpu[i] = -now(CLOCK_PROCESS_CPUTIME_ID);
		wall[i] = -now(CLOCK_MONOTONIC);
		if (read_all(fd, operations, calls))
			return 1;
		cpu[i] = (cpu[i] + now(CLOCK_PROCESS_CPUTIME_ID)) / operations;
		wall[i] = (wall[i] + now(CLOCK_MONOTONIC)) / operations;
	}
	qsort(cpu, BLOCKS, sizeof(double), by_value);
	qsort(wall, BLOCKS, sizeof(double), by_value);
	late = tail(fd);
	if (count > 3 && strcmp(words[3], "-") && !freopen(words[3], "w", stdout))
		return 1;
	printf("%.2f %.2f %.0f\n", cpu[BLOCKS / 2], wall[BLOCKS / 2], late);
	return 0;
}
