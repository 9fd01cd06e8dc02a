//! Perfetto TrackEvent protobuf.
