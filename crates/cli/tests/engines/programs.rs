//! The agent programs that are installed for these tests.

use std::collections::BTreeMap;

use abide_testkit::skip::skip;
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct InstalledProgram {
    pub(crate) engine: String,
    #[serde(default)]
    pub(crate) command: Vec<String>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) missing: Option<String>,
}

/// Returns the program of that name; `None`, with a message, if it is not installed and not required.
#[expect(clippy::disallowed_methods, reason = "the tests are told by their environment where programs are")]
pub(crate) fn installed(name: &str) -> Option<InstalledProgram> {
    let required = std::env::var("ABIDE_REQUIRE_ENGINES").is_ok_and(|value| value == "1");
    let list = std::env::var("ABIDE_TEST_ENGINES").ok().and_then(|path| std::fs::read(path).ok());
    let programs: Vec<InstalledProgram> =
        list.map(|bytes| serde_json::from_slice(&bytes).expect("the list is JSON")).unwrap_or_default();
    let program = programs.iter().find(|program| program.engine == name).cloned();
    let program = program.or_else(|| stand_in(name));
    // Some programs support ACP themselves.
    let program = program.or_else(|| {
        let own =
            programs.iter().find(|program| Some(program.engine.as_str()) == name.strip_suffix("-acp"))?;
        let mut acp_program = InstalledProgram { engine: name.to_owned(), ..own.clone() };
        acp_program.command.push("--acp".to_owned());
        Some(acp_program)
    });
    match program {
        Some(InstalledProgram { missing: None, .. }) => program,
        Some(InstalledProgram { missing: Some(reason), .. }) => not_verified(name, &reason, required),
        None => not_verified(name, "run `cargo xtask test`, which installs it", required),
    }
}

/// Returns the stand-in for a program that is no longer available, or an engine that is part of our own binary.
fn stand_in(name: &str) -> Option<InstalledProgram> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../engines/tests/stand-ins").join(name);
    if name.starts_with("parrot") || name == "native" {
        // Examples are built without the path of the binary, and do not need it.
        let own = option_env!("CARGO_BIN_EXE_abide")?;
        let mut command = vec![own.to_owned()];
        command.extend(name.starts_with("parrot").then(|| "__parrot".to_owned()));
        return Some(InstalledProgram {
            engine: name.to_owned(),
            command,
            env: BTreeMap::new(),
            missing: None,
        });
    }
    path.exists().then(|| InstalledProgram {
        engine: name.to_owned(),
        command: vec![path.to_string_lossy().into_owned()],
        env: BTreeMap::new(),
        missing: None,
    })
}

fn not_verified(name: &str, reason: &str, required: bool) -> Option<InstalledProgram> {
    assert!(!required, "{name} is NOT VERIFIED: {reason}");
    skip(&format!("{name} is not installed: {reason}"));
    None
}
