/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Faults of mapped files.
 *
 * Data on a fault comes from up to four places. The processor's exception has its start, its address and whether it
 * was a write. The page cache reports the request for the page, and the range that it mapped around it. The kernel's
 * own accounting of faults (the software events of perf) ends the fault after the page is present, and reports
 * whether the thread had to wait. The address and its mapping determine the file and the offset. Only the address
 * identifies the page that was accessed: the pages mapped around it were not requested.
 *
 * Effects of a fault on the file:
 * - shared mapping, write: the page is dirtied, for the first time since it was last clean;
 * - private mapping, write, page not present: the file's page is read and copied; the copy is not a page of the file;
 * - private mapping, write, page present: memory is copied only, the file is not involved;
 * - all others: the page is read.
 *
 * Memory without storage (tmpfs, huge-page file systems) is excluded.
 *
 * Text, constants and relocations of programs and libraries are also read by faults, but are not data. Faults on a
 * file with an executable mapping adjacent to the faulting one are counted as filtered.
 */
#ifndef PENSTOCK_FAULTS_H
#define PENSTOCK_FAULTS_H

#include "scope.h"
#include "files.h"
#include "record.h"
#include "pages.h"

#define PAGE_BYTES 4096ULL
#define FAULT_PRESENT 1 /* of the exception's error code */
#define FAULT_BY_WRITE 2
#define VM_EXEC 4
#define VM_SHARED 8
#define TMPFS_MAGIC 0x01021994
#define HUGETLBFS_MAGIC 0x958458f6
#define EBUSY 16
#define NEIGHBOURS 3
#define FILE_OF_DATA 1
#define FILE_OF_PROGRAM 2

/* A mapping of a process. It is valid while `changes` of the process's memory stays the same. */
struct area {
	__u64 memory; /* number of the memory */
	__u64 start;
	__u64 end;
	__u64 flags;
	__u64 first_page;
	__u32 changes;
	__u32 kind; /* 0: no file with storage */
	struct known_file known;
};

#define AREAS 3

/* State of a thread: the current fault, and the mappings of its last faults. */
struct fault_state {
	__u64 start_ns;
	__u64 address;
	__u64 around_first; /* range mapped around the fault, in pages of the file */
	__u64 around_last;
	__u32 error_code;
	__u32 in_page_cache; /* the page cache received a request for the page itself */
	__u32 around; /* pages mapped by the fault, including its own; 0: only that one */
	__u32 epoch;
	__u32 next_area;
	__u32 area; /* number of the fault's area plus 1, if the hook reported it */
	struct area areas[AREAS];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct fault_state);
} fault_states SEC(".maps");

/* Kind of each file (data or program), determined at its first fault. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct file_key);
	__type(value, __u32);
} programs SEC(".maps");

/*
 * For each 512 pages of a process's memory: those whose mapping was reported. It is needed to find the pages that a
 * fault mapped besides its own, because no hook reports them. Since Linux 6.18 a large folio is mapped entirely, also
 * beyond the window.
 */
struct told_key {
	__u64 memory;
	__u64 chunk;
};

struct told_pages {
	__u64 inode_pointer;
	struct page_bits bits;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct told_key);
	__type(value, struct told_pages);
} told_pages SEC(".maps");

struct vm_fault;

/* Set before loading: a program is attached to the page cache, so a fault without a request there is not of a file. */
const volatile bool cache_tells = false;


/*
 * Mappings of files that had a fault. Their pages are read when the process ends. Those of one memory are in a linked
 * list, the newest first, so that the end of a process visits its own mappings only.
 */
struct area_key {
	__u64 memory;
	__u64 start;
};

struct area_value {
	__u64 end;
	__u64 first_page;
	__u64 inode_pointer;
	__u32 file_id;
	__u32 pad;
	__u64 next; /* start of the previously added mapping; 0: none */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct area_key);
	__type(value, struct area_value);
} mapped_areas SEC(".maps");

