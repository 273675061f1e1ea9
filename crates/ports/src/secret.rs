//! A text that must not be shown. It is printed as `***`.

use std::fmt;

/// A secret text. Access is explicit, by [`SecretString::expose`].
#[derive(Clone, PartialEq, Eq)]
pub struct SecretString(String);

/// The text that is printed instead of a secret.
pub const MASK: &str = "***";

impl SecretString {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself. It may be compared and sent, but not printed.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for SecretString {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for SecretString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl fmt::Display for SecretString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

/// The names of variables, for printing. Their values are secrets.
pub fn masked<'a>(variables: impl IntoIterator<Item = (&'a String, &'a String)>) -> Vec<String> {
    variables.into_iter().map(|(name, _)| format!("{name}={MASK}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_prints_as_stars_however_it_is_printed() {
        let secret = SecretString::new("hunter2");
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "*** *** Some(***)");
        assert_eq!(secret.expose(), "hunter2");
    }
}
