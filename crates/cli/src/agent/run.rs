//! `abide agent run`: combines definition, environment and keepers, runs the agent and prints the outcome.

use std::{
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
};

use abide_agent::{
    definition::{AgentDefinition, MODEL_VARIABLE, ModelKeys},
    hands::HumanReply,
    human::HumanQuestion,
    intake::{AgentRunRequest, HumanAvailability, SessionPolicy},
    memory::{AgentState, MemoryError},
    model::ModelClient,
    outcome::AgentOutcome,
    provenance::ForeignStatePolicy,
    run::{AgentDeps, AgentRunError, AgentRunner, window},
    tool::{
        ToolSetup, ToolWorkbench,
        workbench::{OrphanPolicy, StopFlag},
    },
};
use abide_keeper::{group::ControlGroupConfig, leftovers::adopt_orphans};
use abide_os::cgroup::find::own_group;
use anyhow::Context;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{AgentPaths, person, voice::CliAgentObserver};
use crate::{
    args::AgentRun,
    config::{self, CliConfig},
    exit,
    groups::GroupDecision,
    home,
    isolation::IsolationSubject,
    runs::{given_text, print_json, print_words},
    table::ColourMode,
    trouble::{CliError, note},
};

pub(super) fn run(arguments: AgentRun) -> anyhow::Result<ExitCode> {
    let place = AgentPaths::of(&arguments.place)?;
    let json = arguments.output.json;
    let order = order(&arguments)?;
    let folder = std::path::absolute(&arguments.agent).context("cannot use the agent's folder")?;
    let variable = |name: &str| match &arguments.model {
        Some(model) if name == MODEL_VARIABLE => Some(model.clone()),
        Some(_) | None => home::variable(name),
    };
    let definition = AgentDefinition::load(&folder, &variable).map_err(CliError::definition)?;
    let key = definition.api_key(&home::variable);
    let key =
        key.map_err(|missing| CliError { code: "KEY_MISSING".to_owned(), ..CliError::definition(missing) })?;
    let interrupt = interrupts()?;
    #[cfg(feature = "failpoints")]
    super::failpoints::install(&place.state)?;
    if !place.workdir.is_dir() {
        let detail = format!("{} is no directory; --workdir names where to work", place.workdir.display());
        return Err(CliError::usage(detail).into());
    }
    let has_journal =
        || place.existing_state().is_ok_and(|state| state.is_some_and(|state| state.has_journal()));
    if arguments.resume && !has_journal() {
        let detail = format!("there is no run in {} to go on with", place.state.display());
        return Err(CliError::failure("SESSION_NOT_FOUND", detail).into());
    }
    let keys = definition.keys(&home::variable);
    let folder = place.state_folder(arguments.place.session.as_deref())?;
    let on_foreign = if arguments.adopt { ForeignStatePolicy::Adopt } else { ForeignStatePolicy::Refuse };
    let window = || window(&definition, &place.shown_state());
    let mut memory = match AgentState::open(&folder, on_foreign, window()) {
        Err(error) if error.is_foreign() && !json && wants_to_adopt(&error, &interrupt) => {
            AgentState::open(&folder, ForeignStatePolicy::Adopt, window())
        }
        opened => opened,
    }
    .map_err(refusal)?;
    memory.withhold(keys.to_strike());
    let mut client = ModelClient::new(&definition.model, key, Arc::clone(&interrupt))?;
    let plan = home::isolator(&home::home().unwrap_or_default())?.plan(&IsolationSubject {
        isolation: arguments.isolation,
        sandbox: arguments.sandbox,
        workspace: &place.workdir,
        shown: &[],
    });
    let plan = plan.map_err(|detail| CliError::failure("ISOLATION_UNAVAILABLE", detail))?;
    let GroupDecision { groups, warning, .. } = control_groups(&arguments)?;
    for warning in plan.warning.iter().chain(&warning) {
        note(warning);
    }
    let mut workbench = ToolWorkbench::open(ToolSetup {
        state: memory.state().clone(),
        record: memory.record_folder().to_owned(),
        former_sessions: memory.former_sessions(),
        cwd: place.workdir.clone(),
        launcher: home::launcher_with(groups.clone())?,
        env: environment(&keys),
        run: RUN.to_owned(),
        observation_bytes: definition.limits.observation_bytes,
        stop: StopFlag(Arc::clone(&interrupt)),
        secrets: Vec::new(),
        orphans: if adopt_orphans() { OrphanPolicy::Adopted } else { OrphanPolicy::GoElsewhere },
        confinement: plan.confinement.map(|confinement| confinement.encode()).unwrap_or_default(),
    });
    let mut voice =
        CliAgentObserver { json, session: arguments.place.session.clone(), interrupt: &interrupt };
    let around =
        AgentDeps { mind: &mut client, hands: &mut workbench, voice: &mut voice, interrupt: &interrupt };
    let ran = AgentRunner::new(&definition, memory, around).run(&order);
    if let Some(groups) = &groups {
        // Keepers that are confined together with their shell cannot remove their control groups.
        groups.sweep();
    }
    match ran {
        Ok(outcome) => {
            voice.announce()?;
            tell(&outcome, json)?;
            Ok(exit::of_agent(&outcome))
        }
        Err(AgentRunError::Usage(detail)) => Err(CliError::usage(detail).into()),
        Err(AgentRunError::Memory(error)) => Err(error.into()),
    }
}

