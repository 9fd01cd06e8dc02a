//! Numbers as bytes: little-endian base-128 groups, as in Protocol Buffers, without tags.

/// Append `value`.
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Append a signed value: 0, -1, 1, -2, … are encoded as 0, 1, 2, 3, ….
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Remove and return the first value; `None` at the end or if the bytes are invalid.
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_values_round_trip() {
        let mut out = Vec::new();
        let values = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX];
        for v in values {
            put(&mut out, v);
        }
        let mut rest = out.as_slice();
        for v in values {
            assert_eq!(take(&mut rest), Some(v));
        }
        assert_eq!(take(&mut rest), None);
        let mut out = Vec::new();
        put_signed(&mut out, -1);
        put_signed(&mut out, i64::MIN);
        assert_eq!(out[0], 1);
        assert_eq!(take(&mut &out[1..]), Some(u64::MAX));
    }
}
