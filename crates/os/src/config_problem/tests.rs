//! The printed form of problems: locations, excerpts, limits and masked secrets.

use super::*;

fn problem(line_text: &str, column: usize, marked_chars: usize) -> ConfigProblem {
    let excerpt = FileExcerpt { line_text: line_text.to_owned(), marked_chars };
    let position = FilePosition { line: 12, column, excerpt: Some(excerpt) };
    ConfigProblem::new(ConfigOrigin::file_at("a/config.yaml", position), "unknown key comand")
        .with_similar_name(Some("command".to_owned()))
}

#[test]
fn a_problem_points_at_its_location() {
    let expected = "a/config.yaml:12:5: unknown key comand; did you mean command?\n 12 |     comand: [ls]\n    |     ^^^^^^";
    assert_eq!(problem("    comand: [ls]", 5, 6).to_string(), expected);
}

#[test]
fn a_byte_offset_becomes_a_line_and_a_column_in_characters() {
    let text = "one\n  «two» = 3\n";
    let at = |offset| {
        let FilePosition { line, column, .. } = FilePosition::of_byte(text, offset);
        (line, column)
    };
    assert_eq!((at(0), at(4), at(text.find("two").unwrap_or(0))), ((1, 1), (2, 1), (2, 4)));
    assert_eq!(at(1_000), (3, 1), "behind the end");
    let marked = FilePosition::with_excerpt(text, 2, 3, 1_000).excerpt;
    assert_eq!(marked, Some(FileExcerpt { line_text: "  «two» = 3".to_owned(), marked_chars: 9 }));
}

#[test]
fn problems_are_sorted_by_position_and_indented_below_a_heading() {
    let at = |line, column| FilePosition { line, column, excerpt: None };
    let mut problems = vec![
        ConfigProblem::new(ConfigOrigin::file_at("f", at(2, 1)), "expected a text").with_key("log.level"),
        ConfigProblem::new(ConfigOrigin::file_at("f", at(1, 9)), "expected a list").with_key(""),
        ConfigProblem::new(ConfigOrigin::Environment { variable: "V".to_owned() }, "unknown"),
        ConfigProblem::new(ConfigOrigin::file("f"), "it is empty").with_advice(Some("write it".to_owned())),
    ];
    sort_by_position(&mut problems);
    let error = ConfigError { heading: Some("invalid"), problems };
    let expected = "invalid\n  V: unknown\n  f: it is empty; write it\n  f:1:9: expected a list\n  \
                    f:2:1: log.level: expected a text";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn the_part_of_a_long_line_around_the_location_is_shown() {
    for column in [1, 5, 100_000, 199_990] {
        let text = format!("{}{}{}", "a".repeat(column - 1), "HERE", "b".repeat(200_000 - column - 3));
        let printed = problem(&text, column, 4).to_string();
        let lines: Vec<&str> = printed.lines().collect();
        assert!(printed.len() < 600, "{} bytes", printed.len());
        let at =
            lines[1].chars().collect::<Vec<_>>().windows(4).position(|part| part == ['H', 'E', 'R', 'E']);
        let carets = lines[2].chars().position(|c| c == '^');
        assert_eq!((at, lines[2].matches('^').count()), (carets, 4), "{printed}");
    }
    let printed = problem(&"a".repeat(200_000), 1, 200_000).to_string();
    assert!(printed.len() < 800, "{} bytes", printed.len());
    let long = ConfigProblem { reason: "é".repeat(100_000), ..problem("", 1, 1) };
    assert!(long.to_string().len() < 1_000);
    let many = ConfigError::new(vec![problem("x", 1, 1); 1_000]).to_string();
    assert!(many.ends_with("\nand 950 more") && many.lines().count() == 151, "{many}");
}

#[test]
fn secrets_are_not_shown() {
    for line in ["  api_key: sk-abcdef", "  name: 'sk-proj-0123456789'", "- token: x"] {
        assert!(problem(line, 1, 1).to_string().contains(": ***"), "{line}");
    }
    for line in ["  api_key_env: OPENAI_API_KEY", "  name: gpt-4.1-mini-2025-04-14", "  description: a: b"] {
        assert!(!problem(line, 1, 1).to_string().contains("***"), "{line}");
    }
}
