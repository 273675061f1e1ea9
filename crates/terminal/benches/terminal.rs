//! Measures the cost of the terminal, as ratios to bare loops that are measured in the same run.
//!
//! `cargo bench -p abide-terminal` after `cargo build --release`; `ABIDE_BIN` names another binary. The baseline is a
//! loop that writes a line to a bare bash and waits for a marker, without a protocol, a second process or a spool. Each
//! figure is compared with its budget and names the limiting factor. Other products are not started from here. With
//! `--figures` a short form prints bare figures, which `cargo xtask bench terminal --against COMMIT` compares.

#![expect(clippy::disallowed_methods, reason = "a benchmark starts what it measures and looks at the clock")]
#![expect(clippy::expect_used, reason = "a benchmark that cannot continue stops")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

fn main() {
    let binary = binary();
    if std::env::args().any(|argument| argument == "--figures") {
        return print_figures(&binary);
    }
    println!("binary {}", binary.display());
    for (command, rounds, budget) in [("true", 3_000, BUILTIN_BUDGET), ("/bin/true", 500, PROGRAM_BUDGET)] {
        for shell in ["bash", "/bin/sh", "zsh"] {
            let CommandTimings { bash_baseline: floor, shell_baseline: own_floor, chain, terminal: ours } =
                measure_commands(&binary, shell, command, rounds);
            println!(
                "exec.run {command:9} {shell:7}  floor p50 {:>5} p99 {:>5} us   ours p50 {:>5} p99 {:>5} us   ratio p50 {:.2} p99 {:.2}   to {shell}'s own floor {:.2}",
                micros(floor.0),
                micros(floor.1),
                micros(ours.0),
                micros(ours.1),
                ratio(ours.0, floor.0),
                ratio(ours.1, floor.1),
                ratio(ours.0, own_floor.0),
            );
            let (base, baseline_name) = match budget.against {
                BudgetBaseline::Bash => (floor, "bash"),
                BudgetBaseline::Own => (own_floor, shell),
            };
            print_budget_result(
                ratio(ours.0, base.0) <= budget.p50,
                &format!("p50 at most {} times {baseline_name}'s floor", budget.p50),
            );
            print_budget_result(
                ratio(ours.1, base.1) <= budget.p99,
                &format!("p99 at most {} times {baseline_name}'s floor", budget.p99),
            );
            println!(
                "    limited by {}; {COPY_CHAIN} costs {:.2} times bash's floor, and we cost {:.2} times that",
                budget.limit,
                ratio(chain.0, floor.0),
                ratio(ours.0, chain.0),
            );
        }
    }
    for shell in ["bash", "/bin/sh"] {
        let bare = bare_spawn_latency(shell, 100);
        let create_latency = session_create_latency(&binary, shell, 100);
        println!(
            "create {shell:7}  bare p50 {:>5} us   ours p50 {:>5} us   ratio {:.2}",
            micros(bare),
            micros(create_latency),
            ratio(create_latency, bare)
        );
        print_budget_result(ratio(create_latency, bare) <= 3.0, "at most 3 times the bare shell");
        println!(
            "    limited by the shell's own start and a first round trip; the keeper waits ready from the second session on"
        );
    }
    let (bare, bare_time) = measure_bare_stream();
    let (ours, our_time, peak) = measure_terminal_stream(&binary, STREAM_COMMAND);
    assert_eq!(bare, ours, "both bring the same bytes");
    println!(
        "stream {} MiB  bare {:.2} s   ours {:.2} s   share of the bare throughput {:.2}   runtime's peak {} KiB",
        bare >> 20,
        bare_time.as_secs_f64(),
        our_time.as_secs_f64(),
        ratio(bare_time, our_time),
        peak,
    );
    print_budget_result(ratio(bare_time, our_time) >= 0.5, "at least 0.5 of the bare throughput");
    print_budget_result(peak < 64 << 10, "the runtime's memory below 64 MiB");
    println!(
        "    limited by copies between processes: pipe, spool, socket, the client's pipe and the client"
    );
    let (sessions, each) = idle_memory(&binary, 500);
    println!("idle {sessions} sessions  {each} KiB of private memory each beside the shell's own");
    print_budget_result(each <= 1 << 10, "at most 1 MiB each");
    println!("    limited by the pages that a program touches while it starts");
}

/// Prints a short measurement as lines of the form `figure VALUE UNIT NAME`, for repeated comparisons of two binaries.
fn print_figures(binary: &PathBuf) {
    let figure = |name: &str, time: Duration| println!("figure {:.5} ms {name}", time.as_secs_f64() * 1e3);
    for (command, shell, rounds) in
        [("true", "bash", 600), ("true", "/bin/sh", 600), ("true", "zsh", 600), ("/bin/true", "bash", 150)]
    {
        let mut client = RpcBenchClient::start(binary);
        let session = client.create(shell)["session_id"].clone();
        let request = json!({
            "jsonrpc": "2.0", "id": 1, "method": "exec.run",
            "params": { "session_id": session, "command": command },
        });
        let request = format!("{request}\n");
        let times: Vec<Duration> = (0..rounds).map(|_| client.measure_request(&request)).collect();
        client.end();
        // The first rounds run with cold caches and are left out.
        figure(&format!("exec.run {command}, {shell}"), percentiles(times[rounds / 10..].to_vec()).0);
    }
    figure("session.create, bash", session_create_latency(binary, "bash", 30));
    let (bytes, time, _) = measure_terminal_stream(binary, "head -c 67108864 /dev/zero | tr '\\0' 'a'");
    assert_eq!(bytes, 64 << 20, "everything is streamed");
    figure("exec.stream, 64 MiB", time);
}