/* Start of the mapping added last, by memory. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u64);
} newest_areas SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 2 * 1024 * 1024);
} presences SEC(".maps");

__u64 presences_lost = 0;
__u32 survey_before = 0; /* the current survey of all processes is that at the start of tracing */

/* Number of a memory. Unlike its address it is never reused. */
static __always_inline __u64 memory_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, mm, context.ctx_id);
}

/* The fields of a mapping that are needed here. */
struct mapping {
	struct file *file;
	struct inode *inode;
	__u64 start;
	__u64 end;
	__u64 flags;
	__u64 first_page;
};

static long look_at(struct task_struct *task, struct vm_area_struct *area, void *context)
{
	struct mapping *mapping = context;
	struct file *file = area->vm_file;

	mapping->start = area->vm_start;
	mapping->end = area->vm_end;
	mapping->flags = area->vm_flags;
	mapping->first_page = area->vm_pgoff;
	mapping->file = file;
	if (file)
		mapping->inode = file->f_inode;
	return 0;
}

/*
 * A page whose mapping was reported is no longer present, so pages have been unmapped (MADV_DONTNEED, memory reclaim).
 * Clear the bits of absent pages, so that they can be reported again. Only for mappings in the thread's state.
 */
static __noinline int forget_unmapped(struct task_struct *task, struct fault_state *state, __u64 address)
{
	struct told_key place = {};
	struct told_pages *told;
	bool known = false, huge;
	__u32 reach;

#pragma unroll
	for (int i = 0; i < AREAS; i++)
		known |= state->areas[i].kind == FILE_OF_DATA && state->areas[i].memory == (__u64)task->mm &&
			 address >= state->areas[i].start && address < state->areas[i].end;
	if (!known)
		return 0;
	place.memory = memory_of(task);
	place.chunk = address & ~(ENTRIES * PAGE_BYTES - 1);
	told = bpf_map_lookup_elem(&told_pages, &place);
	if (!told || !page_bit(&told->bits, (address >> 12) & (ENTRIES - 1)))
		return 0;
	keep_present(&told->bits, table_at(task, address, TABLE_OF_FAULT, &huge, &reach));
	return 0;
}

/* At the exception: record time, address, and whether it was a write. */
static __always_inline int fault_begins(__u64 address, __u64 error_code)
{
	struct task_struct *task;
	struct fault_state *state;

	if (!control.armed)
		return 0;
	meter(METER_OTHERS);
	task = bpf_get_current_task_btf();
	if (slot_here() < 0)
		return 0;
	state = bpf_task_storage_get(&fault_states, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!state)
		return 0;
	state->start_ns = bpf_ktime_get_ns();
	state->address = address;
	state->error_code = error_code;
	state->in_page_cache = 0;
	state->around = 0;
	state->area = 0;
	if (!(error_code & FAULT_PRESENT))
		forget_unmapped(task, state, address);
	return 0;
}

static __always_inline struct fault_state *fault_in_flight(void)
{
	struct task_struct *task;
	struct fault_state *state;

	if (!control.armed)
		return NULL;
	meter(METER_OTHERS);
	task = bpf_get_current_task_btf();
	if (slot_here() < 0)
		return NULL;
	state = bpf_task_storage_get(&fault_states, task, NULL, 0);
	return state && state->start_ns ? state : NULL;
}

/* Scan of the adjacent mappings of one file, from `address` upwards or downwards. */
struct neighbours {
	struct task_struct *task;
	struct inode *inode;
	__u64 address;
	bool before;
	bool program;
	bool refused;
};

/* A callback, which the verifier follows once; it takes twenty times as long for a loop of look-ups. */
static long look_beside(__u64 index, void *context)
{
	struct neighbours *look = context;
	struct mapping beside = {};

	if (bpf_find_vma(look->task, look->address, look_at, &beside, 0) == -EBUSY)
		look->refused = true;
	if (beside.inode != look->inode)
		return 1;
	if (beside.flags & VM_EXEC)
		look->program = true;
	look->address = look->before ? beside.start - 1 : beside.end;
	return 0;
}

