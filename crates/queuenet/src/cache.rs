//! The kernel's page cache of one file system: cached pages, dirty pages and readahead.
//!
//! As in Linux (`mm/swap.c`, `mm/workingset.c`) there are two lists. A new page enters at the head of the inactive
//! list. A second access moves it to the active list. Eviction removes from the tail of the inactive list. A page that
//! returns before the active list could have turned over once becomes active at once. Readahead is that of
//! `mm/readahead.c`: windows double up to the limit, an access to the marked page starts the next window, and small
//! random reads are not extended.

use std::collections::{BTreeSet, HashMap};

/// Size of a page in bytes.
pub const PAGE_BYTES: u64 = 4096;
const NONE: u32 = u32::MAX;

/// A page: number of the file, and number of the page in the file.
pub type Page = (u32, u32);

#[derive(Debug, Clone, Copy)]
struct Slot {
    page: Page,
    before: u32,
    after: u32,
    ready_ns: u64,
    written_ns: u64,
    active: bool,
    referenced: bool,
    marked: bool,
    dirty: bool,
}

#[derive(Debug, Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    len: usize,
}

const EMPTY: List = List {
    head: NONE,
    tail: NONE,
    len: 0,
};

/// State of a cached page at a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedPage {
    /// Time at which the content is (or was) available, nanoseconds.
    pub ready_ns: u64,
    /// An access to this page starts the next readahead window.
    pub marked: bool,
}

/// Dirty pages of one file.
#[derive(Debug, Clone, Default)]
pub struct FileDirt {
    /// Numbers of the pages.
    pub pages: BTreeSet<u32>,
    /// Time at which the first of them became dirty, nanoseconds.
    pub since_ns: u64,
    /// End of the last write-back under way, nanoseconds.
    pub written_ns: u64,
}

/// Page cache of a memory control group.
#[derive(Debug)]
pub struct PageCache {
    capacity: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    at: HashMap<Page, u32>,
    lists: [List; 2],
    gone: HashMap<Page, u64>,
    evictions: u64,
    /// Dirty pages by file number.
    pub dirt: HashMap<u32, FileDirt>,
    /// Number of dirty pages in all files.
    pub dirty: usize,
}

