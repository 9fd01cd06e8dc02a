/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Faults of mapped files.
 *
 * A fault is put together from up to four places. The processor's exception gives its beginning, its address
 * and whether it was a write. The page cache says that it was asked for the page, and what it mapped around
 * it. The kernel's own account of faults (the software events of perf) closes it, after the page is there,
 * and knows whether the thread had to wait. The address and the mapping it lies in give the file and the
 * offset. Only the address tells which byte's page was touched: what is mapped around it was not asked for.
 *
 * What a fault means to the file:
 * - shared mapping, write: the page is dirtied, for the first time since it was last clean;
 * - private mapping, write, page not there: the file's page is read and copied; the copy is no file page;
 * - private mapping, write, page there: only memory is copied, the file has nothing to do with it;
 * - anything else: the page is read.
 *
 * Memory that has no storage behind it (tmpfs, huge-page file systems) is left out.
 *
 * Text, constants and relocations of programs and libraries come in by faults, too, but are not data: a file
 * that the process maps executable beside the fault is counted as filtered.
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

/* A mapping of a process, as long as `changes` of its memory stays as it was. */
struct area {
	__u64 memory; /* whose */
	__u64 start;
	__u64 end;
	__u64 flags;
	__u64 first_page;
	__u32 changes;
	__u32 kind; /* 0: no file of a storage */
	struct known_file known;
};

#define AREAS 3

/* Of one thread: the fault in flight, and the mappings of its last ones. */
struct fault_state {
	__u64 start_ns;
	__u64 address;
	__u64 around_first; /* pages mapped around, in the file */
	__u64 around_last;
	__u32 error_code;
	__u32 in_page_cache; /* the page cache was asked for the page itself */
	__u32 around;
	__u32 epoch;
	__u32 next_area;
	__u32 area; /* 1 more than the number of the fault's, where the fault came with it */
	struct area areas[AREAS];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct fault_state);
} fault_states SEC(".maps");

/* Whether a file is mapped as a program, found out at its first fault. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct file_key);
	__type(value, __u32);
} programs SEC(".maps");

/* A place of a file in a process's memory, and the run of its pages that was there after its last fault. */
struct mapped_place {
	__u64 memory;
	__u64 start;
	__u64 inode_pointer;
};

struct mapped_run {
	__u64 first;
	__u64 last;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct mapped_place);
	__type(value, struct mapped_run);
} mapped_runs SEC(".maps");

struct vm_fault;
struct bpf_map;


/* Mappings of files that had a fault, by process: asked for their pages when it ends. */
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
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct area_key);
	__type(value, struct area_value);
} mapped_areas SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 2 * 1024 * 1024);
} presences SEC(".maps");

__u64 presences_lost = 0;

/* A mapping, as far as it is needed. */
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

/* At the exception: when, where, and by a read or a write. */
static __always_inline int fault_begins(__u64 address, __u64 error_code)
{
	struct task_struct *task;
	struct fault_state *state;

	if (!control.armed)
		return 0;
	task = bpf_get_current_task_btf();
	if (slot_of(task) < 0)
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
	return 0;
}

static __always_inline struct fault_state *fault_in_flight(void)
{
	struct task_struct *task;
	struct fault_state *state;

	if (!control.armed)
		return NULL;
	task = bpf_get_current_task_btf();
	if (slot_of(task) < 0)
		return NULL;
	state = bpf_task_storage_get(&fault_states, task, NULL, 0);
	return state && state->start_ns ? state : NULL;
}

/*
 * Programs and libraries are mapped in pieces side by side, of which one is executable. Asked once for each
 * file; a file whose executable piece is seen later changes sides then. Where the look at a neighbour is
 * refused the answer is not kept.
 */
static __noinline int kind_of(struct task_struct *task, struct mapping *mapping, struct file_key *key)
{
	__u32 *known = bpf_map_lookup_elem(&programs, key), kind = FILE_OF_DATA;
	struct mapping beside;
	__u64 address;
	long refused = 0;

	if (mapping->flags & VM_EXEC)
		kind = FILE_OF_PROGRAM;
	else if (mapping->flags & VM_SHARED)
		return FILE_OF_DATA;
	else if (known)
		return *known;
	if (kind == FILE_OF_DATA) {
		address = mapping->end;
		for (int i = 0; i < NEIGHBOURS; i++) {
			__builtin_memset(&beside, 0, sizeof(beside));
			refused |= bpf_find_vma(task, address, look_at, &beside, 0) == -EBUSY;
			if (beside.inode != mapping->inode)
				break;
			if (beside.flags & VM_EXEC)
				kind = FILE_OF_PROGRAM;
			address = beside.end;
		}
		address = mapping->start - 1;
		for (int i = 0; i < NEIGHBOURS; i++) {
			__builtin_memset(&beside, 0, sizeof(beside));
			refused |= bpf_find_vma(task, address, look_at, &beside, 0) == -EBUSY;
			if (beside.inode != mapping->inode)
				break;
			if (beside.flags & VM_EXEC)
				kind = FILE_OF_PROGRAM;
			address = beside.start - 1;
		}
	}
	if (kind == FILE_OF_PROGRAM || !refused)
		bpf_map_update_elem(&programs, key, &kind, BPF_ANY);
	return kind;
}