/*
 * Programs and libraries have several adjacent mappings, one of them executable. The kind is determined once per file.
 * A file whose executable mapping is seen later changes its kind then. If the look-up of a neighbour is refused, the
 * result is not stored.
 */
static __noinline int kind_of(struct task_struct *task, struct mapping *mapping, struct file_key *key)
{
	__u32 *known = bpf_map_lookup_elem(&programs, key), kind = FILE_OF_DATA;
	struct neighbours look = { .task = task, .inode = mapping->inode };

	if (known && *known == FILE_OF_PROGRAM && (mapping->flags & (VM_EXEC | VM_SHARED)) != VM_SHARED)
		return FILE_OF_PROGRAM;
	if (mapping->flags & VM_EXEC)
		kind = FILE_OF_PROGRAM;
	else if (mapping->flags & VM_SHARED)
		return FILE_OF_DATA;
	else if (known)
		return *known;
	if (kind == FILE_OF_DATA) {
		look.address = mapping->end;
		bpf_loop(NEIGHBOURS, look_beside, &look, 0);
		look.before = true;
		look.address = mapping->start - 1;
		bpf_loop(NEIGHBOURS, look_beside, &look, 0);
		if (look.program)
			kind = FILE_OF_PROGRAM;
	}
	if (kind == FILE_OF_PROGRAM || !look.refused)
		bpf_map_update_elem(&programs, key, &kind, BPF_ANY);
	return kind;
}

/* Clear the state of an earlier recording, because file numbers have changed. */
static __always_inline void fresh(struct fault_state *state)
{
	if (state->epoch == control.epoch)
		return;
	state->epoch = control.epoch;
#pragma unroll
	for (int i = 0; i < AREAS; i++)
		state->areas[i].memory = 0;
}

#define PUSHES 16

/* Add a mapping to the list of its memory. Threads of one process may do so concurrently. */
static __noinline int note_area(struct area_key *place, struct area_value *value)
{
	struct area_value *noted = bpf_map_lookup_elem(&mapped_areas, place);
	__u64 none = 0, *newest, next;

	if (noted) { /* the address was mapped again */
		noted->end = value->end;
		noted->first_page = value->first_page;
		noted->inode_pointer = value->inode_pointer;
		noted->file_id = value->file_id;
		return 0;
	}
	newest = bpf_map_lookup_elem(&newest_areas, &place->memory);
	if (!newest) {
		bpf_map_update_elem(&newest_areas, &place->memory, &none, BPF_NOEXIST);
		newest = bpf_map_lookup_elem(&newest_areas, &place->memory);
	}
	if (newest && !bpf_map_update_elem(&mapped_areas, place, value, BPF_NOEXIST)) {
		noted = bpf_map_lookup_elem(&mapped_areas, place);
		for (int i = 0; noted && i < PUSHES; i++) {
			next = *newest;
			noted->next = next;
			if (__sync_val_compare_and_swap(newest, next, place->start) == next)
				return 0;
		}
	} else if (newest && bpf_map_lookup_elem(&mapped_areas, place)) {
		return 0; /* another thread was faster */
	}
	__sync_fetch_and_add(&presences_lost, 1);
	return 0;
}

/* Contents of a mapping: 0 for memory without storage, FILE_OF_DATA, FILE_OF_PROGRAM. */
static __always_inline __u32 contents_of(struct task_struct *task, struct mapping *mapping)
{
	struct file_key key = {};
	struct super_block *super;
	struct inode *inode;
	__u64 magic;

	if (!mapping->file)
		return 0;
	inode = FIELD(mapping->file, f_inode);
	super = FIELD(inode, i_sb);
	magic = FIELD(super, s_magic);
	if ((FIELD(inode, i_mode) & S_IFMT) != S_IFREG || magic == TMPFS_MAGIC || magic == HUGETLBFS_MAGIC)
		return 0;
	key.inode = FIELD(inode, i_ino);
	key.device = FIELD(super, s_dev);
	key.generation = FIELD(inode, i_generation);
	return kind_of(task, mapping, &key);
}

