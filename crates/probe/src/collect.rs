//! Reader of the maps of the programs: counters, streams, names, run times.

use std::collections::HashMap;
use std::os::fd::AsFd;

use libbpf_rs::skel::Skel;
use libbpf_rs::{MapCore, MapFlags};
use serde_json::json;

use crate::hooks::FEATURES;
use crate::layout::{Counter, Stream, SAMPLES};
use crate::live;
use crate::mode::Mode;
use crate::names::{is_done, operation_line};
use crate::object::{lanes, COUNTED_FILES, NOTEBOOKS};
use crate::program::run_time;
use crate::recording::{operations_of, Recording};
use crate::tracer::{Tracer, BATCH};
use crate::ProbeError;

impl Tracer {
    /// Current epoch of a stream and its samples, in the form of the spool.
    pub(crate) fn with_samples(&self, stream: &Stream) -> Vec<u8> {
        let named = (1..=NOTEBOOKS).contains(&(stream.notebook as usize));
        let count = if named {
            (stream.samples as usize).min(SAMPLES)
        } else {
            0
        };
        let mut sampled = *stream;
        sampled.samples = count as u32;
        let mut bytes = live::bytes_of(&sampled).to_vec();
        if count > 0 {
            let notebook = self.notebooks.read(stream.notebook as usize - 1);
            let samples = notebook.samples[..count].iter();
            bytes.extend(samples.flat_map(|sample| sample.to_le_bytes()));
        }
        bytes
    }

    /// Mode count: file_id, direction, calls, errors, bytes requested and bytes done, as six 64-bit numbers.
    pub(crate) fn write_counters(&self, recording: &mut Recording) {
        if self.mode != Mode::Count {
            return;
        }
        for (number, sum) in self.counts() {
            let row = [
                number as u64 / 2,
                number as u64 % 2,
                sum.calls,
                sum.errors,
                sum.asked_bytes,
                sum.done_bytes,
            ];
            let bytes: Vec<u8> = row.iter().flat_map(|field| field.to_le_bytes()).collect();
            recording.spool.put(&bytes, sum.calls);
        }
    }

