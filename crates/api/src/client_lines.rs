//! Splits client input into lines of limited length. Lines over the limit are reported once and discarded.

/// Splits bytes into lines.
#[derive(Debug)]
pub(crate) struct ClientLineBuffer {
    buffer: Vec<u8>,
    searched_bytes: usize,
    max_line_bytes: usize,
    skipping: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ClientLine {
    /// Without its line end.
    Complete(Vec<u8>),
    /// A line over the limit; reported once, when the limit is exceeded.
    TooLong,
}

impl ClientLineBuffer {
    pub(crate) fn new(max_line_bytes: usize) -> Self {
        Self { buffer: Vec::new(), searched_bytes: 0, max_line_bytes, skipping: false }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    pub(crate) fn next(&mut self) -> Option<ClientLine> {
        loop {
            let line_end = self.buffer.get(self.searched_bytes..)?.iter().position(|byte| *byte == b'\n');
            let Some(at) = line_end.map(|at| at + self.searched_bytes) else {
                self.searched_bytes = self.buffer.len();
                if self.buffer.len() > self.max_line_bytes {
                    self.buffer = Vec::new();
                    self.searched_bytes = 0;
                    return (!std::mem::replace(&mut self.skipping, true)).then_some(ClientLine::TooLong);
                }
                if self.skipping {
                    self.buffer.clear();
                    self.searched_bytes = 0;
                }
                return None;
            };
            let mut line: Vec<u8> = self.buffer.drain(..=at).collect();
            self.searched_bytes = 0;
            if std::mem::replace(&mut self.skipping, false) {
                continue;
            }
            line.pop();
            if line.len() > self.max_line_bytes {
                return Some(ClientLine::TooLong);
            }
            return Some(ClientLine::Complete(line));
        }
    }

    /// Returns the incomplete last line at the end of the input.
    pub(crate) fn finish(&mut self) -> Option<ClientLine> {
        let rest = std::mem::take(&mut self.buffer);
        (!rest.is_empty() && !self.skipping).then_some(ClientLine::Complete(rest))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(input: &[u8], cut: usize, most: usize) -> Vec<ClientLine> {
        let mut lines = ClientLineBuffer::new(most);
        let mut got = Vec::new();
        for piece in input.chunks(cut) {
            lines.push(piece);
            while let Some(line) = lines.next() {
                got.push(line);
            }
        }
        got
    }

    #[test]
    fn an_overlong_line_is_reported_once() {
        let input = [b"a\n".to_vec(), vec![b'x'; 500], b"\nb\n".to_vec()].concat();
        for cut in [1, 7, 600] {
            let expected = [
                ClientLine::Complete(b"a".to_vec()),
                ClientLine::TooLong,
                ClientLine::Complete(b"b".to_vec()),
            ];
            assert_eq!(all(&input, cut, 10), expected, "cut {cut}");
        }
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_they_arrive(
            input in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..300), cut in 1usize..40,
        ) {
            prop_assert_eq!(all(&input, cut, 50), all(&input, input.len().max(1), 50));
        }
    }
}
