//! The names of effects in the crash guard's record.

use abide_domain::{effect::PendingEffect, id::RunId, run::Run};

use super::EffectExecutor;

/// Prefix of the names of effects in the crash guard's record.
pub(super) const EFFECT: &str = "effect ";

/// The name of an effect in the crash guard's record.
pub(super) fn item(run: RunId, owed: &PendingEffect) -> String {
    format!("{EFFECT}{run} {} {}", owed.number.0, owed.effect.name())
}

impl EffectExecutor {
    /// Forgets crashes during effects of this run that are no longer pending.
    pub(super) fn forget_settled(&self, run: &Run) {
        let guard = &self.shared.guard;
        if guard.suspects_any(EFFECT) {
            let is_owed =
                |suspect: &str| run.pending_effects.iter().any(|owed| item(run.run_id, owed) == suspect);
            guard.forget(&format!("{EFFECT}{} ", run.run_id), is_owed);
        }
    }
}