    /// Counters that are not zero, by index: twice the file's number, plus one for writes.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (usize, Counter)> + '_ {
        let lanes = lanes(self.cpus);
        let files = self.files_so_far().min(COUNTED_FILES - 1);
        let of = move |number: usize| {
            let of_lane = |lane| self.counters.read(number * lanes + lane);
            (0..lanes)
                .map(of_lane)
                .fold(Counter::default(), |a, b| Counter {
                    calls: a.calls + b.calls,
                    errors: a.errors + b.errors,
                    asked_bytes: a.asked_bytes + b.asked_bytes,
                    done_bytes: a.done_bytes + b.done_bytes,
                })
        };
        (2..2 * (files + 1))
            .map(move |number| (number, of(number)))
            .filter(|(_, sum)| sum.calls > 0)
    }

    pub(crate) fn streams_so_far(&self) -> usize {
        let bss = self.loaded.skeleton.maps.bss_data.as_ref();
        bss.map_or(0, |bss| bss.control.next_stream as usize)
            .min(self.stream_count)
    }

    pub(crate) fn files_so_far(&self) -> usize {
        let bss = self.loaded.skeleton.maps.bss_data.as_ref();
        bss.map_or(0, |bss| bss.control.next_file as usize)
    }

    /// Presences (pages that a process had mapped at its end) that were lost, since loading.
    pub(crate) fn presences_lost(&self) -> u64 {
        let bss = self.loaded.skeleton.maps.bss_data.as_ref();
        bss.map_or(0, |bss| bss.presences_lost)
    }

    pub(crate) fn marks_lost(&self) -> u64 {
        let bss = self.loaded.skeleton.maps.bss_data.as_ref();
        bss.map_or(0, |bss| bss.control.marks_lost)
    }

    pub(crate) fn notebooks_used(&self) -> usize {
        let bss = self.loaded.skeleton.maps.bss_data.as_ref();
        bss.map_or(0, |bss| bss.control.next_notebook as usize)
            .min(NOTEBOOKS)
    }

    /// Write the current epoch of every stream, as an epoch that ends now.
    pub(crate) fn write_streams(&self, recording: &mut Recording) -> usize {
        if self.mode != Mode::Pattern && self.hot.is_none() {
            return 0;
        }
        let used = self.streams_so_far();
        let (mut batch, mut operations) = (Vec::new(), 0);
        for index in 0..used {
            let stream = self.streams.read(index);
            operations += operations_of(&stream);
            batch.extend(self.with_samples(&stream));
            if batch.len() > BATCH || index + 1 == used {
                recording.keep_counted(&batch, operations);
                batch.clear();
                operations = 0;
            }
        }
        used
    }

    /// Write the identity of every file without its path, for files whose announcement was lost.
    pub(crate) fn write_unannounced(&self, recording: &mut Recording) -> Result<(), ProbeError> {
        if recording.announced.iter().filter(|&&came| came).count() == self.files_so_far() {
            return Ok(());
        }
        let map = &self.loaded.skeleton.maps.files;
        let mut lines = String::new();
        for key in map.keys() {
            let Some(value) = map.lookup(&key, MapFlags::ANY)? else {
                continue;
            };
            let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap_or_default());
            if recording.announced.get(number(&value) as usize) == Some(&true) {
                continue;
            }
            let device = number(&key[8..12]);
            let line = json!({
                "file_id": number(&value),
                "inode": u64::from_le_bytes(key[..8].try_into().unwrap_or_default()),
                "dev_major": device >> 20,
                "dev_minor": device & 0xf_ffff,
                "generation": number(&key[12..16]),
            });
            lines.push_str(&format!("{line}\n"));
        }
        recording.files.put(lines.as_bytes(), 0);
        Ok(())
    }

    /// Asynchronous requests that were submitted and whose completion was not seen.
    pub(crate) fn in_flight(&self) -> usize {
        let map = &self.loaded.skeleton.maps.requests;
        map.keys()
            .filter_map(|key| map.lookup(&key, MapFlags::ANY).ok().flatten())
            .filter(|request| !is_done(request))
            .count()
    }

    /// Write the sums of the rare operations, one line per file and operation.
    pub(crate) fn write_operations(&self, recording: &mut Recording) -> Result<(), ProbeError> {
        let map = &self.loaded.skeleton.maps.operations;
        let mut lines = String::new();
        for key in map.keys() {
            if let Some(sum) = map.lookup(&key, MapFlags::ANY)? {
                lines.push_str(&operation_line(&key, &sum).unwrap_or_default());
            }
        }
        recording.files.put(lines.as_bytes(), 0);
        Ok(())
    }

    pub(crate) fn cgroup_slots(&self, target: u64) -> HashMap<String, u64> {
        let map = &self.loaded.skeleton.maps.cgroups;
        let mut slots = HashMap::from([("0".to_owned(), target)]);
        for key in map.keys() {
            if let (Ok(id), Ok(Some(slot))) = (
                <[u8; 8]>::try_from(key.as_slice()),
                map.lookup(&key, MapFlags::ANY),
            ) {
                let slot = slot
                    .first_chunk::<4>()
                    .map_or(0, |b| u32::from_le_bytes(*b));
                slots.insert(slot.to_string(), u64::from_le_bytes(id));
            }
        }
        slots
    }

    /// Group of a program, by its number: 0 for programs of system calls, 1 for others.
    pub(crate) fn group_of(&self, number: usize) -> usize {
        let name = self.loaded.programs.get(number);
        let calls = FEATURES.iter().find(|f| f.name == "calls");
        let mut ways = calls.iter().flat_map(|feature| feature.ways);
        let called = ways.any(|way| {
            name.is_some_and(|name| way.programs.contains(name) || way.entries.contains(name))
        });
        usize::from(!called)
    }

    /// (ns, runs) of each attached program; zero unless the kernel's BPF statistics are on.
    pub(crate) fn run_times(&self) -> Vec<(u64, u64)> {
        let object = self.loaded.skeleton.object();
        let of = |name: &&str| object.progs().find(|program| program.name() == *name);
        let programs = self.loaded.programs.iter();
        programs
            .map(|name| of(name).map_or((0, 0), |program| run_time(program.as_fd())))
            .collect()
    }
}
