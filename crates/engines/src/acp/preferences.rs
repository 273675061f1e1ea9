//! Maps the settings of a run to the modes and models that the agent lists.
//!
//! The protocol defines no meaning for modes, so they are recognised by the names that agents use. A mode that is not
//! recognised is never chosen. `plan` and `default` have different meanings in different agents (in one of them, `plan`
//! runs commands freely). They are used only if the mode's description confirms the meaning:
//!
//! | sandbox | the first of these that the agent lists |
//! |---|---|
//! | read-only | `read-only`, a `plan` that changes nothing, a `default` or `manual` that asks before each change |
//! | workspace-write | `workspace-write`, `acceptEdits`, `auto-edit`, then as read-only in reverse |
//! | danger-full-access | `agent-full-access`, `full-access`, `bypassPermissions`, `yolo`; else the mode stays |
//! | none | the mode stays, except `agent` and `auto`: see below |
//!
//! If an agent lists none of them for the first two sandboxes, the turn fails, because its permissions would be too
//! wide. In the modes `agent` and `auto`, another model grants permissions without asking a person. Only a person may
//! approve, so a run that may ask replaces these modes by one that asks.

use abide_domain::settings::ExecutionMode;
use abide_ports::engine::{LaunchContext, SandboxMode};

use super::{
    messages::{ConfigOption, ConfigValue, OpenSessionResult, SessionModel},
    requests,
};

/// The criterion that recognises a mode.
#[derive(Clone, Copy, Debug)]
enum ModePattern {
    /// The normalised name.
    Named(&'static str),
    /// The normalised name, together with one of these phrases in the description.
    NamedAndDescribed(&'static str, &'static [&'static str]),
}

use ModePattern::{Named, NamedAndDescribed};

const READ_ONLY_PHRASES: &[&str] = &["read-only", "read only", "not modify"];
const APPROVAL_PHRASES: &[&str] =
    &["ask before", "asks before", "require approval", "requires approval", "for approval"];

const READ_ONLY_MODES: &[ModePattern] = &[
    Named("readonly"),
    NamedAndDescribed("plan", READ_ONLY_PHRASES),
    NamedAndDescribed("default", APPROVAL_PHRASES),
    NamedAndDescribed("manual", APPROVAL_PHRASES),
];
const WORKSPACE_WRITE_MODES: &[ModePattern] = &[
    Named("workspacewrite"),
    Named("acceptedits"),
    Named("autoedit"),
    NamedAndDescribed("default", APPROVAL_PHRASES),
    NamedAndDescribed("manual", APPROVAL_PHRASES),
    NamedAndDescribed("plan", READ_ONLY_PHRASES),
    Named("readonly"),
];
const FULL_ACCESS_MODES: &[ModePattern] = &[
    Named("agentfullaccess"),
    Named("fullaccess"),
    Named("dangerfullaccess"),
    Named("bypasspermissions"),
    Named("yolo"),
];
const USER_APPROVAL_MODES: &[ModePattern] = &[
    Named("workspacewrite"),
    NamedAndDescribed("default", APPROVAL_PHRASES),
    NamedAndDescribed("manual", APPROVAL_PHRASES),
];
const MODEL_APPROVAL_MODES: [&str; 2] = ["agent", "auto"];

/// The settings that a run requests.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct SessionPreferences {
    sandbox: Option<SandboxMode>,
    model: Option<String>,
    may_ask: bool,
}

/// A request that is sent before the first prompt.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct SessionSetting {
    pub(super) request: Vec<u8>,
    /// The setting's description for error messages; `None` if a refusal does not matter.
    pub(super) wanted: Option<String>,
}

/// The modes of a session, and the request that sets one.
struct ModeList<'a> {
    /// `None` if modes are set by `session/set_mode`; otherwise the id of the configuration option.
    config_id: Option<&'a str>,
    current: Option<&'a str>,
    modes: Vec<ListedMode<'a>>,
}

struct ListedMode<'a> {
    id: &'a str,
    description: &'a str,
}

impl SessionPreferences {
    pub(super) fn of(context: &LaunchContext<'_>) -> Self {
        Self {
            sandbox: context.sandbox,
            model: context.model.map(str::to_owned),
            may_ask: context.mode != ExecutionMode::Auto,
        }
    }

    /// The settings to apply to the opened session, or the reason why the requested ones are not possible.
    pub(super) fn settings(
        &self,
        session: &str,
        opened: &OpenSessionResult<'_>,
        replayed: bool,
    ) -> Result<Vec<SessionSetting>, String> {
        let options: Vec<ConfigOption<'_>> =
            opened.config_options.iter().flatten().filter_map(parse).collect();
        let modes = mode_list(opened, &options);
        let mut settings = vec![];
        if let (Some(id), Some(list)) = (self.mode(modes.as_ref())?, &modes) {
            settings.push(list.set_request(settings.len(), session, id, Some(format!("mode {id:?}"))));
        }
        if let Some(requested) = &self.model {
            settings.extend(model_setting(settings.len(), session, requested, opened, &options)?);
        }
        if let (true, true, Some(list)) = (replayed, settings.is_empty(), &modes)
            && let Some(current) = list.current
        {
            // Some agents continue to replay history after the session is loaded. Messages after the response to one
            // more request are not history.
            settings.push(list.set_request(0, session, current, None));
        }
        Ok(settings)
    }