/// The budget of a command, and its largest cost factor.
#[derive(Clone, Copy)]
struct CommandBudget {
    p50: f64,
    p99: f64,
    against: BudgetBaseline,
    limit: &'static str,
}

/// The bare shell of the comparison. A shell starts programs itself, so there each shell is its own baseline.
#[derive(Clone, Copy)]
enum BudgetBaseline {
    Bash,
    Own,
}

const BUILTIN_BUDGET: CommandBudget = CommandBudget {
    p50: 3.0,
    p99: 5.0,
    against: BudgetBaseline::Bash,
    limit: "wake-ups: client, runtime, keeper, shell and back, against client, shell and back",
};
const PROGRAM_BUDGET: CommandBudget = CommandBudget {
    p50: 1.3,
    p99: 5.0,
    against: BudgetBaseline::Own,
    limit: "the shell's own fork and exec",
};

fn print_budget_result(is_met: bool, budget: &str) {
    println!("    {}  {budget}", if is_met { "PASS" } else { "MISS" });
}

const STREAM_COMMAND: &str = "head -c 268435456 /dev/zero | tr '\\0' 'a'";

fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("ABIDE_BIN") {
        return path.into();
    }
    let own = std::env::current_exe().expect("the benchmark has a path");
    own.ancestors().nth(2).expect("the benchmark lies in deps").join("abide")
}

fn micros(time: Duration) -> u128 {
    time.as_micros()
}

fn ratio(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64().max(1e-9)
}

fn percentiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

/// A bare shell: a line in, a marker out.
struct BareShell {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    line: String,
}

impl BareShell {
    fn start(shell: &str, command: &str) -> Self {
        Self::spawn(&mut Command::new(shell), command)
    }

    /// A bare bash behind a chain of copying programs.
    fn behind_chain(chain: &str, command: &str) -> Self {
        Self::spawn(Command::new("/bin/sh").args(["-c", chain]), command)
    }

    fn spawn(program: &mut Command, command: &str) -> Self {
        let mut child =
            program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the shell starts");
        let input = child.stdin.take().expect("piped");
        let output = child.stdout.take().expect("piped");
        Self { child, input, output, line: format!("{command}; echo MARK\n") }
    }

    fn measure_command(&mut self) -> Duration {
        let start = Instant::now();
        self.input.write_all(self.line.as_bytes()).expect("the shell reads");
        let _marker = self.output.read(&mut [0; 64]).expect("the shell prints");
        start.elapsed()
    }

    fn end(mut self) {
        drop(self.input);
        self.child.wait().expect("the shell ends");
    }
}

/// Programs that copy bytes to and from a shell, with as many hand-overs as the terminal. The chain has one process for
/// each direction, where the terminal has a runtime and a keeper for both. Its processes do not poll.
const COPY_CHAIN: &str = "cat | cat | bash | cat | cat";

/// Median and 99th percentile of the bash baseline, of the shell's own baseline, of the chain, and of the terminal.
struct CommandTimings {
    bash_baseline: (Duration, Duration),
    shell_baseline: (Duration, Duration),
    chain: (Duration, Duration),
    terminal: (Duration, Duration),
}

/// Measures all four alternately, so that other load on the machine affects them equally.
fn measure_commands(binary: &PathBuf, shell: &str, command: &str, rounds: usize) -> CommandTimings {
    let mut bash = BareShell::start("bash", command);
    let mut own = BareShell::start(shell, command);
    let mut chain = BareShell::behind_chain(COPY_CHAIN, command);
    let mut client = RpcBenchClient::start(binary);
    let session = client.create(shell)["session_id"].clone();
    let request = json!({
        "jsonrpc": "2.0", "id": 1, "method": "exec.run", "params": { "session_id": session, "command": command },
    });
    let request = format!("{request}\n");
    let mut times = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..rounds / ROUNDS_PER_TURN {
        times[0].extend((0..ROUNDS_PER_TURN).map(|_| bash.measure_command()));
        times[1].extend((0..ROUNDS_PER_TURN).map(|_| own.measure_command()));
        times[2].extend((0..ROUNDS_PER_TURN).map(|_| chain.measure_command()));
        times[3].extend((0..ROUNDS_PER_TURN).map(|_| client.measure_request(&request)));
    }
    for floor in [bash, own, chain] {
        floor.end();
    }
    client.end();
    let [floor, own_floor, chain, ours] = times.map(percentiles);
    CommandTimings { bash_baseline: floor, shell_baseline: own_floor, chain, terminal: ours }
}

