//! `abide doctor` on a machine whose engines are small scripts: its output, its duration, and the absence of leftovers.

use std::{
    fs,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
};

use abide_testkit::environment;
use rustix::{
    fs::{FileType, Mode, mknodat},
    process::{Pid, Signal, kill_process},
};
use serde_json::Value;

/// A home, a folder of programs and a folder for temporary files.
struct DoctorFixture {
    folder: tempfile::TempDir,
}

impl DoctorFixture {
    fn new(config: &str) -> Self {
        let folder = tempfile::tempdir().expect("there is a place for temporary files");
        for name in ["home", "bin", "tmp"] {
            fs::create_dir(folder.path().join(name)).expect("a new directory can be written to");
        }
        fs::write(folder.path().join("home/config.toml"), config).expect("a new directory can be written to");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Adds a program that consists of these lines of shell.
    fn program(self, name: &str, lines: &str) -> Self {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{lines}\n")).expect("a new directory can be written to");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("the file is ours");
        self
    }

    fn doctor_command(&self, arguments: &[&str]) -> Command {
        let mut command = environment::abide(env!("CARGO_BIN_EXE_abide"));
        command.arg("doctor").args(arguments).current_dir("/").env_clear();
        command.env("ABIDE_HOME", self.path("home")).env("TMPDIR", self.path("tmp"));
        command.env("PATH", self.path("bin")).stderr(Stdio::inherit());
        command
    }

    /// Runs `abide doctor` and returns its JSON output and exit code.
    fn json(&self, arguments: &[&str]) -> (Value, Option<i32>) {
        let output = self
            .doctor_command(arguments)
            .arg("--json")
            .output()
            .expect("the binary was built for this test");
        (serde_json::from_slice(&output.stdout).unwrap_or_default(), output.status.code())
    }

    fn text(&self, arguments: &[&str]) -> (String, Option<i32>) {
        let output = self.doctor_command(arguments).output().expect("the binary was built for this test");
        (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
    }

    /// Returns the files and processes that are left.
    fn leftovers(&self) -> Vec<String> {
        let tmp = self.path("tmp");
        let files = fs::read_dir(&tmp).into_iter().flatten().flatten().map(|entry| entry.path());
        let files = files.map(|path| path.display().to_string());
        // Keepers have the folder among their arguments; their children have it in their environment.
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
            let read = |name| fs::read(entry.path().join(name)).unwrap_or_default();
            let report = [read("cmdline"), read("environ")].concat();
            let report = String::from_utf8_lossy(&report).replace('\0', " ");
            report.contains(&*self.folder.path().to_string_lossy()).then_some(report)
        });
        files.chain(processes).collect()
    }
}

fn engine<'a>(report: &'a Value, name: &str) -> &'a Value {
    let engines = report["engines"].as_array().map_or(&[][..], Vec::as_slice);
    engines.iter().find(|engine| engine["name"] == name).unwrap_or(&Value::Null)
}

const CODEX: &str = r#"case "$*" in --version) echo codex-cli 1.2.3;; *) echo 'Usage: codex exec resume [SESSION_ID]';; esac"#;
const GEMINI_WITHOUT_RESUME: &str =
    r#"case "$*" in --version) echo 0.0.1;; *) echo 'Options: --prompt';; esac"#;