    /// The mode to set, if it differs from the current one.
    fn mode<'a>(&self, list: Option<&ModeList<'a>>) -> Result<Option<&'a str>, String> {
        let current = list.and_then(|list| list.current);
        let modes = list.map(|list| list.modes.as_slice()).unwrap_or_default();
        let listed = |patterns: &[ModePattern]| {
            patterns
                .iter()
                .find_map(|pattern| modes.iter().find(|mode| mode.matches(*pattern)))
                .map(|mode| mode.id)
        };
        let needed = |patterns: &[ModePattern], sandbox: SandboxMode| {
            listed(patterns).map(Some).ok_or_else(|| {
                let ids: Vec<&str> = modes.iter().map(|mode| mode.id).collect();
                format!(
                    "the agent has no mode that is known to be as narrow as the sandbox {} (it lists: {}); \
                     leave the run's sandbox out to let the agent's own configuration decide",
                    sandbox.name(),
                    ids.join(", "),
                )
            })
        };
        let requested = match self.sandbox {
            Some(SandboxMode::ReadOnly) => needed(READ_ONLY_MODES, SandboxMode::ReadOnly)?,
            Some(SandboxMode::WorkspaceWrite) => needed(WORKSPACE_WRITE_MODES, SandboxMode::WorkspaceWrite)?,
            Some(SandboxMode::FullAccess) => listed(FULL_ACCESS_MODES),
            None if self.may_ask
                && current.is_some_and(|id| MODEL_APPROVAL_MODES.contains(&&*normalize(id))) =>
            {
                listed(USER_APPROVAL_MODES)
            }
            None => None,
        };
        Ok(requested.filter(|id| Some(*id) != current))
    }
}

impl ListedMode<'_> {
    fn matches(&self, pattern: ModePattern) -> bool {
        match pattern {
            Named(name) => normalize(self.id) == name,
            NamedAndDescribed(name, words) => {
                let description = self.description.to_lowercase();
                normalize(self.id) == name && words.iter().any(|word| description.contains(word))
            }
        }
    }
}

impl ModeList<'_> {
    fn set_request(
        &self,
        index: usize,
        session: &str,
        id: &str,
        requested: Option<String>,
    ) -> SessionSetting {
        let request = match self.config_id {
            None => requests::set_mode(index, session, id),
            Some(config_id) => requests::set_option(index, session, config_id, id),
        };
        SessionSetting { request, wanted: requested }
    }
}

