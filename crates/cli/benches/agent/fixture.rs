//! An agent's folder, and two state folders of earlier work: a short journal and a long one.
//!
//! The agent itself writes the journals on a tmpfs, and they are then copied to disk, because syncing 10,000 events
//! would take too long. The long one lacks its last result, as after a kill, and has the folders of its calls.

use std::{
    collections::VecDeque,
    fmt, fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use abide_agent::{
    agent_state::{AgentState, JOURNAL_FILE, MemoryError},
    definition::AgentDefinition,
    model::ModelClient,
    provenance::{ForeignStatePolicy, StateFolder, StateOrigin},
    run::{AgentDeps, AgentRunner, empty_context},
    run_plan::AgentRunRequest,
};
use serde_json::{Value, json};

use crate::{
    LONG_JOURNAL_EVENTS, SHORT_JOURNAL_EVENTS,
    actors::{
        CountingObserver, LimitedModel, NoopToolRunner, ScriptedAuthor, WritingProgress, clear_interrupt,
    },
    words::TextGenerator,
};

pub(crate) struct AgentBenchFixture {
    /// On disk.
    pub(crate) folder: PathBuf,
    pub(crate) agent: PathBuf,
    pub(crate) short: JournalFixture,
    pub(crate) long: JournalFixture,
}

/// A prepared journal.
pub(crate) struct JournalFixture {
    pub(crate) journal: Vec<u8>,
    events: u64,
    sessions: u64,
}

impl fmt::Display for JournalFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { journal, events, sessions } = self;
        let kib = journal.len() >> 10;
        write!(f, "a journal of {events} events, {kib} KiB, {sessions} sessions in it")
    }
}

impl AgentBenchFixture {
    pub(crate) fn build(folder: &Path) -> Self {
        let agent = folder.join("agent");
        fs::create_dir_all(&agent).expect("a folder");
        fs::write(agent.join("config.yaml"), CONFIG).expect("a file");
        fs::write(agent.join("system_prompt.md"), "You are a careful agent.\n".repeat(40)).expect("a file");
        let definition = load(&agent, "http://127.0.0.1:1");
        let (few, many) = (
            JournalFixture::write(&definition, SHORT_JOURNAL_EVENTS),
            JournalFixture::write(&definition, LONG_JOURNAL_EVENTS),
        );
        Self { folder: folder.to_owned(), agent, short: few, long: many }
    }

    /// Returns the agent's definition with a model at this address.
    pub(crate) fn definition(&self, base_url: &str) -> AgentDefinition {
        load(&self.agent, base_url)
    }
}

fn load(agent: &Path, base_url: &str) -> AgentDefinition {
    let environment = |name: &str| (name == "ABIDE_MODEL_BASE_URL").then(|| base_url.to_owned());
    AgentDefinition::load(agent, &environment).expect("a good definition")
}

impl JournalFixture {
    fn write(definition: &AgentDefinition, target_events: u64) -> Self {
        let state = tmpfs_dir();
        let written = WritingProgress::until(target_events);
        let mut mind =
            ScriptedAuthor { words: TextGenerator::new(target_events), progress: &written, calls: 0 };
        let mut hands = NoopToolRunner::new(&written, target_events + 2);
        let memory = open_state(state.path(), definition).expect("a state folder");
        let interrupt = AtomicBool::new(false);
        let mut voice = CountingObserver(&written);
        let around = AgentDeps {
            model: &mut mind,
            tools: &mut hands,
            observer: &mut voice,
            interrupt: clear_interrupt(&interrupt),
        };
        AgentRunner::new(definition, memory, around).run(&run_request()).expect("a story");
        let sessions = hands.sessions;
        let journal = fs::read(state.path().join(JOURNAL_FILE)).expect("the journal");
        Self { journal, events: written.events.get(), sessions }
    }

    /// Writes the journal to disk and syncs it, as after a kill.
    pub(crate) fn write_to(&self, state: &Path) {
        write_journal(state, &self.journal);
    }

