//! Packet sockets (packet(7)): all frames of one link, with kernel receive times and unsplit large segments.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use penstock_daemon::clock::{now_ns, real_ns};
use penstock_daemon::Error;

use crate::frame::{Frame, Pool, HEAD_BYTES, TAIL_BYTES};

/// linux/if_packet.h
const PACKET_VNET_HDR: i32 = 15;
const PACKET_IGNORE_OUTGOING: i32 = 23;
const PACKET_STATISTICS: i32 = 6;
const ETH_P_ALL: u16 = 3;
/// Receive buffer of the kernel.
const RECEIVE_BYTES: i32 = 16 << 20;
/// Send buffer: frames on their way out, such as those that wait for bandwidth.
const SEND_BYTES: i32 = 64 << 20;
/// Maximum number of frames per read.
const BATCH: usize = 16;
/// Oldest credible receive time. An older one means that the clock was set.
const OLDEST_NS: u64 = 1_000_000_000;

/// A socket on one link.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

fn set(fd: RawFd, level: i32, name: i32, value: i32, what: &str) -> Result<(), Error> {
    // SAFETY: an integer option with its size.
    let status = unsafe {
        libc::setsockopt(
            fd,
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as u32,
        )
    };
    if status == 0 {
        Ok(())
    } else {
        Err(Error::last(what))
    }
}

impl PacketSocket {
    /// Open a socket for all frames that arrive on a link.
    pub fn open(ifindex: i32) -> Result<Self, Error> {
        if ifindex < 1 {
            // packet(7): 0 would be all links
            return Err(Error::Bad(format!("there is no link {ifindex}")));
        }
        // SAFETY: plain calls; the descriptor is owned from here on.
        let raw = unsafe {
            libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            )
        };
        if raw < 0 {
            return Err(Error::last("packet socket"));
        }
        // SAFETY: just opened.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        set(raw, libc::SOL_PACKET, PACKET_VNET_HDR, 1, "PACKET_VNET_HDR")?;
        set(
            raw,
            libc::SOL_PACKET,
            PACKET_IGNORE_OUTGOING,
            1,
            "PACKET_IGNORE_OUTGOING",
        )?;
        set(
            raw,
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            1,
            "SO_TIMESTAMPNS",
        )?;
        set(
            raw,
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            RECEIVE_BYTES,
            "SO_RCVBUFFORCE",
        )?;
        set(
            raw,
            libc::SOL_SOCKET,
            libc::SO_SNDBUFFORCE,
            SEND_BYTES,
            "SO_SNDBUFFORCE",
        )?;
        // SAFETY: a zeroed address is valid, then filled in.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = ETH_P_ALL.to_be();
        address.sll_ifindex = ifindex;
        // SAFETY: a valid address with its size.
        let status = unsafe {
            libc::bind(
                raw,
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        if status != 0 {
            return Err(Error::last(format!("binding to link {ifindex}")));
        }
        Ok(PacketSocket { fd })
    }

    /// Send a frame. Return false if the link's queue dropped it or the link is gone.
    pub fn send(&self, frame: &Frame) -> bool {
        let first = frame.len.min(HEAD_BYTES);
        let mut parts = [
            libc::iovec {
                iov_base: frame.head.as_ptr().cast_mut().cast(),
                iov_len: first,
            },
            libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            },
        ];
        let mut n = 1;
        if let Some(tail) = &frame.tail {
            parts[1].iov_base = tail.as_ptr().cast_mut().cast();
            parts[1].iov_len = frame.len - first;
            n = 2;
        }
        // SAFETY: the parts point to the frame's buffers, which outlive the call.
        unsafe { libc::writev(self.fd.as_raw_fd(), parts.as_ptr(), n) >= 0 }
    }

