//! All engines. The one place besides the adapters that names them.

use abide_ports::engine::Engine;

use crate::{
    codex::Codex,
    parrot::{Form, Parrot},
};

/// The engines that need no configuration, in the order in which they are shown.
pub fn built_in() -> Vec<Box<dyn Engine>> {
    vec![Box::new(Codex), Box::new(Parrot(Form::Resumable)), Box::new(Parrot(Form::Sticky))]
}
