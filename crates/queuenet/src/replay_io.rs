//! Effects of the calls of a replayed program: page reads and writes, write-back, flushes.

use penstock_station::{Op, Request};

use crate::cache::{Page, Window, PAGE_BYTES};
use crate::replay::{Kind, Step};
use crate::replay_run::{EventKind, Run};

/// Largest request to the device, in pages.
const MOST_PAGES: u32 = 256;
/// Interval in which the kernel looks for pages to write back, and their age then (`vm.dirty_*_centisecs`).
pub(crate) const WAKE_NS: u64 = 5_000_000_000;
const OLD_NS: u64 = 30_000_000_000;

impl Run<'_> {
    fn device(&mut self, t: u64, op: Op, file: u32, offset: u64, size: u64) -> u64 {
        let base = self.program.files[file as usize].base;
        self.out.requests[op as usize] += 1;
        self.out.bytes[op as usize] += size;
        let request = Request {
            op,
            offset: base + offset,
            size,
        };
        self.station.arrive(t, request).due_ns
    }

    /// Continue a read, write or sync.
    pub(crate) fn go(&mut self, thread: u32, t: u64) {
        let program = self.program;
        let step = &program.steps[self.states[thread as usize].at as usize];
        if step.kind == Kind::Sync {
            return self.sync(thread, t, step.file);
        }
        let offset = self.states[thread as usize].offset;
        if step.direct || step.size == 0 {
            let op = if step.kind == Kind::Read {
                Op::Read
            } else {
                Op::Write
            };
            let mut due = t;
            let mut at = 0;
            let most = u64::from(MOST_PAGES) * PAGE_BYTES;
            while at < step.size {
                let size = most.min(step.size - at);
                due = due.max(self.device(t, op, step.file, offset + at, size));
                at += size;
            }
            let path = if step.size > 0 {
                program.analysis.path_ns
            } else {
                0
            };
            return self.push(due + step.own_ns + path, EventKind::End(thread));
        }
        let last = (offset + step.size - 1) / PAGE_BYTES;
        let wait = match step.kind {
            Kind::Read => self.read_on(thread, t, step, last),
            _ => self.write_on(thread, t, step, last),
        };
        if let Some(ready) = wait {
            self.states[thread as usize].missed = true;
            return self.push(ready, EventKind::Go(thread));
        }
        let path = if self.states[thread as usize].missed {
            program.analysis.path_ns
        } else {
            0
        };
        self.push(t + step.own_ns + path, EventKind::End(thread));
    }

    /// Read pages until one is not yet available or the call is complete (`filemap_read`). Return that page's time.
    fn read_on(&mut self, thread: u32, t: u64, step: &Step, last: u64) -> Option<u64> {
        let file = step.file;
        let limit = self.setting.readahead_bytes / PAGE_BYTES;
        let mut index = self.states[thread as usize].page;
        while index <= last {
            let page = (file, index as u32);
            let mut reader = *self.readers.entry((thread, file)).or_default();
            let mut entry = self.cache.find(page);
            if entry.is_none() {
                let cache = &self.cache;
                let cached = |n: u64| cache.find((file, n as u32)).is_some();
                let window = reader.missed(index, last - index + 1, limit, cached);
                self.fetch(t, file, window);
                entry = self.cache.find(page);
            } else if entry.is_some_and(|f| f.marked) {
                self.cache.unmark(page);
                let cache = &self.cache;
                let cached = |n: u64| cache.find((file, n as u32)).is_some();
                if let Some(window) = reader.reached(index, last - index + 1, limit, cached) {
                    self.fetch(t, file, window);
                }
            }
            self.readers.insert((thread, file), reader);
            let Some(entry) = entry else {
                // beyond the end of the file
                index += 1;
                continue;
            };
            if entry.ready_ns > t {
                self.out.pages_missed += 1;
                self.states[thread as usize].page = index;
                return Some(entry.ready_ns);
            }
            if let Some(reader) = self.readers.get_mut(&(thread, file)) {
                // consecutive reads of parts of one page are one access (mm/filemap.c, filemap_read)
                if reader.last_page != index {
                    self.cache.touch(page);
                }
            }
            self.out.pages_found += 1;
            index += 1;
        }
        let end = self.states[thread as usize].offset + step.size;
        if let Some(reader) = self.readers.get_mut(&(thread, file)) {
            reader.last_page = end / PAGE_BYTES;
        }
        self.states[thread as usize].page = index;
        None
    }

    /// Fetch the missing pages of a window from the device, in requests as long as possible.
    fn fetch(&mut self, t: u64, file: u32, window: Window) {
        let pages = self.sizes[file as usize].div_ceil(PAGE_BYTES);
        let end = (window.first + window.pages).min(pages);
        let mut first = window.first;
        while first < end {
            if self.cache.find((file, first as u32)).is_some() {
                first += 1;
                continue;
            }
            let mut n = 1;
            while first + n < end
                && n < u64::from(MOST_PAGES)
                && self.cache.find((file, (first + n) as u32)).is_none()
            {
                n += 1;
            }
            let size = (n * PAGE_BYTES).min(self.sizes[file as usize] - first * PAGE_BYTES);
            let due = self.device(t, Op::Read, file, first * PAGE_BYTES, size);
            for index in first..first + n {
                let marked = window.mark == Some(index);
                self.hold((file, index as u32), due, marked, t);
            }
            first += n;
        }
    }

    fn hold(&mut self, page: Page, ready: u64, marked: bool, t: u64) {
        for dirty in self.cache.insert(page, ready, marked, t) {
            self.write_back(t, dirty.0, dirty.1, dirty.1 + 1);
        }
    }

    /// Write back the dirty pages `first..end` of a file. Return the time at which the last one is complete.
    fn write_back(&mut self, t: u64, file: u32, first: u32, end: u32) -> u64 {
        let mut done = t;
        for (start, n) in self.cache.dirty_runs(file, first, end, MOST_PAGES) {
            let offset = u64::from(start) * PAGE_BYTES;
            let remaining = self.sizes[file as usize].saturating_sub(offset);
            let size = (u64::from(n) * PAGE_BYTES).min(remaining).max(1);
            let due = self.device(t, Op::Write, file, offset, size);
            for page in start..start + n {
                self.cache.clean((file, page), due);
            }
            done = done.max(due);
        }
        done
    }

    fn write_on(&mut self, thread: u32, t: u64, step: &Step, last: u64) -> Option<u64> {
        let file = step.file;
        let begin = self.states[thread as usize].offset;
        let end = begin + step.size;
        let size = self.sizes[file as usize];
        let mut index = self.states[thread as usize].page;
        while index <= last {
            let page = (file, index as u32);
            let from = index * PAGE_BYTES;
            match self.cache.find(page) {
                Some(cached) if cached.ready_ns > t => {
                    self.states[thread as usize].page = index;
                    return Some(cached.ready_ns);
                }
                Some(_) => {}
                None => {
                    let partly = begin > from || end < (from + PAGE_BYTES).min(size);
                    if partly && from < size {
                        let window = Window {
                            first: index,
                            pages: 1,
                            mark: None,
                        };
                        self.fetch(t, file, window);
                        if let Some(cached) = self.cache.find(page) {
                            self.states[thread as usize].page = index;
                            return Some(cached.ready_ns.max(t + 1));
                        }
                    }
                    self.hold(page, t, false, t);
                }
            }
            self.cache.touch(page);
            self.cache.soil(page, t);
            index += 1;
        }
        self.sizes[file as usize] = size.max(end);
        self.states[thread as usize].page = index;
        let dirty = self.cache.dirty as u64 * PAGE_BYTES;
        if dirty * 2 > self.setting.dirty_bytes {
            let mut files: Vec<(u64, u32)> = self
                .cache
                .dirt
                .iter()
                .map(|(f, d)| (d.since_ns, *f))
                .collect();
            files.sort_unstable();
            let mut done = t;
            for (_, file) in files {
                done = done.max(self.write_back(t, file, 0, u32::MAX));
            }
            if dirty > self.setting.dirty_bytes {
                return Some(done);
            }
        }
        None
    }

    fn sync(&mut self, thread: u32, t: u64, file: u32) {
        let under_way = self.cache.dirt.get(&file).map_or(0, |d| d.written_ns);
        let wrote = self
            .cache
            .dirt
            .get(&file)
            .is_some_and(|d| !d.pages.is_empty());
        let done = self.write_back(t, file, 0, u32::MAX).max(under_way).max(t);
        let path = if wrote {
            self.program.analysis.path_ns
        } else {
            0
        };
        self.push(done + path, EventKind::Flush(thread));
    }

    pub(crate) fn flush(&mut self, thread: u32, t: u64) {
        let file = self.step(thread).file;
        let done = self.device(t, Op::Flush, file, 0, 0);
        let path = self.program.analysis.path_ns;
        self.push(done + path, EventKind::End(thread));
    }

    pub(crate) fn kick(&mut self, step: u32, n: u32, t: u64) {
        let (_, file, offset, size) = self.program.steps[step as usize].kicks[n as usize];
        let first = (offset / PAGE_BYTES) as u32;
        let end = (offset + size).div_ceil(PAGE_BYTES) as u32;
        self.write_back(t, file, first, end.max(first + 1));
    }

    /// Handle the kernel's timer: write back files whose oldest dirty page is too old.
    pub(crate) fn wake(&mut self, t: u64) {
        let mut old: Vec<(u64, u32)> = self
            .cache
            .dirt
            .iter()
            .filter(|(_, d)| !d.pages.is_empty() && d.since_ns + OLD_NS <= t)
            .map(|(file, d)| (d.since_ns, *file))
            .collect();
        old.sort_unstable();
        for (_, file) in old {
            self.write_back(t, file, 0, u32::MAX);
        }
        self.push(t + WAKE_NS, EventKind::Wake);
    }
}
