//! What only some engines can do, as data, and what happens without each (E1).
//!
//! Nobody asks which engine it is; they ask what it can do.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Something that not every engine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineAbility {
    /// A new process can go on with a session.
    Resume,
    /// One process can be held and given one turn after the other.
    Hold,
    /// We may choose the session's id before the first turn.
    NamedSessions,
    /// It tells what it is doing while it does it.
    Progress,
    /// It can ask inside a turn and wait for the answer.
    Gates,
    /// A message can be put into the running turn.
    Steer,
    /// The result of a turn can be read back from it after contact was lost.
    Recover,
    /// It tells when its own connection to its model comes and goes.
    ConnectionEvents,
    /// It can be asked what it is doing at the moment.
    ActiveFlags,
}

impl EngineAbility {
    /// All of them, in the order in which tables show them.
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

    /// Its name on the wire and in tables.
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

    /// What happens with an engine that lacks it.
    pub fn without(self) -> &'static str {
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
    /// None at all.
    pub const NONE: Self = Self(0);

    /// Exactly these.
    pub fn of(abilities: &[EngineAbility]) -> Self {
        abilities.iter().fold(Self::NONE, |set, ability| set.with(*ability))
    }

    /// These and that one.
    #[must_use]
    pub fn with(self, ability: EngineAbility) -> Self {
        Self(self.0 | ability.bit())
    }

    /// These but not that one.
    #[must_use]
    pub fn except(self, ability: EngineAbility) -> Self {
        Self(self.0 & !ability.bit())
    }

    /// Whether it is among them.
    pub fn has(self, ability: EngineAbility) -> bool {
        self.0 & ability.bit() != 0
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = EngineAbility> {
        EngineAbility::ALL.into_iter().filter(move |ability| self.has(*ability))
    }

    /// The part on which rules about a run's state depend.
    pub fn for_domain(self) -> abide_domain::engine::RunAbilities {
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
