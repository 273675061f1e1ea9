//! `abide agent run`: combines definition, environment and keepers, runs the agent and prints the outcome.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
};

use abide_agent::{
    agent_state::{AgentState, MemoryError},
    ask_human::HumanQuestion,
    definition::{AgentDefinition, MODEL_VARIABLE, ModelKeys},
    environment::HumanReply,
    model::ModelClient,
    outcome::AgentOutcome,
    provenance::ForeignStatePolicy,
    run::{AgentDeps, AgentRunError, AgentRunner, empty_context},
    run_plan::{AgentRunRequest, HumanAvailability, SessionPolicy},
    tool::{
        ToolSetup, ToolWorkbench,
        workbench::{OrphanPolicy, StopFlag},
    },
};
use abide_host::{
    control_groups::{self, GroupDecision},
    home_folders,
    isolation::IsolationSubject,
    processes::adopt_orphans,
    store_folders,
};
use anyhow::Context;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{AgentPaths, progress::CliAgentObserver, prompt};
use crate::{
    args::AgentRun,
    config::{self, CliConfig},
    error::{CliError, eprint_line},
    exit, home,
    runs::{print_json, print_text, read_text_argument},
    table::ColourMode,
};

pub(super) fn run(arguments: AgentRun) -> anyhow::Result<ExitCode> {
    let paths = AgentPaths::of(&arguments.paths)?;
    let json = arguments.output.json;
    let request = build_request(&arguments)?;
    let folder = std::path::absolute(&arguments.agent).context("cannot use the agent's folder")?;
    let variable = |name: &str| match &arguments.model {
        Some(model) if name == MODEL_VARIABLE => Some(model.clone()),
        Some(_) | None => home::variable(name),
    };
    let definition = AgentDefinition::load(&folder, &variable).map_err(CliError::bad_definition)?;
    let key = definition.api_key(&home::variable);
    let key = key.map_err(|missing| CliError {
        code: "KEY_MISSING".to_owned(),
        ..CliError::bad_definition(missing)
    })?;
    let interrupt = install_interrupt_flag()?;
    #[cfg(feature = "failpoints")]
    super::failpoints::install(&paths.state)?;
    if !paths.workdir.is_dir() {
        let detail = format!(
            "{} is not a directory; give the working directory with --workdir",
            paths.workdir.display()
        );
        return Err(CliError::usage(detail).into());
    }
    let store_folders = find_store_folders()?;
    let refusal = |home: PathBuf| {
        home_folders::refusal(&home, &paths.workdir)
            .or_else(|| store_folders::refusal(&home, &store_folders, &paths.workdir))
    };
    if let Some(refusal) = home::home().ok().and_then(refusal) {
        return Err(CliError { code: "WORKSPACE_UNUSABLE".to_owned(), ..CliError::usage(refusal) }.into());
    }
    let has_journal =
        || paths.existing_state().is_ok_and(|state| state.is_some_and(|state| state.has_journal()));
    if arguments.resume && !has_journal() {
        let detail = format!("there is no run in {} to continue", paths.state.display());
        return Err(CliError::failure("SESSION_NOT_FOUND", detail).into());
    }
    let keys = definition.keys(&home::variable);
    let folder = paths.state_folder(arguments.paths.session.as_deref())?;
    let on_foreign = if arguments.adopt { ForeignStatePolicy::Adopt } else { ForeignStatePolicy::Refuse };
    let window = || empty_context(&definition, &paths.state_for_tools());
    let mut agent_state = match AgentState::open(&folder, on_foreign, window()) {
        Err(error) if error.is_foreign() && !json && confirm_adoption(&error, &interrupt) => {
            AgentState::open(&folder, ForeignStatePolicy::Adopt, window())
        }
        opened => opened,
    }
    .map_err(open_error)?;
    agent_state.set_redacted_keys(keys.redacted_values());
    let mut client = ModelClient::new(&definition.model, key, Arc::clone(&interrupt))?;
    let isolator = home::isolator(&home::home().unwrap_or_default(), store_folders)?;
    let plan = isolator.plan(&IsolationSubject {
        isolation: arguments.isolation,
        sandbox: arguments.sandbox,
        workspace: &paths.workdir,
        visible_paths: &[],
    });
    let plan = plan.map_err(|detail| CliError::failure("ISOLATION_UNAVAILABLE", detail))?;
    let GroupDecision { groups, warning, .. } = select_groups(&arguments)?;
    for warning in plan.warning.iter().chain(&warning) {
        eprint_line(warning);
    }
    let mut workbench = ToolWorkbench::open(ToolSetup {
        state: agent_state.state().clone(),
        record_dir: agent_state.record_folder().to_owned(),
        former_sessions: agent_state.former_sessions(),
        cwd: paths.workdir.clone(),
        launcher: home::launcher_with(groups.clone())?,
        env: tool_environment(&keys),
        run_id: RUN_ID.to_owned(),
        observation_bytes: definition.limits.observation_bytes,
        stop_flag: StopFlag(Arc::clone(&interrupt)),
        secrets: Vec::new(),
        orphan_policy: if adopt_orphans() { OrphanPolicy::Adopted } else { OrphanPolicy::NotAdopted },
        confinement: plan.confinement.map(|confinement| confinement.encode()).unwrap_or_default(),
    });
    let mut observer =
        CliAgentObserver { json, session: arguments.paths.session.clone(), interrupt: &interrupt };
    let deps = AgentDeps {
        model: &mut client,
        tools: &mut workbench,
        observer: &mut observer,
        interrupt: &interrupt,
    };
    let ran = AgentRunner::new(&definition, agent_state, deps).run(&request);
    if let Some(groups) = &groups {
        // A keeper that was killed by a tool could not remove its group.
        groups.remove_dead_groups();
    }
    match ran {
        Ok(outcome) => {
            observer.announce()?;
            print_outcome(&outcome, json)?;
            Ok(exit::agent_exit_code(&outcome))
        }
        Err(AgentRunError::Usage(detail)) => Err(CliError::usage(detail).into()),
        Err(AgentRunError::Memory(error)) => Err(error.into()),
    }
}