/* What is known from before this arming is forgotten: files have other numbers now. */
static __always_inline void fresh(struct fault_state *state)
{
	if (state->epoch == control.epoch)
		return;
	state->epoch = control.epoch;
#pragma unroll
	for (int i = 0; i < AREAS; i++)
		state->areas[i].memory = 0;
}

/* Takes note of a mapping in place of the thread's oldest. */
static __noinline struct area *keep_area(struct task_struct *task, struct fault_state *state,
					 struct mapping *mapping, __u32 changes, struct books *books)
{
	struct file_key key = {};
	struct inode *inode;
	struct super_block *super;
	struct area *area;
	__u32 next;
	__u64 magic;

	next = state->next_area++ % AREAS;
	area = next == 0 ? &state->areas[0] : next == 1 ? &state->areas[1] : &state->areas[2];
	area->memory = (__u64)task->mm;
	area->changes = changes;
	area->start = mapping->start;
	area->end = mapping->end;
	area->flags = mapping->flags;
	area->first_page = mapping->first_page;
	area->kind = 0;
	area->known.inode_pointer = (__u64)mapping->inode;
	if (!mapping->file)
		return area;
	inode = FIELD(mapping->file, f_inode);
	super = FIELD(inode, i_sb);
	magic = FIELD(super, s_magic);
	if ((FIELD(inode, i_mode) & S_IFMT) != S_IFREG || magic == TMPFS_MAGIC || magic == HUGETLBFS_MAGIC)
		return area;
	key.inode = FIELD(inode, i_ino);
	key.device = FIELD(super, s_dev);
	key.generation = FIELD(inode, i_generation);
	area->kind = kind_of(task, mapping, &key);
	if (area->kind == FILE_OF_DATA) {
		struct area_key place = { .memory = area->memory, .start = area->start };
		struct area_value value = { .end = area->end, .first_page = area->first_page };

		recall(mapping->file, &area->known, books);
		value.inode_pointer = area->known.inode_pointer;
		value.file_id = area->known.file_id;
		if (!patterns_only)
			bpf_map_update_elem(&mapped_areas, &place, &value, BPF_ANY);
	}
	return area;
}

/*
 * The mapping that an address lies in. A look-up needs the lock of the process's mappings, which it only
 * tries; with interrupts off the kernel gives the lock back by an interrupt to itself, so that a second
 * look-up at once is refused. That is why the first look at a mapping is made where the page cache reports
 * the fault, and why the answer is kept until the kernel says that the mappings have changed.
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

/* The range mapped around a fault, or with a huge page, cut at the end of the file. */
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
	call->op = OP_FAULT_AROUND;
	call->flags = 0;
	call->now_ns = call->start_ns;
	call->offset_bytes = state->around_first << 12;
	call->asked_bytes = (state->around_last - state->around_first + 1) << 12;
	call->result = call->asked_bytes;
	record(call, &area->known, task, books, SOURCE_FAULTS);
}

/*
 * Takes off the run what the last fault at this place left there: that was reported with it. How far a fault
 * maps cannot be known otherwise, since from Linux 6.18 on a large folio is mapped whole, also beyond the window.
 */
static __noinline int without_earlier(struct fault_state *state, struct area *area, __u64 page)
{
	struct mapped_place place = {};
	struct mapped_run now = {}, *before;

	if (!state || !area)
		return 0;
	place.memory = area->memory;
	place.start = area->start;
	place.inode_pointer = area->known.inode_pointer;
	now.first = state->around_first;
	now.last = state->around_last;
	before = bpf_map_lookup_elem(&mapped_runs, &place);
	if (before && before->last < page && before->last >= state->around_first)
		state->around_first = before->last + 1;
	if (before && before->first > page && before->first <= state->around_last)
		state->around_last = before->first - 1;
	bpf_map_update_elem(&mapped_runs, &place, &now, BPF_ANY);
	return 0;
}

/* What the process's tables hold after the fault: one huge page, or a run of pages around it. */
static __always_inline void mapped_with(struct fault_state *state, struct area *area, __u64 address, __u64 page,
					struct call *call, struct task_struct *task)
{
	__u32 at = (address >> 12) & (ENTRIES - 1), lowest = 0, highest = ENTRIES - 1, first, last;
	__u64 chunk = address & ~(ENTRIES * PAGE_BYTES - 1);
	struct page_table *table;
	bool huge;

	table = table_at(task, address, &huge);
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
	run_around(table, at, lowest, highest, &first, &last);
	state->around_first = page - (at - first);
	state->around_last = page + (last - at);
	without_earlier(state, area, page);
	state->around = state->around_first < state->around_last;
}

/* A fault that succeeded, of a thread that is traced. */
static __always_inline void fault_counted(struct fault_state *state, __u64 address, bool major, int slot,
					  struct task_struct *task, struct books *books)
{
	struct call call = {};
	struct area *area = NULL;
	__u32 code = state->error_code;
	__u64 page;

