//! `podwright top`: a live view of the node, its pods and what is wrong with them.
//!
//! Everything is read from the debug socket of the agent, so it works on a standalone node and on
//! one that has joined a cluster, whatever the API server does. [`model`] decides what a key or a
//! new reading changes, [`screen`] draws the model, and this module connects both with the
//! terminal, the agent and signals.

mod client;
mod keys;
mod log;
mod model;
mod screen;
mod terminal;
mod theme;

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::Context as _;
use ratatui::crossterm::event::Event;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use self::client::{Client, Reading};
use self::log::{LogPiece, LogReader};
use self::model::{Effect, Model};
use self::terminal::Screen;
use self::theme::Theme;
use super::why::agent::Agent;
use super::why::roots;
use crate::cli::TopArgs;
use crate::service;

/// Time between two readings. The agent measures usage at most once a second.
const REFRESH: Duration = Duration::from_secs(2);
/// Keys and pieces of a log that may wait to be shown; a log that is faster waits in the agent.
const QUEUE: usize = 64;

pub fn run(arguments: &TopArgs) -> anyhow::Result<()> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        anyhow::bail!(
            "podwright top needs a terminal. Fix: for scripts use podwright status -o json"
        );
    }
    let roots = roots(arguments.root_dir.as_deref(), arguments.state_dir.as_deref())?;
    service::runtime()?.block_on(async { show(Client::new(Agent::find(&roots).await?)).await })
}

async fn show(client: Client) -> anyhow::Result<()> {
    let theme = Theme::of_environment(|name| std::env::var(name).ok());
    // The first reading comes before the screen, so that an error is printed plainly.
    let mut model = Model::new(client.read(None).await?);
    let signals = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let signals: Result<Vec<_>, _> = signals.into_iter().map(signal).collect();
    let mut ended = std::pin::pin!(any(signals.context("cannot handle signals")?));
    let (selected, wanted) = watch::channel(model.selected().map(str::to_owned));
    let (readings, mut read) = mpsc::channel(1);
    let reading = tokio::spawn(keep_reading(client.clone(), wanted, readings));
    let (pieces, mut logged) = mpsc::channel(QUEUE);
    let mut log: Option<LogReader> = None;
    let mut screen = Screen::open()?;
    let mut keys = keys::read(QUEUE);
    loop {
        screen.draw(&model, &theme)?;
        // Every arm is cancel-safe: what is not received now is received in the next iteration.
        tokio::select! {
            event = keys.recv() => match event {
                // The terminal is gone.
                None => break,
                Some(Event::Key(key)) => match model.key(key) {
                    Some(Effect::Quit) => break,
                    Some(Effect::OpenLog(request)) => {
                        log = Some(LogReader::start(client.agent().clone(), request, pieces.clone()));
                    }
                    Some(Effect::CloseLog) => log = None,
                    None => {}
                },
                // Anything else, such as a new size, only needs the screen to be drawn again.
                Some(_) => {}
            },
            reading = read.recv() => match reading {
                Some(reading) => model.update(reading),
                None => break,
            },
            piece = logged.recv() => {
                let mut next: Option<LogPiece> = piece;
                while let Some(piece) = next {
                    model.log_piece(piece);
                    next = logged.try_recv().ok();
                }
            }
            () = &mut ended => break,
        }
        let now = model.selected().map(str::to_owned);
        selected.send_if_modified(|known| std::mem::replace(known, now.clone()) != now);
    }
    drop(log);
    reading.abort();
    Ok(())
}

/// Waits for any of the signals.
async fn any(mut signals: Vec<tokio::signal::unix::Signal>) {
    let waits = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
    futures::future::select_all(waits).await;
}

/// Reads everything periodically, and at once if another pod is selected.
async fn keep_reading(
    client: Client,
    mut wanted: watch::Receiver<Option<String>>,
    readings: mpsc::Sender<anyhow::Result<Reading>>,
) {
    loop {
        let changed = tokio::time::timeout(REFRESH, wanted.changed()).await;
        if matches!(changed, Ok(Err(_))) {
            return;
        }
        let uid = wanted.borrow_and_update().clone();
        if readings.send(client.read(uid.as_deref()).await).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests;
