//! The observations as diagrams.

use std::fmt::Write as _;

use crate::table::{STATES, TransitionTable};

pub(crate) fn draw(table: &TransitionTable) -> String {
    let mut page = String::from(
        "# The machines\n\nDrawn by a test from what the domain does \
         ([`crates/domain/transitions.txt`](../crates/domain/transitions.txt) has every pair of state and event). \
         Do not edit.\n\n## Run\n\n```mermaid\nstateDiagram-v2\n    [*] --> queued\n",
    );
    for ((from, to), labels) in table.moves() {
        let labels: Vec<_> = labels.into_iter().collect();
        let _ = writeln!(page, "    {} --> {}: {}", id(from), id(to), labels.join(", "));
    }
    for state in STATES.iter().filter(|state| state.contains('.')) {
        let _ = writeln!(page, "    {}: {state}", id(state));
    }
    page.push_str("```\n");
    for (part, moves) in &table.parts {
        let _ = write!(page, "\n## {}\n\n```mermaid\nstateDiagram-v2\n", title(part));
        for (from, to) in moves {
            let _ = writeln!(page, "    {from} --> {to}");
        }
        page.push_str("```\n");
    }
    page
}

/// Mermaid takes a point for something else.
fn id(state: &str) -> String {
    state.replace('.', "_")
}

fn title(part: &str) -> String {
    let mut letters = part.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
