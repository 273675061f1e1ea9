//! `abide up`: runs the daemon, from its configuration to its exit.

pub(crate) mod access;
mod address;
mod assembly;
pub(crate) mod background;
mod browser;
#[cfg(feature = "failpoints")]
mod failpoints;
mod health;
mod lock;
mod notify;
pub(crate) mod socket;
pub(crate) mod token;

use std::{io::Write, process::ExitCode, sync::Arc};

use abide_agent::{agent_state::end_if_deleted, provenance::record_first_use};
use abide_api::http::{self, HttpService, LocalListener, StopMode};
use abide_daemon::{CrashGuard, Daemon};
use abide_host::{
    former_folders,
    home_folders::HomeFolder,
    processes::{OutlivingKeepers, OutlivingTask},
};
use abide_observe::{
    logs::{self, LogDestination},
    metrics::DaemonMetrics,
    traces::TraceExporter,
};
use abide_os::own_process::raise_descriptor_limit;
use abide_ports::{observer::CommitObserver, store::Store};
use abide_store::LossPolicy;
use anyhow::Context;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::{
    args::UpArguments,
    config::{self, GivenSetting},
    error::eprint_line,
    exit::SUCCEEDED,
    home,
};

use assembly::AssembledDaemon;

pub(crate) use address::DaemonAddress;
pub(crate) use lock::HomeLock;

/// Runs the daemon until it is stopped, or starts it in the background.
pub(crate) fn run(arguments: &UpArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let overrides = match arguments.background {
        true => background::read_settings()?,
        false => arguments.settings(overrides),
    };
    let config = config::load(&overrides)?.config;
    if arguments.detach {
        return detach(arguments, &overrides);
    }
    if arguments.background {
        background::detach_from_terminal();
    }
    make_undumpable();
    let destination = match arguments.background {
        true => LogDestination::Files(HomeFolder::Logs.path(&home::home()?)),
        false => LogDestination::Stderr,
    };
    logs::start(&config.log.options(), &destination).context("cannot write the log")?;
    #[cfg(feature = "failpoints")]
    failpoints::install()?;
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the threads of the daemon")?;
    runtime.block_on(serve(&config, arguments))?;
    // Threads that read from processes end with the program.
    runtime.shutdown_background();
    Ok(SUCCEEDED)
}

/// Prevents other processes of this user from tracing the daemon and from reading its memory and environment, which may
/// hold tokens and the store's password. Started programs are not affected: `exec` makes them dumpable again.
fn make_undumpable() {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        eprint_line(format_args!(
            "abide: other processes of this user can read the daemon's memory: {error}"
        ));
    }
}

/// Finds or starts the daemon and prints its address.
fn detach(arguments: &UpArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let started = background::find_or_start_with(&home::home()?, overrides, loss_policy(arguments))?;
    if !started.started_now {
        let with = if overrides.is_empty() { "" } else { ", with the settings that it was started with" };
        eprint_line(format_args!(
            "abide: a daemon is already running (pid {}{with})",
            started.address.process.pid
        ));
    }
    print_address(arguments, &started.address)?;
    Ok(SUCCEEDED)
}

/// Returns the policy for lost acknowledged input.
fn loss_policy(arguments: &UpArguments) -> LossPolicy {
    if arguments.accept_loss { LossPolicy::Accept } else { LossPolicy::Refuse }
}

/// Prints the address of the daemon.
fn print_address(arguments: &UpArguments, address: &DaemonAddress) -> anyhow::Result<()> {
    let url = address.url();
    let mut out = std::io::stdout();
    if arguments.output.json {
        let value = serde_json::json!({ "url": url, "pid": address.process.pid, "version": address.version });
        writeln!(out, "{value}")?;
    } else {
        writeln!(out, "{url}")?;
    }
    if arguments.open {
        browser::open(&url);
    }
    Ok(())
}

