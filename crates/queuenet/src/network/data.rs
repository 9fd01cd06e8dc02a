//! Data transfer of an operation: choice of chunks and replicas, their order, and the window.

use super::choices::{Allocation, ReadReplica, Replication};
use super::engine::{draw, kind, station, Engine, Leg, Message, Stage, CLIENT, MANAGER};
use super::server::NONE;
use super::task::Phase;
use super::time::Ticks;

impl Engine<'_> {
    /// Number of replicas that the client itself sends.
    fn copies(&self, file: u32, chunk: u64) -> u16 {
        if self.network.store.replication == Replication::Client {
            self.files[file as usize].replicas(chunk) as u16
        } else {
            1
        }
    }

    /// Replica of a chunk that a task reads.
    fn replica(&self, task: u32, file: u32, chunk: u64) -> u16 {
        let local = match self.network.store.read_replica {
            ReadReplica::LocalFirst => Some(self.runs[task as usize].host),
            ReadReplica::Random => None,
        };
        let seed = self.seed;
        self.files[file as usize].replica_to_read(chunk, local, || {
            let key = draw::REPLICA ^ u64::from(task) << 32;
            let mut draws = Engine::draws(seed, key, u64::from(file), chunk);
            (draws.uniform() * (1u64 << 52) as f64) as u64
        }) as u16
    }

    /// Send the chunks of the operation, all at once or as many as the window allows.
    pub fn begin_data(&mut self, now: Ticks, task: u32) {
        if self.failure.is_some() {
            return;
        }
        let run = &mut self.runs[task as usize];
        run.phase = Phase::Data;
        run.phase_start = now;
        let (file, size, write, host) = (run.file, run.size, run.write, run.host);
        if size == 0 {
            self.data_over(now, task);
            return;
        }
        let chunk = self.files[file as usize].chunk_bytes.max(1);
        let first = run.offset / chunk;
        let end = (run.offset + size).div_ceil(chunk);
        run.cursor = [first; 2];
        run.end_chunk = end;
        run.copy = [0; 2];
        run.missing = None;
        if self.hosts[host as usize].cache.is_some() {
            self.through_cache(task, first, end);
        }
        let (mut remote, mut local, mut local_bytes, mut remote_bytes) = (0, 0, 0, 0);
        let listed = self.runs[task as usize]
            .missing
            .as_ref()
            .map(|missing| missing.len() as u64);
        let total = listed.unwrap_or(end - first);
        let mut own: Vec<(u64, u16)> = Vec::new();
        for i in 0..total {
            let chunk = match &self.runs[task as usize].missing {
                Some(missing) => missing[i as usize],
                None => first + i,
            };
            let (replicas, first_host) = self.files[file as usize].first_host(chunk);
            if replicas == 0 {
                let message = format!(
                    "task \"{}\" reads chunk {chunk} of file \"{}\", which was not yet written",
                    self.workload.tasks[task as usize].name,
                    self.workload.files[file as usize].name
                );
                self.fail("missing", message);
                return;
            }
            let copies = if write { self.copies(file, chunk) } else { 1 };
            for copy in 0..copies {
                let replica = if write || replicas == 1 {
                    copy
                } else {
                    self.replica(task, file, chunk)
                };
                let to = if replica == 0 {
                    first_host
                } else {
                    self.files[file as usize].host(chunk, u64::from(replica))
                };
                if to == host {
                    local += 1;
                    local_bytes += self.bytes_of(task, chunk);
                    if remote > 0 || total < 64 {
                        own.push((chunk, replica));
                    }
                } else {
                    remote += 1;
                    if listed.is_some() {
                        remote_bytes += self.bytes_of(task, chunk);
                    }
                }
            }
        }
        // list the local chunks separately if a search for them would have to skip all others
        if own.len() as u64 == local && remote > 0 {
            own.reverse();
        } else {
            own = Vec::new();
        }
        let run = &mut self.runs[task as usize];
        if listed.is_some() {
            run.cursor = [0; 2];
            run.end_chunk = total;
        }
        run.local_bytes = if listed.is_some() {
            // bytes from the cache are local too
            size.saturating_sub(remote_bytes)
        } else {
            local_bytes.min(size)
        };
        run.pending = remote + local;
        run.own = own;
        if remote + local == 0 {
            self.data_over(now, task);
            return;
        }
        match self.network.store.window {
            None => self.send_batch(now, task, remote, local),
            Some(window) => {
                for _ in 0..window {
                    self.send_next(now, task, NONE);
                }
            }
        }
    }

    /// Number of bytes of a chunk that the task's operation moves.
    fn bytes_of(&self, task: u32, chunk: u64) -> u64 {
        let run = &self.runs[task as usize];
        let file = &self.files[run.file as usize];
        let begin = chunk * file.chunk_bytes;
        if run.missing.is_some() {
            // a cache fetches complete chunks
            return file.size.saturating_sub(begin).min(file.chunk_bytes);
        }
        let end = (run.offset + run.size).min(begin + file.chunk_bytes);
        end - run.offset.max(begin).min(end)
    }

    /// Pass the chunks `first..end` through the client's cache. For a read, list the missing chunks, with prefetch.
    fn through_cache(&mut self, task: u32, first: u64, end: u64) {
        let run = &self.runs[task as usize];
        let (host, file, write) = (run.host, run.file, run.write);
        let described = &self.files[file as usize];
        let chunk_bytes = described.chunk_bytes.max(1);
        let chunks = described.size.div_ceil(chunk_bytes);
        let size_of = |chunk: u64| {
            described
                .size
                .saturating_sub(chunk * chunk_bytes)
                .min(chunk_bytes)
        };
        let prefetch = self.network.preprocess.prefetch_chunks;
        let Some(cache) = &mut self.hosts[host as usize].cache else {
            return;
        };
        if write {
            for chunk in first..end {
                cache.keep(file, chunk, size_of(chunk));
            }
            return;
        }
        let mut missing = Vec::new();
        for chunk in first..end {
            if cache.touch(file, chunk) {
                continue;
            }
            let ahead = (chunk + 1 + prefetch).min(chunks).max(chunk + 1);
            for fetched in chunk..ahead {
                if fetched == chunk || !cache.touch(file, fetched) {
                    missing.push(fetched);
                    cache.keep(file, fetched, size_of(fetched));
                }
            }
        }
        self.runs[task as usize].missing = Some(missing);
    }

    /// The next chunk of the operation as a message, for the loopback (`local`) or for the network.
    pub fn next_chunk(&mut self, task: u32, local: bool) -> Option<u32> {
        let which = usize::from(local);
        if local {
            let run = &mut self.runs[task as usize];
            if let Some((chunk, replica)) = run.own.pop() {
                if run.own.is_empty() {
                    run.cursor[1] = run.end_chunk;
                }
                let host = run.host;
                return Some(self.chunk_message(task, chunk, replica, host));
            }
        }
        loop {
            let (replica, chunk, to) = self.next_target(task, which)?;
            if (to == self.runs[task as usize].host) == local {
                return Some(self.chunk_message(task, chunk, replica, to));
            }
        }
    }

    /// Advance a cursor over (chunk, copy).
    fn next_target(&mut self, task: u32, which: usize) -> Option<(u16, u64, u32)> {
        let run = &self.runs[task as usize];
        if run.cursor[which] >= run.end_chunk {
            return None;
        }
        let (file, write) = (run.file, run.write);
        let chunk = match &run.missing {
            Some(missing) => missing[run.cursor[which] as usize],
            None => run.cursor[which],
        };
        let (replica, copies) = if write {
            (run.copy[which], self.copies(file, chunk))
        } else {
            (self.replica(task, file, chunk), 1)
        };
        let run = &mut self.runs[task as usize];
        run.copy[which] += 1;
        if run.copy[which] >= copies {
            run.copy[which] = 0;
            run.cursor[which] += 1;
        }
        let to = self.files[file as usize].host(chunk, u64::from(replica));
        Some((replica, chunk, to))
    }

    fn chunk_message(&mut self, task: u32, chunk: u64, replica: u16, to: u32) -> u32 {
        let data = self.bytes_of(task, chunk);
        let run = &self.runs[task as usize];
        let (from, file, write, joined) = (run.host, run.file, run.write, run.phase_start);
        self.message(Message {
            joined,
            bytes: if write { data } else { self.control },
            data,
            chunk,
            from,
            to,
            task,
            pending: 1,
            replica,
            stage: if write {
                Stage::WriteData
            } else {
                Stage::ReadRequest
            },
            write,
            stream: write && self.streams(file, chunk, replica),
            ..Message::EMPTY
        })
    }

    /// Send one more chunk of a windowed operation; the end of the message `after` allows it.
    fn send_next(&mut self, now: Ticks, task: u32, after: u32) {
        if let Some((replica, chunk, to)) = self.next_target(task, 0) {
            let slot = self.chunk_message(task, chunk, replica, to);
            if after != NONE {
                self.inherit(slot, after);
            }
            self.send(now, slot);
        }
    }

    /// Handle the completion of a chunk: read, or stored with all its replicas.
    pub fn chunk_done(&mut self, now: Ticks, slot: u32, task: u32) {
        let run = &mut self.runs[task as usize];
        run.pending -= 1;
        if run.pending == 0 {
            self.blame(task, slot);
            self.release(slot);
            self.data_over(now, task);
            return;
        }
        if self.network.store.window.is_some() {
            self.send_next(now, task, slot);
        }
        self.release(slot);
    }

    /// Wait for the tasks that write at the same time, then complete the write.
    fn contend(&mut self, now: Ticks, task: u32) {
        let others = f64::from(self.writers - 1);
        let ticks = self
            .clock
            .ticks(others * self.network.store.write_contention_s);
        if ticks == 0 {
            self.written(now, task);
            return;
        }
        let run = &mut self.runs[task as usize];
        run.phase = Phase::Contention;
        run.spent.write += ticks;
        let at = self
            .managers
            .first()
            .map_or(station(run.host, CLIENT), |m| station(*m, MANAGER));
        run.path.push(Leg {
            station: at,
            ticks: ticks as f32,
        });
        self.at(now + ticks, kind::TASK, task);
    }

    /// Complete a write after its data are stored.
    pub fn written(&mut self, now: Ticks, task: u32) {
        self.writers -= 1;
        if self.network.store.allocation == Allocation::Manager {
            self.ask_manager(now, task, Phase::ChunkMap);
        } else {
            self.operation_ends(now, task, "write");
        }
    }

    fn data_over(&mut self, now: Ticks, task: u32) {
        let run = &mut self.runs[task as usize];
        let spent = now - run.phase_start;
        if run.write {
            run.spent.write += spent;
            run.spent.written_bytes += run.size;
            run.spent.written_local += run.local_bytes;
            self.bytes.written += run.size;
            self.bytes.written_local += run.local_bytes;
            self.contend(now, task);
        } else {
            run.spent.read += spent;
            run.spent.read_bytes += run.size;
            run.spent.read_local += run.local_bytes;
            self.bytes.read += run.size;
            self.bytes.read_local += run.local_bytes;
            self.operation_ends(now, task, "read");
        }
    }
}
