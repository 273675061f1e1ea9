//! Suggestions for misspelt names.

/// The most similar candidate, if its edit distance is at most a quarter of the name's length, or 1 for short names.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = (name.chars().count() / 4).max(1);
    let near = candidates
        .into_iter()
        .filter(|candidate| *candidate != name)
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= most);
    near.min().map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_names_are_suggested() {
        assert_eq!(nearest("comand", ["command", "env", "cwd"]), Some("command"));
        assert_eq!(nearest("colour", ["command", "env", "cwd"]), None);
        assert_eq!(nearest("env", ["env"]), None);
    }
}
