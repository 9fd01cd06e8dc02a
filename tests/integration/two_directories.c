/*
 * Two processes do the same random things to the files of two directories, one after the other: what each call
 * returns, reads, and leaves must be the same in both. `two_directories SUBJECT REFERENCE OPERATIONS SEED`
 *
 * The directory under test (SUBJECT) may do less than the other where a program can tell and go another way:
 * fallocate's inserting and collapsing, and FIEMAP. What it says about holes is held to the contract of lseek(2): data is
 * never said to be a hole. Exit 1 with the last operations on standard error where the two differ.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NAMES = 8, SLOTS = 6, PAGE = 4096, LARGEST = 96 * PAGE, MOST = 16 * PAGE, TOLD = 40, LINE = 160 };

/* one file in both directories: [0] under test, [1] the reference */
static struct slot {
	int fd[2], flags;
	char *map[2];
} slots[SLOTS];

static struct shared {
	uint64_t random;
	long done, operations;
	int differ;
	long short_of[3];
	char told[TOLD][LINE];
} *shared;

static int directory[2], me;
static char *buffer[2], *whole[2];
static sigjmp_buf out_of_file;

/* ---- chance: xorshift64* (Vigna, 2016) ---- */
static uint64_t draw(uint64_t below)
{
	uint64_t x = shared->random;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	shared->random = x;
	return (x * 0x2545F4914F6CDD1DULL >> 11) % below;
}

static void fill(char *into, size_t length)
{
	uint64_t x = draw(1ULL << 50);

	for (size_t i = 0; i < length; i++)
		into[i] = 1 + (x + i * 31 + (i >> 8)) % 251; /* never 0: a hole is seen */
}

/* ---- telling ---- */
static void tell(const char *format, ...)
{
	char *line = shared->told[shared->done % TOLD];
	int length = snprintf(line, LINE, "%ld [%d] ", shared->done, me);
	va_list words;

	va_start(words, format);
	vsnprintf(line + length, LINE - length, format, words);
	va_end(words);
}

static void differ(const char *format, ...)
{
	va_list words;

	for (long i = shared->done < TOLD ? 0 : shared->done - TOLD + 1; i <= shared->done; i++)
		fprintf(stderr, "%s\n", shared->told[i % TOLD]);
	fprintf(stderr, "differs: ");
	va_start(words, format);
	vfprintf(stderr, format, words);
	va_end(words);
	fprintf(stderr, "\n");
	shared->differ = 1;
	exit(1);
}

static void need(int good, const char *what)
{
	if (!good) {
		perror(what);
		shared->differ = 1;
		exit(3);
	}
}

/* a result, or the negative error */
static long of(long result)
{
	return result < 0 ? -errno : result;
}

static void same(const char *what, long subject, long reference)
{
	if (subject != reference)
		differ("%s: %ld, reference %ld", what, subject, reference);
}

static void same_bytes(const char *what, const char *subject, const char *reference, long length)
{
	for (long i = 0; i < length; i++)
		if (subject[i] != reference[i])
			differ("%s: byte %ld of %ld is %d, reference %d", what, i, length, subject[i], reference[i]);
}

/* ---- files ---- */
static const char *name(void)
{
	static const char *names[NAMES] = { "a", "b", "c", "d", "e", "d1/f", "d1/g", "d2/h" };

	return names[draw(NAMES)];
}

static struct slot *any_slot(void)
{
	return &slots[draw(SLOTS)];
}

static struct slot *open_slot(void)
{
	for (int i = 0, from = draw(SLOTS); i < SLOTS; i++)
		if (slots[(from + i) % SLOTS].fd[0] >= 0)
			return &slots[(from + i) % SLOTS];
	return NULL;
}

static void range(const struct slot *slot, long *offset, long *length)
{
	*offset = draw(4) ? (long)draw(LARGEST - MOST) : (long)draw(LARGEST / PAGE - MOST / PAGE) * PAGE;
	*length = draw(3) ? 1 + draw(2 * PAGE) : 1 + draw(MOST);
	if (slot->flags & O_DIRECT) { /* what every device can */
		*offset = *offset / PAGE * PAGE;
		*length = (*length + PAGE - 1) / PAGE * PAGE;
	}
}

static void unmap(struct slot *slot)
{
	for (int i = 0; i < 2; i++)
		if (slot->map[i])
			munmap(slot->map[i], LARGEST);
	slot->map[0] = slot->map[1] = NULL;
}

