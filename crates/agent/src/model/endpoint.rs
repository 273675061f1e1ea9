//! Derives the URLs of chat completions and of the list of models from a base URL.
//!
//! Some providers require `/v1` in the base URL and some documents omit it. A URL with a version in its path is used as
//! it is. For one without, both forms are tried and the one that responds is kept.

use reqwest::Url;

/// The candidate URLs of a base URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelEndpoint {
    /// The most likely one first.
    candidates: Vec<Url>,
    chosen: usize,
}

const COMPLETIONS: &str = "/chat/completions";

impl ModelEndpoint {
    /// Parses a base URL, with or without a version, a trailing slash, or the complete path of chat completions.
    pub(super) fn parse(base_url: &str) -> Result<Self, String> {
        let example = "such as https://api.openai.com/v1";
        let written = base_url.trim();
        let mut url = Url::parse(written).map_err(|error| format!("{error}; expected a URL, {example}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("expected a URL that begins with http:// or https://, {example}"));
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(format!("no host; expected a URL, {example}"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(
                "the URL must not contain a password; name a variable with the key in model.api_key_env"
                    .to_owned(),
            );
        }
        url.set_fragment(None);
        let path = url.path().trim_end_matches('/').to_owned();
        let path = path.strip_suffix(COMPLETIONS).unwrap_or(&path).trim_end_matches('/').to_owned();
        let whole = path.len() < url.path().trim_end_matches('/').len();
        let based = |path: &str| {
            let mut url = url.clone();
            url.set_path(path);
            url
        };
        let bases = if whole || path.split('/').any(is_version) {
            vec![based(&path)]
        } else {
            vec![based(&format!("{path}/v1")), based(&path)]
        };
        Ok(Self { candidates: bases, chosen: 0 })
    }

    /// The URL of chat completions.
    pub(super) fn completions(&self) -> Url {
        self.url_of("chat/completions")
    }

    /// The URL of the list of models.
    pub(super) fn models(&self) -> Url {
        self.url_of("models")
    }

    /// Selects the next candidate. Returns whether there is one.
    pub(super) fn select_next(&mut self) -> bool {
        let more = self.chosen + 1 < self.candidates.len();
        self.chosen += usize::from(more);
        more
    }

    /// Selects the first candidate again, because none has responded.
    pub(super) fn reset(&mut self) {
        self.chosen = 0;
    }

    /// Keeps only the selected candidate, because it has responded.
    pub(super) fn keep_chosen(&mut self) {
        self.candidates = vec![self.candidates[self.chosen].clone()];
        self.chosen = 0;
    }

    /// Whether the server is on this machine, so that no proxy is used.
    pub(super) fn is_local(&self) -> bool {
        let host = self.candidates[0].host_str().unwrap_or_default().trim_matches(['[', ']']);
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// Whether the connection is unencrypted.
    pub(super) fn is_unencrypted(&self) -> bool {
        self.candidates[0].scheme() == "http"
    }

    fn url_of(&self, path: &str) -> Url {
        let mut url = self.candidates[self.chosen].clone();
        url.set_path(&format!("{}/{path}", url.path().trim_end_matches('/')));
        url
    }
}

/// Checks a base URL.
pub(crate) fn check(base_url: &str) -> Result<(), String> {
    ModelEndpoint::parse(base_url).map(|_| ())
}

/// Whether a path segment is a version, such as `v1`, `v3` or `v1beta`.
fn is_version(part: &str) -> bool {
    let mut chars = part.chars();
    chars.next() == Some('v') && chars.next().is_some_and(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate_urls(base_url: &str) -> Vec<String> {
        let mut endpoint = ModelEndpoint::parse(base_url).unwrap();
        let mut meanings = vec![endpoint.completions().to_string()];
        while endpoint.select_next() {
            meanings.push(endpoint.completions().to_string());
        }
        meanings
    }

    #[test]
    fn a_url_with_a_version_is_taken_as_it_is() {
        for (base, expected) in [
            ("https://api.openai.com/v1", "https://api.openai.com/v1/chat/completions"),
            ("https://api.openai.com/v1//", "https://api.openai.com/v1/chat/completions"),
            (" http://127.0.0.1:11434/v1/chat/completions ", "http://127.0.0.1:11434/v1/chat/completions"),
            ("https://h/custom/chat/completions", "https://h/custom/chat/completions"),
            ("https://g/v1beta/openai/", "https://g/v1beta/openai/chat/completions"),
            ("https://a/api/v3?api-version=2", "https://a/api/v3/chat/completions?api-version=2"),
        ] {
            assert_eq!(candidate_urls(base), [expected]);
        }
    }

    #[test]
    fn a_url_without_a_version_has_two_candidates() {
        let expected = ["http://h:8000/v1/chat/completions", "http://h:8000/chat/completions"];
        assert_eq!(candidate_urls("http://h:8000"), expected);
        assert_eq!(candidate_urls("http://h:8000/"), expected);
        let expected = ["https://o/api/v1/chat/completions", "https://o/api/chat/completions"];
        assert_eq!(candidate_urls("https://o/api/"), expected);
    }

    #[test]
    fn an_invalid_base_url_is_refused_with_an_example() {
        for text in ["", "api.openai.com/v1", "ftp://h/v1", "http://"] {
            let refused = ModelEndpoint::parse(text).unwrap_err();
            assert!(refused.contains("https://api.openai.com/v1"), "{text}: {refused}");
        }
        let refused = ModelEndpoint::parse("https://me:secret@h/v1").unwrap_err();
        assert!(refused.contains("api_key_env") && !refused.contains("secret"), "{refused}");
    }

    #[test]
    fn local_servers_are_recognised() {
        for (base, local) in
            [("http://localhost:1/v1", true), ("http://[::1]:1", true), ("http://10.0.0.1", false)]
        {
            assert_eq!(ModelEndpoint::parse(base).unwrap().is_local(), local, "{base}");
        }
    }
}
