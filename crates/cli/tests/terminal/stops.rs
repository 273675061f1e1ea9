//! Stops at random times: SPEC (C5), (C6). Tested on each shell, on pipes and on a terminal, during each kind of
//! command. After a stop no further word of the command runs, no process of it is left, and the session continues.
//!
//! The number of stops is small here. `cargo xtask stops --count 1000` runs the same test with more.

#![expect(
    clippy::disallowed_methods,
    reason = "stops come at points in time, and their bounds are durations"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use abide_testkit::daemon::RpcTestClient;
use serde_json::{Value, json};

use crate::support::{SHELLS, home};

/// The environment variable for the number of stops. It lacks the prefix `ABIDE_`, because variables with it are not
/// inherited by tests.
const COUNT_VARIABLE: &str = "STOPS_COUNT";
const DEFAULT_COUNT: usize = 72;

/// SIGTERM, 5 s, SIGKILL, 1 s for the shell to recover; doubled for a loaded machine.
const MAX_STOP_TIME: Duration = Duration::from_secs(12);

/// Templates of commands. `S` is a program that runs for minutes, `F` a file that only a word after the stop creates,
/// `N` a file that a running loop writes to, `D` a directory.
const KINDS: [(&str, &[&str]); 10] = [
    ("lists", &["S; touch F", "S\ntouch F", "S || touch F", "S && : || touch F", "! S; touch F > F"]),
    (
        "loops",
        &[
            "for i in 1 2 3; do S; touch F; done; touch F",
            "n=0; while :; do n=$((n+1)); echo $n > N; done; touch F",
            "while S; do :; done; touch F",
            "until false; do echo $((m=m+1)) > N; done; touch F",
            "while :; do /bin/true; done; touch F",
        ],
    ),
    (
        "functions",
        &[
            "f() { S; touch F; }; f; touch F",
            "g() { S; }; f() { for i in 1 2; do g || touch F; done; touch F; }; while f || :; do touch F; done",
            "f() { S; }; f; { :; } > F",
            "f() { S; }; f; (touch F)",
            "f() { S; }; f | cat; touch F",
        ],
    ),
    (
        "subshells",
        &[
            "(S; touch F); touch F",
            "( (S; touch F); touch F ); touch F",
            "x=$(S; touch F); touch F",
            "touch F$(S)",
            "f() { touch F$(S); touch F; }; f; { :; } > F",
            "(trap 'echo caught' TERM; S; touch F); touch F",
        ],
    ),
    (
        "pipelines",
        &[
            "S | (cat; touch F); touch F",
            "{ S; touch F; } | cat; touch F",
            "while :; do echo x; done | while read x; do :; done; touch F",
        ],
    ),
    (
        "trap",
        &[
            "trap 'echo caught' TERM INT HUP; S; touch F",
            "trap 'touch F' TERM; S; touch F",
            "f() { S; touch F; }; trap 'f; touch F' USR1; kill -USR1 $$; touch F",
        ],
    ),
    ("eval", &["eval 'S; touch F'; touch F", "eval 'eval \"S; touch F\"; touch F' || touch F"]),
    (
        "source",
        &[
            "printf 'S\\ntouch F\\n' > D/s; . D/s; touch F",
            "printf 'S\\ntouch F\\n' > D/s; f() { . D/s; touch F; }; f; touch F",
            "printf 'S\\ntouch F\\n' > D/s; . D/s || touch F",
            "[ -p D/p ] || mkfifo D/p; read line < D/p || touch F; touch F",
        ],
    ),
    (
        "here-documents",
        &[
            "cat <<E; touch F\n$(S; touch F)\nE\ntouch F",
            "while read line; do S; touch F; done <<E\none\ntwo\nE\ntouch F",
        ],
    ),
    ("background jobs", &["S & wait; touch F", "(S; touch F) & wait; touch F", "(S; touch F) & S; touch F"]),
];

/// The results of the stops.
#[derive(Default)]
struct StopFindings {
    stops: usize,
    restarts: usize,
    longest: Duration,
    /// Stops after which the session had ended.
    ended: Vec<String>,
    problems: Vec<String>,
}

#[test]
fn c5_c6_a_stop_at_any_time_leaves_no_word_running_and_keeps_the_session() {
    let count = std::env::var(COUNT_VARIABLE).map_or(DEFAULT_COUNT, |count| count.parse().unwrap());
    let lines: Vec<(&str, bool)> =
        SHELLS.iter().flat_map(|shell| [(*shell, false), (*shell, true)]).collect();
    let seen = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for (index, (shell, pty)) in lines.iter().enumerate() {
            let seen = &seen;
            let share = count / lines.len() + usize::from(index < count % lines.len());
            scope.spawn(move || {
                let line = stop_often(shell, *pty, share, index);
                seen.lock().unwrap().insert((*shell, *pty), line);
            });
        }
    });
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len(), lines.len(), "a thread failed");
    let (mut problems, mut ended) = (Vec::new(), 0);
    for ((shell, pty), line) in seen {
        let on = if pty { "terminal" } else { "pipes" };
        println!(
            "{shell} on {on}: {} stops, {} shells replaced, the longest stop took {:.1} s, {} problems",
            line.stops,
            line.restarts,
            line.longest.as_secs_f64(),
            line.problems.len()
        );
        for context in &line.ended {
            println!("  the session ended: {context}");
        }
        ended += line.ended.len();
        problems.extend(line.problems);
    }
    for problem in &problems {
        println!("  {problem}");
    }
    let wrong = problems.len() + ended;
    assert_eq!(wrong, 0, "{wrong} of {count} stops went wrong:\n{}", problems.join("\n"));
}

