//! Position of a file on the emulated device.

use penstock_station::FILE_BITS;

/// FNV-1a, 64 bits (Fowler, Noll, Vo; draft-eastlake-fnv).
fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Device offset of the first byte of the file at `path` (relative to the mount).
pub fn file_base(path: &str) -> u64 {
    penstock_station::file_base(fnv1a64(path.trim_start_matches('/').as_bytes()))
}

/// Device offset in bytes of byte `offset` of the file at `path` (relative to the mount).
pub fn device_offset(path: &str, offset: u64) -> u64 {
    file_base(path) | (offset & ((1 << FILE_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_matches_published_vectors() {
        // Test vectors of the FNV reference distribution.
        assert_eq!(fnv1a64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a64(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a64(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn files_have_contiguous_and_separate_positions() {
        assert_eq!(
            device_offset("base/1", 4096) - device_offset("base/1", 0),
            4096
        );
        assert_eq!(device_offset("/base/1", 7), device_offset("base/1", 7));
        assert!(device_offset("a", 0).abs_diff(device_offset("b", 0)) >= 1 << FILE_BITS);
    }
}
