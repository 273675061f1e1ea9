//! Texts that the rules derive and that the tables contain.
//!
//! A journal is replayed with the texts of the rules that its run followed, because `abide verify` compares the derived
//! tables with the stored ones. A text is therefore changed only together with a new version of the rules.

/// The texts of one version of the rules.
pub(crate) struct DerivedTexts {
    /// The cause of an unknown outcome: the process ended, and its exit status is unknown.
    pub(crate) unknown_exit: &'static str,
    /// The end of a chat whose engine exited successfully.
    pub(crate) chat_exited: &'static str,
    /// The end of a chat that reached its idle timeout.
    pub(crate) chat_idle: &'static str,
    /// The failure of a chat whose engine reported no session id.
    pub(crate) chat_without_session: &'static str,
    /// The failure of a resumed session that the engine did not confirm.
    pub(crate) session_unconfirmed: &'static str,
    pub(crate) turn_timeout: &'static str,
    /// The failure of a run that does not decide unanswered questions.
    pub(crate) answer_timeout: &'static str,
    /// The cancellation by the policy `abort`.
    pub(crate) aborted_by_policy: &'static str,
    /// The automatic answer to an unanswered approval. It begins with "No.", so it is read as a refusal.
    pub(crate) auto_refusal: &'static str,
    /// The automatic answer if no option is marked as safe.
    pub(crate) auto_least_change: &'static str,
    /// The automatic answer of the policy `engine_judgement`.
    pub(crate) auto_judgement: &'static str,
    /// The alternative to a retry of a chat's failed launch, in a question to a person.
    pub(crate) skip_launch: &'static str,
    /// The alternative to continuing a chat's turn, in a question to a person.
    pub(crate) skip_turn: &'static str,
    /// The object of "Any other text is passed on to the engine, together with …".
    pub(crate) unsent_prompt: &'static str,
    /// The prompt that continues a turn whose outcome is unknown.
    pub(crate) continue_after_lost_contact: &'static str,
    /// The prompt that continues a turn whose process ended during a request.
    pub(crate) continue_after_void_request: &'static str,
    /// The prompt that continues a turn that was stopped by a shutdown.
    pub(crate) continue_after_shutdown: &'static str,
}

/// The texts since version 4.
pub(crate) const TEXTS: DerivedTexts = DerivedTexts {
    unknown_exit: "the engine's process has ended, and its exit status is unknown",
    chat_exited: "the engine of this chat has exited; start a new run to continue",
    chat_idle: "the engine was ended because the chat reached its idle timeout; start a new run to continue",
    chat_without_session: "the engine answered without reporting its session id, so the chat cannot be continued",
    session_unconfirmed: "the engine did not report the session that it was asked to resume",
    turn_timeout: "the turn exceeded its time limit",
    answer_timeout: "the question was not answered before the engine's process had to be ended",
    aborted_by_policy: "the question was not answered, and its policy is to abort",
    auto_refusal: "No. The request was not answered, so it is not approved. Continue without it, or end here if that is not \
                   possible.",
    auto_least_change: "No. The question was not answered, so choose the option that changes the least and can be undone.",
    auto_judgement: "The question was not answered in time. Decide it yourself with your best judgement and continue.",
    skip_launch: "stop trying and continue with the next message",
    skip_turn: "stop and continue with the next message",
    unsent_prompt: "the prompt of this turn",
    continue_after_lost_contact: "Contact was lost during the last turn, so it is not known how much of it was done. \
                                  Inspect the current state first, then continue from there.",
    continue_after_void_request: "The process of the last turn ended while it waited for the answer to a request of \
                                  yours. No answer reached it, and nothing was approved. Inspect the current state \
                                  first, then continue from there, and ask again where you need to.",
    continue_after_shutdown: "The last turn was stopped before its end because the machine's agent runtime was shut \
                              down. Inspect the current state first, then continue from there.",
};

/// The texts of the versions 0 to 3.
pub(crate) const TEXTS_BEFORE_VERSION_4: DerivedTexts = DerivedTexts {
    unknown_exit: "the engine's process is gone and nobody saw how it ended",
    chat_exited: "the chat's engine has ended; start a new one to go on",
    chat_idle: "the chat rested so long that its engine was let go; start a new one to go on",
    chat_without_session: "the engine answered without naming its session, so the chat cannot go on",
    session_unconfirmed: "the engine did not name the session that it was told to go on with",
    turn_timeout: "the turn worked longer than it may",
    answer_timeout: "nobody answered before the engine's process had to be ended",
    aborted_by_policy: "nobody answered, and the question's policy is to abort",
    auto_refusal: "No. Nobody answered, so this is not approved. Go on without it, or end here if that is not possible.",
    auto_least_change: "No. Nobody answered, so choose what changes the least and can be undone.",
    auto_judgement: "Nobody answered in time. Decide this yourself with your best judgement and go on.",
    skip_launch: "stop trying and go on with the next message",
    skip_turn: "stop and go on with the next message",
    unsent_prompt: "what it was to be told",
    continue_after_lost_contact: "Contact was lost during the last turn, so it is not known how much of it was done. Look \
                                  at what is there first, then go on from it.",
    continue_after_void_request: "The process of the last turn ended while it waited for a request of yours to be \
                                  answered. No answer reached it, and nothing was approved. Look at what is there \
                                  first, then go on from it, and ask again where you need to.",
    continue_after_shutdown: "The last turn was stopped before its end because the machine's agent runtime was shut \
                              down. Look at what is there first, then go on from it.",
};
