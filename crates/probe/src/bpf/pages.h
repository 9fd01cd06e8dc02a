/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What a process's page tables hold. No hook tells which pages a fault mapped: the kernel maps what it has of a
 * window around the page, of a large folio all, and by a huge page 512 at once. So the tables are read, after
 * the fault.
 *
 * Entries hold physical addresses. Where the kernel keeps physical memory in its own address space is random
 * and not told; it is found out at loading, from a page of the loader's own with known contents.
 */
#ifndef PENSTOCK_PAGES_H
#define PENSTOCK_PAGES_H

#include "maps.h"

#define ENTRIES 512
#define ENTRY_PRESENT 1ULL
#define ENTRY_HUGE 0x80ULL
#define ENTRY_ADDRESS 0x000ffffffffff000ULL
#define STEP_OF_DIRECT_MAP (1ULL << 30)

/* Of the search for the direct map: asked by the loader, answered by the program. */
__u64 direct_map = 0; /* 0: not known, tables cannot be read */
__u64 known_address = 0;
__u64 known_words[2] = {};
__u32 five_levels = 0;

struct page_table {
	__u64 entries[ENTRIES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct page_table);
} page_tables SEC(".maps");

static __always_inline __u64 next_table(__u64 base, __u64 table, __u32 index)
{
	__u64 entry = 0;

	if (bpf_probe_read_kernel(&entry, sizeof(entry), (void *)(table + 8ULL * (index & (ENTRIES - 1)))))
		return 0;
	return entry & ENTRY_PRESENT ? entry : 0;
}

/* The entry of the middle directory for an address; 0: there is none, or it is of a page of 1 GiB. */
static __always_inline __u64 middle_entry(__u64 base, __u64 top, __u64 address)
{
	__u64 entry, table = top;

	if (five_levels) {
		entry = next_table(base, table, address >> 48);
		if (!entry)
			return 0;
		table = base + (entry & ENTRY_ADDRESS);
	}
	entry = next_table(base, table, address >> 39);
	if (!entry)
		return 0;
	entry = next_table(base, base + (entry & ENTRY_ADDRESS), address >> 30);
	if (!entry || (entry & ENTRY_HUGE))
		return 0;
	return next_table(base, base + (entry & ENTRY_ADDRESS), address >> 21);
}

struct direct_search {
	__u64 top;
	__u64 found;
};

static long try_direct_map(__u64 index, void *context)
{
	struct direct_search *search = context;
	__u64 base = (search->top & ~(STEP_OF_DIRECT_MAP - 1)) - index * STEP_OF_DIRECT_MAP;
	__u64 entry = middle_entry(base, search->top, known_address), words[2] = {};

	if (!entry || (entry & ENTRY_HUGE))
		return 0;
	entry = next_table(base, base + (entry & ENTRY_ADDRESS), known_address >> 12);
	if (!entry || bpf_probe_read_kernel(words, sizeof(words), (void *)(base + (entry & ENTRY_ADDRESS))))
		return 0;
	if (words[0] != known_words[0] || words[1] != known_words[1])
		return 0;
	search->found = base;
	return 1;
}

/* Run once by the loader, in its own context. */
SEC("syscall")
int find_direct_map(void *context)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct direct_search search = {};

	search.top = (__u64)BPF_CORE_READ(task, mm, pgd);
	bpf_loop(8192, try_direct_map, &search, 0);
	direct_map = search.found;
	return 0;
}

/*
 * The table of the pages around an address, copied: NULL where there is none or it cannot be read. `huge` says
 * that they are all mapped as one.
 */
static __always_inline struct page_table *table_at(struct task_struct *task, __u64 address, bool *huge)
{
	struct page_table *table;
	__u32 zero = 0;
	__u64 entry;

	*huge = false;
	if (!direct_map)
		return NULL;
	entry = middle_entry(direct_map, (__u64)BPF_CORE_READ(task, mm, pgd), address);
	if (!entry)
		return NULL;
	if (entry & ENTRY_HUGE) {
		*huge = true;
		return NULL;
	}
	table = bpf_map_lookup_elem(&page_tables, &zero);
	if (!table || bpf_probe_read_kernel(table, sizeof(*table), (void *)(direct_map + (entry & ENTRY_ADDRESS))))
		return NULL;
	return table;
}

struct run {
	struct page_table *table;
	__u32 at;
	__u32 step; /* 1, or ENTRIES - 1 for -1 */
	__u32 end;
};

static long extend(__u64 index, void *context)
{
	struct run *run = context;
	__u32 next;

	if (run->at == run->end)
		return 1;
	next = (run->at + run->step) & (ENTRIES - 1);
	if (!(run->table->entries[next] & ENTRY_PRESENT))
		return 1;
	run->at = next;
	return 0;
}

/* Numbers, within the table, of the first and last page of the unbroken run around one. */
static __always_inline void run_around(struct page_table *table, __u32 at, __u32 lowest, __u32 highest, __u32 *first,
				       __u32 *last)
{
	struct run run = { .table = table, .at = at, .step = ENTRIES - 1, .end = lowest };

	bpf_loop(ENTRIES, extend, &run, 0);
	*first = run.at;
	run.at = at;
	run.step = 1;
	run.end = highest;
	bpf_loop(ENTRIES, extend, &run, 0);
	*last = run.at;
}

#endif