    /// Number of frames since the last call that did not fit in the kernel's buffer.
    pub fn dropped(&self) -> u64 {
        let mut seen = [0u32; 2];
        let mut size = size_of::<[u32; 2]>() as u32;
        // SAFETY: struct tpacket_stats is two 32-bit counters.
        let status = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                PACKET_STATISTICS,
                seen.as_mut_ptr().cast(),
                &mut size,
            )
        };
        if status == 0 {
            u64::from(seen[1])
        } else {
            0
        }
    }
}

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; 64]);

/// Reader of batches of frames, into buffers of the pool.
pub struct Reader {
    heads: Vec<Option<Box<[u8; HEAD_BYTES]>>>,
    tails: Vec<Option<Box<[u8; TAIL_BYTES]>>>,
}

impl Reader {
    /// Reader without buffers.
    pub fn new() -> Self {
        Reader {
            heads: (0..BATCH).map(|_| None).collect(),
            tails: (0..BATCH).map(|_| None).collect(),
        }
    }

    /// Read available frames, at most [`BATCH`], each with its receive time (CLOCK_MONOTONIC). Return true if
    /// more frames may be available.
    pub fn read(
        &mut self,
        socket: &PacketSocket,
        pool: &mut Pool,
        mut each: impl FnMut(&mut Pool, u64, Frame),
    ) -> bool {
        let mut parts = [[libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; 2]; BATCH];
        let mut controls = [Control([0; 64]); BATCH];
        // SAFETY: zeroed message headers are valid, then filled in.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
        for i in 0..BATCH {
            let head = self.heads[i].get_or_insert_with(|| pool.head());
            let tail = self.tails[i].get_or_insert_with(|| pool.tail());
            parts[i] = [
                libc::iovec {
                    iov_base: head.as_mut_ptr().cast(),
                    iov_len: HEAD_BYTES,
                },
                libc::iovec {
                    iov_base: tail.as_mut_ptr().cast(),
                    iov_len: TAIL_BYTES,
                },
            ];
            messages[i].msg_hdr.msg_iov = parts[i].as_mut_ptr();
            messages[i].msg_hdr.msg_iovlen = 2;
            messages[i].msg_hdr.msg_control = controls[i].0.as_mut_ptr().cast();
            messages[i].msg_hdr.msg_controllen = size_of::<Control>() as _;
        }
        // SAFETY: every header points to buffers that outlive the call.
        let got = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                BATCH as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let Ok(got) = usize::try_from(got) else {
            let _ = io::Error::last_os_error(); // nothing to read, or the link is down: keep the socket
            return false;
        };
        let (now, real) = (now_ns(), real_ns());
        for (i, message) in messages.iter().enumerate().take(got) {
            let len = message.msg_len as usize;
            let Some(head) = self.heads[i].take() else {
                continue;
            };
            let tail = (len > HEAD_BYTES).then(|| self.tails[i].take()).flatten();
            let age = stamp_ns(&message.msg_hdr)
                .and_then(|stamp| real.checked_sub(stamp))
                .filter(|age| *age < OLDEST_NS)
                .unwrap_or(0);
            let untruncated = message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            let frame = Frame { head, tail, len };
            if untruncated && frame.is_complete() {
                each(pool, now - age, frame);
            } else {
                pool.take(frame);
            }
        }
        got == BATCH
    }
}

/// Kernel receive time from a message's control data, CLOCK_REALTIME.
fn stamp_ns(header: &libc::msghdr) -> Option<u64> {
    // SAFETY: the header was filled in by recvmmsg; the macros stay within its control data.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_TIMESTAMPNS {
                let stamp: libc::timespec =
                    std::ptr::read_unaligned(libc::CMSG_DATA(at).cast::<libc::timespec>());
                return Some(stamp.tv_sec as u64 * 1_000_000_000 + stamp.tv_nsec as u64);
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::PacketSocket;

    #[test]
    fn invalid_interface_numbers_are_refused() {
        for number in [0, -1, i32::MIN] {
            let refused = PacketSocket::open(number).unwrap_err().to_string();
            assert!(refused.contains("there is no link"), "{refused}");
        }
    }
}