/* Store a mapping in place of the thread's oldest one. */
static __noinline struct area *keep_area(struct task_struct *task, struct fault_state *state,
					 struct mapping *mapping, __u32 changes, struct books *books)
{
	struct area *area;
	__u32 next;

	next = state->next_area++ % AREAS;
	area = next == 0 ? &state->areas[0] : next == 1 ? &state->areas[1] : &state->areas[2];
	area->memory = (__u64)task->mm;
	area->changes = changes;
	area->start = mapping->start;
	area->end = mapping->end;
	area->flags = mapping->flags;
	area->first_page = mapping->first_page;
	area->known.inode_pointer = (__u64)mapping->inode;
	area->kind = contents_of(task, mapping);
	if (area->kind == FILE_OF_DATA) {
		struct area_key place = { .start = area->start };
		struct area_value value = { .end = area->end, .first_page = area->first_page };

		place.memory = memory_of(task);
		recall(mapping->file, &area->known, books);
		value.inode_pointer = area->known.inode_pointer;
		value.file_id = area->known.file_id;
		if (!patterns_only && value.file_id != UNWANTED)
			note_area(&place, &value);
	}
	return area;
}

/*
 * Mapping of an address. A look-up needs the lock of the process's mappings, which it only tries to take. With
 * interrupts off the kernel releases the lock by an interrupt to itself, so that an immediate second look-up is
 * refused. For this reason a mapping is first looked up when the page cache reports the fault, and the result is
 * stored until the kernel reports a change of the mappings.
 */
static __noinline struct area *area_at(struct task_struct *task, struct fault_state *state, __u64 address,
				       struct books *books)
{
	struct mapping mapping = {};
	struct mm_struct *memory = task->mm;
	struct area *area;
	__u32 changes = 0;
	bool keep = bpf_core_field_exists(memory->mm_lock_seq.sequence);

	if (!memory)
		return NULL;
	if (keep)
		changes = memory->mm_lock_seq.sequence;
	fresh(state);
	if (keep) {
#pragma unroll
		for (int i = 0; i < AREAS; i++) {
			area = &state->areas[i];
			if (area->memory == (__u64)memory && area->changes == changes && address >= area->start &&
			    address < area->end)
				return area;
		}
	}
	if (bpf_find_vma(task, address, look_at, &mapping, 0))
		return NULL;
	return keep_area(task, state, &mapping, changes, books);
}

/* Record the range mapped around a fault, up to the end of the file. Its bytes done are those newly mapped. */
static __always_inline void record_around(struct fault_state *state, struct area *area, struct call *call,
					  struct task_struct *task, struct books *books)
{
	struct inode *inode = (struct inode *)area->known.inode_pointer;
	__u64 pages = (BPF_CORE_READ(inode, i_size) + PAGE_BYTES - 1) / PAGE_BYTES;

	if (pages && state->around_last > pages - 1)
		state->around_last = pages - 1;
	if (state->around_last <= state->around_first)
		return;
	COUNT(books, SOURCE_FAULTS, seen);
	/* with the page of a write fault the kernel dirties the pages that it maps */
	call->op = call->op == OP_FAULT_WRITE ? OP_FAULT_AROUND_WRITE : OP_FAULT_AROUND;
	call->flags = 0;
	call->now_ns = call->start_ns;
	call->offset_bytes = state->around_first << 12;
	call->asked_bytes = (state->around_last - state->around_first + 1) << 12;
	call->result = (__u64)state->around << 12;
	if (call->result > call->asked_bytes)
		call->result = call->asked_bytes;
	record(call, &area->known, task, books, SOURCE_FAULTS);
}

