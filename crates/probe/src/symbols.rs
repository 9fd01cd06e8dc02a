//! Addresses of the kernel's functions.

use std::fs::File;
use std::io::{BufRead, BufReader};

/// Address of a function of the kernel proper; 0 if unknown or hidden.
pub(crate) fn address_of(name: &str) -> u64 {
    let file = File::open("/proc/kallsyms");
    file.map_or(0, |file| address_in(BufReader::new(file), name))
}

/// Address in lines of /proc/kallsyms: address, type, name, and in brackets the module if any.
fn address_in(lines: impl BufRead, name: &str) -> u64 {
    let address = |line: String| {
        let (address, rest) = line.split_once(' ')?;
        let (_, symbol) = rest.split_once(' ')?;
        (symbol == name).then(|| u64::from_str_radix(address, 16).ok())?
    };
    let mut addresses = lines.lines().map_while(Result::ok).filter_map(address);
    addresses.next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_match_by_complete_name_in_the_kernel() {
        let lines =
            "ffffffff81000000 T aio_complete_rw_more\nffffffffc0000010 t aio_complete_rw\t[mod]\n\
                     ffffffff81000020 t aio_complete_rw\nffffffff81000030 T last\n";
        let address = |name| address_in(lines.as_bytes(), name);
        assert_eq!(address("aio_complete_rw"), 0xffff_ffff_8100_0020);
        assert_eq!(address("last"), 0xffff_ffff_8100_0030);
        assert_eq!(address("aio_complete"), 0);
    }
}
