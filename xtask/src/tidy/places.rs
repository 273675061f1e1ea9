//! Checks that files are independent of the machine: no absolute path into a user's folders, no host of a package
//! registry, no replaced registry.

use super::TidyFinding;
use super::source::is_name;
use super::tree::FileTree;

// Written in two pieces, so that this file passes its own rule.
const USER_FOLDERS: &[&str] = &[concat!("/", "work"), concat!("/", "root"), concat!("/", "Users")];
const HOME_PREFIX: &str = concat!("/", "home/");
const REGISTRY_HOSTS: &[&str] = &[
    concat!("crates", ".io"),
    concat!("npmjs", ".org"),
    concat!("npmjs", ".com"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("deb.debian", ".org"),
    concat!("security.debian", ".org"),
];

pub(super) fn check(tree: &FileTree) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        // Each lock file contains cargo's own name for its registry.
        let lock = path.ends_with("Cargo.lock");
        for (index, line) in text.lines().enumerate() {
            if let Some(place) = machine_path(line) {
                let wrong = format!("a path of one machine, {place}");
                let remedy = "make it relative, or take it from the environment";
                findings.push(TidyFinding::new(path, index + 1, wrong, remedy));
            }
            if let Some(host) = REGISTRY_HOSTS.iter().find(|host| !lock && line.contains(**host)) {
                let wrong = format!("a package registry's host, {host}");
                findings.push(TidyFinding::new(
                    path,
                    index + 1,
                    wrong,
                    "name the package, not where it is fetched",
                ));
            }
            if path.starts_with(".cargo/")
                && (line.starts_with("[source.") || line.starts_with("[registries"))
            {
                let remedy = "put it into the configuration of your account";
                findings.push(TidyFinding::new(
                    path,
                    index + 1,
                    "a registry is replaced for all users",
                    remedy,
                ));
            }
        }
    }
    findings
}

fn machine_path(line: &str) -> Option<&str> {
    let folder = USER_FOLDERS.iter().flat_map(|folder| line.match_indices(folder)).find(|(at, folder)| {
        starts_path(line, *at) && !line[at + folder.len()..].starts_with(|c: char| is_name(c) || c == '-')
    });
    let home = || {
        line.match_indices(HOME_PREFIX).find(|(at, home)| {
            starts_path(line, *at) && line[at + home.len()..].starts_with(|c: char| is_name(c))
        })
    };
    folder.or_else(home).map(|(at, _)| {
        let rest = &line[at..];
        rest.split(|c: char| !(is_name(c) || "/.-".contains(c))).next().unwrap_or(rest)
    })
}

/// Whether the slash at this position begins a path, and is not inside a longer one or a URL.
fn starts_path(line: &str, at: usize) -> bool {
    !line[..at].ends_with(|c: char| is_name(c) || "./-})>*~$".contains(c))
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::check;

    fn lines(path: &str, text: &str) -> Vec<String> {
        findings_of(check, &[(path, text)])
            .iter()
            .filter_map(|finding| finding.split(';').next().map(str::to_owned))
            .collect()
    }

    #[test]
    fn a_path_of_one_machine_is_found() {
        for place in [concat!("/", "work/main"), concat!("/", "root"), concat!("/", "home/ann/x.rs")] {
            let text = format!("a\nsee `{place}`, or \"{place}\"");
            assert_eq!(lines("a.md", &text), [format!("a.md:2: a path of one machine, {place}")]);
        }
    }

    #[test]
    fn paths_that_only_look_like_it_pass() {
        let text =
            "crates#work #workspace https://example.test#root #home/ #root-level $X#root".replace('#', "/");
        assert_eq!(lines("a.md", &text), [""; 0]);
    }

    #[test]
    fn a_registry_host_is_found_outside_the_lock_file() {
        let host = concat!("crates", ".io");
        let text = format!("see https://{host}/x");
        assert_eq!(lines("a.md", &text), [format!("a.md:1: a package registry's host, {host}")]);
        assert!(lines("Cargo.lock", &text).is_empty());
    }

    #[test]
    fn a_replaced_registry_is_found() {
        let findings = lines(".cargo/config.toml", "[net]\n[source.mirror]\n");
        assert_eq!(findings, [".cargo/config.toml:2: a registry is replaced for all users"]);
    }
}
