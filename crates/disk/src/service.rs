//! Service of data requests, in any thread: backing I/O, timing, reply.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fuser::ReplyData;
use penstock_daemon::clock::now_ns;
use penstock_station::Op;

use crate::backing::{existing_bytes, pread, pread_into};
use crate::disk::Disk;
use crate::faults::Place;
use crate::file_names::NO_FILE;
use crate::gate::{error, FAULTS, OFF, VOLATILE};
use crate::open_file::{place, Buffers, OpenFile, Reading};
use crate::ticket::{Target, Ticket};
use crate::timer::{when_sent, Timers};

/// A disk, its timers, and buffers.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) disk: Arc<Disk>,
    pub(crate) timers: Timers,
    pub(crate) buffers: Arc<Buffers>,
}

impl Service {
    pub(crate) fn ticket(
        &self,
        op: Op,
        open: &OpenFile,
        offset: u64,
        size: u32,
        pid: u32,
        arrival_ns: u64,
    ) -> Ticket {
        let target = Target {
            file_id: open.file_id,
            device_base: open.id.device_base,
            offset,
            size,
            pid,
        };
        self.disk.arrive(op, target, arrival_ns)
    }

    /// Call `act` when the ticket is due, now or in a timer thread, with the time of the call.
    fn when_due(&self, mut ticket: Ticket, act: impl FnOnce(u64, Ticket) + Send + 'static) {
        let now = now_ns();
        if ticket.due_ns <= now {
            return act(now, ticket);
        }
        let whose = (self.disk.number, ticket.id());
        self.timers.answer_at(
            ticket.due_ns + (self.disk.plant.timer_late_s * 1e9) as u64,
            whose,
            Box::new(move |now, moved| {
                if let Some(moved) = moved {
                    ticket.is_moved(&moved);
                }
                act(now, ticket);
            }),
        );
        // The disk may have changed while the request was on its way from the station to the timers.
        self.disk.move_late(&self.timers, whose.1);
    }

    /// Send the answer when the ticket is due.
    pub(crate) fn answer(&self, ticket: Ticket, answer: impl FnOnce() + Send + 'static) {
        let now = now_ns();
        if ticket.due_ns <= now {
            self.disk.complete(ticket, now);
            return answer();
        }
        let disk = self.disk.clone();
        self.when_due(ticket, move |now, ticket| {
            if disk.plant.reply_sleep_s > 0.0 {
                thread::sleep(Duration::from_secs_f64(disk.plant.reply_sleep_s));
            }
            // Send a due answer before bookkeeping.
            answer();
            when_sent(move |sent_ns| {
                // Sending is part of the path overhead, which was subtracted from the arrival. Only additional
                // time is lateness of the server.
                let sent_ns = sent_ns.saturating_sub(u64::from(ticket.record.compensation_ns));
                disk.complete(ticket, now.max(sent_ns));
            });
        });
    }

    /// Read the backing file, apply faults, and reply.
    pub(crate) fn read(&self, open: &OpenFile, reading: Reading, mut reply: ReplyData) {
        let Reading {
            offset,
            size,
            pid,
            arrival_ns,
        } = reading;
        let file = open.file.as_raw_fd();
        // At the end of a file the device transfers only existing bytes, and takes time only for them.
        let ticket = |bytes: u32| self.ticket(Op::Read, open, offset, bytes, pid, arrival_ns);
        let faulty = self.disk.gate.up() & FAULTS != 0;
        if let (Some(space), false) = (reply.space(), faulty) {
            let size = space.len().min(size as usize);
            // SAFETY: `space` is that long.
            let read = unsafe { pread_into(file, space.as_mut_ptr(), size, offset) };
            let bytes = match &read {
                Ok(existing) => *existing as u32,
                Err(_) => existing_bytes(&open.file, offset, size as u32),
            };
            let mut ticket = ticket(bytes);
            if read.is_err() {
                Disk::shorten(&mut ticket, 0);
            }
            ticket.fails(&read);
            return self.answer(ticket, move || match read {
                Ok(length) => reply.in_place(length),
                Err(error) => reply.error(error.into()),
            });
        }
        let mut buffer = self.buffers.take(size as usize);
        let mut read = pread(file, &mut buffer, size as usize, offset);
        let bytes = match &read {
            Ok(()) => buffer.len() as u32,
            Err(_) => existing_bytes(&open.file, offset, size),
        };
        let mut ticket = ticket(bytes);
        if faulty && read.is_ok() {
            let path = open.path();
            let place = place(&path, open.id, offset, ticket.visit());
            let on_read = self.disk.gate.faults().on_read(place, &mut buffer);
            read = on_read.map_err(error);
        }
        Disk::shorten(&mut ticket, buffer.len() as u32);
        ticket.fails(&read);
        let buffers = self.buffers.clone();
        self.answer(ticket, move || {
            match read {
                Ok(()) => reply.data(&buffer),
                Err(error) => reply.error(error.into()),
            }
            buffers.give(buffer);
        });
    }

