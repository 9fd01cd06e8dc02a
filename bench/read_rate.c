/* Reads one cached byte as often as it can: FILE SECONDS THREADS ANSWER. Writes how many reads were made. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { FILE_BYTES = 4 << 20, BLOCK = 1000, MOST = 256 };

static int file;
static double until;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void *read_on(void *made)
{
	char byte;

	do
		for (int i = 0; i < BLOCK; i++)
			if (pread(file, &byte, 1, (long)++*(long *)made * 4096 % FILE_BYTES) != 1)
				exit(1);
	while (now() < until);
	return NULL;
}

int main(int count, char **words)
{
	static long made[MOST][8]; /* a cache line each */
	long threads = count == 5 ? atol(words[3]) : 0, total = 0;
	pthread_t running[MOST];

	file = count == 5 ? open(words[1], O_RDONLY) : -1;
	if (file < 0 || threads < 1 || threads > MOST) {
		fprintf(stderr, "usage: read_rate FILE SECONDS THREADS ANSWER (a file of 4 MiB)\n");
		return 2;
	}
	until = now() + atof(words[2]);
	for (long i = 0; i < threads; i++)
		pthread_create(&running[i], NULL, read_on, made[i]);
	for (long i = 0; i < threads; i++) {
		pthread_join(running[i], NULL);
		total += made[i][0];
	}
	if (!freopen(words[4], "w", stdout))
		return 1;
	printf("%ld\n", total);
	return 0;
}
