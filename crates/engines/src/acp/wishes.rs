//! What a run wants of a session, in the modes and models that the agent lists.
//!
//! Modes have no meaning in the protocol, only names, so they are recognised by the names that agents use, and a mode
//! that is not recognised is never chosen:
//!
//! | sandbox | first of these that the agent lists |
//! |---|---|
//! | read-only | `read-only`, `plan`, `ask`; then `default`, `manual`, in which every change is put to a person |
//! | workspace-write | `workspace-write`, `acceptEdits`, `auto-edit`, `default`, `manual`; then as read-only |
//! | danger-full-access | `agent-full-access`, `full-access`, `bypassPermissions`, `yolo`; else the mode stays |
//! | none | the mode stays, except `agent` and `auto`: see below |
//!
//! An agent that lists none of them for the first two cannot be trusted with the run, and the turn fails: it would
//! be wider than wanted. In the modes `agent` and `auto` another model gives the permissions that are asked for, and
//! nobody ever hears of it. Only a person approves, so a run that may ask leaves them for a mode that does.

use std::borrow::Cow;

use abide_domain::settings::ExecutionMode;
use abide_ports::engine::{Order, Sandbox};

use super::{
    native::{ConfigOption, ConfigValue, Model, Opened},
    words,
};

const READ_ONLY: [&str; 5] = ["readonly", "plan", "ask", "default", "manual"];
const WORKSPACE_WRITE: [&str; 8] =
    ["workspacewrite", "acceptedits", "autoedit", "default", "manual", "ask", "readonly", "plan"];
const FULL_ACCESS: [&str; 5] =
    ["agentfullaccess", "fullaccess", "dangerfullaccess", "bypasspermissions", "yolo"];
const A_PERSON_IS_ASKED: [&str; 3] = ["workspacewrite", "default", "manual"];
const A_MODEL_APPROVES: [&str; 2] = ["agent", "auto"];

/// What a run wants.
#[derive(Debug)]
pub(super) struct Wishes {
    sandbox: Option<Sandbox>,
    model: Option<String>,
    may_ask: bool,
}

/// Something to be set before the first prompt.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// The request.
    pub(super) request: Vec<u8>,
    /// What it sets, for people; nothing if it does not matter whether the agent takes it.
    pub(super) wanted: Option<String>,
}

/// A list of modes, and how one is chosen.
struct ModeList<'a> {
    /// Set by `session/set_mode`, or else by this configuration option.
    config_id: Option<Cow<'a, str>>,
    current: Option<Cow<'a, str>>,
    ids: Vec<Cow<'a, str>>,
}

impl Wishes {
    pub(super) fn of(order: &Order<'_>) -> Self {
        Self {
            sandbox: order.sandbox,
            model: order.model.map(str::to_owned),
            may_ask: order.mode != ExecutionMode::Auto,
        }
    }

    /// What has to be set in the session that was opened; or why it cannot be as wanted.
    pub(super) fn settings(
        &self,
        session: &str,
        opened: &Opened<'_>,
        replayed: bool,
    ) -> Result<Vec<Setting>, String> {
        let options: Vec<ConfigOption<'_>> =
            opened.config_options.iter().flatten().filter_map(parsed).collect();
        let modes = mode_list(opened, &options);
        let mut settings = vec![];
        if let (Some(id), Some(list)) = (self.mode(modes.as_ref())?, &modes) {
            settings.push(list.choose(settings.len(), session, id, Some(format!("mode {id:?}"))));
        }
        if let Some(wanted) = &self.model {
            settings.extend(model(settings.len(), session, wanted, opened, &options)?);
        }
        if let (true, true, Some(list)) = (replayed, settings.is_empty(), &modes)
            && let Some(current) = &list.current
        {
            // Some agents go on telling the session's history after they said that it is loaded. What comes after
            // the answer to one more request is no history.
            settings.push(list.choose(0, session, current, None));
        }
        Ok(settings)
    }