#[test]
fn each_engine_state_is_reported_with_its_reason() {
    let fixture = DoctorFixture::new(
        "[engines.gone]\nprotocol = 'acp'\ncommand = ['gone']\n\
         [engines.slow]\nprotocol = 'acp'\ncommand = ['slow']\n\
         [engines.unwanted]\nprotocol = 'acp'\ncommand = ['slow']\nenabled = false\n",
    )
    .program("codex", CODEX)
    .program("gemini", GEMINI_WITHOUT_RESUME)
    .program("slow", "exec /bin/sleep 600");
    let names = ["codex", "gemini", "gone", "unwanted"];
    let (report, code) = fixture.json(&names);
    assert_eq!((code, &report["usable"]), (Some(0), &Value::from(true)), "{report:#}");
    let field = |name: &str, field: &str| engine(&report, name)[field].clone();
    let states = names.map(|name| field(name, "state"));
    assert_eq!(states, ["resumable", "sticky", "missing", "off"], "{report:#}");
    assert_eq!(field("codex", "version"), "1.2.3");
    assert_eq!(field("codex", "program"), *fixture.path("bin/codex").to_string_lossy());
    assert_eq!(field("codex", "profile"), "resumable");
    assert_eq!(field("gemini", "profile"), "sticky_process");
    assert!(field("gemini", "reason").to_string().contains("shows no --resume"), "{report:#}");
    assert!(field("gemini", "missing_abilities")["resume"].is_string(), "{report:#}");
    assert!(field("gone", "reason").to_string().contains("engines.gone.command"), "{report:#}");
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
    // Run alone, so that the timeout does not affect the others.
    let (report, code) = fixture.json(&["slow", "--timeout", "1"]);
    // The same result as in a run: the program is not missing, and its process would be kept.
    assert_eq!((code, &engine(&report, "slow")["state"]), (Some(0), &Value::from("sticky")), "{report:#}");
    assert!(engine(&report, "slow")["reason"].to_string().contains("in time"), "{report:#}");
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
}

#[test]
fn the_table_has_no_colours_outside_a_terminal() {
    let fixture = DoctorFixture::new("").program("codex", CODEX);
    let (table, code) = fixture.text(&["codex", "gemini"]);
    assert_eq!(code, Some(0), "{table}");
    let row = |name: &str| {
        let row = table.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        row.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    let program = fixture.path("bin/codex");
    assert!(row("codex").starts_with("codex resumable 1.2.3 resume, "), "{table}");
    assert!(row("codex").ends_with(&format!(" {}", program.display())), "{table}");
    assert_eq!(row("gemini"), "gemini missing - - -");
    assert!(table.contains("npm install -g @google/gemini-cli"), "{table}");
    assert!(row("git").starts_with("git warning"), "{table}");
    assert!(!table.contains('\x1b') && !table.contains("each turn is a new process"), "{table}");
    let (table, _) = fixture.text(&["codex", "--all"]);
    assert!(table.contains("each turn is a new process that resumes the session"), "{table}");
}

#[test]
fn an_engine_that_was_never_tried_on_its_program_is_called_unverified() {
    let fixture = DoctorFixture::new("").program("codex", CODEX);
    let (report, _) = fixture.json(&["iflow", "codex"]);
    let verified = ["iflow", "codex"].map(|name| engine(&report, name)["verified"].clone());
    assert_eq!(verified, [Value::from(false), Value::from(true)], "{report:#}");
    let (table, _) = fixture.text(&["iflow", "codex"]);
    assert!(table.contains("iflow (unverified)") && !table.contains("codex (unverified)"), "{table}");
}

#[test]
fn without_an_engine_or_with_broken_settings_it_fails() {
    let fixture = DoctorFixture::new("");
    assert_eq!(fixture.text(&["codex"]).1, Some(1));
    assert_eq!(fixture.text(&["codx"]).1, Some(2));
    let fixture = DoctorFixture::new("listn = 1\n").program("codex", CODEX);
    let (report, code) = fixture.json(&["codex"]);
    assert_eq!((code, &engine(&report, "codex")["available"]), (Some(1), &Value::from(true)));
    assert!(report["machine"].to_string().contains("did you mean listen?"), "{report:#}");
}

#[test]
fn an_interrupted_doctor_leaves_nothing_behind() {
    let fixture = DoctorFixture::new("");
    let pipe = fixture.path("started");
    mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let lines = format!("echo here > {}\nexec /bin/sleep 600", pipe.display());
    let fixture = fixture.program("codex", &lines);
    let mut doctor = fixture.doctor_command(&["codex"]).stdout(Stdio::piped()).spawn().unwrap();
    // Opening the pipe blocks until the program opens its end.
    let mut text = String::new();
    fs::File::open(&pipe).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "here\n");
    kill_process(Pid::from_child(&doctor), Signal::INT).unwrap();
    assert_eq!(doctor.wait().unwrap().code(), Some(130));
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
}
