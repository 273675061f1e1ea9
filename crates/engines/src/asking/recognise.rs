//! Is an engine's answer a question?

use abide_domain::event::Ending;

/// An answer, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The end of the turn that it means.
    pub ending: Ending,
    /// What was odd about it.
    pub warning: Option<String>,
}

/// Reads the text with which an engine finished its turn.
pub fn recognise(text: &str) -> Heard {
    Heard { ending: Ending::Completed { text: text.to_owned() }, warning: None }
}
