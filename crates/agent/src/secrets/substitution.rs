//! Replaces many texts in one pass: from left to right, longest match first, without processing inserted text.

use std::{cmp::Reverse, fmt};

/// Pairs of texts. `Debug` prints none of them.
#[derive(Clone)]
pub(super) struct SecretSubstitution {
    /// Longest first.
    pairs: Vec<(String, String)>,
    /// Whether a text to be replaced begins with this byte.
    first_bytes: [bool; 256],
}

impl SecretSubstitution {
    /// Replaces the first text of each pair by the second. Empty texts are ignored.
    pub(super) fn new(mut pairs: Vec<(String, String)>) -> Self {
        pairs.retain(|(from, _)| !from.is_empty());
        pairs.sort_by_key(|(from, _)| Reverse(from.len()));
        let mut first = [false; 256];
        for (from, _) in &pairs {
            first[usize::from(from.as_bytes()[0])] = true;
        }
        Self { pairs, first_bytes: first }
    }

    pub(super) fn apply(&self, text: &str) -> String {
        let bytes = text.as_bytes();
        let mut replaced = String::with_capacity(text.len());
        // Start of the text that has not been copied, and the current position.
        let (mut rest, mut at) = (0, 0);
        while at < bytes.len() {
            let fits = |(from, _): &&(String, String)| bytes[at..].starts_with(from.as_bytes());
            let pair =
                self.first_bytes[usize::from(bytes[at])].then(|| self.pairs.iter().find(fits)).flatten();
            match pair {
                Some((from, to)) => {
                    replaced.push_str(&text[rest..at]);
                    replaced.push_str(to);
                    at += from.len();
                    rest = at;
                }
                None => at += 1,
            }
        }
        replaced.push_str(&text[rest..]);
        replaced
    }
}

impl Default for SecretSubstitution {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl fmt::Debug for SecretSubstitution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretSubstitution({})", self.pairs.len())
    }
}
