//! Draws the observations as diagrams.

use std::fmt::Write as _;

use crate::table::{STATES, TransitionTable};

const INTRODUCTION: &str = "\
# State machines

A test writes this page from the transitions that it observes, so do not edit it. The result of every pair of state and
event is in [`crates/domain/transitions.txt`](../crates/domain/transitions.txt).

## Run

The second part of a state describes the run's process:

| state | meaning |
|---|---|
| `running.probing` | the engine is asked for its abilities, once, before the first launch |
| `running.launching` | a launch was requested, and the process has not been seen yet |
| `running.active` | the process is working |
| `running.stopping` | the process was told to stop |
| `running.recovering` | contact with the process is lost |
| `waiting_user.free`, `idle.free` | there is no process |
| `waiting_user.session`, `idle.session` | the turn has ended, and the process waits for the next one |
| `waiting_user.turn` | the process waits for an answer inside its turn |

Labels are events. Text in brackets is the variant of an event.

";

pub(crate) fn draw(table: &TransitionTable) -> String {
    let mut page = format!("{INTRODUCTION}```mermaid\nstateDiagram-v2\n    [*] --> queued\n");
    for ((from, to), labels) in table.transitions() {
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

/// Replaces the point, which has another meaning in Mermaid.
fn id(state: &str) -> String {
    state.replace('.', "_")
}

fn title(part: &str) -> String {
    let mut letters = part.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