/* Reported pages of a chunk of a process's memory; empty if a different file is mapped there now. */
static __noinline struct page_bits *told_of(struct told_key *place, __u64 inode_pointer)
{
	struct told_pages fresh = { .inode_pointer = inode_pointer }, *told;

	told = bpf_map_lookup_elem(&told_pages, place);
	if (!told || told->inode_pointer != inode_pointer) {
		bpf_map_update_elem(&told_pages, place, &fresh, BPF_ANY);
		told = bpf_map_lookup_elem(&told_pages, place);
	}
	return told ? &told->bits : NULL;
}

/* Find the pages mapped by the fault in the process's tables: one huge page, or a run of pages around it. */
static __always_inline void mapped_with(struct fault_state *state, struct area *area, __u64 address, __u64 page,
					struct call *call, struct task_struct *task)
{
	__u32 at = (address >> 12) & (ENTRIES - 1), lowest = 0, highest = ENTRIES - 1, first, last;
	struct told_key place = { .chunk = address & ~(ENTRIES * PAGE_BYTES - 1) };
	__u64 chunk = place.chunk;
	struct page_table *table;
	struct page_bits *told;
	__u32 reach;
	bool huge;

	table = table_at(task, address, TABLE_OF_FAULT, &huge, &reach);
	if (huge) {
		call->flags |= FAULT_HUGE;
		call->asked_bytes = ENTRIES * PAGE_BYTES;
		call->result = ENTRIES * PAGE_BYTES;
		call->offset_bytes = (page - at) << 12;
		state->around = 0;
		return;
	}
	if (!table || (state->error_code & FAULT_PRESENT))
		return;
	if (area->start > chunk)
		lowest = ((area->start - chunk) >> 12) & (ENTRIES - 1);
	if (area->end < chunk + ENTRIES * PAGE_BYTES)
		highest = ((area->end - 1 - chunk) >> 12) & (ENTRIES - 1);
	place.memory = memory_of(task);
	told = told_of(&place, area->known.inode_pointer);
	if (!told)
		return;
	state->around = newly_mapped(table, told, at, lowest, highest, &first, &last);
	state->around_first = page - (at - first);
	state->around_last = page + (last - at);
}

/* A successful fault of a traced thread. */
static __always_inline void fault_counted(struct fault_state *state, __u64 address, bool major, int slot,
					  struct task_struct *task, struct books *books)
{
	struct call call = {};
	struct area *area = NULL;
	__u32 code = state->error_code;
	__u64 page;

	call.start_ns = state->start_ns;
	state->start_ns = 0;
	/* a page read from a file is requested in the page cache, also one for a private copy */
	if (!state->area && !state->in_page_cache && !state->around && (cache_tells || (code & FAULT_PRESENT)) &&
	    is_anonymous(task, address))
		return;
	if (state->area) {
		area = state->area == 1 ? &state->areas[0] : state->area == 2 ? &state->areas[1] : &state->areas[2];
		state->area = 0;
	} else {
		area = area_at(task, state, address, books);
	}
	if (!area) {
		/* the mappings are changing; the page cache reported whether it was a page of a file */
		if (state->in_page_cache || state->around) {
			COUNT(books, SOURCE_FAULTS, seen);
			COUNT(books, SOURCE_FAULTS, lost_unresolved);
		}
		return;
	}
	if (!area->kind)
		return;
	COUNT(books, SOURCE_FAULTS, seen);
	if (area->kind == FILE_OF_PROGRAM ||
	    ((code & FAULT_PRESENT) && !((code & FAULT_BY_WRITE) && (area->flags & VM_SHARED)))) {
		COUNT(books, SOURCE_FAULTS, filtered);
		return;
	}
	page = area->first_page + ((address - area->start) >> 12);
	call.now_ns = bpf_ktime_get_ns();
	call.asked_bytes = PAGE_BYTES;
	call.result = PAGE_BYTES;
	call.offset_bytes = page << 12;
	call.tid = task->pid;
	call.pid = task->tgid;
	call.slot = slot;
	call.flags = major ? FAULT_MAJOR : 0;
	call.op = OP_FAULT_READ;
	if (code & FAULT_BY_WRITE) {
		if (area->flags & VM_SHARED)
			call.op = OP_FAULT_WRITE;
		else
			call.flags |= FAULT_PRIVATE;
	}
	mapped_with(state, area, address, page, &call, task);
	record(&call, &area->known, task, books, SOURCE_FAULTS);
	if (state->around)
		record_around(state, area, &call, task, books);
}