fn mode_list<'a>(opened: &'a OpenSessionResult<'_>, options: &'a [ConfigOption<'_>]) -> Option<ModeList<'a>> {
    if let Some(modes) = &opened.modes {
        let listed = modes.available_modes.iter();
        return Some(ModeList {
            config_id: None,
            current: modes.current_mode_id.as_deref(),
            modes: listed
                .map(|mode| ListedMode {
                    id: &mode.id,
                    description: mode.description.as_deref().unwrap_or_default(),
                })
                .collect(),
        });
    }
    let option = options.iter().find(|option| has_category(option, "mode"))?;
    let listed = values(&option.options).filter_map(|value| {
        let description = value.description.as_deref().unwrap_or_default();
        value.value.as_deref().map(|id| ListedMode { id, description })
    });
    Some(ModeList {
        config_id: Some(&option.id),
        current: option.current_value.as_deref(),
        modes: listed.collect(),
    })
}

/// The request that sets the model, if it differs from the current one.
fn model_setting(
    index: usize,
    session: &str,
    requested: &str,
    opened: &OpenSessionResult<'_>,
    options: &[ConfigOption<'_>],
) -> Result<Option<SessionSetting>, String> {
    let same = |id: &str, name: Option<&str>| {
        id == requested || name.is_some_and(|name| name.eq_ignore_ascii_case(requested))
    };
    let setting =
        |request| Ok(Some(SessionSetting { request, wanted: Some(format!("model {requested:?}")) }));
    let option = options.iter().find(|option| has_category(option, "model"));
    if let Some(option) = option {
        if option.current_value.as_deref() == Some(requested) {
            return Ok(None);
        }
        let id = values(&option.options)
            .find_map(|value| value.value.as_deref().filter(|id| same(id, value.name.as_deref())));
        if let Some(id) = id {
            return setting(requests::set_option(index, session, &option.id, id));
        }
    }
    match (&opened.models, option) {
        (Some(models), _) if models.current_model_id.as_deref() == Some(requested) => Ok(None),
        // Lists can be incomplete, so an unlisted model is requested and the agent may refuse it.
        (Some(models), _) => {
            let listed: Vec<SessionModel<'_>> = models.available_models.iter().filter_map(parse).collect();
            let entry = listed.iter().find(|model| same(&model.model_id, model.name.as_deref()));
            setting(requests::set_model(index, session, entry.map_or(requested, |model| &model.model_id)))
        }
        (None, Some(option)) => setting(requests::set_option(index, session, &option.id, requested)),
        (None, None) => Err(format!(
            "the agent does not offer a choice of its model, so {requested:?} is not available; set it in the agent's own \
             arguments or configuration"
        )),
    }
}

fn has_category(option: &ConfigOption<'_>, category: &str) -> bool {
    option.category.as_deref().unwrap_or(&option.id) == category
}

/// The values of a list, including those in groups.
fn values<'a>(options: &'a [ConfigValue<'a>]) -> impl Iterator<Item = &'a ConfigValue<'a>> {
    options.iter().flat_map(|option| std::iter::once(option).chain(&option.options))
}

/// Normalises a name: lower-case letters and digits only.
fn normalize(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
}

fn parse<'a, T: serde::Deserialize<'a>>(raw: &&'a serde_json::value::RawValue) -> Option<T> {
    serde_json::from_str(raw.get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mode that a run with this sandbox sets for an agent with these modes; the first one is the present mode.
    fn check(sandbox: Option<SandboxMode>, modes: &[(&str, &str)]) -> Result<Option<String>, String> {
        let preferences = SessionPreferences { sandbox, model: None, may_ask: true };
        let modes: Vec<_> = modes.iter().map(|(id, description)| ListedMode { id, description }).collect();
        let list = ModeList { config_id: None, current: modes.first().map(|mode| mode.id), modes };
        preferences.mode(Some(&list)).map(|id| id.map(str::to_owned))
    }

    const CODEX: [(&str, &str); 4] = [
        ("agent", "Only ask for actions detected as potentially unsafe"),
        ("read-only", "Requires approval to edit files and access the internet."),
        ("workspace-write", "Edit workspace files; ask before writing outside the workspace"),
        ("agent-full-access", "Unrestricted access to the internet and any file on your computer"),
    ];
    const CLAUDE: [(&str, &str); 4] = [
        ("default", "Always ask before making changes"),
        ("acceptEdits", "Automatically accept all file edits"),
        ("plan", "Create a plan before making changes"),
        ("bypassPermissions", "Accepts all permissions"),
    ];
    const QWEN: [(&str, &str); 4] = [
        ("auto", "LLM classifier auto-approves safe actions, blocks risky ones"),
        ("plan", "Analyze only, do not modify files or execute commands"),
        ("default", "Require approval for file edits or shell commands"),
        ("auto-edit", "Automatically approve file edits"),
    ];

    #[test]
    fn each_sandbox_becomes_the_nearest_mode_that_is_not_wider() {
        let set = |mode: &str| Ok(Some(mode.to_owned()));
        assert_eq!(check(Some(SandboxMode::ReadOnly), &CODEX), set("read-only"));
        assert_eq!(check(Some(SandboxMode::WorkspaceWrite), &CODEX), set("workspace-write"));
        assert_eq!(check(Some(SandboxMode::FullAccess), &CODEX), set("agent-full-access"));
        assert_eq!(check(Some(SandboxMode::ReadOnly), &CLAUDE), Ok(None), "the present mode asks");
        assert_eq!(check(Some(SandboxMode::WorkspaceWrite), &CLAUDE), set("acceptEdits"));
        assert_eq!(check(Some(SandboxMode::ReadOnly), &QWEN), set("plan"));
        assert_eq!(check(Some(SandboxMode::WorkspaceWrite), &QWEN), set("auto-edit"));
        assert_eq!(check(Some(SandboxMode::FullAccess), &QWEN), Ok(None), "there is none");
    }

    #[test]
    fn a_mode_in_which_a_model_approves_is_left_and_every_other_stays() {
        assert_eq!(check(None, &CODEX), Ok(Some("workspace-write".to_owned())));
        assert_eq!(check(None, &QWEN), Ok(Some("default".to_owned())));
        assert_eq!(check(None, &CLAUDE), Ok(None));
    }

    #[test]
    fn an_unknown_mode_does_not_satisfy_a_sandbox() {
        let unknown = [("build", "Executes tools"), ("plan", "Disallows all edit tools."), ("default", "")];
        for sandbox in [SandboxMode::ReadOnly, SandboxMode::WorkspaceWrite] {
            let refused = check(Some(sandbox), &unknown).unwrap_err();
            assert!(refused.contains(sandbox.name()) && refused.contains("build, plan"), "{refused}");
        }
        assert_eq!(check(None, &unknown), Ok(None));
    }
}