/// Number of rounds of one kind before the next kind.
const ROUNDS_PER_TURN: usize = 100;

struct RpcBenchClient {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _home: tempfile::TempDir,
}

impl RpcBenchClient {
    fn start(binary: &PathBuf) -> Self {
        let home = tempfile::tempdir().expect("a home can be made");
        let mut child = Command::new(binary)
            .arg("rpc")
            .env("ABIDE_HOME", home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`cargo build --release` has made the binary");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::with_capacity(1 << 20, child.stdout.take().expect("piped"));
        Self { child, input, output, _home: home }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the runtime answers");
        line
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        self.input.write_all(format!("{request}\n").as_bytes()).expect("the runtime reads");
        let answer: Value = serde_json::from_str(&self.line()).expect("the answer is JSON");
        answer["result"].clone()
    }

    fn measure_request(&mut self, request: &str) -> Duration {
        let start = Instant::now();
        self.input.write_all(request.as_bytes()).expect("the runtime reads");
        let answer = self.line();
        let time = start.elapsed();
        assert!(answer.contains("\"exit_code\":0"), "{answer}");
        time
    }

    fn create(&mut self, shell: &str) -> Value {
        self.call("session.create", &json!({ "shell": shell }))
    }

    fn end(mut self) {
        drop(self.input);
        self.child.wait().expect("the runtime ends");
    }
}

fn bare_spawn_latency(shell: &str, rounds: usize) -> Duration {
    let times = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            let mut child =
                Command::new(shell).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
            let mut input = child.stdin.take().expect("piped");
            input.write_all(b"echo MARK\n").expect("the shell reads");
            let _marker = child.stdout.take().expect("piped").read(&mut [0; 64]).expect("the shell prints");
            let time = start.elapsed();
            drop(input);
            child.wait().expect("the shell ends");
            time
        })
        .collect();
    percentiles(times).0
}

fn session_create_latency(binary: &PathBuf, shell: &str, rounds: usize) -> Duration {
    let mut client = RpcBenchClient::start(binary);
    let times = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            let session = client.create(shell);
            let time = start.elapsed();
            client.call("session.destroy", &json!({ "session_id": session["session_id"], "force": true }));
            time
        })
        .collect();
    client.end();
    percentiles(times).0
}

/// Reads the same pipe and writes the same lines in a loop, as the baseline.
fn measure_bare_stream() -> (u64, Duration) {
    let start = Instant::now();
    let mut child =
        Command::new("bash").args(["-c", STREAM_COMMAND]).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut output = child.stdout.take().expect("piped");
    let mut sink = std::fs::File::options().write(true).open("/dev/null").expect("it is there");
    let mut buffer = vec![0; 64 << 10];
    let mut total = 0;
    loop {
        let count = output.read(&mut buffer).expect("the pipe reads");
        if count == 0 {
            break;
        }
        let data = String::from_utf8_lossy(&buffer[..count]);
        let line =
            json!({ "jsonrpc": "2.0", "method": "exec.chunk", "params": { "offset": total, "data": data } });
        sink.write_all(format!("{line}\n").as_bytes()).expect("it takes everything");
        total += count as u64;
    }
    child.wait().expect("it ends");
    (total, start.elapsed())
}

fn measure_terminal_stream(binary: &PathBuf, command: &str) -> (u64, Duration, u64) {
    let mut client = RpcBenchClient::start(binary);
    let session = client.create("bash")["session_id"].clone();
    let start = Instant::now();
    client.call("exec.stream", &json!({ "session_id": session, "command": command }));
    let mut total = 0;
    loop {
        let line = client.line();
        if line.contains("\"type\":\"exit\"") {
            break;
        }
        // The data contains no character that JSON escapes, so its length is that of the text between the quotes.
        let data = line.find("\"data\":\"").map_or(0, |at| at + 8);
        total += line[data..].find('"').unwrap_or(0) as u64;
    }
    let time = start.elapsed();
    let status = std::fs::read_to_string(format!("/proc/{}/status", client.child.id())).unwrap_or_default();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").trim().parse().ok());
    client.end();
    (total, time, peak.unwrap_or(0))
}

/// The private memory of keepers and runtime, divided by the number of sessions.
fn idle_memory(binary: &PathBuf, sessions: u64) -> (u64, u64) {
    let mut client = RpcBenchClient::start(binary);
    let mut total = 0;
    for _ in 0..sessions {
        let session = client.create("/bin/sh");
        let shell = session["pid"].as_u64().unwrap_or(0);
        let stat = std::fs::read_to_string(format!("/proc/{shell}/stat")).unwrap_or_default();
        let keeper = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        total += private_memory_kib(keeper.unwrap_or(0));
    }
    total += private_memory_kib(u64::from(client.child.id()));
    client.end();
    (sessions, total / sessions)
}

fn private_memory_kib(pid: u64) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let lines = rollup
        .lines()
        .filter(|line| line.starts_with("Private_Clean:") || line.starts_with("Private_Dirty:"));
    lines.filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}