/* At the end of a successful fault. */
static __always_inline int fault_served(__u64 address, bool major)
{
	struct fault_state *state;
	struct task_struct *task;
	struct books books;
	int slot;

	if (!control.armed)
		return 0;
	meter(METER_OTHERS);
	task = bpf_get_current_task_btf();
	slot = slot_here();
	if (slot < 0)
		return 0;
	state = bpf_task_storage_get(&fault_states, task, NULL, 0);
	if (!state || !state->start_ns || (state->address ^ address) >= PAGE_BYTES)
		return 0; /* armed in between, or the kernel's own look-up on behalf of the thread */
	if (!open_books(&books))
		return 0;
	fault_counted(state, address, major, slot, task, &books);
	close_books(&books);
	return 0;
}

/* The page cache reports a fault in progress: its mapping can be looked up here. */
static __always_inline void fault_in_cache(bool around, __u64 first, __u64 last)
{
	struct fault_state *state = fault_in_flight();
	struct books books;

	if (!state)
		return;
	if (around) {
		state->around = last - first + 1;
		state->around_first = first;
		state->around_last = last;
	} else {
		state->in_page_cache = 1;
	}
	if (state->area || !open_books(&books))
		return;
	area_at(bpf_get_current_task_btf(), state, state->address, &books);
	close_books(&books);
}

/* The mapping of the fault is an argument, if functions can be hooked. */
static __always_inline void fault_in_area(struct vm_area_struct *area)
{
	struct fault_state *state = fault_in_flight();
	struct task_struct *task = bpf_get_current_task_btf();
	struct mapping mapping = {};
	struct books books;
	struct area *kept;

	if (!state)
		return;
	fresh(state);
	look_at(task, area, &mapping);
#pragma unroll
	for (int i = 0; i < AREAS; i++) {
		kept = &state->areas[i];
		if (kept->memory == (__u64)task->mm && kept->start == mapping.start && kept->end == mapping.end &&
		    kept->first_page == mapping.first_page && kept->flags == mapping.flags &&
		    kept->known.inode_pointer == (__u64)mapping.inode) {
			state->area = i + 1;
			return;
		}
	}
	if (!open_books(&books))
		return;
	state->area = state->next_area % AREAS + 1;
	keep_area(task, state, &mapping, 0, &books);
	close_books(&books);
}

SEC("tp_btf/page_fault_user")
int BPF_PROG(fault_of_user, unsigned long address, struct pt_regs *regs, unsigned long error_code)
{
	return fault_begins(address, error_code);
}

/* A system call that reads from or writes to mapped memory. */
SEC("tp_btf/page_fault_kernel")
int BPF_PROG(fault_of_kernel, unsigned long address, struct pt_regs *regs, unsigned long error_code)
{
	return fault_begins(address, error_code);
}

SEC("tp_btf/mm_filemap_fault")
int BPF_PROG(fault_in_page_cache, struct address_space *space, unsigned long page)
{
	fault_in_cache(false, 0, 0);
	return 0;
}

SEC("tp_btf/mm_filemap_map_pages")
int BPF_PROG(fault_around, struct address_space *space, unsigned long first, unsigned long last)
{
	fault_in_cache(true, first, last);
	return 0;
}

