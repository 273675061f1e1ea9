//! Suggestions for misspelt names ("did you mean …?").

/// The most similar candidate. Its edit distance is at most a third of the longer name, and at least 1 is allowed.
pub fn nearest<S: AsRef<str> + Ord>(name: &str, candidates: impl IntoIterator<Item = S>) -> Option<S> {
    let max_distance = |candidate: &str| (name.chars().count().max(candidate.chars().count()) / 3).max(1);
    let near = candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate.as_ref()), candidate))
        .filter(|(distance, candidate)| (1..=max_distance(candidate.as_ref())).contains(distance));
    near.min().map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        assert_eq!(nearest("comand", ["command", "env", "cwd"]), Some("command"));
        assert_eq!(nearest("colour", ["command", "env", "cwd"]), None);
        assert_eq!(nearest("env", ["env"]), None);
    }
}
