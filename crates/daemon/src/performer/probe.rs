//! Finds out what an engine's program can do, before a run's first turn (A3).

use std::time::{Duration, Instant};

use abide_domain::{
    engine::Profile,
    event::Event,
    failure::{Failure, FailureCode},
    run::Run,
};
use abide_ports::{
    catalogue::Entry,
    engine::{Check, Health, Launch, Observed, Stdin},
    processes::{Heard, Processes, Start, StartError},
};

use super::{Carried, Performer};

impl Performer {
    pub(super) async fn probe(&self, run: &Run) -> Carried {
        let settings = &run.settings;
        let Some(entry) = self.world.catalogue.engine(&settings.engine) else {
            let known = self.world.catalogue.names().join(", ");
            let message = format!("there is no engine {}; there are {known}", settings.engine);
            return unusable(Failure::new(FailureCode::EngineNotFound, message));
        };
        // Where it is asked makes no difference; whether the workspace can be used shows when a turn is launched in it.
        let health = self.examine(&entry, "/").await;
        if let Some(trouble) = health.trouble {
            return unusable(trouble);
        }
        let fresh = uuid_of(self.world.clock.stamp().fresh.0);
        Carried::Told(Event::ProfileResolved {
            profile: Profile {
                kind: health.profile_kind(),
                reason: health.resume.detail.clone(),
                session_timeout_sec: settings.session_timeout_sec,
            },
            abilities: health.abilities.for_domain(),
            handle: health.resume.supported.then(|| entry.engine.name_session(&fresh)).flatten(),
        })
    }

    /// Runs an engine's checks and judges them.
    pub async fn examine(&self, entry: &Entry, directory: &str) -> Health {
        let (processes, entry, directory) =
            (self.world.processes.clone(), entry.clone(), directory.to_owned());
        let stamp = self.world.clock.stamp().fresh;
        self.blocking(move || {
            let checks = entry.engine.checks(&entry.installation);
            let observed: Vec<Observed> = checks
                .iter()
                .enumerate()
                .map(|(number, check)| {
                    observe(&*processes, &format!("check-{stamp}-{number}"), check, &directory, &entry)
                })
                .collect();
            entry.engine.judge(&observed)
        })
        .await
    }
}

fn unusable(failure: Failure) -> Carried {
    Carried::Told(Event::EngineUnusable { failure })
}

/// Runs one check to its answer.
fn observe(processes: &dyn Processes, name: &str, check: &Check, directory: &str, entry: &Entry) -> Observed {
    let installed = entry.installation.env.clone();
    let launch = Launch {
        argv: check.argv.clone(),
        env: installed.into_iter().chain(check.env.iter().cloned()).collect(),
        without_env: vec![],
        files: vec![],
        stdin: match check.until {
            Some(_) => Stdin::Open(check.stdin.clone()),
            None => Stdin::Whole(check.stdin.clone()),
        },
        not_before: None,
    };
    let start = Start { launch: &launch, workspace: directory, private: directory };
    let observed = match processes.start(name, &start) {
        Ok(_) => listen(processes, name, check),
        Err(StartError::Program(reason) | StartError::System(reason)) => Observed::NotFound { reason },
        Err(error @ (StartError::Directory(_) | StartError::Gone)) => {
            Observed::NotFound { reason: error.to_string() }
        }
    };
    let _swept_at_the_next_start = processes.end(name);
    observed
}

fn listen(processes: &dyn Processes, name: &str, check: &Check) -> Observed {
    let Ok(mut follow) = processes.follow(name) else { return Observed::TimedOut };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let deadline = now() + Duration::from_millis(check.patience_ms);
    let code = loop {
        match follow.next(Some(deadline.saturating_duration_since(now()))) {
            Ok(Heard::Stdout(bytes)) => stdout.extend(bytes),
            Ok(Heard::Stderr(bytes)) => stderr.extend(bytes),
            Ok(Heard::Exited(abide_domain::process::Exit::Code(code))) => break Some(code),
            Ok(Heard::Exited(abide_domain::process::Exit::Unseen) | Heard::Nothing) | Err(_) => {
                return Observed::TimedOut;
            }
        }
        let answered = |until: &String| String::from_utf8_lossy(&stdout).contains(until.as_str());
        if check.until.as_ref().is_some_and(answered) {
            break None;
        }
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Observed::Ran { code, stdout: text(stdout), stderr: text(stderr) }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a check's patience is counted in real time, and nothing is decided by it but that"
)]
fn now() -> Instant {
    Instant::now()
}

/// A fresh id in the form of a UUID of version 4, as programs that check the form want it.
fn uuid_of(fresh: u128) -> String {
    let versioned = (fresh & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{versioned:032x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_number_becomes_a_uuid_of_version_4() {
        assert_eq!(uuid_of(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid_of(0), "00000000-0000-4000-8000-000000000000");
    }
}
