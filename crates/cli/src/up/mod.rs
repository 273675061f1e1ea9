//! `abide up`: the daemon, from its configuration to its end.

mod address;
mod assembly;
mod token;

use std::{process::ExitCode, sync::Arc};

use abide_api::http::{self, Service, Settings, Stop};
use abide_engines::asking::patch::ARTIFACTS;
use anyhow::Context;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::{
    args::Up,
    config::{self, Given},
    exit::SUCCEEDED,
    home,
};

pub(crate) use address::Address;

/// Runs the daemon until it is told to stop.
pub(crate) fn run(arguments: &Up, given: &[Given]) -> anyhow::Result<ExitCode> {
    let given = arguments.settings(given);
    let config = config::load(&given)?.config;
    #[cfg(feature = "failpoints")]
    crate::failpoints::install()?;
    crate::rpc::raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the threads of the daemon")?;
    runtime.block_on(serve(&config))?;
    // Threads that listen to processes end with the program: what they have not committed, the next start hears again.
    runtime.shutdown_background();
    Ok(SUCCEEDED)
}

async fn serve(config: &config::Config) -> anyhow::Result<()> {
    let home = home::home()?;
    std::fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
    let token = token::of(&home)?;
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("cannot listen on {}; is another daemon there?", config.listen))?;
    let address = Address::new(listener.local_addr().context("the listener has no address")?);
    let daemon = assembly::daemon(config, &home).await?;
    let terminals = Arc::new(assembly::terminals(config)?);
    address.publish(&home)?;
    let (stop, mut stopping) = watch::channel(Stop::No);
    let service = Service {
        daemon: daemon.clone(),
        terminals: terminals.clone(),
        token,
        stop: stop.clone(),
        settings: Settings::standard(ARTIFACTS),
    };
    tokio::spawn(stop_on_signals(stop));
    let until = stopping.clone();
    let served = tokio::spawn(http::serve(listener, service, async move {
        let mut until = until;
        let _nobody_can_ask_any_more = until.wait_for(|stop| *stop != Stop::No).await;
    }));
    daemon.reconcile().await.context("cannot take up what an earlier daemon left")?;
    let time = daemon.keep_time();
    println!("{}", address.url());
    // The sender lives in the task that waits for signals.
    let how = stopping.wait_for(|stop| *stop != Stop::No).await.map_or(Stop::Keep, |stop| *stop);
    if how == Stop::Orderly {
        daemon.stop().await.context("cannot stop in order")?;
    }
    time.abort();
    served.await.context("the interface ended badly")?.context("the interface ended badly")?;
    address.withdraw(&home);
    match how {
        // The last one who holds the terminal runtime ends its sessions.
        Stop::Orderly | Stop::No => drop(terminals),
        Stop::Keep => std::mem::forget(terminals),
    }
    Ok(())
}

/// Whoever ends the program from outside (an operator, systemd, an upgrade) wants everything to go on afterwards.
async fn stop_on_signals(stop: watch::Sender<Stop>) {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    stop.send_replace(Stop::Keep);
}