/// Selects the control groups for tools. An agent that runs as an engine uses the group assigned by its daemon, or
/// none.
fn select_groups(arguments: &AgentRun) -> anyhow::Result<GroupDecision> {
    if arguments.again {
        return Ok(control_groups::assigned());
    }
    home::control_groups(&load_config()?)
}

/// Loads the settings. Invalid ones are reported by the commands that need them.
fn load_config() -> anyhow::Result<CliConfig> {
    match config::load(&[]) {
        Ok(loaded) => Ok(loaded.config),
        Err(_) => Ok(CliConfig::defaults_for(&config::machine_facts()?)),
    }
}

/// Returns the folders of the store that the daemon has recorded, and of the configured one.
fn find_store_folders() -> anyhow::Result<Vec<PathBuf>> {
    let Ok(home) = home::home() else { return Ok(vec![]) };
    let mut folders =
        store_folders::recorded(&home).context("cannot read the recorded folder of the database")?;
    folders.extend(home::store_folders(&home, &load_config()?));
    folders.sort();
    folders.dedup();
    Ok(folders)
}

/// Asks the person at the terminal whether to use a foreign state folder.
fn confirm_adoption(error: &MemoryError, interrupt: &AtomicBool) -> bool {
    if let MemoryError::Link { .. } = error {
        return false;
    }
    let question = HumanQuestion {
        interaction_id: String::new(),
        question: format!("{error}. Adopt it?"),
        options: vec!["yes".to_owned(), "no".to_owned()],
        sensitive: false,
    };
    match prompt::ask(&question, interrupt) {
        HumanReply::Answered(answer) => answer == "yes",
        HumanReply::NoAnswer | HumanReply::Interrupted => false,
    }
}

/// Converts the error. A foreign state folder is a usage error, because a retry cannot succeed.
fn open_error(error: MemoryError) -> anyhow::Error {
    if error.is_foreign() {
        return CliError { code: "FOREIGN_STATE".to_owned(), ..CliError::usage(error.to_string()) }.into();
    }
    error.into()
}

/// Run id of all sessions in a state folder: its runs continue each other, so they share one id.
const RUN_ID: &str = "agent";

/// Returns the environment of tools: all variables except those that hold model API keys.
fn tool_environment(keys: &ModelKeys) -> Vec<(String, String)> {
    home::child_environment().into_iter().filter(|(name, value)| !keys.must_withhold(name, value)).collect()
}

fn build_request(arguments: &AgentRun) -> anyhow::Result<AgentRunRequest> {
    let AgentRun { message, answer, say, again, max_iterations, auto, keep_sessions, .. } = arguments;
    if message.as_deref() == Some("-") && answer.as_deref() == Some("-") {
        return Err(
            CliError::usage("only one of --message and --answer can be read from standard input").into()
        );
    }
    let text = |argument: &Option<String>, label| {
        argument.as_deref().map(|text| read_text_argument(text, label)).transpose()
    };
    Ok(AgentRunRequest {
        message: text(message, "the message")?,
        answer: text(answer, "the answer")?,
        answer_or_message: text(say, "the message")?,
        restart_completed: *again,
        max_iterations: *max_iterations,
        human_availability: if *auto { HumanAvailability::Unavailable } else { HumanAvailability::Available },
        session_policy: if *keep_sessions { SessionPolicy::KeepSessions } else { SessionPolicy::EndSessions },
    })
}

/// Returns a flag that the first SIGINT or SIGTERM sets. The second signal ends the process immediately.
fn install_interrupt_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register_conditional_shutdown(
            signal,
            i32::from(exit::INTERRUPTED_CODE),
            Arc::clone(&flag),
        );
        registered.context("cannot listen for signals")?;
        signal_hook::flag::register(signal, Arc::clone(&flag)).context("cannot listen for signals")?;
    }
    Ok(flag)
}

/// Prints the outcome: the answer to standard output, all else to standard error.
fn print_outcome(outcome: &AgentOutcome, json: bool) -> anyhow::Result<()> {
    if json {
        let mut value = json!(outcome);
        value["type"] = json!("outcome");
        return print_json(&value);
    }
    match outcome {
        AgentOutcome::Completed { answer } => print_text(answer)?,
        AgentOutcome::Failed { reason } | AgentOutcome::BudgetExhausted { reason } => {
            eprint_line(format_args!("abide: {reason}"))
        }
        AgentOutcome::Waiting { question } => {
            for line in prompt::lines(question, ColourMode::of_stderr()) {
                eprint_line(line);
            }
            let number = if question.options.is_empty() { "" } else { ", or the number of an option," };
            eprint_line(format_args!(
                "abide: answer by running the same command with --answer '…'{number} in place of --message"
            ));
        }
        AgentOutcome::Interrupted => eprint_line("abide: interrupted; run the same command to continue"),
    }
    Ok(())
}
