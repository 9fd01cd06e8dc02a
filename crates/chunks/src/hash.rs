//! Names of chunks: a hash of the content, or a unique name with a checksum.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use sha2::Digest;
use xxhash_rust::xxh3::xxh3_64;

/// Size of an address in bytes.
pub const ADDRESS_BYTES: usize = 32;

/// Address of a chunk in the store.
pub type Address = [u8; ADDRESS_BYTES];

/// Size of the name in a unique address, in bytes. A checksum of the content follows.
const UNIQUE_BYTES: usize = 16;

/// Naming scheme of chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Naming {
    /// A unique name, and the 64-bit xxHash3 of the content.
    Unique,
    /// SHA-256 of the content.
    Sha256,
    /// BLAKE3 of the content.
    Blake3,
}

impl Naming {
    /// Number of the scheme in a map.
    pub(crate) fn number(self) -> u8 {
        match self {
            Naming::Unique => 0,
            Naming::Sha256 => 1,
            Naming::Blake3 => 2,
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        [Naming::Unique, Naming::Sha256, Naming::Blake3]
            .into_iter()
            .find(|naming| naming.number() == number)
    }

    /// True if `content` is the content of the chunk at `address`.
    pub(crate) fn matches(self, address: &Address, content: &[u8]) -> bool {
        match self {
            Naming::Unique => address[UNIQUE_BYTES..24] == xxh3_64(content).to_le_bytes(),
            Naming::Sha256 => *address == sha256(content),
            Naming::Blake3 => address == blake3::hash(content).as_bytes(),
        }
    }

    /// Identity of the chunk. For a unique name it excludes the checksum, as the file name does.
    pub(crate) fn key(self, mut address: Address) -> (Naming, Address) {
        if self == Naming::Unique {
            address[UNIQUE_BYTES..].fill(0);
        }
        (self, address)
    }

    /// File name of the chunk. Its first two digits are the name of the directory.
    pub(crate) fn file_name(self, address: &Address) -> String {
        let (bytes, ending) = match self {
            Naming::Unique => (&address[..UNIQUE_BYTES], ".u"),
            Naming::Sha256 => (&address[..], ".s"),
            Naming::Blake3 => (&address[..], ""),
        };
        let mut name = String::with_capacity(2 * ADDRESS_BYTES + ending.len());
        for byte in bytes {
            let _ = write!(name, "{byte:02x}");
        }
        name + ending
    }
}

impl FromStr for Naming {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sha256" => Ok(Naming::Sha256),
            "blake3" => Ok(Naming::Blake3),
            _ => Err(format!("found {text:?}; expected blake3 or sha256")),
        }
    }
}

/// SHA-256 of `content`.
pub(crate) fn sha256(content: &[u8]) -> Address {
    sha2::Sha256::digest(content).into()
}

/// Generator of unique addresses for one process.
pub(crate) struct UniqueNames {
    prefix: u64,
    next: AtomicU64,
}

impl UniqueNames {
    /// Create a generator with a random prefix. Error: the host has no random numbers.
    pub(crate) fn new() -> io::Result<Self> {
        let mut random = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        Ok(UniqueNames {
            prefix: u64::from_le_bytes(random),
            next: AtomicU64::new(0),
        })
    }

    /// Prefix of all names, as text.
    pub(crate) fn prefix(&self) -> String {
        format!("{:016x}", self.prefix)
    }

    /// Number that was not used before.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Address of a chunk with this content.
    pub(crate) fn address(&self, content: &[u8]) -> Address {
        let mut address = [0; ADDRESS_BYTES];
        let number = self.number();
        // the number comes first, so that the directories are filled evenly
        address[..8].copy_from_slice(&number.to_le_bytes());
        address[8..UNIQUE_BYTES].copy_from_slice(&self.prefix.to_le_bytes());
        address[UNIQUE_BYTES..24].copy_from_slice(&xxh3_64(content).to_le_bytes());
        address
    }
}
