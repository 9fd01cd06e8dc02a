//! Classification of access patterns from the offsets and sizes of requests.
//!
//! For one file and direction, request *i* starts at offset *o<sub>i</sub>*, has *s<sub>i</sub>* bytes and ends at
//! *e<sub>i</sub>*. Its step is *d<sub>i</sub> = o<sub>i</sub> − e<sub>i−1</sub>*. The rules are evaluated in the order
//! of [`Class`]. A verdict includes the shares on which it is based and the Wilson bound of the deciding share.
//!
//! ```
//! use penstock_pattern::{classify, Class};
//!
//! let sizes = vec![4096i64; 100];
//! let diagonal: Vec<i64> = (0..100).map(|i| i * 4096).collect();
//! assert_eq!(classify(&diagonal, &sizes).class, Class::Consecutive);
//!
//! // two readers that take turns, each consecutive in its own half
//! let turns: Vec<i64> = (0..100).map(|i| (i / 2 + (i % 2) * 1000) * 4096).collect();
//! let verdict = classify(&turns, &sizes);
//! assert_eq!((verdict.class, verdict.k), (Class::Interleaved, Some(2)));
//! ```

mod chains;
mod epoch;
mod hotset;
mod phases;
mod sequence;
mod stream;
mod summary;
mod threads;
mod verdict;
mod zipf;

pub use epoch::{block_hash, epoch_requests, Counter, Epoch, SIZE_CLASSES};
pub use hotset::{HotSample, Spread};
pub use sequence::Request;
pub use stream::{Operation, Row, Stream, EXACT_REQUESTS};
pub use summary::{
    classify_epochs, judge_as_in_kernel, judge_epochs, judge_together, Epochs, MOST_EPOCHS,
};
pub use threads::Starts;
pub use verdict::{classify, judge, Class, Judgement, Phase, ThreadVerdict, Verdict};
