//! The crate's one door to the system's time, and to chance.
//!
//! Not here: waiting. Tools are timed by their keepers, the model by its client.

use rustix::rand::{GetRandomFlags, getrandom};

/// Now, as the journal writes it.
pub(crate) fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

/// So many characters that nobody has used before.
pub(crate) fn fresh(length: usize) -> String {
    let mut bytes = vec![0_u8; length];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty()).unwrap_or(0);
    debug_assert_eq!(filled, length, "the kernel gives small amounts whole");
    bytes.iter().map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}

/// Without letters that are taken for others.
const ALPHABET: &[u8; 32] = b"abcdefghjkmnpqrstuvwxyz023456789";
