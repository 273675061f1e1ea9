//! Wall-clock time and random names for this crate.
//!
//! Timeouts are not here: keepers enforce those of tools, and the model client enforces its own.

use rustix::rand::{GetRandomFlags, getrandom};

/// The current time as RFC 3339 in UTC, with milliseconds.
pub(crate) fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

/// A random name of `length` characters from [`ALPHABET`], 5 bits of entropy each.
pub(crate) fn fresh(length: usize) -> String {
    let mut bytes = vec![0_u8; length];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty()).unwrap_or(0);
    debug_assert_eq!(filled, length, "the kernel gives small amounts whole");
    bytes.iter().map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}

/// 32 characters, without letters that are easily confused with others.
const ALPHABET: &[u8; 32] = b"abcdefghjkmnpqrstuvwxyz023456789";
