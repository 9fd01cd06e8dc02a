//! Frames of packet sockets: a virtio header and an Ethernet frame, which may contain several segments.

/// struct virtio_net_hdr: flags, segment type, header length, segment size, start of the checksum, offset to
/// store it.
pub const VIRTIO_BYTES: usize = 10;
/// Size of the first buffer: an Ethernet frame of 1500 bytes and its headers. Only large segments need more.
pub const HEAD_BYTES: usize = 2048;
/// Size of the second buffer: the rest of the largest frame, with segments up to 64 KiB and their headers.
pub const TAIL_BYTES: usize = 66 * 1024;

const NEEDS_SUM: u8 = 1;
const ETHERNET_BYTES: usize = 14;

/// Hardware address.
pub type Mac = [u8; 6];

/// One frame in buffers of the pool.
#[derive(Debug)]
pub struct Frame {
    pub head: Box<[u8; HEAD_BYTES]>,
    pub tail: Option<Box<[u8; TAIL_BYTES]>>,
    /// Length in bytes, with the virtio header.
    pub len: usize,
}

impl Frame {
    /// True if the frame has complete headers.
    pub fn is_complete(&self) -> bool {
        self.len >= VIRTIO_BYTES + ETHERNET_BYTES
    }

    fn mac(&self, at: usize) -> Mac {
        let mut mac = [0; 6];
        mac.copy_from_slice(&self.head[VIRTIO_BYTES + at..VIRTIO_BYTES + at + 6]);
        mac
    }

    /// Destination address.
    pub fn to(&self) -> Mac {
        self.mac(0)
    }

    /// Source address.
    pub fn from(&self) -> Mac {
        self.mac(6)
    }

    /// Bytes on the wire.
    pub fn wire_bytes(&self) -> u64 {
        self.len.saturating_sub(VIRTIO_BYTES) as u64
    }

    /// Memory of the frame's buffers, in bytes.
    pub fn buffered_bytes(&self) -> usize {
        HEAD_BYTES + self.tail.as_ref().map_or(0, |_| TAIL_BYTES)
    }

    /// Copy of the frame in its own buffers.
    pub fn copy(&self) -> Frame {
        Frame {
            head: self.head.clone(),
            tail: self.tail.clone(),
            len: self.len,
        }
    }

    /// Flip one bit behind the Ethernet header; `number` selects the bit.
    ///
    /// Complete an offloaded checksum first. Otherwise the kernel would compute it over the flipped bit, and no
    /// receiver could detect the corruption.
    pub fn turn_bit(&mut self, number: u64) {
        let end = self.len.min(HEAD_BYTES);
        self.complete_sum(end);
        let first = VIRTIO_BYTES + ETHERNET_BYTES;
        if end <= first {
            return;
        }
        let bit = number as usize % ((end - first) * 8);
        self.head[first + bit / 8] ^= 1 << (bit % 8);
    }

    fn complete_sum(&mut self, end: usize) {
        if self.head[0] & NEEDS_SUM == 0 || self.tail.is_some() || self.head[1] != 0 {
            return;
        }
        let word = |at: usize| usize::from(u16::from_ne_bytes([self.head[at], self.head[at + 1]]));
        let start = VIRTIO_BYTES + word(6);
        let place = start + word(8);
        // the node states the start of the checksum: it must lie behind the addresses, as for a normal packet
        if start < VIRTIO_BYTES + ETHERNET_BYTES || place + 2 > end {
            return;
        }
        // the field contains the sum of the pseudo header
        let sum = ones_complement(&self.head[start..end]);
        let sum = if sum == 0xffff { sum } else { !sum };
        self.head[place..place + 2].copy_from_slice(&sum.to_be_bytes());
        self.head[0] &= !NEEDS_SUM;
    }
}

