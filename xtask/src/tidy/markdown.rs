//! A minimal Markdown reader for the rules: prose lines, fenced lines, text between backticks, and links.

/// A line of a document. Numbers begin with 1.
pub(super) struct MarkdownLine<'a> {
    pub(super) number: usize,
    pub(super) text: &'a str,
    pub(super) place: LinePlace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinePlace {
    Prose,
    /// Between two lines of three backticks or tildes.
    Fence,
}

/// Returns the lines without the fences themselves.
pub(super) fn lines(text: &str) -> impl Iterator<Item = MarkdownLine<'_>> {
    let mut fence: Option<&str> = None;
    text.lines().enumerate().filter_map(move |(index, text)| {
        let mark = ["```", "~~~"].into_iter().find(|mark| text.trim_start().starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (None, None) => return Some(MarkdownLine { number: index + 1, text, place: LinePlace::Prose }),
            (Some(_), _) => return Some(MarkdownLine { number: index + 1, text, place: LinePlace::Fence }),
        }
        None
    })
}

/// Returns the texts between backticks in a line of prose.
pub(super) fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Returns the targets of the links in a line of prose: `[text](target)` and `[name]: target`.
pub(super) fn targets(line: &str) -> Vec<String> {
    let prose: String = line.split('`').step_by(2).collect();
    let mut paths: Vec<String> = prose
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ']).next())
        .map(|target| target.trim_matches(['<', '>']).to_owned())
        .collect();
    if let Some((name, target)) = prose.trim_start().split_once("]: ")
        && name.starts_with('[')
        && !name.starts_with("[^")
    {
        paths.extend(target.split_whitespace().next().map(str::to_owned));
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::{LinePlace, lines, spans, targets};

    #[test]
    fn fences_are_told_from_prose() {
        let places: Vec<_> =
            lines("a\n```text\nb\n~~~\n```\nc\n").map(|line| (line.number, line.text, line.place)).collect();
        assert_eq!(
            places,
            [
                (1, "a", LinePlace::Prose),
                (3, "b", LinePlace::Fence),
                (4, "~~~", LinePlace::Fence),
                (6, "c", LinePlace::Prose)
            ]
        );
    }

    #[test]
    fn spans_and_links_are_found_and_links_in_spans_are_not() {
        let line = "see `run::apply` in [it](a.md#b), ![picture](<b.png>) and `[no](link)`";
        assert_eq!(spans(line).collect::<Vec<_>>(), ["run::apply", "[no](link)"]);
        assert_eq!(targets(line), ["a.md#b", "b.png"]);
        assert_eq!(targets("[name]: docs/x.md \"Title\""), ["docs/x.md"]);
    }
}
