//! Encoder of protocol buffers, limited to the fields that the exporters write.

/// A message under construction.
#[derive(Default, Debug)]
pub struct Message(pub Vec<u8>);

impl Message {
    /// Clear the message for reuse.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Append a field of type uint64, int64 (two's complement), uint32, enum or bool.
    pub fn number(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field) << 3);
        self.varint(value);
    }

    /// Append a field of type int64.
    pub fn signed(&mut self, field: u32, value: i64) {
        self.number(field, value as u64);
    }

    /// Append a field of type fixed64.
    pub fn fixed64(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field) << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Append a field of type double.
    pub fn double(&mut self, field: u32, value: f64) {
        self.fixed64(field, value.to_bits());
    }

    /// Append a field of type string, bytes or message.
    pub fn bytes(&mut self, field: u32, value: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    /// Append a field that is a message, which `fill` encodes.
    pub fn message(&mut self, field: u32, fill: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }
}

#[cfg(test)]
mod tests {
    use super::Message;

    #[test]
    fn encoding_matches_the_protobuf_guide() {
        let mut message = Message::default();
        message.number(1, 150);
        message.bytes(2, b"testing");
        assert_eq!(message.0, b"\x08\x96\x01\x12\x07testing");
        message.clear();
        message.signed(1, -2);
        assert_eq!(message.0, b"\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01");
    }
}