	call.start_ns = state->start_ns;
	state->start_ns = 0;
	if (state->area) {
		area = state->area == 1 ? &state->areas[0] : state->area == 2 ? &state->areas[1] : &state->areas[2];
		state->area = 0;
	} else {
		area = area_at(task, state, address, books);
	}
	if (!area) {
		/* the mappings are being changed: whether it was a file's page, the page cache told */
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

/* At the end of a fault that succeeded. */
static __always_inline int fault_served(__u64 address, bool major)
{
	struct fault_state *state;
	struct task_struct *task;
	struct books books;
	int slot;

	if (!control.armed)
		return 0;
	task = bpf_get_current_task_btf();
	slot = slot_of(task);
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

/* The page cache tells of a fault under way: the place where its mapping can be looked up. */
static __always_inline void fault_in_cache(bool around, __u64 first, __u64 last)
{
	struct fault_state *state = fault_in_flight();
	struct books books;

	if (!state)
		return;
	if (around) {
		state->around = 1;
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

/* Where functions can be hooked the mapping comes with the fault. */
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

/* What a process has of its mapped files when it ends. */
struct survey {
	struct task_struct *task;
	__u64 memory;
	__u64 start;
	__u64 end;
	__u64 first_page;
	__u64 chunk;
	struct page_table *table;
	__u32 huge;
	__u32 any;
	struct presence presence;
};

static long survey_entry(__u64 index, void *context)
{
	struct survey *survey = context;
	__u32 at = index & (ENTRIES - 1);
	__u64 address = survey->chunk + at * PAGE_BYTES;

	if (address < survey->start || address >= survey->end)
		return 0;
	if (!survey->huge && (!survey->table || !(survey->table->entries[at] & ENTRY_PRESENT)))
		return 0;
	survey->presence.bits[at >> 6] |= 1ULL << (at & 63);
	survey->any = 1;
	return 0;
}

static long survey_table(__u64 index, void *context)
{
	struct survey *survey = context;
	__u64 chunk = (survey->start & ~(ENTRIES * PAGE_BYTES - 1)) + index * ENTRIES * PAGE_BYTES;
	bool huge;

	if (chunk >= survey->end)
		return 1;
	survey->table = table_at(survey->task, chunk < survey->start ? survey->start : chunk, &huge);
	if (!survey->table && !huge)
		return 0;
	survey->chunk = chunk;
	survey->huge = huge;
	survey->any = 0;
	__builtin_memset(survey->presence.bits, 0, sizeof(survey->presence.bits));
	bpf_loop(ENTRIES, survey_entry, survey, 0);
	/* the chunk may begin before the mapping: counted from where the chunk would be in the file, maybe below 0 */
	survey->presence.first_page = survey->first_page + ((__s64)(chunk - survey->start) >> 12);
	if (survey->any &&
	    bpf_ringbuf_output(&presences, &survey->presence, sizeof(survey->presence), BPF_RB_NO_WAKEUP))
		__sync_fetch_and_add(&presences_lost, 1);
	return 0;
}

static long survey_area(struct bpf_map *map, struct area_key *key, struct area_value *value, void *context)
{
	struct survey *survey = context;
	struct mapping mapping = {};

	if (key->memory != survey->memory)
		return 0;
	/* still the same mapping? */
	if (!bpf_find_vma(survey->task, key->start, look_at, &mapping, 0) && mapping.start == key->start &&
	    (__u64)mapping.inode == value->inode_pointer && mapping.first_page == value->first_page) {
		survey->start = mapping.start;
		survey->end = mapping.end;
		survey->first_page = mapping.first_page;
		survey->presence.file_id = value->file_id;
		bpf_loop(1 << 20, survey_table, survey, 0);
	}
	bpf_map_delete_elem(map, key);
	return 0;
}

static __always_inline int memory_ends(struct task_struct *task)
{
	struct mm_struct *memory = task->mm;
	struct survey survey = {};

	/* of the last one who uses it */
	if (!control.armed || patterns_only || !memory || BPF_CORE_READ(memory, mm_users.counter) != 1)
		return 0;
	if (slot_of(task) < 0)
		return 0;
	survey.task = task;
	survey.memory = (__u64)memory;
	survey.presence.pid = task->tgid;
	bpf_for_each_map_elem(&mapped_areas, survey_area, &survey, 0);
	return 0;
}

/* Since Linux 6.16 it comes before the memory is given up; before, it finds none. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(fault_process_ends, struct task_struct *task)
{
	return memory_ends(bpf_get_current_task_btf());
}

SEC("fentry/exit_mm_release")
int BPF_PROG(fault_memory_ends, struct task_struct *task)
{
	return memory_ends(bpf_get_current_task_btf());
}

SEC("perf_event")
int fault_minor(struct bpf_perf_event_data *context)
{
	return fault_served(context->addr, false);
}

SEC("perf_event")
int fault_major(struct bpf_perf_event_data *context)
{
	return fault_served(context->addr, true);
}

#endif