impl PageCache {
    /// Create an empty cache of this many bytes. It has space for at least a few pages.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        PageCache {
            capacity: usize::try_from(bytes / PAGE_BYTES)
                .unwrap_or(usize::MAX)
                .max(64),
            slots: Vec::new(),
            free: Vec::new(),
            at: HashMap::new(),
            lists: [EMPTY; 2],
            gone: HashMap::new(),
            evictions: 0,
            dirt: HashMap::new(),
            dirty: 0,
        }
    }

    /// Look up a page without counting this as an access.
    #[must_use]
    pub fn find(&self, page: Page) -> Option<CachedPage> {
        self.at.get(&page).map(|&i| {
            let slot = &self.slots[i as usize];
            CachedPage {
                ready_ns: slot.ready_ns,
                marked: slot.marked,
            }
        })
    }

    /// Count an access. A second access makes the page active. Clears the readahead mark.
    pub fn touch(&mut self, page: Page) {
        let Some(&i) = self.at.get(&page) else { return };
        let slot = &mut self.slots[i as usize];
        slot.marked = false;
        if slot.active || !slot.referenced {
            slot.referenced = true;
            return;
        }
        slot.referenced = false;
        self.unlink(i);
        self.slots[i as usize].active = true;
        self.link(i);
        // mm/vmscan.c, inactive_is_low(): below 1 GiB the active list may be as long as the inactive one
        while self.lists[1].len > self.lists[0].len {
            let oldest = self.lists[1].tail;
            self.unlink(oldest);
            self.slots[oldest as usize].active = false;
            self.slots[oldest as usize].referenced = false;
            self.link(oldest);
        }
    }

    /// Clear the readahead mark.
    pub fn unmark(&mut self, page: Page) {
        if let Some(&i) = self.at.get(&page) {
            self.slots[i as usize].marked = false;
        }
    }

    /// Insert a page that is available from `ready_ns` on. Return dirty pages that block eviction and need write-back.
    pub fn insert(&mut self, page: Page, ready_ns: u64, marked: bool, now_ns: u64) -> Vec<Page> {
        if let Some(&i) = self.at.get(&page) {
            self.slots[i as usize].ready_ns = ready_ns;
            return Vec::new();
        }
        let to_write = self.make_room(now_ns);
        let active = self
            .gone
            .remove(&page)
            .is_some_and(|then| self.evictions - then <= self.lists[1].len as u64);
        let slot = Slot {
            page,
            before: NONE,
            after: NONE,
            ready_ns,
            written_ns: 0,
            active,
            referenced: false,
            marked,
            dirty: false,
        };
        let i = if let Some(i) = self.free.pop() {
            self.slots[i as usize] = slot;
            i
        } else {
            self.slots.push(slot);
            (self.slots.len() - 1) as u32
        };
        self.at.insert(page, i);
        self.link(i);
        to_write
    }

    /// Mark a page as dirty after the program wrote to it.
    pub fn soil(&mut self, page: Page, now_ns: u64) {
        let Some(&i) = self.at.get(&page) else { return };
        let slot = &mut self.slots[i as usize];
        if slot.dirty {
            return;
        }
        slot.dirty = true;
        self.dirty += 1;
        let dirt = self.dirt.entry(page.0).or_default();
        if dirt.pages.is_empty() {
            dirt.since_ns = now_ns;
        }
        dirt.pages.insert(page.1);
    }

    /// Mark a page as clean because its write-back begins, which ends at `written_ns`.
    pub fn clean(&mut self, page: Page, written_ns: u64) {
        let Some(&i) = self.at.get(&page) else { return };
        let slot = &mut self.slots[i as usize];
        if !slot.dirty {
            return;
        }
        slot.dirty = false;
        slot.written_ns = written_ns;
        self.dirty -= 1;
        if let Some(dirt) = self.dirt.get_mut(&page.0) {
            dirt.pages.remove(&page.1);
            dirt.written_ns = dirt.written_ns.max(written_ns);
        }
    }

    /// Dirty pages `first..end` of a file as runs (first page, number of pages) of at most `most` pages.
    #[must_use]
    pub fn dirty_runs(&self, file: u32, first: u32, end: u32, most: u32) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        let Some(dirt) = self.dirt.get(&file) else {
            return runs;
        };
        for &page in dirt.pages.range(first..end) {
            match runs.last_mut() {
                Some((start, n)) if *start + *n == page && *n < most => *n += 1,
                _ => runs.push((page, 1)),
            }
        }
        runs
    }

    fn make_room(&mut self, now_ns: u64) -> Vec<Page> {
        let mut to_write = Vec::new();
        let mut tries = 64;
        while self.at.len() >= self.capacity && tries > 0 {
            tries -= 1;
            let from = usize::from(self.lists[0].len == 0);
            let i = self.lists[from].tail;
            if i == NONE {
                break;
            }
            let slot = self.slots[i as usize];
            if slot.dirty || slot.ready_ns > now_ns || slot.written_ns > now_ns {
                // a dirty page cannot be evicted yet: start its write-back and rotate it
                if slot.dirty {
                    to_write.push(slot.page);
                }
                self.unlink(i);
                self.link(i);
                continue;
            }
            self.unlink(i);
            self.at.remove(&slot.page);
            self.free.push(i);
            self.gone.insert(slot.page, self.evictions);
            self.evictions += 1;
        }
        to_write
    }

    fn unlink(&mut self, i: u32) {
        let Slot {
            before,
            after,
            active,
            ..
        } = self.slots[i as usize];
        let list = usize::from(active);
        match before {
            NONE => self.lists[list].head = after,
            b => self.slots[b as usize].after = after,
        }
        match after {
            NONE => self.lists[list].tail = before,
            a => self.slots[a as usize].before = before,
        }
        self.lists[list].len -= 1;
    }

    fn link(&mut self, i: u32) {
        let list = usize::from(self.slots[i as usize].active);
        let head = self.lists[list].head;
        self.slots[i as usize].before = NONE;
        self.slots[i as usize].after = head;
        match head {
            NONE => self.lists[list].tail = i,
            h => self.slots[h as usize].before = i,
        }
        self.lists[list].head = i;
        self.lists[list].len += 1;
    }
}

/// Readahead state of one reader of one file (`struct file_ra_state`).
#[derive(Debug, Clone, Copy)]
pub struct Readahead {
    start: u64,
    size: u64,
    ahead: u64,
    /// Last page of the previous read.
    pub last_page: u64,
}

/// Pages to read, and the one that is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// First page.
    pub first: u64,
    /// Number of pages.
    pub pages: u64,
    /// Page at which a read starts the next window.
    pub mark: Option<u64>,
}

impl Default for Readahead {
    /// State of a reader that has read nothing.
    fn default() -> Self {
        Readahead {
            start: 0,
            size: 0,
            ahead: 0,
            last_page: u64::MAX - 1,
        }
    }
}