static void shut(struct slot *slot)
{
	for (int i = 0; i < 2; i++) {
		if (slot->fd[i] >= 0)
			close(slot->fd[i]);
		slot->fd[i] = -1;
	}
}

static void open_one(void)
{
	static const int modes[] = { O_RDWR, O_RDWR, O_RDWR, O_RDONLY, O_WRONLY };
	static const int extras[] = { 0, 0, O_DIRECT, O_DIRECT, O_DIRECT | O_DSYNC, O_APPEND, O_DSYNC, O_TRUNC };
	struct slot *slot = any_slot();
	const char *which = name();
	int flags = modes[draw(5)] | extras[draw(8)] | (draw(3) ? O_CREAT : 0) | (draw(16) ? 0 : O_EXCL);

	shut(slot);
	unmap(slot);
	tell("open %s flags %o", which, flags);
	long got[2];
	for (int i = 0; i < 2; i++) {
		/* the reference need not be durable, nor wait for a disk: what it says is the same */
		slot->fd[i] = openat(directory[i], which, i ? flags & ~(O_SYNC | O_DIRECT) : flags, 0644);
		got[i] = slot->fd[i] < 0 ? -errno : 0;
	}
	slot->flags = flags;
	same("open", got[0], got[1]);
}

static void close_one(struct slot *slot)
{
	int keeps = draw(2);

	tell("close %ld%s", (long)(slot - slots), keeps ? ", mapping stays" : "");
	shut(slot);
	if (!keeps)
		unmap(slot);
}

static void write_some(struct slot *slot)
{
	static const int how[] = { 0, 0, 0, RWF_DSYNC, RWF_SYNC };
	long offset, length, got[2];
	int flags = how[draw(5)];

	range(slot, &offset, &length);
	fill(buffer[0], length);
	tell("write %ld: %ld at %ld flags %x", (long)(slot - slots), length, offset, flags);
	for (int i = 0; i < 2; i++) {
		struct iovec one = { buffer[0], length };

		got[i] = of(pwritev2(slot->fd[i], &one, 1, offset, i ? 0 : flags));
	}
	same("pwritev2", got[0], got[1]);
}

static void append(struct slot *slot)
{
	long length = 1 + draw(PAGE), got[2];
	struct stat now;

	if (slot->flags & O_DIRECT || fstat(slot->fd[1], &now) || now.st_size > LARGEST - MOST)
		return;
	fill(buffer[0], length);
	tell("append %ld: %ld", (long)(slot - slots), length);
	for (int i = 0; i < 2; i++) {
		struct iovec one = { buffer[0], length };

		got[i] = of(pwritev2(slot->fd[i], &one, 1, 0, RWF_APPEND));
	}
	same("append", got[0], got[1]);
}

static void read_some(struct slot *slot)
{
	long offset, length, got[2];

	range(slot, &offset, &length);
	tell("read %ld: %ld at %ld", (long)(slot - slots), length, offset);
	for (int i = 0; i < 2; i++)
		got[i] = of(pread(slot->fd[i], buffer[i], length, offset));
	same("pread", got[0], got[1]);
	same_bytes("pread", buffer[0], buffer[1], got[0]);
}

static void by_position(struct slot *slot)
{
	static const int from[] = { SEEK_SET, SEEK_CUR, SEEK_END };
	int whence = from[draw(3)], writes = draw(2);
	long offset = (long)draw(LARGEST / 4) - (whence == SEEK_SET ? 0 : LARGEST / 8), got[2], moved[2];

	if (slot->flags & O_DIRECT)
		return;
	tell("lseek %ld: %ld from %d, then %s", (long)(slot - slots), offset, whence, writes ? "write" : "read");
	for (int i = 0; i < 2; i++)
		got[i] = of(lseek(slot->fd[i], offset, whence));
	same("lseek", got[0], got[1]);
	if (got[0] < 0 || got[0] > LARGEST - MOST)
		return;
	fill(buffer[0], 1000);
	for (int i = 0; i < 2; i++) {
		moved[i] = of(writes ? write(slot->fd[i], buffer[0], 1000) : read(slot->fd[i], buffer[i], 1000));
		got[i] = of(lseek(slot->fd[i], 0, SEEK_CUR));
	}
	same(writes ? "write" : "read", moved[0], moved[1]);
	same("position", got[0], got[1]);
	if (!writes)
		same_bytes("read", buffer[0], buffer[1], moved[0]);
}

