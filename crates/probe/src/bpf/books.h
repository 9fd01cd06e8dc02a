/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Counts of a CPU, and exclusive access to them. */
#ifndef PENSTOCK_BOOKS_H
#define PENSTOCK_BOOKS_H

#include "maps.h"

/*
 * Programs on tracepoints run with preemption off, those on fentry and fexit do not, and interrupts may occur
 * anywhere. If interruption is possible (`interruptible`, set before loading), the ledger and ring of a CPU have a
 * busy mark. A program that finds it set counts in the shared ledger with atomic additions and records into the
 * overflow ring, so that no loss is uncounted.
 */
struct books {
	struct ledger *ledger;
	__u32 cpu;
	bool shared;
};

static __always_inline struct ledger *ledger_of(__u32 number)
{
	return number > cpu_count ? NULL : AT(ledgers, number);
}

/* After a successful call every path must call close_books. */
static __always_inline bool open_books(struct books *books)
{
	books->cpu = bpf_get_smp_processor_id();
	books->shared = false;
	books->ledger = ledger_of(books->cpu);
	if (interruptible && books->ledger && __sync_lock_test_and_set(&books->ledger->busy, 1)) {
		books->shared = true;
		books->ledger = ledger_of(cpu_count);
	}
	return books->ledger;
}

static __always_inline void close_books(struct books *books)
{
	if (!interruptible || books->shared)
		return;
	asm volatile("" ::: "memory");
	books->ledger->busy = 0;
}

static __always_inline void tally(struct books *books, __u64 *counter)
{
	if (interruptible && books->shared)
		__sync_fetch_and_add(counter, 1);
	else
		*counter += 1;
}

/*
 * True if this call's latency is in the sample of mode pattern. One call in SAMPLE_EVERY is sampled at random, so that
 * no period of the program coincides with the sampling (generator: Knuth, The Art of Computer Programming 2,
 * section 3.3.4, table 1, line 26).
 */
static __always_inline bool drawn(void)
{
	struct ledger *ledger = ledger_of(bpf_get_smp_processor_id());

	if (!ledger)
		return false;
	ledger->draws = ledger->draws * 6364136223846793005ULL + 1442695040888963407ULL;
	return ledger->draws >> 60 == 0;
}

/* Increment a count of a source: COUNT(&books, SOURCE_CALLS, filtered). */
#define COUNT(books, source, what) tally(books, &(books)->ledger->sources[source].what)

#endif