/* The same on kernels without these tracepoints. */
SEC("fentry/handle_mm_fault")
int BPF_PROG(fault_handled, struct vm_area_struct *area, unsigned long address)
{
	fault_in_area(area);
	return 0;
}

SEC("fentry/filemap_fault")
int BPF_PROG(fault_asked, struct vm_fault *fault)
{
	fault_in_cache(false, 0, 0);
	return 0;
}

SEC("fexit/filemap_map_pages")
int BPF_PROG(fault_around_exit, struct vm_fault *fault, unsigned long first, unsigned long last, long result)
{
	fault_in_cache(true, first, last);
	return 0;
}

/* Survey of the pages that a process has of its mapped files. */
struct survey {
	struct task_struct *task;
	__u64 memory;
	__u64 next; /* start of the next area */
	__u64 start;
	__u64 end;
	__u64 first_page;
	__u64 inode_pointer;
	__u64 at; /* present address */
	struct page_table *table;
	__u32 room;
	__u32 huge;
	__u32 any;
	__u32 first; /* index in the table of the first page to examine */
	struct presence presence;
};

static long survey_entry(__u64 index, void *context)
{
	struct survey *survey = context;
	__u32 at = (survey->first + index) & (ENTRIES - 1);

	if (!survey->huge && (!survey->table || !(survey->table->entries[at] & ENTRY_PRESENT)))
		return 0;
	survey->presence.bits[at >> 6] |= 1ULL << (at & 63);
	survey->any = 1;
	return 0;
}

/* Survey the pages of one table; without a table, skip to the next address that may have one. */
static long survey_table(__u64 index, void *context)
{
	struct survey *survey = context;
	struct told_key place = {};
	struct told_pages told = {};
	__u64 chunk, end;
	__u32 reach;
	bool huge;

	if (survey->at >= survey->end)
		return 1;
	chunk = survey->at & ~(ENTRIES * PAGE_BYTES - 1);
	survey->table = table_at(survey->task, survey->at, survey->room, &huge, &reach);
	survey->first = (survey->at - chunk) >> 12;
	end = chunk + ENTRIES * PAGE_BYTES;
	if (!survey->table && !huge) {
		survey->at = ((survey->at >> (reach & 63)) + 1) << (reach & 63);
		return 0;
	}
	survey->at = end;
	if (end > survey->end)
		end = survey->end;
	survey->huge = huge;
	survey->any = 0;
	__builtin_memset(survey->presence.bits, 0, sizeof(survey->presence.bits));
	bpf_loop(((end - chunk) >> 12) - survey->first, survey_entry, survey, 0);
	if (!survey->any)
		return 0;
	/* the chunk may begin before the mapping; then its first page is relative to that start and may be negative */
	survey->presence.first_page = survey->first_page + ((__s64)(chunk - survey->start) >> 12);
	if (bpf_ringbuf_output(&presences, &survey->presence, sizeof(survey->presence), BPF_RB_NO_WAKEUP))
		__sync_fetch_and_add(&presences_lost, 1);
	if (survey->presence.before) {
		place.memory = survey->memory;
		place.chunk = chunk;
		told.inode_pointer = survey->inode_pointer;
		__builtin_memcpy(&told.bits, survey->presence.bits, sizeof(told.bits));
		bpf_map_update_elem(&told_pages, &place, &told, BPF_ANY);
	}
	return 0;
}

static __always_inline void survey_pages(struct survey *survey, struct mapping *mapping)
{
	survey->start = mapping->start;
	survey->end = mapping->end;
	survey->first_page = mapping->first_page;
	survey->inode_pointer = (__u64)mapping->inode;
	survey->at = mapping->start;
	bpf_loop(1 << 20, survey_table, survey, 0);
}

