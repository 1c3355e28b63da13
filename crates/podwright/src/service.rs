//! Process integration: systemd notifications and watchdog, stop signals, the Tokio runtime.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// With a shorter watchdog interval any short delay would restart the agent.
const MIN_WATCHDOG: Duration = Duration::from_secs(1);

/// Watchdog interval of the service manager, if it has one.
pub fn watchdog() -> anyhow::Result<Option<Duration>> {
    match sd_notify::watchdog_enabled() {
        Some(interval) if interval <= MIN_WATCHDOG => anyhow::bail!(
            "WatchdogSec of the service is {interval:?}. Fix: set it to more than {MIN_WATCHDOG:?}"
        ),
        interval => Ok(interval),
    }
}

/// Notifies the service manager, if there is one, that the node is ready, and starts the watchdog
/// task, which sends notifications while `is_healthy`.
pub fn ready(watchdog: Option<Duration>, is_healthy: impl Fn() -> bool + Send + 'static) {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
    if let Some(interval) = watchdog {
        tokio::spawn(notify_watchdog(interval / 2, is_healthy));
    }
}

/// Without notifications, when the process hangs or a sync loop is stuck, the service manager
/// restarts it.
async fn notify_watchdog(every: Duration, is_healthy: impl Fn() -> bool) {
    loop {
        if is_healthy() {
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
        tracing::info!("received stop signal");
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        token.cancel();
    });
    Ok(stop)
}

/// Tokio runtime with two worker threads, which is enough; each costs memory. Blocking threads are
/// created on demand; the limit is high because each hanging mount occupies one.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(64)
        .enable_all()
        .build()
}
