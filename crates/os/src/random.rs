//! Random bytes from the kernel: secrets, ids and names.
//!
//! The functions panic if the kernel has no random numbers, which does not happen after boot. Secrets would not be secret
//! and ids not unique.

use rustix::rand::{GetRandomFlags, getrandom};

/// The characters of [`name`]: 32, so that each has 5 bits. Letters that look like others are left out.
const NAME_ALPHABET: &[u8; 32] = b"abcdefghjkmnpqrstuvwxyz023456789";

pub fn fill(buffer: &mut [u8]) {
    // The kernel fills up to 256 bytes in one call.
    for chunk in buffer.chunks_mut(256) {
        let filled = getrandom(&mut *chunk, GetRandomFlags::empty()).expect("the kernel has random numbers");
        assert_eq!(filled, chunk.len(), "the kernel fills a small buffer");
    }
}

/// A secret of this many bytes, as hexadecimal digits.
pub fn secret(bytes: usize) -> String {
    let mut buffer = vec![0; bytes];
    fill(&mut buffer);
    buffer.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A name of `length` lower-case letters and digits with 5 bits each. A short one may exist already.
pub fn name(length: usize) -> String {
    let mut buffer = vec![0; length];
    fill(&mut buffer);
    buffer.iter().map(|byte| char::from(NAME_ALPHABET[usize::from(byte % 32)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_names_have_their_length_and_alphabet_and_differ() {
        let (first, second) = (secret(300), secret(300));
        assert!(first.len() == 600 && first.bytes().all(|byte| byte.is_ascii_hexdigit()) && first != second);
        let (first, second) = (name(20), name(20));
        assert!(
            first.len() == 20 && first.bytes().all(|byte| NAME_ALPHABET.contains(&byte)) && first != second
        );
    }
}