    /// The mode to be set, if another one than the present.
    fn mode<'a>(&self, list: Option<&'a ModeList<'_>>) -> Result<Option<&'a str>, String> {
        let current = list.and_then(|list| list.current.as_deref());
        let listed = |names: &[&str]| {
            let ids = list.map(|list| list.ids.as_slice()).unwrap_or_default();
            names.iter().find_map(|name| ids.iter().map(AsRef::as_ref).find(|id: &&str| plain(id) == *name))
        };
        let needed = |names: &[&str], sandbox: Sandbox| {
            listed(names).map(Some).ok_or_else(|| {
                let ids = list.map(|list| list.ids.join(", ")).unwrap_or_default();
                format!(
                    "the agent has no mode that is known to be as narrow as the sandbox {} (it lists: {ids}); \
                     leave the run's sandbox out to let the agent's own configuration decide",
                    sandbox.name(),
                )
            })
        };
        let wanted = match self.sandbox {
            Some(Sandbox::ReadOnly) => needed(&READ_ONLY, Sandbox::ReadOnly)?,
            Some(Sandbox::WorkspaceWrite) => needed(&WORKSPACE_WRITE, Sandbox::WorkspaceWrite)?,
            Some(Sandbox::FullAccess) => listed(&FULL_ACCESS),
            None if self.may_ask && current.is_some_and(|id| A_MODEL_APPROVES.contains(&&*plain(id))) => {
                listed(&A_PERSON_IS_ASKED)
            }
            None => None,
        };
        Ok(wanted.filter(|id| Some(*id) != current))
    }
}

impl ModeList<'_> {
    fn choose(&self, index: usize, session: &str, id: &str, wanted: Option<String>) -> Setting {
        let request = match &self.config_id {
            None => words::set_mode(index, session, id),
            Some(config_id) => words::set_option(index, session, config_id, id),
        };
        Setting { request, wanted }
    }
}

fn mode_list<'a>(opened: &'a Opened<'_>, options: &'a [ConfigOption<'_>]) -> Option<ModeList<'a>> {
    if let Some(modes) = &opened.modes {
        return Some(ModeList {
            config_id: None,
            current: modes.current_mode_id.as_deref().map(Cow::Borrowed),
            ids: modes.available_modes.iter().map(|mode| Cow::Borrowed(&*mode.id)).collect(),
        });
    }
    let option = options.iter().find(|option| is_about(option, "mode"))?;
    Some(ModeList {
        config_id: Some(Cow::Borrowed(&option.id)),
        current: option.current_value.as_deref().map(Cow::Borrowed),
        ids: values(&option.options).filter_map(|value| value.value.as_deref()).map(Cow::Borrowed).collect(),
    })
}

/// The request that chooses the model, if it is not chosen already.
fn model(
    index: usize,
    session: &str,
    wanted: &str,
    opened: &Opened<'_>,
    options: &[ConfigOption<'_>],
) -> Result<Option<Setting>, String> {
    let same = |id: &str, name: Option<&str>| {
        id == wanted || name.is_some_and(|name| name.eq_ignore_ascii_case(wanted))
    };
    let setting = |request| Ok(Some(Setting { request, wanted: Some(format!("model {wanted:?}")) }));
    let option = options.iter().find(|option| is_about(option, "model"));
    if let Some(option) = option {
        if option.current_value.as_deref() == Some(wanted) {
            return Ok(None);
        }
        let found = values(&option.options)
            .find_map(|value| value.value.as_deref().filter(|id| same(id, value.name.as_deref())));
        if let Some(found) = found {
            return setting(words::set_option(index, session, &option.id, found));
        }
    }
    match (&opened.models, option) {
        (Some(models), _) if models.current_model_id.as_deref() == Some(wanted) => Ok(None),
        // Lists are not always complete: what is not on it is for the agent to refuse.
        (Some(models), _) => {
            let listed: Vec<Model<'_>> = models.available_models.iter().filter_map(parsed).collect();
            let found = listed.iter().find(|model| same(&model.model_id, model.name.as_deref()));
            setting(words::set_model(index, session, found.map_or(wanted, |model| &model.model_id)))
        }
        (None, Some(option)) => setting(words::set_option(index, session, &option.id, wanted)),
        (None, None) => Err(format!(
            "the agent lets nobody choose its model, so {wanted:?} cannot be had; choose it by the agent's own \
             arguments or configuration"
        )),
    }
}

fn is_about(option: &ConfigOption<'_>, category: &str) -> bool {
    option.category.as_deref().unwrap_or(&option.id) == category
}

/// The values of a list, those in groups too.
fn values<'a>(options: &'a [ConfigValue<'a>]) -> impl Iterator<Item = &'a ConfigValue<'a>> {
    options.iter().flat_map(|option| std::iter::once(option).chain(&option.options))
}

/// The name without what agents spell differently.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
}

fn parsed<'a, T: serde::Deserialize<'a>>(raw: &&'a serde_json::value::RawValue) -> Option<T> {
    serde_json::from_str(raw.get()).ok()
}
