//! Reproducible texts of models and programs: prose, arguments and output of usual sizes, with the quotes, line ends
//! and letters that JSON must escape.

/// A deterministic generator of texts.
pub(crate) struct TextGenerator(u64);

const WORDS: &[&str] = &[
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

    /// Returns a number below `most`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// Returns about `bytes` bytes of prose.
    pub(crate) fn prose(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 16);
        while text.len() < bytes {
            text.push_str(self.word());
            text.push(' ');
        }
        text
    }

    /// Returns the output of a program: between 0.2 and 4 KB, more often short.
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
        WORDS[self.below(WORDS.len() as u64) as usize]
    }
}