    /// Serve a flush that arrived at `arrival_ns`, of a file or of no particular file.
    pub(crate) fn flush(
        &self,
        open: Option<&OpenFile>,
        pid: u32,
        arrival_ns: u64,
        answer: impl FnOnce(io::Result<()>) + Send + 'static,
    ) {
        if let Err(error) = self.disk.admit(Op::Flush) {
            return answer(Err(error));
        }
        let ticket = self
            .disk
            .arrive(Op::Flush, self.target(open, pid), arrival_ns);
        let flushed = self.make_durable(open, ticket.visit());
        let synced = flushed.and_then(|()| match open {
            Some(open) if self.disk.durable => open.file.sync_all(),
            _ => Ok(()),
        });
        self.flushed(ticket, synced, answer);
    }

    /// Flush after the write `written`, which must be durable before its reply. The flush starts at the end of
    /// the write. It does not pass through the kernel, so no path overhead is subtracted.
    pub(crate) fn flush_after(
        &self,
        written: Ticket,
        open: Arc<OpenFile>,
        answer: impl FnOnce(io::Result<()>) + Send + 'static,
    ) {
        let service = self.clone();
        let pid = written.record.pid;
        self.when_due(written, move |now, written| {
            let due_ns = written.due_ns;
            service.disk.complete(written, now);
            if let Err(error) = service.disk.admit(Op::Flush) {
                return answer(Err(error));
            }
            let target = service.target(Some(&open), pid);
            let ticket = service.disk.arrive_as_of(Op::Flush, target, now, due_ns);
            let flushed = service.make_durable(Some(&open), ticket.visit());
            service.flushed(ticket, flushed, answer);
        });
    }

    fn flushed(
        &self,
        mut ticket: Ticket,
        flushed: io::Result<()>,
        answer: impl FnOnce(io::Result<()>) + Send + 'static,
    ) {
        ticket.fails(&flushed);
        self.answer(ticket, move || answer(flushed));
    }

    fn target(&self, open: Option<&OpenFile>, pid: u32) -> Target {
        Target {
            file_id: open.map_or(NO_FILE, |open| open.file_id),
            device_base: open.map_or(0, |open| open.id.device_base),
            offset: 0,
            size: 0,
            pid,
        }
    }

    /// Apply the effects of a flush besides its time: it may fail, and it makes unflushed data durable.
    fn make_durable(&self, open: Option<&OpenFile>, visit: u32) -> io::Result<()> {
        let gate = &self.disk.gate;
        let up = gate.up();
        if up & FAULTS != 0 {
            let path = open.map_or_else(String::new, OpenFile::path);
            let place = Place {
                path: &path,
                base: open.map_or(0, |open| open.id.device_base),
                offset: 0,
                visit,
            };
            gate.faults().on_flush(place).map_err(error)?;
        }
        if up & VOLATILE != 0 {
            let mut unsynced = gate.unsynced();
            if gate.up() & OFF != 0 {
                return Err(error(libc::EIO));
            }
            if let Some(unsynced) = unsynced.as_mut() {
                unsynced.synced(open.map(|open| open.id.key));
            }
        }
        Ok(())
    }
}
