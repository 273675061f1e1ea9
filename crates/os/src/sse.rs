//! An incremental parser for server-sent events (`text/event-stream`).
//!
//! It returns the data of each event. Names, ids and retry times are ignored: neither chat completions nor the clients of
//! the daemon need them, because the daemon's data contain the id. It buffers at most one event; the caller bounds the number of bytes.

/// Parses server-sent events from chunks of any size.
#[derive(Debug, Default)]
pub struct SseParser {
    /// The current line, still without its end.
    line: Vec<u8>,
    /// The data of the current event; `None` if it has none so far.
    data: Option<String>,
    /// Whether the last byte was a carriage return, so that a line feed after it belongs to the same line end.
    after_return: bool,
}

impl SseParser {
    /// Consumes bytes and returns the data of each event that they complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut complete = Vec::new();
        for &byte in bytes {
            let after_return = std::mem::replace(&mut self.after_return, byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => complete.extend(self.end_line()),
                _ => self.line.push(byte),
            }
        }
        complete
    }

    /// Returns the data of an event that lacks only its empty line. A partial line is discarded.
    pub fn end(mut self) -> Option<String> {
        self.data.take()
    }

    fn end_line(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return self.data.take();
        }
        let line = String::from_utf8_lossy(&line);
        let line = line.strip_prefix('\u{feff}').unwrap_or(&line);
        if let Some(value) = line.strip_prefix("data:") {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<String>, Option<String>) {
        let mut events = SseParser::default();
        let complete = events.feed(text.as_bytes());
        (complete, events.end())
    }

    #[test]
    fn events_are_read_whatever_ends_their_lines() {
        for end in ["\n", "\r\n", "\r"] {
            let text = [": hello", "event: x", "data: a", "data:b", "", "", "data: c", ""].join(end);
            assert_eq!(read(&format!("{text}{end}")), (vec!["a\nb".to_owned(), "c".to_owned()], None));
        }
    }

    #[test]
    fn half_a_line_is_no_event() {
        assert_eq!(read("data: a\n\ndata: [DO"), (vec!["a".to_owned()], None));
        assert_eq!(read("data: [DONE]\n"), (vec![], Some("[DONE]".to_owned())));
    }
}
