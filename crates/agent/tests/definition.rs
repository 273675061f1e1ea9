//! Definitions as users write them: the values that are read, and the error messages.

use std::path::Path;

use abide_agent::definition::{
    self, AgentDefinition, ConfigError, InitError, ParameterInjection, ParameterKind, ToolParameter, ToolPty,
    schema_text,
};
use expect_test::{Expect, expect};
use tempfile::TempDir;

const MODEL: &str = "model: {base_url: http://127.0.0.1:1, name: m}\n";

fn folder(config: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder can be made");
    std::fs::write(folder.path().join("config.yaml"), config).expect("a file can be written");
    std::fs::write(folder.path().join("system_prompt.md"), "You work.\n").expect("a file can be written");
    folder
}

fn load_with(folder: &Path, variables: &[(&str, &str)]) -> Result<AgentDefinition, ConfigError> {
    let environment =
        |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
    AgentDefinition::load(folder, &environment)
}

fn load(config: &str) -> AgentDefinition {
    load_with(folder(config).path(), &[]).expect("the definition is sound")
}

fn assert_problems_in(folder: &Path, variables: &[(&str, &str)], expected: &Expect) {
    let message = load_with(folder, variables).expect_err("something is wrong").to_string();
    expected.assert_eq(&message.replace(&format!("{}/", folder.display()), ""));
}

/// Checks the error message for a file, without the path of its folder.
#[expect(clippy::needless_pass_by_value, reason = "it reads better where it is called")]
fn assert_problems(config: &str, expected: Expect) {
    assert_problems_in(folder(config).path(), &[], &expected);
}

fn assert_tool_problems(tool: &str, expected: Expect) {
    let tool: String = tool.lines().map(|line| format!("    {line}\n")).collect();
    assert_problems(&format!("{MODEL}tools:\n  - name: t\n    description: d\n{tool}"), expected);
}

#[test]
fn all_keys_are_read() {
    let definition = load(
        r#"
model:
  base_url: https://models.example/v1
  name: big
  api_key_env: BIG_KEY
  context_tokens: 32_000
  temperature: 0
  max_output_tokens: 100
  timeout_sec: 7
  max_retries: 0
limits: {max_iterations: 5, max_total_tokens: 1000, observation_bytes: 512}
tools:
  - name: run
    description: d
    command: [sleep, 5, 1e3, yes, 0x10]
    env: {PORT: 8080, ON: yes, T: true}
    cwd: sub
    timeout_sec: 3
    parameters:
      - {name: path}
      - {name: max_count, type: integer, required: false, inject_as: option, description: n}
      - {name: v, type: boolean, required: false, inject_as: option, option_name: -v}
      - {name: text, type: number, inject_as: stdin}
  - {name: s, description: d, shell: true, command: "echo $1 | wc"}
  - {name: p, description: d, command: [cat], stateful: true, pty: true, parameters: [{name: t, inject_as: stdin}]}
  - {name: q, description: d, command: [cat], stateful: true, pty: {cols: 100, rows: 30}, parameters: [{name: t, inject_as: stdin}]}
"#,
    );
    let model = &definition.model;
    assert_eq!((model.name.as_str(), model.context_tokens, model.temperature), ("big", 32_000, Some(0.0)));
    assert_eq!((model.max_output_tokens, model.timeout_sec, model.max_retries), (Some(100), 7, 0));
    assert_eq!(definition.limits.max_total_tokens, Some(1000));
    let run = &definition.tools[0];
    assert_eq!(run.command, ["sleep", "5", "1e3", "yes", "0x10"]);
    let env: Vec<(&str, &str)> = run.env.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(env, [("ON", "yes"), ("PORT", "8080"), ("T", "true")]);
    assert_eq!((run.cwd.as_deref(), run.timeout_sec), (Some("sub"), Some(3)));
    let expected = ToolParameter {
        name: "max_count".to_owned(),
        kind: ParameterKind::Integer,
        description: "n".to_owned(),
        required: false,
        inject_as: ParameterInjection::Option,
        option_name: Some("--max-count".to_owned()),
    };
    assert_eq!(run.parameters[1], expected);
    assert_eq!(run.parameters[0].inject_as, ParameterInjection::Argument);
    assert_eq!(run.parameters[2].option_name.as_deref(), Some("-v"));
    assert_eq!(
        (run.parameters[3].kind, run.parameters[3].inject_as),
        (ParameterKind::Number, ParameterInjection::Stdin)
    );
    assert_eq!(
        (definition.tools[1].shell, &definition.tools[1].command[..]),
        (true, &["echo $1 | wc".to_owned()][..])
    );
    assert_eq!(definition.tools[2].pty, Some(ToolPty { cols: 80, rows: 24 }));
    assert_eq!(definition.tools[3].pty, Some(ToolPty { cols: 100, rows: 30 }));
    assert_eq!(definition.system_prompt, "You work.\n");
}

