//! The messages of the Agent Client Protocol, as far as they are read. Other fields are skipped.
//!
//! Fields that an agent might omit or send as `null` are optional, because the protocol is young and agents differ.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::value::RawValue;

/// Any line: a request, a notification or a response of JSON-RPC 2.0.
#[derive(Debug, Deserialize)]
pub(super) struct AcpMessage<'a> {
    /// The raw JSON, because the response must repeat it byte for byte.
    #[serde(borrow)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) params: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) result: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
}

/// A chunk of a message, which is the most frequent line, parsed in one pass. Lines that do not match are parsed as an
/// [`AcpMessage`].
#[derive(Debug, Deserialize)]
pub(super) struct AcpChunk<'a> {
    #[serde(borrow)]
    pub(super) method: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) params: ChunkParams<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChunkParams<'a> {
    #[serde(borrow)]
    pub(super) session_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) update: ChunkUpdate<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChunkUpdate<'a> {
    #[serde(borrow)]
    pub(super) session_update: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) message_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) content: ContentBlock<'a>,
}

/// A `session/update` of any kind, parsed in one pass. Lines that do not match are parsed as an [`AcpMessage`].
#[derive(Debug, Deserialize)]
pub(super) struct UpdateLine<'a> {
    #[serde(borrow)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) method: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) params: SessionUpdateParams<'a>,
}

/// Whether a line is likely to be an [`AcpChunk`], judged by its beginning. A wrong guess costs only time.
pub(super) fn looks_like_chunk(line: &[u8]) -> bool {
    let beginning = line.get(..CHUNK_PREFIX_BYTES).unwrap_or(line);
    memchr::memmem::find(beginning, b"agent_message_chunk").is_some()
}

/// In bytes. In all recordings the kind of an update is within this prefix.
const CHUNK_PREFIX_BYTES: usize = 300;

/// The `error` of a response.
#[derive(Debug, Default, Deserialize)]
pub(super) struct AcpError<'a> {
    pub(super) code: Option<i64>,
    #[serde(borrow)]
    pub(super) message: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) data: Option<&'a RawValue>,
}

/// Fields that agents put into the `data` of an error.
#[derive(Debug, Deserialize)]
pub(super) struct AcpErrorData<'a> {
    #[serde(borrow)]
    pub(super) details: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) message: Option<Cow<'a, str>>,
}

/// The method that reopens a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReopenMethod {
    /// Without a replay of the history.
    Resume,
    /// With a replay of the history.
    Load,
}

impl ReopenMethod {
    /// The method that the agent offers; `Resume` is preferred.
    pub(super) fn from_capabilities(initialized: &InitializeResult<'_>) -> Option<Self> {
        let capabilities = initialized.agent_capabilities.as_ref()?;
        let resume = capabilities.session_capabilities.as_ref().and_then(|session| session.resume);
        match resume {
            Some(offer) if offer.get() != "false" => Some(Self::Resume),
            Some(_) | None => capabilities.load_session.unwrap_or(false).then_some(Self::Load),
        }
    }
}

/// The result of `initialize`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InitializeResult<'a> {
    #[serde(borrow)]
    pub(super) protocol_version: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) agent_capabilities: Option<AgentCapabilities<'a>>,
    #[serde(borrow)]
    pub(super) agent_info: Option<AgentInfo<'a>>,
    #[serde(borrow)]
    pub(super) auth_methods: Option<Vec<AuthMethod<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AgentCapabilities<'a> {
    pub(super) load_session: Option<bool>,
    #[serde(borrow)]
    pub(super) session_capabilities: Option<SessionCapabilities<'a>>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct SessionCapabilities<'a> {
    #[serde(borrow)]
    pub(super) resume: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
pub(super) struct AgentInfo<'a> {
    #[serde(borrow)]
    pub(super) version: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct AuthMethod<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Cow<'a, str>>,
}

/// The result of `session/new`, `session/load` and `session/resume`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OpenSessionResult<'a> {
    #[serde(borrow)]
    pub(super) session_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) modes: Option<SessionModes<'a>>,
    #[serde(borrow)]
    pub(super) models: Option<SessionModels<'a>>,
    #[serde(borrow)]
    pub(super) config_options: Option<Vec<&'a RawValue>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionModes<'a> {
    #[serde(borrow)]
    pub(super) current_mode_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) available_modes: Vec<SessionMode<'a>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct SessionMode<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) description: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionModels<'a> {
    #[serde(borrow)]
    pub(super) current_model_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) available_models: Vec<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionModel<'a> {
    #[serde(borrow)]
    pub(super) model_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) name: Option<Cow<'a, str>>,
}

/// A configuration option of a session with a list of values.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConfigOption<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) category: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) current_value: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) options: Vec<ConfigValue<'a>>,
}

/// A value of an option, or a group of values.
#[derive(Debug, Deserialize)]
pub(super) struct ConfigValue<'a> {
    #[serde(borrow)]
    pub(super) value: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) description: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) options: Vec<ConfigValue<'a>>,
}

/// The result of `session/prompt`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PromptResult<'a> {
    #[serde(borrow)]
    pub(super) stop_reason: Option<Cow<'a, str>>,
}

/// `session/update`
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionUpdateParams<'a> {
    #[serde(borrow)]
    pub(super) session_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) update: SessionUpdate<'a>,
}

/// The fields of all kinds of updates.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionUpdate<'a> {
    #[serde(borrow)]
    pub(super) session_update: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) content: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) message_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) tool_call_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) title: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) status: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) raw_input: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) entries: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta")]
    pub(super) meta: Option<&'a RawValue>,
}

/// Additional information about the agent's thread, under a name of the agent's choice.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UpdateMeta<'a> {
    #[serde(borrow)]
    pub(super) thread_status: Option<ThreadStatus<'a>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ThreadStatus<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
}

impl SessionUpdate<'_> {
    /// The status of the agent's thread, if the agent reports it.
    pub(super) fn thread_status(&self) -> Option<String> {
        let additions: BTreeMap<&str, &RawValue> = serde_json::from_str(self.meta?.get()).ok()?;
        let statuses =
            additions.into_values().filter_map(|one| serde_json::from_str::<UpdateMeta<'_>>(one.get()).ok());
        statuses.filter_map(|one| one.thread_status).map(|status| status.kind.into_owned()).next()
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct ContentBlock<'a> {
    #[serde(borrow, default)]
    pub(super) text: Cow<'a, str>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PlanEntry<'a> {
    #[serde(borrow)]
    pub(super) content: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) status: Option<Cow<'a, str>>,
}

/// `session/request_permission`
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RequestPermissionParams<'a> {
    #[serde(borrow)]
    pub(super) tool_call: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) options: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PermissionOption<'a> {
    #[serde(borrow)]
    pub(super) option_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) kind: Option<Cow<'a, str>>,
}

/// `$/cancel_request`
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CancelRequestParams<'a> {
    #[serde(borrow)]
    pub(super) request_id: &'a RawValue,
}

/// Parses a part of a line; `None` if it does not match.
pub(super) fn parse_part<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}
