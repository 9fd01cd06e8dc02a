/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Reader of the page tables of a process. No hook reports which pages a fault mapped. The kernel maps the cached pages
 * of a window around the page, all pages of a large folio, or 512 at once by a huge page. So the tables are read after
 * the fault.
 *
 * Table entries have physical addresses. The address at which the kernel maps physical memory is random and not
 * exported. It is determined at loading, by a search for a page of the loader with known contents.
 */
#ifndef PENSTOCK_PAGES_H
#define PENSTOCK_PAGES_H

#include "maps.h"

#define ENTRIES 512
#define ENTRY_PRESENT 1ULL
#define ENTRY_HUGE 0x80ULL
#define ENTRY_ADDRESS 0x000ffffffffff000ULL
#define STEP_OF_DIRECT_MAP (1ULL << 30)

/* Search for the direct map: parameters from the loader, results from the program. */
__u64 direct_map = 0; /* 0: unknown, tables cannot be read */
__u64 known_address = 0;
__u64 known_words[2] = {};
__u32 five_levels = 0;

struct page_table {
	__u64 entries[ENTRIES];
};

/* Buffers for a copy: of faults and ends of processes, and of the survey of all processes, which those interrupt. */
enum { TABLE_OF_FAULT = 0, TABLE_OF_SURVEY, TABLES };
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TABLES);
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

/*
 * Entry of the middle directory for an address; 0 if there is none, or for a page of 1 GiB. `reach` is the size of the
 * address range that the last entry on the way covers, as a power of two.
 */
static __always_inline __u64 middle_entry(__u64 base, __u64 top, __u64 address, __u32 *reach)
{
	__u64 entry, table = top;

	if (five_levels) {
		*reach = 48;
		entry = next_table(base, table, address >> 48);
		if (!entry)
			return 0;
		table = base + (entry & ENTRY_ADDRESS);
	}
	*reach = 39;
	entry = next_table(base, table, address >> 39);
	if (!entry)
		return 0;
	*reach = 30;
	entry = next_table(base, base + (entry & ENTRY_ADDRESS), address >> 30);
	if (!entry || (entry & ENTRY_HUGE))
		return 0;
	*reach = 21;
	return next_table(base, base + (entry & ENTRY_ADDRESS), address >> 21);
}

struct direct_search {
	__u64 top;
	__u64 found;
	__u64 frame; /* page frame of the known page */
};

static long try_direct_map(__u64 index, void *context)
{
	struct direct_search *search = context;
	__u64 base = (search->top & ~(STEP_OF_DIRECT_MAP - 1)) - index * STEP_OF_DIRECT_MAP;
	__u32 reach;
	__u64 entry = middle_entry(base, search->top, known_address, &reach), words[2] = {};

	if (!entry || (entry & ENTRY_HUGE))
		return 0;
	entry = next_table(base, base + (entry & ENTRY_ADDRESS), known_address >> 12);
	if (!entry || bpf_probe_read_kernel(words, sizeof(words), (void *)(base + (entry & ENTRY_ADDRESS))))
		return 0;
	if (words[0] != known_words[0] || words[1] != known_words[1])
		return 0;
	search->found = base;
	search->frame = (entry & ENTRY_ADDRESS) >> 12;
	return 1;
}

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct page {
	unsigned long compound_head;
};

struct folio {
	struct address_space *mapping;
	unsigned long index;
};

struct vm_struct {
	struct page **pages;
};

struct task_struct___stack {
	struct vm_struct *stack_vm_area;
};

#pragma clang attribute pop

__u64 page_structures = 0; /* start of the array of all page structures; 0: unknown */

/*
 * True if a page is private memory of the process, according to the tables and the page structure. A look-up of the
 * mapping would take its lock and, with interrupts off, release it by an interrupt.
 */
static __noinline int is_anonymous(struct task_struct *task, __u64 address)
{
	struct folio *folio;
	struct page *page;
	__u64 entry, head;
	__u32 reach;

	if (!direct_map || !page_structures)
		return false;
	entry = middle_entry(direct_map, (__u64)BPF_CORE_READ(task, mm, pgd), address, &reach);
	if (!entry || (entry & ENTRY_HUGE))
		return false;
	entry = next_table(direct_map, direct_map + (entry & ENTRY_ADDRESS), address >> 12);
	if (!entry)
		return false;
	page = (void *)(page_structures + ((entry & ENTRY_ADDRESS) >> 12) * bpf_core_type_size(struct page));
	head = BPF_CORE_READ(page, compound_head);
	folio = head & 1 ? (void *)(head - 1) : (void *)page;
	head = (__u64)BPF_CORE_READ(folio, mapping);
	return !head || (head & 1); /* the zero page, or PAGE_MAPPING_ANON */
}

struct structure_search {
	__u64 top;
	__u64 frame;
};

static long try_structures(__u64 index, void *context)
{
	struct structure_search *search = context;
	__u64 base = search->top - index * STEP_OF_DIRECT_MAP;
	struct folio *folio = (void *)(base + search->frame * bpf_core_type_size(struct page));

	if (!((__u64)BPF_CORE_READ(folio, mapping) & 1) || BPF_CORE_READ(folio, index) != known_address >> 12)
		return 0;
	page_structures = base;
	return 1;
}

/*
 * The array of page structures also begins at a random address, a multiple of 1 GiB below each of its elements. The
 * address of one structure is known from the pages of the current stack. With the correct start, the structure of the
 * known page says that it is anonymous, with its own address.
 */
