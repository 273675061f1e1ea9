//! What models and programs say, as far as their bytes matter: prose, arguments and output of the usual sizes, with the
//! quotes, line ends and letters that make JSON longer than its text. The same every time.

/// Chance that always falls the same way.
pub(crate) struct TextGenerator(u64);

const SPOKEN: &[&str] = &[
    "the",
    "test",
    "in",
    "`store/src/lib.rs`",
    "fails",
    "because",
    "\"next_seq\"",
    "is",
    "read",
    "before",
    "commit;",
    "I",
    "will",
    "look",
    "at",
    "its",
    "caller",
    "and",
    "then",
    "run",
    "cargo",
    "again.",
    "Größe",
    "—",
    "maybe",
    "wrong:",
];

impl TextGenerator {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Something below this number.
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    /// A thought.
    pub(crate) fn prose(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 16);
        while text.len() < bytes {
            text.push_str(self.word());
            text.push(' ');
        }
        text
    }

    /// What a program printed: between 0.2 and 4 KB, more often little.
    pub(crate) fn output(&mut self) -> String {
        let bytes = 200 + (self.below(3_900) * self.below(3_900) / 3_900) as usize;
        let mut text = String::with_capacity(bytes + 128);
        while text.len() < bytes {
            let line = self.below(900);
            text.push_str(&format!("crates/store/src/lib.rs:{line}:\t"));
            for _ in 0..self.below(9) + 1 {
                text.push_str(self.word());
                text.push(' ');
            }
            text.push('\n');
        }
        text.push_str("[exit code 0]");
        text
    }

    fn word(&mut self) -> &'static str {
        SPOKEN[self.below(SPOKEN.len() as u64) as usize]
    }
}