#[test]
fn absent_keys_have_defaults() {
    let definition = load(&format!("{MODEL}limits:\ntools:\n"));
    assert_eq!((definition.model.context_tokens, definition.model.max_retries), (128_000, 6));
    assert_eq!((definition.limits.max_iterations, definition.limits.observation_bytes), (50, 16 << 10));
    assert_eq!(definition.tools, []);
}

#[test]
fn the_environment_overrides_the_file() {
    let folder = folder("model: {base_url: 'http://a/v1', name: m, api_key_env: K}\n");
    let variables = [
        ("ABIDE_MODEL_BASE_URL", "http://b/v1"),
        ("ABIDE_MODEL", "n"),
        ("K", "k"),
        ("ABIDE_MODEL_API_KEY", ""),
    ];
    let definition = load_with(folder.path(), &variables).unwrap();
    assert_eq!((definition.model.base_url.as_str(), definition.model.name.as_str()), ("http://b/v1", "n"));
    // The key of one server is not sent to another.
    assert_eq!(definition.api_key(&|name| (name == "K").then(|| "k".to_owned())).unwrap(), None);
    let key = definition.api_key(&|name| (name == "ABIDE_MODEL_API_KEY").then(|| "x".to_owned())).unwrap();
    assert_eq!(key.unwrap().variable(), "ABIDE_MODEL_API_KEY");
    // Values of the environment make those of the file unnecessary.
    let folder = self::folder("");
    let variables = [("ABIDE_MODEL_BASE_URL", "http://b/v1"), ("ABIDE_MODEL", "n")];
    assert_eq!(load_with(folder.path(), &variables).unwrap().model.name, "n");
    assert_problems_in(
        folder.path(),
        &[("ABIDE_MODEL_BASE_URL", "b:1"), ("ABIDE_MODEL", "n")],
        &expect![
            "ABIDE_MODEL_BASE_URL: expected a URL that begins with http:// or https://, such as https://api.openai.com/v1"
        ],
    );
}

#[test]
fn a_missing_api_key_is_reported() {
    let folder = folder("model: {base_url: 'http://a/v1', name: m, api_key_env: K}\n");
    let definition = load_with(folder.path(), &[]).unwrap();
    let message = definition.api_key(&|_| None).unwrap_err().to_string();
    let message = message.replace(&format!("{}/", folder.path().display()), "");
    expect!["config.yaml: model.api_key_env: the variable K is not set; export K=…, or ABIDE_MODEL_API_KEY; remove api_key_env if none is wanted"]
        .assert_eq(&message);
    let key = definition.api_key(&|name| (name == "K").then(|| "k".to_owned())).unwrap();
    assert_eq!(key.unwrap().variable(), "K");
}

