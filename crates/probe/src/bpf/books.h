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

/* Every successful opening is to be followed by close_books on every way out. */
static __always_inline bool open_books(struct books *books)
{
	__u32 cpu = bpf_get_smp_processor_id(), last = cpu_count;

	books->cpu = cpu;
	books->shared = false;
	books->ledger = bpf_map_lookup_elem(&ledgers, &cpu);
	if (interruptible && books->ledger && __sync_lock_test_and_set(&books->ledger->busy, 1)) {
		books->shared = true;
		books->ledger = bpf_map_lookup_elem(&ledgers, &last);
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

/* Whether this call's latency is in the sample of mode pattern. */
static __always_inline bool drawn(void)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct ledger *ledger = bpf_map_lookup_elem(&ledgers, &cpu);

	return ledger && !(ledger->draws++ & SAMPLE_MASK);
}

/* One more in a count of a source: COUNT(&books, SOURCE_CALLS, filtered). */
#define COUNT(books, source, what) tally(books, &(books)->ledger->sources[source].what)

#endif