static __always_inline void find_page_structures(struct task_struct *task, __u64 frame)
{
	struct task_struct___stack *stack = (void *)task;
	struct structure_search search = { .frame = frame };
	struct page **pages, *page = NULL;

	page_structures = 0;
	if (!frame || !bpf_core_field_exists(stack->stack_vm_area))
		return;
	pages = BPF_CORE_READ(stack, stack_vm_area, pages);
	bpf_probe_read_kernel(&page, sizeof(page), pages);
	search.top = (__u64)page & ~(STEP_OF_DIRECT_MAP - 1);
	if (search.top)
		bpf_loop(256, try_structures, &search, 0);
}

/* Run once by the loader, in the loader's context. */
SEC("syscall")
int find_direct_map(void *context)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct direct_search search = {};

	search.top = (__u64)BPF_CORE_READ(task, mm, pgd);
	bpf_loop(8192, try_direct_map, &search, 0);
	direct_map = search.found;
	find_page_structures(task, search.frame);
	return 0;
}

/*
 * Copy of the table of the pages around an address; NULL if there is none or it cannot be read. `huge` is true if one
 * huge page maps them all. `reach` is the size of the address range that the result covers, as a power of two.
 */
static __always_inline struct page_table *table_at(struct task_struct *task, __u64 address, __u32 room, bool *huge,
						   __u32 *reach)
{
	struct page_table *table;
	__u64 entry;

	*huge = false;
	*reach = 21;
	if (!direct_map)
		return NULL;
	entry = middle_entry(direct_map, (__u64)BPF_CORE_READ(task, mm, pgd), address, reach);
	if (!entry)
		return NULL;
	if (entry & ENTRY_HUGE) {
		*huge = true;
		return NULL;
	}
	table = bpf_map_lookup_elem(&page_tables, &room);
	if (!table || bpf_probe_read_kernel(table, sizeof(*table), (void *)(direct_map + (entry & ENTRY_ADDRESS))))
		return NULL;
	return table;
}

/* One bit for each of the 512 pages of a table. */
struct page_bits {
	__u64 words[ENTRIES / 64];
};

static __always_inline bool page_bit(struct page_bits *bits, __u32 at)
{
	return (bits->words[(at >> 6) & 7] >> (at & 63)) & 1;
}

static __always_inline void set_page_bit(struct page_bits *bits, __u32 at)
{
	__sync_fetch_and_or(&bits->words[(at >> 6) & 7], 1ULL << (at & 63));
}

/* Pages that the kernel may map around the requested one: an aligned window (fault_around_bytes). */
#define WINDOW_PAGES 16

/* State of the scan from the page of a fault in one direction. */
struct way_out {
	struct page_table *table;
	struct page_bits *told;
	__u32 at;
	__u32 window;
	__u32 step; /* 1, or ENTRIES - 1 for -1 */
	__u32 end;
	__u32 last; /* last new page */
	__u32 count; /* number of new pages */
};

static long go_out(__u64 index, void *context)
{
	struct way_out *way = context;
	__u32 next;

	if (way->at == way->end)
		return 1;
	next = (way->at + way->step) & (ENTRIES - 1);
	way->at = next;
	if (!(way->table->entries[next] & ENTRY_PRESENT) || page_bit(way->told, next))
		return (next ^ way->window) >= WINDOW_PAGES; /* further pages in the window may be mapped */
	set_page_bit(way->told, next);
	way->last = next;
	way->count++;
	return 0;
}

/*
 * Pages of a table that a fault mapped: present pages that were not reported before, within the window around the
 * requested page, and beyond it as far as a large folio continues without a gap. Returns their number. `first` and
 * `last` are the first and last of them.
 */
static __always_inline __u32 newly_mapped(struct page_table *table, struct page_bits *told, __u32 at, __u32 lowest,
					  __u32 highest, __u32 *first, __u32 *last)
{
	struct way_out way = {
		.table = table, .told = told, .at = at, .step = ENTRIES - 1, .end = lowest, .last = at,
		.window = at & ~(WINDOW_PAGES - 1), .count = 1,
	};

	set_page_bit(told, at);
	bpf_loop(ENTRIES, go_out, &way, 0);
	*first = way.last;
	way.at = at;
	way.last = at;
	way.step = 1;
	way.end = highest;
	bpf_loop(ENTRIES, go_out, &way, 0);
	*last = way.last;
	return way.count;
}

struct absentees {
	struct page_table *table;
	struct page_bits *told;
	__u32 word;
};

static long forget_absent(__u64 index, void *context)
{
	struct absentees *absent = context;
	__u32 at = (absent->word * 64 + index) & (ENTRIES - 1);

	if (!(absent->table->entries[at] & ENTRY_PRESENT))
		__sync_fetch_and_and(&absent->told->words[at >> 6], ~(1ULL << (at & 63)));
	return 0;
}

/* Clear the bits of reported pages that are no longer present in the table, or all without a table. */
static __always_inline void keep_present(struct page_bits *told, struct page_table *table)
{
	struct absentees absent = { .table = table, .told = told };

	for (__u32 word = 0; word < ENTRIES / 64; word++) {
		if (!told->words[word])
			continue;
		absent.word = word;
		if (table)
			bpf_loop(64, forget_absent, &absent, 0);
		else
			told->words[word] = 0;
	}
}

#endif
