//! The processes of an actor: reattaching to them, reading them, and writing the input that their protocols require.

use super::*;

impl RunActor {
    /// Reattaches to the process of an earlier daemon, or reports that it is gone.
    pub(super) fn on_located(
        &mut self,
        located: Result<Box<LocatedProcess>, StoreError>,
        context: &ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        let Some(attempt) = self.attaching.take() else { return };
        let live = self.run().and_then(|run| run.live()).filter(|live| live.attempt == attempt);
        let (Some(run), Some(committed)) = (self.run(), live.map(|live| live.processed_position)) else {
            return;
        };
        let located = match located {
            Ok(located) => located,
            Err(error) => {
                tracing::warn!(run = %self.run_id, %error, "the turns of a process could not be read");
                return self.pause(ActorPause::Attach, STORE_PAUSE, actions);
            }
        };
        match located.lookup {
            // Output from before the death of its keeper counts (E7).
            ProcessLookup::Found(_) | ProcessLookup::Lost => {}
            ProcessLookup::Unresponsive => {
                let search_timeout_sec = Some(context.recovery_max);
                self.settled.push(RunEvent::ContactLost { attempt, search_timeout_sec });
                return self.pause(ActorPause::Attach, SILENT_PAUSE, actions);
            }
            ProcessLookup::NotStarted => {
                let exit = ExitStatus::Unknown;
                self.settled.push(RunEvent::ProcessExited { attempt, exit });
                return self.pause(ActorPause::Attach, SILENT_PAUSE, actions);
            }
        }
        let turns = located.turns.as_ref().map(|(first, ids)| (first, ids.clone()));
        let session = turns.and_then(|turns| launch::session_of(run, attempt, turns, context));
        let Some(mut session) = session else {
            tracing::warn!(run = %self.run_id, attempt = attempt.0, "the engine of a process is not known any more");
            self.unreadable = Some(attempt);
            return;
        };
        // Committed before the output that may follow from the input, which can end its turn.
        let performed = located.received.into_iter().map(|effect| RunEvent::EffectPerformed { effect });
        let performed: Vec<RunEvent> = performed.collect();
        session.reattach(located.checkpoint.as_deref(), committed);
        if matches!(run.state, RunState::Running(RunningPhase::Stopping(_))) {
            contained(|| session.interrupt());
        }
        self.sessions.insert(attempt, session);
        self.settled.extend(performed);
    }

    pub(super) fn on_read(
        &mut self,
        attempt: Attempt,
        read: Result<Vec<ProcessOutput>, ProcessUnreachable>,
        context: &ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        let Some(session) = self.sessions.get_mut(&attempt) else { return };
        let output = session.on_read(read, context.recovery_max);
        if output.is_lingering {
            actions.push(RunAction::Dismiss { attempt });
        }
        if session.end == Some(SessionEnd::Lost) {
            self.pause(ActorPause::Attach, SILENT_PAUSE, actions);
        }
        if output.events.is_empty() && output.writes.is_empty() {
            return;
        }
        let mut facts =
            SessionFacts { attempt, events: output.events, writes: output.writes, is_ready: true };
        if facts.events.iter().any(has_question) {
            facts.is_ready = false;
            actions.push(RunAction::StoreContents { attempt, events: std::mem::take(&mut facts.events) });
        }
        self.outputs.push_back(facts);
    }

    /// Searches for the process that the run holds, if it is not read, unless the next effect finds, starts or ends it.
    pub(super) fn start_attach(&mut self, context: &ActorContext<'_>, actions: &mut Vec<RunAction>) {
        let Some(run) = self.run() else { return };
        let Some(attempt) = run.live().map(|live| live.attempt) else { return };
        let is_found_by_effect = matches!(
            run.pending_effects.first().map(|pending| &pending.effect),
            Some(Effect::Recover { .. } | Effect::Terminate { .. } | Effect::Launch { .. })
        );
        if is_found_by_effect
            || self.unreadable == Some(attempt)
            || !context.may_act
            || self.attaching.is_some()
            || !self.settled.is_empty()
            || self.operation.is_some()
            || self.sessions.contains_key(&attempt)
            || self.paused.contains(&ActorPause::Attach)
        {
            return;
        }
        let is_input = |effect: &Effect| effect.is_input() && effect.attempt() == Some(attempt);
        let inputs = run.pending_effects.iter().filter(|pending| is_input(&pending.effect));
        let inputs = inputs.map(|pending| pending.number).collect();
        self.attaching = Some(attempt);
        actions.push(RunAction::Locate { attempt, inputs });
    }

    /// Continues to write to and to read each process. A process is not read while too much of its output is not
    /// committed.
    pub(super) fn continue_sessions(&mut self, context: &ActorContext<'_>, actions: &mut Vec<RunAction>) {
        let live = self.run().and_then(|run| run.live()).map(|live| (live.attempt, live.processed_position));
        let in_commit = |attempt| {
            let batch = self.commit.iter().flat_map(|commit| &commit.batch.outputs);
            batch.chain(&self.outputs).filter(move |facts| facts.attempt == attempt)
        };
        let backlog: BTreeMap<Attempt, (bool, bool)> = (self.sessions.keys())
            .map(|attempt| {
                let is_full = in_commit(*attempt).any(|facts| !facts.is_ready)
                    || in_commit(*attempt).map(|facts| facts.events.len()).sum::<usize>()
                        >= EVENTS_PER_COMMIT;
                (*attempt, (in_commit(*attempt).next().is_some(), is_full))
            })
            .collect();
        let mut lost = Vec::new();
        for (attempt, session) in &mut self.sessions {
            let (attempt, (has_backlog, is_full)) = (*attempt, backlog[attempt]);
            if !session.is_writing
                && session.end != Some(SessionEnd::Lost)
                && let Some((key, bytes)) = session.writes.pop_front()
            {
                session.is_writing = true;
                actions.push(RunAction::Write { attempt, key, bytes });
            }
            match session.end {
                None if !session.is_started || session.is_reading || is_full => {}
                None => {
                    let buffer_bytes = context.output_buffer_bytes;
                    let mut checkpoint = None;
                    if session.is_checkpoint_due(buffer_bytes)
                        && let Some((_, committed)) = live.filter(|live| live.0 == attempt)
                    {
                        // Everything before a checkpoint is committed and written.
                        if has_backlog || session.is_writing || !session.writes.is_empty() {
                            continue;
                        }
                        checkpoint = session.next_checkpoint(committed, buffer_bytes);
                    }
                    session.is_reading = true;
                    let from = (!std::mem::replace(&mut session.is_followed, true)).then_some(session.fed);
                    let timeout = session.read_timeout();
                    let request = ReadRequest { from, timeout, checkpoint };
                    actions.push(RunAction::Read { attempt, request });
                }
                Some(SessionEnd::Lost) if !has_backlog && !session.is_writing => lost.push(attempt),
                // The session stays listed until the process is removed, because a shutdown waits for its keeper.
                Some(SessionEnd::Exited) if !has_backlog && !session.is_writing && !session.is_cleaning => {
                    session.is_cleaning = true;
                    actions.push(RunAction::CleanUp { attempt });
                }
                Some(_) => {}
            }
        }
        for attempt in lost {
            self.sessions.remove(&attempt);
            actions.push(RunAction::StopReading { attempt });
        }
    }
}

/// Whether the event has a question, which may be too long to be shown.
fn has_question(event: &RunEvent) -> bool {
    matches!(
        event,
        RunEvent::GateRaised { .. } | RunEvent::TurnEnded { outcome: TurnOutcome::Asked { .. }, .. }
    )
}