/// Stops commands of each kind in turn, in one session.
fn stop_often(shell: &str, pty: bool, count: usize, index: usize) -> StopFindings {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    let mut seen = StopFindings::default();
    let size = json!({ "rows": 24, "cols": 200 });
    let env = json!({ "HOME": home.path() });
    let params = if pty {
        json!({ "shell": shell, "pty": size, "env": env })
    } else {
        json!({ "shell": shell, "env": env })
    };
    let create = |rpc: &mut RpcTestClient| {
        let session =
            rpc.call_ok("session.create", params.clone())["session_id"].as_str().unwrap().to_owned();
        prepare(rpc, &session);
        session
    };
    let mut session = create(&mut rpc);
    let mut random = RandomNumbers::new();
    let mut files = Vec::new();
    for number in 0..count {
        let (kind, commands) = KINDS[number % KINDS.len()];
        let place = home.path().join(format!("stop-{number}"));
        std::fs::create_dir(&place).unwrap();
        let program = format!("sleep {}.{}{index}", 300 + number, std::process::id());
        let template = commands[random.below(commands.len())];
        let command = fill(template, &place, &program);
        let context = format!("{shell}, {}, {kind}: {command:?}", if pty { "terminal" } else { "pipes" });
        let after = Duration::from_micros(random.below(400_000) as u64);
        let (result, took) = stop(&mut rpc, &session, &command, after, number % 2 == 0);
        let restarted = result["shell_restarted"] == true;
        seen.stops += 1;
        seen.restarts += usize::from(restarted);
        seen.longest = seen.longest.max(took);
        let mut wrong = |problem: String| seen.problems.push(format!("{context} after {after:?}: {problem}"));
        if result["timed_out"] != (number % 2 == 0) || result["cancelled"] != (number % 2 == 1) {
            wrong(format!("the result is {result}"));
        }
        if took > MAX_STOP_TIME {
            wrong(format!("the stop took {took:?}"));
        }
        let counted = std::fs::read_to_string(place.join("N")).ok();
        let remaining = processes(&program);
        if !remaining.is_empty() {
            wrong(format!("processes are left: {remaining:?}"));
        }
        if rpc.call_ok("session.info", json!({ "session_id": session }))["state"] == "TERMINATED" {
            seen.ended.push(format!("{context} after {after:?}: {result}"));
            session = create(&mut rpc);
        } else if restarted {
            prepare(&mut rpc, &session);
        } else {
            let kept = rpc.stdout(&session, "echo \"<$kept>\" \"$PWD\"").replace("\r\n", "\n");
            if kept.trim() != "<1> /usr" {
                wrong(format!("variables and directory are {kept:?}"));
                prepare(&mut rpc, &session);
            }
        }
        if std::fs::read_to_string(place.join("N")).ok() != counted {
            wrong("the loop continued".to_owned());
        }
        files.push((place.join("F"), context));
    }
    // A word that runs after the stop would have run by now.
    std::thread::sleep(Duration::from_millis(500));
    for (file, context) in files.iter().filter(|(file, _)| file.exists()) {
        seen.problems.push(format!("{context}: {} was created after the stop", file.display()));
    }
    rpc.call_ok("session.destroy", json!({ "session_id": session }));
    seen
}

fn prepare(rpc: &mut RpcTestClient, session: &str) {
    rpc.run(session, "trap - TERM INT HUP USR1; kept=1; cd /usr");
}

/// Runs a command and stops it after this time, by its timeout or by a cancellation.
fn stop(
    rpc: &mut RpcTestClient,
    session: &str,
    command: &str,
    after: Duration,
    times_out: bool,
) -> (Value, Duration) {
    let timeout = u64::try_from(after.as_millis()).unwrap();
    let began = Instant::now();
    let result = if times_out {
        rpc.run_with_timeout(session, command, timeout)
    } else {
        let running = rpc.send("exec.run", json!({ "session_id": session, "command": command }));
        std::thread::sleep(after);
        rpc.call_ok("exec.cancel", json!({ "session_id": session }));
        rpc.response(running).unwrap_or_else(|error| json!({ "error": error }))
    };
    (result, began.elapsed().saturating_sub(after))
}

fn fill(template: &str, place: &Path, program: &str) -> String {
    let path = |name: &str| place.join(name).to_str().unwrap().to_owned();
    let word = |letter: char| match letter {
        'S' => program.to_owned(),
        'F' => path("F"),
        'N' => path("N"),
        'D' => place.to_str().unwrap().to_owned(),
        other => other.to_string(),
    };
    // Only letters that stand alone are placeholders.
    let letters: Vec<char> = template.chars().collect();
    let alone = |index: usize| {
        let neighbour =
            |at: Option<usize>| at.and_then(|at| letters.get(at)).is_some_and(|c| c.is_alphanumeric());
        !neighbour(index.checked_sub(1)) && !neighbour(index.checked_add(1))
    };
    letters.iter().enumerate().map(|(index, c)| if alone(index) { word(*c) } else { c.to_string() }).collect()
}

/// Returns the processes whose command line contains this text.
fn processes(text: &str) -> Vec<PathBuf> {
    let words = text.replace(' ', "\0");
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).map(|entry| entry.path());
    let holds = |path: &PathBuf| {
        std::fs::read(path.join("cmdline"))
            .is_ok_and(|line| line.windows(words.len()).any(|window| window == words.as_bytes()))
    };
    entries.filter(holds).collect()
}

/// Random numbers with a new seed in each run; each problem reports them.
struct RandomNumbers(u64);

impl RandomNumbers {
    fn new() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Self(now.as_nanos() as u64 | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}
