//! Escapes text for JSON strings.
//!
//! The result equals that of `serde_json`. Text is scanned in blocks instead of bytes, because streamed output has few
//! characters that need escaping and escaping would otherwise dominate the cost of a stream.

/// Appends the escaped text without surrounding quotes.
pub(crate) fn escape(text: &str, out: &mut Vec<u8>) {
    let mut rest = text.as_bytes();
    out.reserve(rest.len());
    loop {
        let (plain, others) = rest.split_at(unescaped_prefix_bytes(rest));
        out.extend_from_slice(plain);
        let Some((special, others)) = others.split_first() else { return };
        match special {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            control => out.extend_from_slice(format!("\\u{control:04x}").as_bytes()),
        }
        rest = others;
    }
}

const BLOCK_BYTES: usize = 64;

/// Returns the number of bytes before the first one that needs escaping.
fn unescaped_prefix_bytes(bytes: &[u8]) -> usize {
    let (blocks, _) = bytes.as_chunks::<BLOCK_BYTES>();
    // There is no early exit inside a block, so that the compiler can vectorise the loop.
    let plain = |block: &&[u8; BLOCK_BYTES]| !block.iter().fold(false, |any, byte| any | needs_escape(*byte));
    let before = blocks.iter().take_while(plain).count() * BLOCK_BYTES;
    let rest = bytes.get(before..).unwrap_or_default();
    before + rest.iter().position(|byte| needs_escape(*byte)).unwrap_or(rest.len())
}

fn needs_escape(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'"') | (byte == b'\\')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn escaped(text: &str) -> String {
        let mut out = vec![b'"'];
        escape(text, &mut out);
        out.push(b'"');
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_character_is_escaped_as_serde_does() {
        let text: String = (0..0x3000).filter_map(char::from_u32).collect();
        assert_eq!(escaped(&text), serde_json::to_string(&text).unwrap());
    }

    proptest! {
        #[test]
        fn an_escape_is_found_wherever_it_stands(before in 0usize..200, after in 0usize..200, one in any::<char>()) {
            let text = format!("{}{one}{}", "x".repeat(before), "é".repeat(after));
            prop_assert_eq!(escaped(&text), serde_json::to_string(&text).unwrap());
        }
    }
}