/* the whole of a file, by the page cache; its size */
static long all_of(int i, int fd)
{
	char path[64];
	long got, length = 0;
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDONLY);
	need(again >= 0, "open again");
	while ((got = pread(again, whole[i] + length, 2 * LARGEST - length, length)) > 0)
		length += got;
	need(!got, "read all");
	close(again);
	return length;
}

static int zeros(const char *bytes, long from, long to)
{
	for (; from < to; from++)
		if (bytes[from])
			return 0;
	return 1;
}

/* what is between data and data is zeros, by both ways of asking */
static void holes(struct slot *slot)
{
	long size, at = 0, hole;
	struct {
		struct fiemap map;
		struct fiemap_extent extents[256];
	} asked = { .map = { .fm_length = ~0ULL, .fm_extent_count = 256 } };

	tell("holes of %ld", (long)(slot - slots));
	size = all_of(1, slot->fd[1]);
	for (;;) {
		long data = lseek(slot->fd[0], at, SEEK_DATA);

		if (data < 0 && errno != ENXIO)
			differ("SEEK_DATA from %ld: %s", at, strerror(errno));
		if (!zeros(whole[1], at, data < 0 ? size : data))
			differ("SEEK_DATA from %ld: data at %ld, but there is some before it", at, data);
		if (data < 0 || data >= size)
			break;
		hole = lseek(slot->fd[0], data, SEEK_HOLE);
		if (hole <= data || hole > size)
			differ("SEEK_HOLE from %ld of %ld: %ld", data, size, hole);
		at = hole;
	}
	if (lseek(slot->fd[0], size, SEEK_DATA) >= 0 || errno != ENXIO)
		differ("SEEK_DATA from the end is not refused");
	lseek(slot->fd[0], 0, SEEK_SET);
	lseek(slot->fd[1], 0, SEEK_SET);
	if (ioctl(slot->fd[0], FS_IOC_FIEMAP, &asked)) {
		if (errno != EOPNOTSUPP && errno != ENOTTY)
			differ("FIEMAP: %s", strerror(errno));
		shared->short_of[0]++;
		return;
	}
	at = 0;
	for (unsigned i = 0; i < asked.map.fm_mapped_extents; i++) {
		const struct fiemap_extent *extent = &asked.extents[i];
		long until = extent->fe_logical < (unsigned long)size ? (long)extent->fe_logical : size;

		if (!zeros(whole[1], at, until))
			differ("FIEMAP: no extent between %ld and %ld, but data", at, until);
		at = extent->fe_logical + extent->fe_length;
	}
	if (asked.map.fm_mapped_extents < 256 && !zeros(whole[1], at, size))
		differ("FIEMAP: no extent from %ld on, but data", at);
}

static void allocate(struct slot *slot)
{
	static const int modes[] = { 0,
				     FALLOC_FL_KEEP_SIZE,
				     FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				     FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				     FALLOC_FL_PUNCH_HOLE,
				     FALLOC_FL_ZERO_RANGE,
				     FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
				     FALLOC_FL_UNSHARE_RANGE,
				     FALLOC_FL_COLLAPSE_RANGE,
				     FALLOC_FL_INSERT_RANGE };
	int mode = modes[draw(10)];
	long offset, length, got[2];

	range(slot, &offset, &length);
	if (mode & (FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE)) {
		offset = offset / PAGE * PAGE;
		length = PAGE;
	}
	tell("fallocate %ld: %ld at %ld mode %x", (long)(slot - slots), length, offset, mode);
	got[0] = of(fallocate(slot->fd[0], mode, offset, length));
	if (got[0] == -EOPNOTSUPP && mode & (FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE)) {
		shared->short_of[1 + (mode == FALLOC_FL_INSERT_RANGE)]++;
		return;
	}
	got[1] = of(fallocate(slot->fd[1], mode, offset, length));
	same("fallocate", got[0], got[1]);
}

static void cut(struct slot *slot)
{
	long size = draw(3) ? (long)draw(LARGEST - MOST) : (long)draw(3 * PAGE), got[2];
	const char *which = draw(2) ? name() : NULL;
	char path[64];

	tell("truncate %s%ld: %ld", which ? which : "", which ? 0 : (long)(slot - slots), size);
	for (int i = 0; i < 2; i++) {
		if (which) {
			snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", directory[i], which);
			got[i] = of(truncate(path, size));
		} else {
			got[i] = of(ftruncate(slot->fd[i], size));
		}
	}
	same("truncate", got[0], got[1]);
}