    /// Like [`JournalFixture::put`], without the last result, which is the last line.
    pub(crate) fn write_truncated_to(&self, state: &Path) {
        let whole = self.journal.strip_suffix(b"\n").expect("lines end");
        let last = whole.iter().rposition(|byte| *byte == b'\n').expect("more than a line") + 1;
        assert!(whole[last..].windows(13).any(|part| part == b"ACTION_RESULT"), "a result is last");
        write_journal(state, &self.journal[..last]);
    }

    /// Creates the folders that calls leave behind.
    pub(crate) fn create_execution_dirs(&self, state: &Path) {
        for line in self.journal.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let line: Value = serde_json::from_slice(line).expect("an event");
            let Some(place) = line["payload"]["execution_ref"].as_str() else { continue };
            let place = state.join(place);
            fs::create_dir_all(&place).expect("a folder");
            let call =
                json!({ "tool": "read", "argv": ["cat"], "cwd": "/", "stdin_bytes": 0, "started_at": "" });
            fs::write(place.join("call.json"), call.to_string()).expect("a file");
            fs::write(
                place.join("stdout"),
                line["payload"]["observation_content"].as_str().unwrap_or_default(),
            )
            .expect("a file");
        }
    }
}

fn write_journal(state: &Path, bytes: &[u8]) {
    fs::create_dir_all(state).expect("a folder");
    let path = state.join(JOURNAL_FILE);
    fs::write(&path, bytes).expect("a journal");
    fs::File::open(path).and_then(|file| file.sync_all()).expect("a disk");
}

/// Continues the agent in this state folder for a number of requests, and returns the durations of its tool calls.
pub(crate) fn continue_agent(
    definition: &AgentDefinition,
    state: &Path,
    requests: usize,
) -> Vec<std::time::Duration> {
    let written = WritingProgress::default();
    let interrupt = Arc::new(AtomicBool::new(false));
    let client = ModelClient::new(&definition.model, None, Arc::clone(&interrupt)).expect("a client");
    let mut mind = LimitedModel { client, requests_left: requests };
    let mut hands = NoopToolRunner::new(&written, 5);
    hands.outputs = (0..requests).map(|_| hands.words.output()).collect::<VecDeque<_>>();
    let memory = open_state(state, definition).expect("a state folder");
    let mut voice = CountingObserver(&written);
    let around = AgentDeps {
        model: &mut mind,
        tools: &mut hands,
        observer: &mut voice,
        interrupt: clear_interrupt(&interrupt),
    };
    AgentRunner::new(definition, memory, around).run(&run_request()).expect("a run that continues");
    hands.durations
}

/// Opens the state of the agent in a folder to which a journal was copied.
fn open_state(state: &Path, definition: &AgentDefinition) -> Result<AgentState, MemoryError> {
    let records = state.join("records");
    fs::remove_dir_all(&records).ok();
    let folder = StateFolder {
        root: state.parent().expect("a folder").to_owned(),
        relative: state.file_name().expect("a name").into(),
        records,
        record_id: Some("record".to_owned()),
        origin: StateOrigin::EarlierVersion,
        keeper_arguments: Vec::new(),
    };
    AgentState::open(&folder, ForeignStatePolicy::Refuse, empty_context(definition, STATE))
}

fn run_request() -> AgentRunRequest {
    AgentRunRequest { message: Some(MESSAGE.to_owned()), ..AgentRunRequest::default() }
}

/// Creates a folder on a tmpfs, if there is one.
pub(crate) fn tmpfs_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
}

pub(crate) const MESSAGE: &str = "make the tests of the store pass";
/// The state folder's name in messages to the model.
const STATE: &str = ".abide";

const CONFIG: &str = r#"
model:
  base_url: "http://127.0.0.1:1"
  name: loopback
limits:
  max_iterations: 1000000
tools:
  - name: read
    description: Shows lines of a file.
    command: [sh, -c, 'tail -n +"$2" "$1" | head -n "$3"', read]
    parameters:
      - { name: path, type: string, description: The file., inject_as: argument }
      - { name: from, type: integer, description: The first line., inject_as: argument }
      - { name: lines, type: integer, description: How many lines., inject_as: argument }
  - name: shell
    description: A shell that remembers.
    stateful: true
    command: [bash]
    parameters:
      - { name: command, type: string, description: The command., inject_as: stdin, required: false }
"#;
