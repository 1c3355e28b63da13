//! What a service manager is told, and what it tells us.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A watchdog that barks within this time would take every hiccup for an end.
const LEAST_WATCHDOG: Duration = Duration::from_secs(1);

/// How often the service manager wants to hear from us, if it does.
pub fn watchdog() -> anyhow::Result<Option<Duration>> {
    match sd_notify::watchdog_enabled() {
        Some(interval) if interval <= LEAST_WATCHDOG => anyhow::bail!(
            "the service's WatchdogSec is {interval:?}; it has to be more than {LEAST_WATCHDOG:?}"
        ),
        interval => Ok(interval),
    }
}

/// The node is up. Without a service manager this says nothing to nobody. `is_well` says whether
/// the watchdog may be fed.
pub fn ready(watchdog: Option<Duration>, is_well: impl Fn() -> bool + Send + 'static) {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::debug!(%error, "no service manager to tell");
    }
    if let Some(interval) = watchdog {
        tokio::spawn(feed_watchdog(interval / 2, is_well));
    }
}

/// A process that hangs, or in which pods are not looked after, stops feeding and is started anew.
async fn feed_watchdog(every: Duration, is_well: impl Fn() -> bool) {
    loop {
        if is_well() {
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
        }
        tokio::time::sleep(every).await;
    }
}

/// Cancelled by SIGTERM or SIGINT.
pub fn stop_signal() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let token = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tracing::info!("told to stop");
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        token.cancel();
    });
    Ok(stop)
}

/// The threads of a node: two are plenty, and each one costs memory. Those that may block come
/// and go; there can be many, for as many mounts as may hang.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(64)
        .enable_all()
        .build()
}
