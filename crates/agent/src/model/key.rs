//! The key that a model server wants. It prints as `***`, and is struck out of whatever servers say about it.

use std::fmt;

/// A key and the variable it was read from.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    text: String,
    variable: String,
}

/// What is shown instead.
const MASK: &str = "***";

impl ApiKey {
    /// A key from a variable of the environment. Blanks and line ends around it are a slip of whoever copied it.
    pub fn new(text: &str, variable: impl Into<String>) -> Self {
        Self { text: text.trim().to_owned(), variable: variable.into() }
    }

    /// The key itself: to send, never to print.
    pub(super) fn expose(&self) -> &str {
        &self.text
    }

    /// Where it came from, for people.
    pub fn variable(&self) -> &str {
        &self.variable
    }

    /// A text without the key in it: some servers repeat what they were sent.
    pub(super) fn struck_from(&self, text: &str) -> String {
        if self.text.is_empty() { text.to_owned() } else { text.replace(&self.text, MASK) }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey({MASK} from {})", self.variable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_printed() {
        let key = ApiKey::new(" sk-1234\n", "MY_KEY");
        assert_eq!(key.expose(), "sk-1234");
        assert_eq!(format!("{key:?}"), "ApiKey(*** from MY_KEY)");
        assert_eq!(key.struck_from("bad key sk-1234!"), "bad key ***!");
    }
}
