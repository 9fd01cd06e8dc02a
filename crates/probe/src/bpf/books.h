/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The counts of a CPU, and who may write them. */
#ifndef PENSTOCK_BOOKS_H
#define PENSTOCK_BOOKS_H

#include "maps.h"

/*
 * A tracepoint's programs run with preemption off, those of fentry and fexit do not, and interrupts come
 * anywhere. Where that can happen (`interruptible`, fixed at loading) the ledger and ring of a CPU carry a busy
 * mark: whoever finds it set counts in the shared ledger with atomic additions, and records into the
 * overflow ring, so that nothing is lost uncounted.
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

/* Every successful opening is to be followed by close_books on every way out. */
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
 * Whether this call's latency is in the sample of mode pattern: one in SAMPLE_EVERY at random, so that no
 * period in the program's calls meets one of ours (the generator: Knuth, The Art of Computer Programming 2,
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

/* One more in a count of a source: COUNT(&books, SOURCE_CALLS, filtered). */
#define COUNT(books, source, what) tally(books, &(books)->ledger->sources[source].what)

#endif