impl Readahead {
    fn window(&self) -> Window {
        Window {
            first: self.start,
            pages: self.size,
            mark: Some(self.start + self.size - self.ahead).filter(|_| self.ahead > 0),
        }
    }

    /// Window for a missing page, of which the call needs `pages` pages from this one on (`page_cache_sync_ra`).
    pub fn missed(
        &mut self,
        index: u64,
        pages: u64,
        limit: u64,
        cached: impl Fn(u64) -> bool,
    ) -> Window {
        let limit = limit.max(1);
        if index == 0 || pages > limit || index.wrapping_sub(self.last_page) <= 1 {
            self.start = index;
            self.size = first_size(pages, limit);
            self.ahead = if self.size > pages {
                self.size - pages
            } else {
                self.size / 2
            };
            return self.window();
        }
        let mut history = 0;
        while history < limit && history < index && cached(index - 1 - history) {
            history += 1;
        }
        if history <= pages {
            return Window {
                first: index,
                pages,
                mark: None,
            };
        }
        if history == index {
            history *= 2;
        }
        self.start = index;
        self.size = (history + pages).min(limit);
        self.ahead = 1;
        self.window()
    }

    /// Window for a read of a marked page (`page_cache_async_ra`); `None` if that window is already cached.
    pub fn reached(
        &mut self,
        index: u64,
        pages: u64,
        limit: u64,
        cached: impl Fn(u64) -> bool,
    ) -> Option<Window> {
        let limit = limit.max(1);
        if self.size > 0 && index == self.start + self.size - self.ahead {
            self.start += self.size;
            self.size = next_size(self.size, limit);
        } else {
            let mut next = index + 1;
            while next - index <= limit && cached(next) {
                next += 1;
            }
            if next - index > limit {
                return None;
            }
            self.start = next;
            self.size = next_size(next - index + pages, limit);
        }
        self.ahead = self.size;
        Some(self.window())
    }
}

fn first_size(bytes: u64, limit: u64) -> u64 {
    let size = bytes.next_power_of_two();
    if size <= limit / 32 {
        size * 4
    } else if size <= limit / 4 {
        size * 2
    } else {
        limit
    }
}

fn next_size(size: u64, limit: u64) -> u64 {
    if size < limit / 16 {
        4 * size
    } else if size <= limit / 2 {
        2 * size
    } else {
        limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_of_a_sequential_reader_doubles_up_to_the_limit() {
        let mut reader = Readahead::default();
        let first = reader.missed(0, 2, 32, |_| false);
        assert_eq!((first.first, first.pages, first.mark), (0, 4, Some(2)));
        let sizes: Vec<u64> = (0..4)
            .scan(first, |before, _| {
                let mark = before.mark?;
                *before = reader.reached(mark, 2, 32, |_| false)?;
                Some(before.pages)
            })
            .collect();
        assert_eq!(sizes, [8, 16, 32, 32]);
    }

    #[test]
    fn small_random_reads_are_not_extended() {
        let mut reader = Readahead {
            last_page: 7,
            ..Readahead::default()
        };
        let window = reader.missed(100, 2, 32, |_| false);
        assert_eq!((window.first, window.pages, window.mark), (100, 2, None));
    }

    #[test]
    fn pages_read_once_are_evicted_first() {
        let mut cache = PageCache::new(128 * PAGE_BYTES);
        for page in 0..100 {
            cache.insert((0, page), 0, false, 1);
            cache.touch((0, page));
        }
        for page in 0..20 {
            cache.touch((0, page));
        }
        for page in 1000..1100 {
            cache.insert((0, page), 0, false, 1);
            cache.touch((0, page));
        }
        assert_eq!(cache.at.len(), 128);
        assert!((0..20).all(|page| cache.find((0, page)).is_some()));
        assert!((20..80).all(|page| cache.find((0, page)).is_none()));
    }

    #[test]
    fn dirty_pages_are_written_back_before_eviction() {
        let mut cache = PageCache::new(64 * PAGE_BYTES);
        cache.insert((3, 0), 0, false, 1);
        cache.soil((3, 0), 1);
        let mut written = Vec::new();
        for page in 1..70 {
            for dirty in cache.insert((4, page), 0, false, 1) {
                written.push(dirty);
                cache.clean(dirty, 1);
            }
        }
        assert_eq!(written, [(3, 0)]);
        assert_eq!(cache.dirty, 0);
        assert!(cache.dirty_runs(3, 0, u32::MAX, 256).is_empty());
    }
}
