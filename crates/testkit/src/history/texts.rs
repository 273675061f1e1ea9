//! Texts of users and engines in random histories: short, long, and with characters that need quoting.

use std::collections::BTreeMap;

use abide_domain::{
    engine::{EngineSessionHandle, HandleType},
    event::IdempotencyClaim,
    failure::{FailureCode, RunFailure},
    inbound::{InboundMessage, MessageKey},
    interaction::{DecisionPolicy, InteractionKind, InteractionOption, Question},
    process::ProcessBinding,
    settings::{ExecutionMode, OnBusy, RunSettings, UnansweredPolicy},
    time::Seconds,
};

use super::HistoryGenerator;

impl HistoryGenerator {
    pub(super) fn text(&mut self) -> String {
        let texts =
            ["ok", "", "it's \"quoted\" \\ and\nbroken\tup", "naïve 你好 🦀", "nul \0 inside", "%_'; --"];
        let text = self.rng.choose_nonempty(&texts);
        if self.rng.chance(5) { text.repeat(400) } else { text.to_owned() }
    }

    /// Returns a conversation name; the names contain characters that need quoting, because they are used in queries.
    pub(super) fn conversation(&mut self) -> String {
        self.rng.choose_nonempty(&["chat:1", "chat:2", "chat 'three' \0 \\"]).to_owned()
    }

    pub(super) fn message(&mut self) -> InboundMessage {
        self.counter += 1;
        let channel = self.rng.choose_nonempty(&["api", "feishu", "q'uote\0"]).to_owned();
        let message_id = format!("m{}-{}", self.writer, self.counter);
        InboundMessage { key: MessageKey { channel, message_id }, text: self.text() }
    }

    pub(super) fn idempotency(&mut self) -> Option<IdempotencyClaim> {
        self.counter += 1;
        let key = format!("key {}-{}", self.writer, self.counter);
        self.rng.chance(50).then(|| IdempotencyClaim { key, fingerprint: self.text() })
    }

    pub(super) fn settings(&mut self) -> RunSettings {
        let modes = [ExecutionMode::Auto, ExecutionMode::Interactive, ExecutionMode::Chat];
        RunSettings {
            engine: "parrot".to_owned(),
            workspace: self.text(),
            execution_mode: self.rng.choose_nonempty(&modes),
            conversation_ref: self.rng.chance(80).then(|| self.conversation()),
            unanswered: self.rng.choose_nonempty(&[UnansweredPolicy::Strict, UnansweredPolicy::AutoDecide]),
            session_timeout_sec: Seconds(1200),
            turn_timeout_sec: self.rng.chance(30).then_some(Seconds(600)),
            on_busy: self.on_busy(),
            model: self.rng.chance(30).then(|| self.text()),
            sandbox: None,
            isolation: None,
            skill: None,
            labels: BTreeMap::from([("owner".to_owned(), self.text())]),
        }
    }

    pub(super) fn on_busy(&mut self) -> OnBusy {
        self.rng.choose_nonempty(&[OnBusy::Queue, OnBusy::Steer, OnBusy::Supersede])
    }

    pub(super) fn question(&mut self) -> Question {
        let kinds = [
            InteractionKind::ChooseOne,
            InteractionKind::Confirm,
            InteractionKind::FillFields,
            InteractionKind::OpenText,
            InteractionKind::RiskAck,
        ];
        Question {
            kind: self.rng.choose_nonempty(&kinds),
            prompt: self.text(),
            options: vec![InteractionOption { label: self.text(), safe: self.rng.chance(50) }],
            ui_hints: self.rng.chance(20).then(|| "{\"colour\": \"red\"}".to_owned()),
            default_decision_policy: self.rng.choose_nonempty(&[
                DecisionPolicy::EngineJudgement,
                DecisionPolicy::SafeDefault,
                DecisionPolicy::Abort,
            ]),
            context: None,
            hidden: None,
        }
    }

    pub(super) fn process(&mut self) -> ProcessBinding {
        let pid = 1 + self.rng.below(30_000) as u32;
        ProcessBinding {
            keeper: "keeper".to_owned(),
            pid,
            start_time: self.rng.next_u64(),
            boot_id: self.text(),
        }
    }

    pub(super) fn handle(&mut self) -> EngineSessionHandle {
        let handle_value = format!("session-{}", self.writer);
        EngineSessionHandle {
            engine: "parrot".to_owned(),
            handle_type: HandleType::SessionId,
            handle_value,
            created_at_turn: 0,
        }
    }

    pub(super) fn failure(&mut self) -> RunFailure {
        RunFailure::new(FailureCode::EngineFailed, self.text())
    }
}