static void copy(struct slot *from)
{
	struct slot *to = any_slot();
	long offset, length, target, ignored, got[2];

	range(from, &offset, &length);
	range(from, &target, &ignored);
	if (to->fd[0] < 0 || (from->flags | to->flags) & O_DIRECT)
		return;
	tell("copy_file_range %ld to %ld: %ld from %ld to %ld", (long)(from - slots), (long)(to - slots), length, offset,
	     target);
	for (int i = 0; i < 2; i++) {
		off_t in = offset, out = target;
		long part;

		got[i] = 0;
		do {
			part = of(copy_file_range(from->fd[i], &in, to->fd[i], &out, length - got[i], 0));
			got[i] += part > 0 ? part : 0;
		} while (part > 0 && got[i] < length);
		if (part < 0)
			got[i] = part;
	}
	same("copy_file_range", got[0], got[1]);
}

static void map(struct slot *slot)
{
	int access = slot->flags & O_ACCMODE;

	if (slot->map[0] || access == O_WRONLY)
		return;
	tell("mmap %ld", (long)(slot - slots));
	for (int i = 0; i < 2; i++) {
		slot->map[i] = mmap(NULL, LARGEST, PROT_READ | (access == O_RDWR ? PROT_WRITE : 0), MAP_SHARED, slot->fd[i],
				    0);
		need(slot->map[i] != MAP_FAILED, "mmap");
	}
}

static void left_file(int number)
{
	(void)number;
	siglongjmp(out_of_file, 1);
}

/* the last byte that a mapping may touch, below the end of the file as the reference's fstat says: beyond it, and
 * in a page partly beyond it, what is written is nobody's */
static void by_memory(struct slot *slot)
{
	long offset = draw(LARGEST - 2 * PAGE), length = 1 + draw(PAGE), fits[2];
	volatile int writes = draw(2) && (slot->flags & O_ACCMODE) == O_RDWR;
	struct stat now;

	if (!slot->map[0])
		return;
	if (writes) {
		if (slot->fd[1] < 0)
			return;
		need(!fstat(slot->fd[1], &now), "fstat");
		if (offset + length > now.st_size)
			return;
	}
	tell("%s mapping of %ld: %ld at %ld", writes ? "write" : "read", (long)(slot - slots), length, offset);
	fill(buffer[0], length);
	for (int i = 0; i < 2; i++) {
		volatile int whose = i;

		fits[whose] = 0;
		if (!sigsetjmp(out_of_file, 1)) {
			if (writes)
				memcpy(slot->map[whose] + offset, buffer[0], length);
			else
				memcpy(buffer[whose], slot->map[whose] + offset, length);
			fits[whose] = 1;
		}
	}
	same("mapping", fits[0], fits[1]);
	if (!writes && fits[0])
		same_bytes("mapping", buffer[0], buffer[1], length);
}

/* of the directory under test alone */
static void sync_some(struct slot *slot)
{
	int how = draw(6), fd = slot->fd[0];
	long got = 0;

	tell("sync %ld: %d", (long)(slot - slots), how);
	if (how == 0)
		got = of(fsync(fd));
	else if (how == 1)
		got = of(fdatasync(fd));
	else if (how == 2)
		got = of(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));
	else if (how == 3)
		got = -posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	else if (slot->map[0])
		got = of(msync(slot->map[0], LARGEST, how == 4 ? MS_SYNC : MS_ASYNC));
	same("sync", got, 0);
}

static void names(void)
{
	static const int flags[] = { 0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE };
	const char *one = name(), *other = name();
	int how = draw(5), flag = flags[draw(5)];
	long got[2];

	tell("%s %s %s %x", how < 2 ? "rename" : how < 3 ? "link" : "unlink", one, other, flag);
	for (int i = 0; i < 2; i++) {
		if (how < 2)
			got[i] = of(renameat2(directory[i], one, directory[i], other, flag));
		else if (how < 3)
			got[i] = of(linkat(directory[i], one, directory[i], other, 0));
		else
			got[i] = of(unlinkat(directory[i], one, 0));
	}
	same("names", got[0], got[1]);
}

