/*
 * Many operations of one kind: DIRECTORY KIND COUNT; prints ns of processor time and of wall time per operation, of
 * the children too. Kinds: fork (a process that ends at once), exec (one that becomes this program again and
 * ends), thread, open (of a file among many), mmap (16 pages of 64 touched, then unmapped), rename.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILES 512
#define PAGES 64

static const char *program;
static int mapped;

static void wait_for(pid_t child)
{
	int status;

	if (child < 0 || waitpid(child, &status, 0) != child || status)
		errx(1, "a child failed");
}

static void do_fork(long i)
{
	pid_t child = fork();

	if (!child)
		_exit(0);
	wait_for(child);
}

static void do_exec(long i)
{
	pid_t child = fork();

	if (!child) {
		execl(program, program, (char *)NULL);
		_exit(1);
	}
	wait_for(child);
}

static void *nothing(void *argument)
{
	return argument;
}

static void do_thread(long i)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, nothing, NULL) || pthread_join(thread, NULL))
		errx(1, "a thread failed");
}

static void do_open(long i)
{
	char name[32];
	int fd;

	snprintf(name, sizeof(name), "file-%ld", i % FILES);
	fd = open(name, O_RDONLY);
	if (fd < 0 || close(fd))
		err(1, "%s", name);
}

static void do_mmap(long i)
{
	volatile char *pages = mmap(NULL, PAGES * 4096, PROT_READ, MAP_SHARED, mapped, 0);

	if (pages == MAP_FAILED)
		err(1, "mmap");
	for (int page = 0; page < PAGES; page += 4)
		(void)pages[page * 4096];
	munmap((void *)pages, PAGES * 4096);
}

static void do_rename(long i)
{
	if (rename(i % 2 ? "second" : "first", i % 2 ? "first" : "second"))
		err(1, "rename");
}

static double seconds(struct timeval time)
{
	return time.tv_sec + time.tv_usec / 1e6;
}

static double used(int who)
{
	struct rusage usage;

	getrusage(who, &usage);
	return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

static const struct {
	const char *name;
	void (*once)(long);
} kinds[] = {
	{ "fork", do_fork }, { "exec", do_exec }, { "thread", do_thread },
	{ "open", do_open }, { "mmap", do_mmap }, { "rename", do_rename },
};

static void prepare(const char *directory)
{
	char name[32], *contents = calloc(PAGES, 4096);

	if (chdir(directory))
		err(1, "%s", directory);
	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof(name), "file-%d", i);
		close(open(name, O_CREAT | O_WRONLY, 0600));
	}
	close(open("first", O_CREAT | O_WRONLY, 0600));
	mapped = open("mapped", O_CREAT | O_RDWR, 0600);
	if (!contents || write(mapped, contents, PAGES * 4096) != PAGES * 4096)
		err(1, "mapped");
	free(contents);
}

int main(int argc, char **argv)
{
	struct timespec begin, end;
	double cpu, wall;
	long count;

	if (argc == 1)
		return 0;
	if (argc != 4)
		errx(2, "expected DIRECTORY KIND COUNT");
	program = realpath(argv[0], NULL);
	prepare(argv[1]);
	count = atol(argv[3]) & ~1L; /* both names of `rename` again */
	for (size_t kind = 0; kind < sizeof(kinds) / sizeof(*kinds); kind++) {
		if (strcmp(kinds[kind].name, argv[2]))
			continue;
		cpu = used(RUSAGE_SELF) + used(RUSAGE_CHILDREN);
		clock_gettime(CLOCK_MONOTONIC, &begin);
		for (long i = 0; i < count; i++)
			kinds[kind].once(i);
		clock_gettime(CLOCK_MONOTONIC, &end);
		cpu = used(RUSAGE_SELF) + used(RUSAGE_CHILDREN) - cpu;
		wall = end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) / 1e9;
		printf("%.1f %.1f\n", 1e9 * cpu / count, 1e9 * wall / count);
		return 0;
	}
	errx(2, "no kind %s", argv[2]);
}
