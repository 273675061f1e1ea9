//! Splits a Rust source into code, comments and strings, so that a rule about code ignores prose and string contents.
//!
//! This is not a parser: it recognises comments, strings, raw strings, characters and lifetimes only.

/// A Rust source, split. Each part has the lines and columns of the source; all other text is replaced by blanks.
pub(super) struct RustSource {
    pub(super) code: String,
    pub(super) comments: String,
    /// The contents of string literals, each between quotation marks. Escape sequences are replaced by blanks.
    pub(super) strings: String,
}

impl RustSource {
    pub(super) fn split(text: &str) -> Self {
        let mut reader = SourceReader {
            chars: text.chars().collect(),
            at: 0,
            code: String::new(),
            comments: String::new(),
            strings: String::new(),
        };
        while reader.at < reader.chars.len() {
            reader.step();
        }
        Self { code: reader.code, comments: reader.comments, strings: reader.strings }
    }

    /// Returns the names in the code, in order, with repetitions.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.code
            .split(|c: char| !is_name(c))
            .filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'))
    }
}

pub(super) fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

struct SourceReader {
    chars: Vec<char>,
    at: usize,
    code: String,
    comments: String,
    strings: String,
}

#[derive(Clone, Copy)]
enum SourcePart {
    Code,
    Comment,
    /// The content of a string literal.
    StringContent,
    /// A quotation mark of a string literal, which is part of the code and of the strings.
    StringBorder,
    /// A quotation mark of a raw string literal, which is part of the strings only.
    RawStringBorder,
    Neither,
}

impl SourceReader {
    fn step(&mut self) {
        match (self.peek(0), self.peek(1)) {
            ('/', '/') => self.line_comment(),
            ('/', '*') => self.block_comment(),
            ('"', _) => self.string(),
            ('r' | 'b' | 'c', _) if self.starts_word() && self.raw_hashes().is_some() => self.raw_string(),
            ('\'', '\\') => self.escaped_char(),
            ('\'', _) if self.peek(2) == '\'' => self.take(3, SourcePart::Neither),
            _ => self.take(1, SourcePart::Code),
        }
    }

    fn line_comment(&mut self) {
        while self.at < self.chars.len() && self.peek(0) != '\n' {
            self.take(1, SourcePart::Comment);
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.chars.len() {
            match (self.peek(0), self.peek(1)) {
                ('/', '*') => {
                    depth += 1;
                    self.take(2, SourcePart::Comment);
                }
                ('*', '/') => {
                    depth -= 1;
                    self.take(2, SourcePart::Comment);
                    if depth == 0 {
                        return;
                    }
                }
                _ => self.take(1, SourcePart::Comment),
            }
        }
    }

    fn string(&mut self) {
        self.take(1, SourcePart::StringBorder);
        while self.at < self.chars.len() && self.peek(0) != '"' {
            if self.peek(0) == '\\' {
                self.take(2, SourcePart::Neither);
            } else {
                self.take(1, SourcePart::StringContent);
            }
        }
        self.take(1, SourcePart::StringBorder);
    }

    /// Returns the prefix length and the number of `#` if a raw string starts here: `r"`, `r#"`, `br##"`.
    fn raw_hashes(&self) -> Option<(usize, usize)> {
        let prefix = if self.peek(0) == 'r' { 1 } else { 2 };
        if prefix == 2 && self.peek(1) != 'r' {
            return None;
        }
        let hashes = (0..).take_while(|i| self.peek(prefix + i) == '#').count();
        (self.peek(prefix + hashes) == '"').then_some((prefix, hashes))
    }

    fn raw_string(&mut self) {
        let Some((prefix, hashes)) = self.raw_hashes() else { return };
        self.take(prefix + hashes, SourcePart::Neither);
        self.take(1, SourcePart::RawStringBorder);
        while self.at < self.chars.len() {
            if self.peek(0) == '"' && (1..=hashes).all(|i| self.peek(i) == '#') {
                self.take(1, SourcePart::RawStringBorder);
                self.take(hashes, SourcePart::Neither);
                return;
            }
            self.take(1, SourcePart::StringContent);
        }
    }

    fn escaped_char(&mut self) {
        self.take(3, SourcePart::Neither);
        while self.at < self.chars.len() && self.peek(0) != '\'' {
            self.take(1, SourcePart::Neither);
        }
        self.take(1, SourcePart::Neither);
    }

    fn starts_word(&self) -> bool {
        self.at == 0 || !is_name(self.chars[self.at - 1])
    }

    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn take(&mut self, count: usize, part: SourcePart) {
        for _ in 0..count {
            let Some(&c) = self.chars.get(self.at) else { return };
            let blank = if c == '\n' { '\n' } else { ' ' };
            let (code, comment, string) = match part {
                SourcePart::Code => (c, blank, blank),
                SourcePart::Comment => (blank, c, blank),
                SourcePart::StringContent | SourcePart::RawStringBorder => (blank, blank, c),
                SourcePart::StringBorder => (c, blank, c),
                SourcePart::Neither => (blank, blank, blank),
            };
            self.code.push(code);
            self.comments.push(comment);
            self.strings.push(string);
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RustSource;

    fn check(text: &str, names: &[&str]) {
        let source = RustSource::split(text);
        assert_eq!(source.names().collect::<Vec<_>>(), names, "{text}");
        assert_eq!(source.code.lines().count(), text.lines().count(), "{text}");
    }

    #[test]
    fn strings_and_comments_are_not_code() {
        check("let a = \"b \\\" c\"; // d\nlet e;", &["let", "a", "let", "e"]);
        check("a /* b /* c */ d */ e", &["a", "e"]);
        check("a(r#\"b \"c\" \"#, br\"d\", e)", &["a", "e"]);
        check("let bar = r; var(x)", &["let", "bar", "r", "var", "x"]);
    }

    #[test]
    fn a_lifetime_is_not_the_start_of_a_character() {
        check("fn f<'a>(x: &'a str) -> char { '\"' }", &["fn", "f", "a", "x", "a", "str", "char"]);
        check("['\\'', '\\u{7f}', 'q', b]", &["b"]);
    }

    #[test]
    fn strings_keep_their_lines_and_lose_their_escapes() {
        let source = RustSource::split("a(\"b\\n c\", r#\"d\"#); // e\nf(\"g\")");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(source.strings.lines().map(words).collect::<Vec<_>>(), ["\"b c\" \"d\"", "\"g\""]);
    }

    #[test]
    fn comments_keep_their_lines() {
        let source = RustSource::split("a\n// b\nc // d\n");
        assert_eq!(source.comments.lines().map(str::trim).collect::<Vec<_>>(), ["", "// b", "// d"]);
    }
}
