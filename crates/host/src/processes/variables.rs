//! Selects the variables of the daemon's environment that an agent gets. All others are withheld, because the daemon
//! may have been started from any shell (SECURITY 24).

/// Variables that every agent gets: user, paths, locale, proxies and certificates. They contain no API keys.
const COMMON_VARIABLES: [&str; 31] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TERM",
    "COLORTERM",
    "TMPDIR",
    "TZ",
    "XDG_*",
    "http_proxy",
    "https_proxy",
    "ftp_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "FTP_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "SSL_CERT_*",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NIX_*",
    "LD_LIBRARY_PATH",
    "LOCALE_ARCHIVE",
];

/// Returns whether a variable is passed to a process: the common variables and those matching `pass_env`.
pub(super) fn is_passed(name: &str, pass_env: &[String]) -> bool {
    COMMON_VARIABLES
        .iter()
        .copied()
        .chain(pass_env.iter().map(String::as_str))
        .any(|pattern| matches(pattern, name))
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(name == pattern, |beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_24_names_and_beginnings_are_passed_and_nothing_else() {
        let pass_env = ["OPENAI_*".to_owned(), "CODEX_HOME".to_owned()];
        for name in ["PATH", "LC_ALL", "XDG_DATA_HOME", "no_proxy", "OPENAI_API_KEY", "CODEX_HOME"] {
            assert!(is_passed(name, &pass_env), "{name}");
        }
        for name in
            ["GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "CODEX_HOMES", "PATHS", "OPENAI"]
        {
            assert!(!is_passed(name, &pass_env), "{name}");
        }
    }
}