/// Selects the control groups for tools. An agent that runs as an engine uses the group assigned by its daemon, or
/// none.
fn control_groups(arguments: &AgentRun) -> anyhow::Result<GroupDecision> {
    if arguments.again {
        let own = own_group().ok();
        let groups = own.and_then(|own| ControlGroupConfig::beside(&own));
        return Ok(GroupDecision { groups, ..GroupDecision::default() });
    }
    // Invalid settings are reported by the commands that need them.
    let config = match config::load(&[]) {
        Ok(loaded) => loaded.config,
        Err(_) => CliConfig::standard(&config::circumstances()?),
    };
    home::groups(&config)
}

/// Asks the person at the terminal whether to use a foreign state folder.
fn wants_to_adopt(error: &MemoryError, interrupt: &AtomicBool) -> bool {
    if let MemoryError::Link { .. } = error {
        return false;
    }
    let question = HumanQuestion {
        interaction_id: String::new(),
        question: format!("{error}. Adopt it?"),
        options: vec!["yes".to_owned(), "no".to_owned()],
        sensitive: false,
    };
    match person::ask(&question, interrupt) {
        HumanReply::Answered(answer) => answer == "yes",
        HumanReply::Nobody | HumanReply::Interrupted => false,
    }
}

/// Converts the error. A foreign state folder is a usage error, because a retry cannot succeed.
fn refusal(error: MemoryError) -> anyhow::Error {
    if error.is_foreign() {
        return CliError { code: "FOREIGN_STATE".to_owned(), ..CliError::usage(error.to_string()) }.into();
    }
    error.into()
}

/// Run id of all sessions in a state folder: its runs continue each other, so they share one id.
const RUN: &str = "agent";

/// Returns the environment of tools: all variables except those that hold model API keys.
fn environment(keys: &ModelKeys) -> Vec<(String, String)> {
    home::environment_of_children().into_iter().filter(|(name, value)| !keys.are_in(name, value)).collect()
}

fn order(arguments: &AgentRun) -> anyhow::Result<AgentRunRequest> {
    let AgentRun { message, answer, say, again, max_iterations, auto, keep_sessions, .. } = arguments;
    if message.as_deref() == Some("-") && answer.as_deref() == Some("-") {
        return Err(
            CliError::usage("only one of --message and --answer can be read from standard input").into()
        );
    }
    let text = |given: &Option<String>, what| given.as_deref().map(|text| given_text(text, what)).transpose();
    Ok(AgentRunRequest {
        message: text(message, "the message")?,
        answer: text(answer, "the answer")?,
        said: text(say, "what is said")?,
        again: *again,
        max_iterations: *max_iterations,
        company: if *auto { HumanAvailability::Nobody } else { HumanAvailability::Somebody },
        at_end: if *keep_sessions { SessionPolicy::KeepSessions } else { SessionPolicy::EndSessions },
    })
}

/// Returns a flag that the first SIGINT or SIGTERM sets. The second signal ends the process immediately.
fn interrupts() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag));
        registered.context("cannot listen for signals")?;
        signal_hook::flag::register(signal, Arc::clone(&flag)).context("cannot listen for signals")?;
    }
    Ok(flag)
}

/// Prints the outcome: the answer to standard output, all else to standard error.
fn tell(outcome: &AgentOutcome, json: bool) -> anyhow::Result<()> {
    if json {
        let mut told = json!(outcome);
        told["type"] = json!("outcome");
        return print_json(&told);
    }
    match outcome {
        AgentOutcome::Completed { answer } => print_words(answer)?,
        AgentOutcome::Failed { reason } | AgentOutcome::BudgetExhausted { reason } => {
            note(format_args!("abide: {reason}"))
        }
        AgentOutcome::Waiting { question } => {
            for line in person::lines(question, ColourMode::of_stderr()) {
                note(line);
            }
            let number = if question.options.is_empty() { "" } else { ", or the number of an option," };
            note(format_args!(
                "abide: answer by running the same command with --answer '…'{number} in place of --message"
            ));
        }
        AgentOutcome::Interrupted => note("abide: interrupted; the same command goes on"),
    }
    Ok(())
}