/// Sum of RFC 1071, not complemented.
fn ones_complement(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Free buffers.
#[derive(Debug, Default)]
#[allow(clippy::vec_box)] // the boxes move into frames; their bytes must not move
pub struct Pool {
    heads: Vec<Box<[u8; HEAD_BYTES]>>,
    tails: Vec<Box<[u8; TAIL_BYTES]>>,
}

/// Limit of free buffers per kind. Further buffers are freed.
const MOST_FREE: usize = 512;

impl Pool {
    /// Return a buffer for the first part of a frame.
    pub fn head(&mut self) -> Box<[u8; HEAD_BYTES]> {
        self.heads
            .pop()
            .unwrap_or_else(|| Box::new([0; HEAD_BYTES]))
    }

    /// Return a buffer for the rest of a large frame.
    pub fn tail(&mut self) -> Box<[u8; TAIL_BYTES]> {
        self.tails
            .pop()
            .unwrap_or_else(|| vec![0; TAIL_BYTES].into_boxed_slice().try_into().unwrap())
    }

    /// Return the buffers of a frame to the pool.
    pub fn take(&mut self, frame: Frame) {
        if self.heads.len() < MOST_FREE {
            self.heads.push(frame.head);
        }
        if let Some(tail) = frame.tail {
            if self.tails.len() < MOST_FREE / 8 {
                self.tails.push(tail);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::switch::{Destination, Switch};

    /// IPv4 UDP datagram with an offloaded checksum, as the kernel delivers it.
    fn datagram(payload: &[u8]) -> Frame {
        let mut bytes = vec![NEEDS_SUM, 0, 0, 0, 0, 0];
        bytes.extend(34u16.to_ne_bytes());
        bytes.extend(6u16.to_ne_bytes());
        bytes.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        let length = 8 + payload.len() as u16;
        let mut ip = vec![
            0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 88, 0, 1, 10, 88, 0, 2,
        ];
        ip[2..4].copy_from_slice(&(20 + length).to_be_bytes());
        bytes.extend(&ip);
        let mut pseudo = ip[12..20].to_vec();
        pseudo.extend([0, 17]);
        pseudo.extend(length.to_be_bytes());
        bytes.extend([0x12, 0x34, 0, 53]);
        bytes.extend(length.to_be_bytes());
        bytes.extend(ones_complement(&pseudo).to_be_bytes());
        bytes.extend(payload);
        let mut head = Box::new([0; HEAD_BYTES]);
        head[..bytes.len()].copy_from_slice(&bytes);
        Frame {
            head,
            tail: None,
            len: bytes.len(),
        }
    }

    /// Receiver's checksum over pseudo header and datagram: all ones if the checksum is correct.
    fn received(frame: &Frame) -> u16 {
        let ip = VIRTIO_BYTES + ETHERNET_BYTES;
        let mut bytes = frame.head[ip + 12..ip + 20].to_vec();
        bytes.extend([0, 17]);
        bytes.extend(&frame.head[ip + 24..ip + 26]);
        bytes.extend(&frame.head[ip + 20..frame.len]);
        ones_complement(&bytes)
    }

    #[test]
    fn checksum_detects_bit_flips() {
        let mut frame = datagram(b"hello, world!");
        frame.complete_sum(frame.len);
        assert_eq!(received(&frame), 0xffff);
        assert_eq!(frame.head[0], 0);
        let mut frame = datagram(b"hello, world!");
        let before = frame.copy();
        frame.turn_bit((20 + 8 + 3) * 8 + 2);
        assert_ne!(received(&frame), 0xffff);
        let turned: u32 = (VIRTIO_BYTES..frame.len)
            .map(|i| (frame.head[i] ^ before.head[i]).count_ones())
            .sum();
        assert!(turned <= 17, "one bit and the checksum, not {turned} bits");
        assert_eq!((frame.to(), frame.from()), (before.to(), before.from()));
    }

    #[test]
    fn bit_flips_leave_addresses_unchanged() {
        let mut frame = datagram(b"hello, world!");
        frame.head[6..10].fill(0); // as if the sum began with the frame
        let before = frame.copy();
        frame.turn_bit(0);
        assert_eq!((frame.to(), frame.from()), (before.to(), before.from()));
    }

    fn any_frame() -> impl Strategy<Value = Frame> {
        // position of the checksum: mostly near the start, as in real frames
        let word = || prop_oneof![3 => 0u16..80, 1 => any::<u16>()];
        let header = (any::<u8>(), any::<u8>(), word(), word());
        let bytes = vec(any::<u8>(), 14..HEAD_BYTES - VIRTIO_BYTES);
        (header, bytes, 0..3 * TAIL_BYTES).prop_map(
            |((flags, kind, start, offset), bytes, longer)| {
                let mut head = Box::new([0; HEAD_BYTES]);
                (head[0], head[1]) = (flags & 1, kind & 3);
                head[6..8].copy_from_slice(&start.to_ne_bytes());
                head[8..10].copy_from_slice(&offset.to_ne_bytes());
                head[VIRTIO_BYTES..VIRTIO_BYTES + bytes.len()].copy_from_slice(&bytes);
                // two thirds fit into the head, as most frames do
                let large = longer < TAIL_BYTES;
                Frame {
                    head,
                    tail: large.then(|| vec![0; TAIL_BYTES].into_boxed_slice().try_into().unwrap()),
                    len: if large {
                        HEAD_BYTES + longer
                    } else {
                        VIRTIO_BYTES + bytes.len()
                    },
                }
            },
        )
    }

    proptest! {
        /// For any frame: one bit behind the addresses flips, and the checksum may be completed.
        #[test]
        fn bit_flips_stay_within_the_frame(frame in any_frame(), number: u64) {
            let mut turned = frame.copy();
            turned.turn_bit(number);
            prop_assert_eq!((turned.to(), turned.from(), turned.len), (frame.to(), frame.from(), frame.len));
            let differ: Vec<usize> = (1..HEAD_BYTES).filter(|&i| turned.head[i] != frame.head[i]).collect();
            prop_assert!(differ.len() <= 3, "{:?}", differ);
            prop_assert!(differ.iter().all(|&i| i < frame.len), "{:?}", differ);
            prop_assert!(turned.head[0] <= frame.head[0]);
        }

        /// Frames with arbitrary addresses go to another port of the network, never back.
        #[test]
        fn frames_are_never_sent_back_to_the_source(frames in vec((0u32..3, any_mac(), any_mac()), 1..40)) {
            let mut switch = Switch::default();
            switch.ports.extend([0, 1, 2]);
            for (port, from, to) in frames {
                if let Destination::Port(target) = switch.route(port, from, to) {
                    prop_assert!(target != port && switch.ports.contains(&target));
                }
            }
        }
    }

    /// Few addresses, so that they collide; some are group addresses.
    fn any_mac() -> impl Strategy<Value = Mac> {
        (0u8..4, 0u8..4).prop_map(|(first, last)| [first, 0, 0, 0, 0, last])
    }
}