async fn serve(config: &config::CliConfig, arguments: &UpArguments) -> anyhow::Result<()> {
    anyhow::ensure!(
        config.listen.ip().is_loopback() || config.http.allow_remote,
        "{} can be reached from other machines; listen on 127.0.0.1, or set http.allow_remote = true if that is wanted",
        config.listen,
    );
    let home = home::home()?;
    home::prepare(&home)?;
    // The home exists now. Its path is resolved once, so a link that is changed later does not move it.
    let home = std::fs::canonicalize(&home).with_context(|| format!("cannot use {}", home.display()))?;
    // Held until the daemon exits.
    let _lock = lock::HomeLock::take(&home)?;
    former_folders::rename_former_folders(&home)
        .context("cannot rename the folders of an earlier version")?;
    record_first_use(&HomeFolder::Agents.path(&home))
        .context("cannot record the first use of this version")?;
    let access = Arc::new(access::open(&home)?);
    let listener = TcpListener::bind(config.listen).await.with_context(|| {
        format!(
            "cannot listen on {}; if another home's daemon is there, give this one an address of its own: \
                 --listen 127.0.0.1:0, or `listen` in {}",
            config.listen,
            home.join("config.toml").display()
        )
    })?;
    let local = socket::listen(&home)
        .and_then(tokio::net::UnixListener::from_std)
        .with_context(|| format!("cannot listen on {}", home.join("daemon.sock").display()))?;
    let local = LocalListener { listener: local, check_peer: socket::refusal };
    let address = DaemonAddress::new(listener.local_addr().context("the listener has no address")?);
    let metrics = DaemonMetrics::new();
    let mut observers: Vec<Arc<dyn CommitObserver>> = vec![Arc::new(metrics.clone())];
    let traces = TraceExporter::start(&config.otel.endpoint, &metrics)?;
    observers.extend(traces.clone().map(|traces| Arc::new(traces) as Arc<dyn CommitObserver>));
    let AssembledDaemon { daemon, store, retention, guard } =
        assembly::assemble_daemon(config, &home, loss_policy(arguments), &metrics, observers).await?;
    let terminals = Arc::new(assembly::start_terminal_runtime(config)?);
    address.publish(&home)?;
    let (stop, mut stopping) = watch::channel(StopMode::No);
    let service = HttpService {
        daemon: daemon.clone(),
        terminals: terminals.clone(),
        access: access.clone(),
        metrics: metrics.clone(),
        stop: stop.clone(),
        settings: config.http.http_config(),
    };
    tokio::spawn(stop_on_signals(stop));
    let until = stopping.clone();
    let served = tokio::spawn(http::serve(listener, Some(local), service, async move {
        let mut until = until;
        // A closed channel also means that the server must stop.
        until.wait_for(|stop| *stop != StopMode::No).await.ok();
    }));
    daemon.reconcile().await.context("cannot recover the state of the previous daemon")?;
    let collecting = daemon.collect_capabilities();
    let outliving = OutlivingKeepers::for_keepers_dir(&HomeFolder::Keepers.path(&home), &home::launcher()?);
    let outliving =
        tokio::spawn(outliving_task(&daemon, store.clone(), outliving, &guard).run(daemon.changes()));
    let health = tokio::spawn(health::log_health_changes(store));
    let retention = tokio::spawn(retention.run());
    tracing::info!(listen = %address.listen, version = address.version, "ready");
    print_address(arguments, &address)?;
    notify::ready();
    if arguments.background {
        background::release_starter();
    }
    // The sender is owned by the task that waits for signals.
    let stop_mode =
        stopping.wait_for(|stop| *stop != StopMode::No).await.map_or(StopMode::Keep, |stop| *stop);
    notify::stopping();
    if stop_mode == StopMode::Orderly {
        daemon.stop().await.context("cannot stop in order")?;
    }
    daemon.leave().await;
    collecting.abort();
    health.abort();
    retention.abort();
    outliving.abort();
    served.await.context("the HTTP server failed")?.context("the HTTP server failed")?;
    if let Some(traces) = traces {
        // Spans that could not be flushed are lost.
        tokio::task::spawn_blocking(move || traces.flush()).await.ok();
    }
    // Output that is not committed is read again by the next daemon.
    daemon.end().await;
    daemon.store().close().await.context("cannot close the store in order")?;
    guard.close();
    tracing::info!(?stop_mode, "stopped");
    access.close();
    // A socket that stays is replaced at the next start.
    socket::remove(&home).ok();
    address.remove(&home);
    match stop_mode {
        // Dropping the last handle of the terminal runtime ends its sessions.
        StopMode::Orderly | StopMode::No => drop(terminals),
        StopMode::Keep => std::mem::forget(terminals),
    }
    Ok(())
}

/// Returns the task that ends the keepers of finished runs.
fn outliving_task(
    daemon: &Daemon,
    store: Arc<dyn Store>,
    keepers: OutlivingKeepers,
    guard: &CrashGuard,
) -> OutlivingTask {
    let lost = daemon.clone();
    OutlivingTask {
        keepers,
        store,
        guard: Arc::new(guard.clone()),
        end_if_deleted,
        on_session_lost: Box::new(move |run, failure| {
            let daemon = lost.clone();
            // A run that was answered or has ended meanwhile detects the loss itself.
            Box::pin(async move { drop(daemon.session_lost(run, failure).await) })
        }),
    }
}

/// Requests a stop that keeps processes running when a signal arrives: an operator, systemd or an upgrade expects the
/// work to continue afterwards.
async fn stop_on_signals(stop: watch::Sender<StopMode>) {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    stop.send_replace(StopMode::Keep);
}
