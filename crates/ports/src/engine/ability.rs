//! Optional abilities of engines, as data, with the behaviour without each (E1).
//!
//! Other code asks for an ability and never for the name of an engine.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An ability that only some engines have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineAbility {
    /// A new process can continue a session.
    Resume,
    /// One process can be kept for several consecutive turns.
    Hold,
    /// The caller can choose the session id before the first turn.
    NamedSessions,
    /// The engine reports progress during a turn.
    Progress,
    /// The engine can ask a question inside a turn and wait for the answer.
    Gates,
    /// A message can be added to the running turn.
    Steer,
    /// The result of a turn can be read back after contact was lost.
    Recover,
    /// The engine reports when the connection to its model is lost or restored.
    ConnectionEvents,
    /// The engine can report its current activity on request.
    ActiveFlags,
}

impl EngineAbility {
    /// All abilities, in display order.
    pub const ALL: [Self; 9] = [
        Self::Resume,
        Self::Hold,
        Self::NamedSessions,
        Self::Progress,
        Self::Gates,
        Self::Steer,
        Self::Recover,
        Self::ConnectionEvents,
        Self::ActiveFlags,
    ];

    /// The name on the wire and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resume => "resume",
            Self::Hold => "hold",
            Self::NamedSessions => "named_sessions",
            Self::Progress => "progress",
            Self::Gates => "gates",
            Self::Steer => "steer",
            Self::Recover => "recover",
            Self::ConnectionEvents => "connection_events",
            Self::ActiveFlags => "active_flags",
        }
    }

    /// The behaviour with an engine that lacks the ability.
    pub fn fallback(self) -> &'static str {
        match self {
            Self::Resume => {
                "while the run waits, its process keeps running, with a slot and a deadline (profile sticky_process)"
            }
            Self::Hold => "each turn is a new process that resumes the session",
            Self::NamedSessions => {
                "the engine's session id is stored once the engine reports it; a turn killed before that starts again"
            }
            Self::Progress => "until the turn ends, the run shows only that it is running and for how long",
            Self::Gates => {
                "the run's sandbox setting decides permissions before the turn; a question ends the turn"
            }
            Self::Steer => "a message with on_busy steer waits for its own turn",
            Self::Recover => {
                "the outcome is read from the keeper's record of output and exit; if it is lost, a person is asked"
            }
            Self::ConnectionEvents => "problems with the model server show only as a stalled or failed turn",
            Self::ActiveFlags => "the current activity is derived from the last progress entry",
        }
    }

    fn bit(self) -> u16 {
        1 << (self as u16)
    }
}

/// A set of abilities.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct AbilitySet(u16);

impl AbilitySet {
    pub const NONE: Self = Self(0);

    pub fn of(abilities: &[EngineAbility]) -> Self {
        abilities.iter().fold(Self::NONE, |set, ability| set.with(*ability))
    }

    #[must_use]
    pub fn with(self, ability: EngineAbility) -> Self {
        Self(self.0 | ability.bit())
    }

    #[must_use]
    pub fn without(self, ability: EngineAbility) -> Self {
        Self(self.0 & !ability.bit())
    }

    pub fn has(self, ability: EngineAbility) -> bool {
        self.0 & ability.bit() != 0
    }

    pub fn iter(self) -> impl Iterator<Item = EngineAbility> {
        EngineAbility::ALL.into_iter().filter(move |ability| self.has(*ability))
    }

    /// The subset on which the state machine depends.
    pub fn to_run_abilities(self) -> abide_domain::engine::RunAbilities {
        abide_domain::engine::RunAbilities {
            steer: self.has(EngineAbility::Steer),
            recover: self.has(EngineAbility::Recover),
        }
    }
}

impl fmt::Debug for AbilitySet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.iter()).finish()
    }
}