static long survey_area(__u64 index, void *context)
{
	struct survey *survey = context;
	struct area_key place = {};
	struct area_value *value;
	struct mapping mapping = {};

	place.memory = survey->memory;
	place.start = survey->next;
	value = survey->next ? bpf_map_lookup_elem(&mapped_areas, &place) : NULL;
	if (!value)
		return 1;
	survey->next = value->next;
	/* check that it is still the same mapping */
	if (!bpf_find_vma(survey->task, place.start, look_at, &mapping, 0) && mapping.start == place.start &&
	    (__u64)mapping.inode == value->inode_pointer && mapping.first_page == value->first_page) {
		survey->presence.file_id = value->file_id;
		survey_pages(survey, &mapping);
	}
	bpf_map_delete_elem(&mapped_areas, &place);
	return 0;
}

static __always_inline int memory_ends(struct task_struct *task)
{
	struct mm_struct *memory = task->mm;
	struct survey survey = {};
	__u64 *newest;

	/* only for the last user of the memory */
	if (!control.armed || patterns_only)
		return 0;
	meter(METER_OTHERS);
	if (!memory || BPF_CORE_READ(memory, mm_users.counter) != 1 || slot_here() < 0)
		return 0;
	survey.memory = memory_of(task);
	newest = bpf_map_lookup_elem(&newest_areas, &survey.memory);
	if (!newest)
		return 0;
	survey.next = *newest;
	survey.task = task;
	survey.room = TABLE_OF_FAULT;
	survey.presence.pid = task->tgid;
	bpf_loop(65536, survey_area, &survey, 0);
	bpf_map_delete_elem(&newest_areas, &survey.memory);
	return 0;
}

/* Since Linux 6.16 it runs before the memory is released; on earlier kernels it finds none. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(fault_process_ends, struct task_struct *task)
{
	return memory_ends(bpf_get_current_task_btf());
}

/* A process that executes another program releases its memory too. At this point that is certain. */
SEC("tp_btf/sched_prepare_exec")
int BPF_PROG(fault_program_ends, struct task_struct *task)
{
	return memory_ends(bpf_get_current_task_btf());
}

SEC("fentry/exit_mm_release")
int BPF_PROG(fault_memory_ends, struct task_struct *task)
{
	return memory_ends(bpf_get_current_task_btf());
}

SEC("fentry/exec_mm_release")
int BPF_PROG(fault_memory_replaced, struct task_struct *task)
{
	return memory_ends(bpf_get_current_task_btf());
}

/*
 * Survey of the pages of mapped files of all traced processes, run by the loader at the start and end of tracing.
 * Pages that were mapped and accessed earlier cause no fault.
 */
SEC("iter/task_vma")
int survey_mappings(struct bpf_iter__task_vma *context)
{
	struct vm_area_struct *vma = context->vma;
	struct task_struct *task = context->task;
	struct known_file known = {};
	struct mapping mapping = {};
	struct survey survey = {};

	if (!task || !vma || task->pid != task->tgid || !vma->vm_file || !in_target(task))
		return 0;
	look_at(task, vma, &mapping);
	if (contents_of(task, &mapping) != FILE_OF_DATA)
		return 0;
	recall(mapping.file, &known, NULL);
	if (!known.file_id || known.file_id == UNWANTED)
		return 0;
	survey.task = task;
	survey.memory = memory_of(task);
	survey.room = TABLE_OF_SURVEY;
	survey.presence.pid = task->tgid;
	survey.presence.file_id = known.file_id;
	survey.presence.before = survey_before;
	survey_pages(&survey, &mapping);
	if (survey_before && !patterns_only) {
		struct area_key place = { .memory = survey.memory, .start = mapping.start };
		struct area_value value = { .end = mapping.end, .first_page = mapping.first_page };

		value.inode_pointer = (__u64)mapping.inode;
		value.file_id = known.file_id;
		note_area(&place, &value);
	}
	return 0;
}

/* Minor faults, and with a cookie major ones: one program, so that it is verified once. */
SEC("perf_event")
int fault_ends(struct bpf_perf_event_data *context)
{
	return fault_served(context->addr, bpf_get_attach_cookie(context) != 0);
}

#endif