#[test]
fn all_problems_are_reported_together() {
    assert_problems(
        "modle: {}\nmodel:\n  base_url: localhost:80\n  api_key: sk-abcdefgh123\n  timeout: 5\n  context_tokens: '9000'\n  max_retries: -1\n\
         limits: {max_iterations: 0}\ntools:\n  - name: a b\n    comand: [ls]\n    stateful: yes\n  - 5\n",
        expect![[r#"
            config.yaml:1:1: unknown key modle; did you mean model?
             1 | modle: {}
               | ^^^^^
            config.yaml:3:13: model.base_url: expected a URL that begins with http:// or https://, such as https://api.openai.com/v1
             3 |   base_url: localhost:80
               |             ^^^^^^^^^^^^
            config.yaml:4:3: unknown key api_key in model; did you mean api_key_env?
             4 |   api_key: ***
               |   ^^^^^^^
            config.yaml:5:3: unknown key timeout in model; did you mean timeout_sec?
             5 |   timeout: 5
               |   ^^^^^^^
            config.yaml:6:19: model.context_tokens: expected a whole number, not a text; write it without quotes
             6 |   context_tokens: '9000'
               |                   ^^^^^^
            config.yaml:7:16: model.max_retries: expected at least 0
             7 |   max_retries: -1
               |                ^^
            config.yaml:8:26: limits.max_iterations: expected at least 1
             8 | limits: {max_iterations: 0}
               |                          ^
            config.yaml:10:5: tools[0]: description is missing
             10 |   - name: a b
                |     ^
            config.yaml:10:5: tools[0]: command is missing
             10 |   - name: a b
                |     ^
            config.yaml:10:11: models refuse "a b" as the name of a tool: letters, digits, _ and -, at most 64; write a_b
             10 |   - name: a b
                |           ^^^
            config.yaml:11:5: unknown key comand in tools[0]; did you mean command?
             11 |     comand: [ls]
                |     ^^^^^^
            config.yaml:12:15: tools[0].stateful: expected true or false, not a text; write true
             12 |     stateful: yes
                |               ^^^
            config.yaml:13:5: tools[1]: expected a map, not 5; write keys with their values, such as `name: value`
             13 |   - 5
                |     ^"#]],
    );
}

#[test]
fn tool_names_are_valid_and_unique() {
    assert_problems(
        &format!(
            "{MODEL}tools:\n  - {{name: ask_human, description: d, command: [a]}}\n  - {{name: x, description: d, command: [a]}}\n  \
             - {{name: x, description: d, command: [a], parameters: [{{name: p}}, {{name: p}}]}}\n"
        ),
        expect![[r#"
            config.yaml:3:12: the tool ask_human is built in; choose another name
             3 |   - {name: ask_human, description: d, command: [a]}
               |            ^^^^^^^^^
            config.yaml:5:12: line 4 has another tool with the name x; give each its own name
             5 |   - {name: x, description: d, command: [a], parameters: [{name: p}, {name: p}]}
               |            ^
            config.yaml:5:76: line 5 has another parameter with the name p; give each its own name
             5 |   - {name: x, description: d, command: [a], parameters: [{name: p}, {name: p}]}
               |                                                                            ^"#]],
    );
}

#[test]
fn a_command_is_a_list_of_words_or_a_text_for_a_shell() {
    assert_tool_problems(
        "command: true",
        expect![[r#"
            config.yaml:5:14: tools[0].command: expected a list or a text, not true; write ["true"], or "true" with shell: true
             5 |     command: true
               |              ^^^^"#]],
    );
    assert_tool_problems(
        "command: ls -l",
        expect![[r#"
            config.yaml:5:14: command: expected a list of words, not a text; write ["ls", "-l"], or add shell: true
             5 |     command: ls -l
               |              ^^^^^"#]],
    );
    assert_tool_problems(
        "shell: true\ncommand: [ls, -l]",
        expect![[r#"
            config.yaml:6:14: command: with shell: true, it must be one text for sh; write it as one text, or remove shell: true
             6 |     command: [ls, -l]
               |              ^"#]],
    );
    assert_tool_problems(
        "command: []",
        expect![[r#"
            config.yaml:5:14: tools[0].command: expected at least one
             5 |     command: []
               |              ^"#]],
    );
    assert_tool_problems(
        "command: {a: b}",
        expect![[r#"
            config.yaml:5:14: tools[0].command: expected a list or a text, not a map; write a list of words, such as ["ls", "-l"]
             5 |     command: {a: b}
               |              ^"#]],
    );
}

#[test]
fn parameters_are_consistent() {
    assert_tool_problems(
        "command: [a]\nparameters:\n  - {name: a, inject_as: stdin}\n  - {name: b, inject_as: stdin}\n  - {name: c, required: false}\n  - {name: d}\n  \
         - {name: e, option_name: -e}\n  - {name: f, inject_as: option, option_name: max count}\n  - {name: g, type: str, inject_as: argumnt}",
        expect![[r#"
            config.yaml:8:30: only one parameter can be the input, and a already is; inject one of them as an argument or an option
             8 |       - {name: b, inject_as: stdin}
               |                              ^^^^^
            config.yaml:10:9: the argument d is required and follows c, which may be missing: the program could not tell them apart; put c last, or inject it as an option
             10 |       - {name: d}
                |         ^
            config.yaml:11:9: the argument e is required and follows c, which may be missing: the program could not tell them apart; put c last, or inject it as an option
             11 |       - {name: e, option_name: -e}
                |         ^
            config.yaml:11:32: option_name is only for a parameter that is injected as an option; add inject_as: option, or remove it
             11 |       - {name: e, option_name: -e}
                |                                ^^
            config.yaml:12:51: option_name: "max count" is not an option; write --maxcount
             12 |       - {name: f, inject_as: option, option_name: max count}
                |                                                   ^^^^^^^^^
            config.yaml:13:25: tools[0].parameters[6].type: expected string, integer, number or boolean, not "str"; did you mean string?
             13 |       - {name: g, type: str, inject_as: argumnt}
                |                         ^^^
            config.yaml:13:41: tools[0].parameters[6].inject_as: expected argument, option or stdin, not "argumnt"; did you mean argument?
             13 |       - {name: g, type: str, inject_as: argumnt}
                |                                         ^^^^^^^"#]],
    );
}

#[test]
fn a_stateful_tool_needs_a_stdin_parameter() {
    assert_tool_problems(
        "command: [bash]\nstateful: true\nshell: true\nparameters:\n  - {name: session_id, type: integer, inject_as: option}",
        expect![[r#"
            config.yaml:6:5: a stateful tool needs a parameter for the input of its program; add a parameter with inject_as: stdin
             6 |     stateful: true
               |     ^^^^^^^^
            config.yaml:7:5: shell: true is for a command that ends; the program of a stateful tool keeps running; remove shell, and let the command be a shell: command: ["bash"]
             7 |     shell: true
               |     ^^^^^
            config.yaml:9:34: session_id is a string
             9 |       - {name: session_id, type: integer, inject_as: option}
               |                                  ^^^^^^^"#]],
    );
}

#[test]
fn the_definition_of_the_seed_is_valid() {
    let definition = load(&format!(
        "{MODEL}tools:\n  - name: interactive_shell\n    description: a shell\n    stateful: true\n    command: [\"bash\", \"-i\"]\n    parameters:\n      \
         - {{name: command_to_send, type: string, description: c, inject_as: stdin}}\n      \
         - {{name: session_id, type: string, description: s, inject_as: option, option_name: \"--session-id\"}}\n"
    ));
    assert_eq!(definition.tools[0].command, ["bash", "-i"]);
}

#[test]
fn invalid_yaml_is_reported_with_its_location() {
    let cases = [
        ("a: 1\na: 2\n", "config.yaml:2:1: the key a occurs twice; keep one of them"),
        (
            "model:\n\tname: m\n",
            "config.yaml:2:2: invalid YAML: tabs disallowed within this context (block indentation); indent with blanks",
        ),
        (
            "model: a: b\n",
            "config.yaml:1:9: invalid YAML: mapping values are not allowed in this context; put a text with a colon into quotes",
        ),
        (
            "tools: [a\nb: c\n",
            "config.yaml:2:2: invalid YAML: illegal placement of ':' indicator; is a bracket or quote before it not closed?",
        ),
        (
            "a: b\n---\nc: d\n",
            "config.yaml:3:1: invalid YAML: multiple YAML documents detected; a definition is one document: remove the line ---",
        ),
        (
            "tools:\n  - name: x\n   y: z\n",
            "config.yaml:3:4: invalid YAML: while parsing a block collection, did not find expected '-' indicator; is it indented like its neighbours?",
        ),
        (
            "- a\n",
            "config.yaml:1:1: the file: expected a map, not a list; write keys with their values, such as `name: value`",
        ),
    ];
    for (config, expected) in cases {
        let folder = folder(config);
        let message = load_with(folder.path(), &[("ABIDE_MODEL", "m"), ("ABIDE_MODEL_BASE_URL", "http://b")]);
        let message = message.unwrap_err().to_string().replace(&format!("{}/", folder.path().display()), "");
        assert_eq!(message.lines().next(), Some(expected));
    }
}

#[test]
fn a_key_instead_of_a_variable_name_is_reported_and_masked() {
    assert_problems(
        "model:\n  base_url: http://a\n  name: m\n  api_key_env: sk-proj-0123456789\n",
        expect![[r#"
        config.yaml:4:16: model.api_key_env: this looks like a key itself; put the key into a variable, and the variable's name here: api_key_env: OPENAI_API_KEY
         4 |   api_key_env: ***
           |                ^^^"#]],
    );
    assert_problems(
        "model:\n  base_url: http://a\n  name: m\n  api_key_env: ${MY_KEY}\n",
        expect![[r#"
        config.yaml:4:16: model.api_key_env: expected the name of a variable, such as OPENAI_API_KEY; write MY_KEY
         4 |   api_key_env: ${MY_KEY}
           |                ^^^^^^^^^"#]],
    );
}

#[test]
fn missing_files_are_reported_with_a_remedy() {
    let empty = tempfile::tempdir().unwrap();
    assert_problems_in(
        empty.path(),
        &[],
        &expect![[r#"
            config.yaml: the file does not exist; `abide agent init DIR` writes an example
            system_prompt.md: the file does not exist; `abide agent init DIR` writes an example"#]],
    );
    std::fs::write(empty.path().join("config.yml"), "").unwrap();
    std::fs::write(empty.path().join("system_prompt.md"), " \n").unwrap();
    assert_problems_in(
        empty.path(),
        &[],
        &expect![[r#"
            config.yaml: the file does not exist; rename config.yml to config.yaml
            system_prompt.md: it is empty; write the role of the model and the rules for its work"#]],
    );
    std::fs::write(empty.path().join("config.yaml"), b"a\n\xff").unwrap();
    assert_problems_in(
        empty.path(),
        &[],
        &expect![[r#"
            config.yaml: line 2 is not UTF-8
            system_prompt.md: it is empty; write the role of the model and the rules for its work"#]],
    );
}

#[test]
fn a_missing_model_name_is_reported() {
    assert_problems(
        "model:\n  temperature: 1\n",
        expect![[r#"
            config.yaml:2:3: model.base_url is missing; write base_url: https://api.openai.com/v1, or set ABIDE_MODEL_BASE_URL
             2 |   temperature: 1
               |   ^
            config.yaml:2:3: model.name is missing; write name: gpt-4.1, or set ABIDE_MODEL
             2 |   temperature: 1
               |   ^"#]],
    );
}

#[test]
fn the_example_is_valid_and_init_overwrites_nothing() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("new/agent");
    let written = definition::init(&folder).unwrap();
    let names: Vec<String> =
        written.files.iter().map(|f| f.file_name().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(names, ["config.yaml", "system_prompt.md", "config.schema.json"]);
    let example = load_with(&folder, &[]).unwrap();
    let tools: Vec<&str> = example.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(tools, ["shell", "read_file", "search", "write_file"]);

    let again = definition::init(&folder).unwrap_err();
    assert!(matches!(again, InitError::Exists(path) if path == folder.join("config.yaml")));
    std::fs::remove_file(folder.join("config.yaml")).unwrap();
    assert!(matches!(definition::init(&folder), Err(InitError::Exists(_))));
    assert!(!folder.join("config.yaml").exists());
}

#[test]
fn the_commented_parts_of_the_example_are_valid() {
    let place = tempfile::tempdir().unwrap();
    definition::init(place.path()).unwrap();
    let config = place.path().join("config.yaml");
    let text = std::fs::read_to_string(&config).unwrap();
    // Settings follow `#` and one space; sentences begin with a capital letter.
    let is_setting = |line: &str| {
        line.strip_prefix("# ").is_some_and(|rest| {
            let rest = rest.trim_start().trim_start_matches("- ");
            rest.split_once(':').is_some_and(|(key, _)| {
                key.chars().all(|c| c.is_ascii_lowercase() || c == '_' || key == "PYTHONDONTWRITEBYTECODE")
            })
        })
    };
    let mut seen = 0;
    let uncommented = text.lines().map(|line| {
        let indent = line.len() - line.trim_start().len();
        let rest = &line[indent..];
        if !is_setting(rest)
            || rest.contains("base_url")
            || rest.contains("$schema")
            || rest.contains("argument is")
        {
            return line.to_owned();
        }
        seen += 1;
        format!("{}{}", &line[..indent], &rest[2..])
    });
    let text: String = uncommented.map(|line| line + "\n").collect();
    assert!(seen >= 11, "{seen} settings were commented out");
    std::fs::write(&config, text).unwrap();
    let example = load_with(place.path(), &[]).unwrap();
    assert_eq!(example.tools.last().unwrap().name, "python");
    assert_eq!(
        (example.model.max_output_tokens, example.limits.max_total_tokens),
        (Some(8192), Some(1_000_000))
    );
}

/// The code blocks of the guide in this language, each with the rest of its info string.
fn code_blocks(language: &str) -> Vec<(String, String)> {
    let guide = include_str!("../../../docs/agent.md");
    let mut pieces = guide.split("```");
    let mut blocks = Vec::new();
    while let (Some(_), Some(block)) = (pieces.next(), pieces.next()) {
        let (head, body) = block.split_once('\n').expect("a block has lines");
        let (name, rest) = head.split_once(' ').unwrap_or((head, ""));
        if name == language {
            blocks.push((rest.to_owned(), body.to_owned()));
        }
    }
    blocks
}

#[test]
fn the_definitions_in_the_guide_are_valid_except_the_marked_one() {
    let mut sound = 0;
    let (mut config, mut message) = (None, String::new());
    for (kind, block) in code_blocks("yaml") {
        let model = if block.contains("model:") { "" } else { MODEL };
        let folder = folder(&format!("{block}{model}"));
        let outcome = load_with(folder.path(), &[]);
        if kind == "wrong" {
            message = outcome
                .unwrap_err()
                .to_string()
                .replace(&format!("{}/", folder.path().display()), "my-agent/");
            config = Some(block);
        } else {
            assert!(outcome.is_ok(), "{block}\n{}", outcome.unwrap_err());
            sound += 1;
        }
    }
    assert!(sound >= 4 && config.is_some(), "the guide shows {sound} definitions");
    let shown = code_blocks("text")
        .into_iter()
        .find(|(kind, _)| kind == "wrong")
        .expect("the guide shows what is said");
    assert_eq!(shown.1.trim_end(), message);
}

#[test]
fn the_checked_in_schema_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/agent.schema.json");
    expect_test::expect_file![path].assert_eq(&schema_text());
}

/// The definition may be in a workspace, and its files are sent to the model.
#[test]
fn a_link_in_a_definition_is_not_followed() {
    let folder = folder(MODEL);
    let (prompt, secret) = (folder.path().join("system_prompt.md"), folder.path().join("secret"));
    std::fs::rename(&prompt, &secret).expect("it is ours");
    std::os::unix::fs::symlink(&secret, &prompt).expect("a link can be made");
    assert_problems_in(
        folder.path(),
        &[],
        &expect!["system_prompt.md: it is a symbolic link, which is not followed; put the file itself there"],
    );
}