static void look(const char *which, int whole_file)
{
	struct stat seen[2];
	long got[2], length[2];

	tell("look at %s", which);
	for (int i = 0; i < 2; i++)
		got[i] = of(fstatat(directory[i], which, &seen[i], 0));
	same("stat", got[0], got[1]);
	if (got[0])
		return;
	same("size", seen[0].st_size, seen[1].st_size);
	same("links", seen[0].st_nlink, seen[1].st_nlink);
	same("mode", seen[0].st_mode, seen[1].st_mode);
	if (!whole_file)
		return;
	for (int i = 0; i < 2; i++) {
		int fd = openat(directory[i], which, O_RDONLY);

		need(fd >= 0, which);
		length[i] = all_of(i, fd);
		close(fd);
	}
	same("length", length[0], length[1]);
	same_bytes(which, whole[0], whole[1], length[0]);
	if (!seen[0].st_blocks && !zeros(whole[1], 0, length[1]))
		differ("%s has data, but no blocks", which);
}

static void operation(void)
{
	struct slot *slot = open_slot();
	int which = draw(100);

	if (!slot || which < 8)
		return open_one();
	if (which < 12)
		return close_one(slot);
	if (which < 30)
		return write_some(slot);
	if (which < 36)
		return append(slot);
	if (which < 50)
		return read_some(slot);
	if (which < 55)
		return by_position(slot);
	if (which < 58)
		return holes(slot);
	if (which < 65)
		return allocate(slot);
	if (which < 70)
		return cut(slot);
	if (which < 75)
		return copy(slot);
	if (which < 78)
		return map(slot);
	if (which < 88)
		return by_memory(any_slot());
	if (which < 91)
		return sync_some(slot);
	if (which < 96)
		return names();
	look(name(), which == 99);
}

/* takes turns with the other process, as chance has it */
static void take_turns(int mine, int others)
{
	char token;

	while (read(mine, &token, 1) == 1) {
		do {
			if (shared->differ || shared->done >= shared->operations) {
				close(others);
				exit(0);
			}
			operation();
			shared->done++;
		} while (draw(4));
		if (write(others, &token, 1) != 1)
			exit(0);
	}
	exit(0);
}

int main(int count, char **words)
{
	struct sigaction bus = { .sa_handler = left_file };
	int turn[2][2], worst = 0;
	pid_t children[2];

	if (count != 5) {
		fprintf(stderr, "two_directories SUBJECT REFERENCE OPERATIONS SEED\n");
		return 2;
	}
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	shared->operations = atol(words[3]);
	shared->random = 0x9E3779B97F4A7C15ULL * (strtoull(words[4], NULL, 10) + 1);
	for (int i = 0; i < 2; i++) {
		directory[i] = open(words[1 + i], O_RDONLY | O_DIRECTORY);
		if (directory[i] < 0 || mkdirat(directory[i], "d1", 0755) || mkdirat(directory[i], "d2", 0755)) {
			perror(words[1 + i]);
			return 2;
		}
		need(!posix_memalign((void **)&buffer[i], PAGE, MOST + PAGE), "memory");
		whole[i] = malloc(2 * LARGEST);
		need(!pipe(turn[i]), "pipe");
	}
	for (int i = 0; i < SLOTS; i++)
		slots[i].fd[0] = slots[i].fd[1] = -1;
	sigaction(SIGBUS, &bus, NULL);
	signal(SIGPIPE, SIG_IGN);
	for (me = 0; me < 2; me++) {
		children[me] = fork();
		if (!children[me]) {
			close(turn[1 - me][0]);
			close(turn[me][1]);
			take_turns(turn[me][0], turn[1 - me][1]);
		}
	}
	need(write(turn[0][1], "t", 1) == 1, "token");
	for (int i = 0; i < 2; i++) {
		close(turn[i][0]);
		close(turn[i][1]);
	}
	for (int i = 0; i < 2; i++) {
		int status;

		waitpid(children[i], &status, 0);
		if (!WIFEXITED(status) || WEXITSTATUS(status) > worst)
			worst = WIFEXITED(status) ? WEXITSTATUS(status) : 4;
	}
	if (!worst) {
		static const char *all[NAMES] = { "a", "b", "c", "d", "e", "d1/f", "d1/g", "d2/h" };

		for (int i = 0; i < NAMES; i++)
			look(all[i], 1);
	}
	printf("%ld operations, seed %s; refused: %ld FIEMAP, %ld collapsing, %ld inserting\n", shared->done, words[4],
	       shared->short_of[0], shared->short_of[1], shared->short_of[2]);
	return worst;
}
