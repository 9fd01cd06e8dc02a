/*
 * Records under random keys in WiredTiger, as a document store keeps them: load, scan in key order, rewrite.
 *
 *   records load HOME RECORDS SHUFFLED   table `loaded`: RECORDS records of 1 to 6 kB under random 64-bit keys.
 *                                        They are inserted in key order, but for SHUFFLED percent of them, which
 *                                        change places among themselves: 100 is the order of arrival of random keys.
 *   records rewrite HOME FROM TO         reads FROM in key order and writes TO in that order: dump and reload
 *   records scan HOME TABLE              reads TABLE in key order
 *
 * Each prints `seconds`, `records` and `bytes`, one per line; scan and rewrite also the `checksum` of what they
 * read: keys and contents in that order. Settings are those of a small document store: 32 MB of cache, leaves of
 * 32 KB, read and written by pread and pwrite.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <wiredtiger.h>

#define SMALLEST 1024
#define LARGEST 6144
#define SEED 0x463a998b60bc7f50u

static const char CONNECTION[] = "create,cache_size=32MB,mmap=false,log=(enabled=false),eviction=(threads_max=1)";
static const char TABLE[] = "key_format=Q,value_format=u,leaf_page_max=32KB,internal_page_max=16KB,allocation_size=4KB";

static void check(int status, const char *what)
{
	if (status == 0)
		return;
	fprintf(stderr, "records: %s: %s\n", what, wiredtiger_strerror(status));
	exit(1);
}

/* Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014): the mixing of its output */
static uint64_t mixed(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t drawn(uint64_t *state)
{
	return mixed(*state += 0x9e3779b97f4a7c15u);
}

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* a record's contents follow from its key: nothing but the key has to be remembered to know them */
static size_t contents(uint64_t key, unsigned char *value)
{
	uint64_t state = key;
	size_t size = SMALLEST + drawn(&state) % (LARGEST - SMALLEST + 1);
	for (size_t at = 0; at < size; at += sizeof state) {
		uint64_t word = drawn(&state);
		memcpy(value + at, &word, size - at < sizeof word ? size - at : sizeof word);
	}
	return size;
}

struct sum {
	uint64_t records, bytes, checksum;
};

static void add(struct sum *sum, uint64_t key, const WT_ITEM *value)
{
	const unsigned char *bytes = value->data;
	uint64_t word = 0, hash = mixed(sum->checksum ^ key);
	for (size_t at = 0; at < value->size; at += sizeof word) {
		size_t left = value->size - at;
		word = 0;
		memcpy(&word, bytes + at, left < sizeof word ? left : sizeof word);
		hash = (hash ^ word) * 0x100000001b3u;
		hash ^= hash >> 29;
	}
	sum->checksum = hash;
	sum->records++;
	sum->bytes += value->size;
}

static void report(double begin_s, const struct sum *sum)
{
	printf("seconds: %.6f\nrecords: %llu\nbytes: %llu\n", now_s() - begin_s, (unsigned long long)sum->records,
	       (unsigned long long)sum->bytes);
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static void swap(uint64_t *a, uint64_t *b)
{
	uint64_t kept = *a;
	*a = *b;
	*b = kept;
}

/* the keys in the order in which they are to be inserted */
static uint64_t *order_of_arrival(size_t count, unsigned percent)
{
	uint64_t state = SEED, *keys = malloc(count * sizeof *keys);
	size_t *places = malloc(count * sizeof *places);
	size_t moving = (count * percent + 50) / 100;
	check(keys && places ? 0 : ENOMEM, "keys");
	for (size_t i = 0; i < count; i++)
		keys[i] = drawn(&state);
	qsort(keys, count, sizeof *keys, by_value);
	for (size_t i = 0; i < count; i++)
		places[i] = i;
	/* Fisher and Yates, twice: which places change, and what comes to each of them */
	for (size_t i = 0; i < moving; i++) {
		size_t j = i + drawn(&state) % (count - i), kept = places[i];
		places[i] = places[j];
		places[j] = kept;
	}
	for (size_t i = moving; i > 1; i--)
		swap(&keys[places[i - 1]], &keys[places[drawn(&state) % i]]);
	free(places);
	return keys;
}

static WT_CURSOR *opened(WT_SESSION *session, const char *table, const char *how)
{
	char uri[128];
	WT_CURSOR *cursor;
	snprintf(uri, sizeof uri, "table:%s", table);
	check(session->open_cursor(session, uri, NULL, how, &cursor), uri);
	return cursor;
}

static void created(WT_SESSION *session, const char *table)
{
	char uri[128];
	snprintf(uri, sizeof uri, "table:%s", table);
	check(session->create(session, uri, TABLE), uri);
}

static void load(WT_SESSION *session, size_t count, unsigned percent)
{
	static unsigned char value[LARGEST + sizeof(uint64_t)];
	uint64_t *keys = order_of_arrival(count, percent);
	struct sum sum = {0};
	double begin_s = now_s();
	created(session, "loaded");
	WT_CURSOR *cursor = opened(session, "loaded", NULL);
	for (size_t i = 0; i < count; i++) {
		WT_ITEM item = {.data = value, .size = contents(keys[i], value)};
		cursor->set_key(cursor, keys[i]);
		cursor->set_value(cursor, &item);
		check(cursor->insert(cursor), "insert");
		sum.records++;
		sum.bytes += item.size;
	}
	check(session->checkpoint(session, NULL), "checkpoint");
	report(begin_s, &sum);
	free(keys);
}

/* reads a table in key order; with `to`, writes what it reads there */
static void walk(WT_SESSION *session, const char *from, const char *to)
{
	struct sum sum = {0};
	uint64_t key;
	WT_ITEM value;
	int status;
	double begin_s = now_s();
	WT_CURSOR *source = opened(session, from, NULL), *target = NULL;
	if (to) {
		created(session, to);
		target = opened(session, to, "bulk");
	}
	while ((status = source->next(source)) == 0) {
		check(source->get_key(source, &key), "key");
		check(source->get_value(source, &value), "value");
		add(&sum, key, &value);
		if (target) {
			target->set_key(target, key);
			target->set_value(target, &value);
			check(target->insert(target), "insert");
		}
	}
	check(status == WT_NOTFOUND ? 0 : status, "next");
	if (target) {
		check(target->close(target), "close");
		check(session->checkpoint(session, NULL), "checkpoint");
	}
	report(begin_s, &sum);
	printf("checksum: %016llx\n", (unsigned long long)sum.checksum);
}

static int usage(void)
{
	fputs("usage: records load HOME RECORDS SHUFFLED | rewrite HOME FROM TO | scan HOME TABLE\n", stderr);
	return 2;
}

int main(int argc, char **argv)
{
	WT_CONNECTION *connection;
	WT_SESSION *session;
	int loads = argc == 5 && !strcmp(argv[1], "load"), rewrites = argc == 5 && !strcmp(argv[1], "rewrite");
	if (!loads && !rewrites && !(argc == 4 && !strcmp(argv[1], "scan")))
		return usage();
	if (loads && (atol(argv[3]) < 1 || atol(argv[4]) < 0 || atol(argv[4]) > 100))
		return usage();
	check(wiredtiger_open(argv[2], NULL, CONNECTION, &connection), argv[2]);
	check(connection->open_session(connection, NULL, NULL, &session), "session");
	if (loads)
		load(session, (size_t)atol(argv[3]), (unsigned)atol(argv[4]));
	else
		walk(session, argv[3], rewrites ? argv[4] : NULL);
	check(connection->close(connection, NULL), "close");
	return 0;
}
