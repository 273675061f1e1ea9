//! Converts output to text without splitting characters at limits or chunk boundaries.

/// The longest prefix of `bytes` that does not end inside a character.
///
/// Invalid UTF-8 is kept: only an incomplete character at the end is cut off.
pub fn complete_utf8_prefix(bytes: &[u8]) -> &[u8] {
    for back in 1..=bytes.len().min(3) {
        let at = bytes.len() - back;
        let Some(lead) = bytes.get(at) else { break };
        let length = match lead {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => break,
        };
        return if length > back { bytes.get(..at).unwrap_or_default() } else { bytes };
    }
    bytes
}

/// Splits a stream of bytes into text between characters, and keeps the incomplete last one.
#[derive(Debug, Default)]
pub struct Utf8Pieces {
    rest: Vec<u8>,
}

impl Utf8Pieces {
    /// The text completed by these bytes, and how many earlier bytes it includes.
    pub fn push(&mut self, bytes: Vec<u8>) -> (String, usize) {
        let carried_bytes = self.rest.len();
        let mut joined =
            if carried_bytes == 0 { bytes } else { [std::mem::take(&mut self.rest), bytes].concat() };
        let whole = complete_utf8_prefix(&joined).len();
        self.rest = joined.split_off(whole);
        let text = String::from_utf8(joined);
        (text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()), carried_bytes)
    }

    /// The remaining bytes at the end of the stream.
    pub fn finish(&mut self) -> Option<(String, usize)> {
        let rest = std::mem::take(&mut self.rest);
        (!rest.is_empty()).then(|| (String::from_utf8_lossy(&rest).into_owned(), rest.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c10_a_cap_inside_a_character_cuts_before_it() {
        let text = "aé€😀";
        for cap in 0..=text.len() {
            let whole = complete_utf8_prefix(&text.as_bytes()[..cap]);
            assert!(str::from_utf8(whole).is_ok(), "cap {cap}");
            assert!(cap - whole.len() < 4);
        }
        assert_eq!(complete_utf8_prefix(b"\xff\xff\xff"), b"\xff\xff\xff");
        assert_eq!(complete_utf8_prefix(b"a\x80\x80\x80\x80"), b"a\x80\x80\x80\x80");
    }

    #[test]
    fn a_character_split_over_chunks_arrives_once_and_whole() {
        let mut pieces = Utf8Pieces::default();
        let mut got = String::new();
        for byte in "né€😀!".bytes() {
            got.push_str(&pieces.push(vec![byte]).0);
        }
        assert_eq!((got.as_str(), pieces.finish()), ("né€😀!", None));
    }
}
