//! The API key of a model server. It is printed as `***` and removed from texts of servers.

use std::fmt;

/// A key, and the environment variable that it was read from.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    text: String,
    variable: String,
}

const MASK: &str = "***";

impl ApiKey {
    /// A key from an environment variable. Surrounding white space, which copying often adds, is removed.
    pub fn new(text: &str, variable: impl Into<String>) -> Self {
        Self { text: text.trim().to_owned(), variable: variable.into() }
    }

    /// The key itself, for sending only.
    pub(super) fn expose(&self) -> &str {
        &self.text
    }

    /// The variable's name, for messages.
    pub fn variable(&self) -> &str {
        &self.variable
    }

    /// The text with the key replaced by `***`. Some servers echo the request in their errors.
    pub(super) fn redact(&self, text: &str) -> String {
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
        assert_eq!(key.redact("bad key sk-1234!"), "bad key ***!");
    }
}
