//! Following the login manager: the lock that delays a shutdown, and the announcements.

use std::path::Path;
use std::time::Duration;

use podwright_core::backoff::{Doubling, Retry};
use podwright_core::shutdown::{self, ShutdownChange};
use podwright_host::login::{self, LoginBus, LoginError, LoginSession, ShutdownLock};
use podwright_host::threads;

use super::ShutdownManager;
use crate::error_chain::chain;

const RETRY: Doubling = Doubling::new(Duration::from_secs(1), Duration::from_secs(300));
/// How often the login manager is asked whether it uses the longer delay.
const CHECKS: u32 = 5;
const CHECK: Doubling = Doubling::new(Duration::from_millis(100), Duration::from_secs(10));

#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Login(#[from] LoginError),
    #[error(
        "node shutdown manager was timed out after {CHECKS} attempts waiting for logind \
         InhibitDelayMaxSec to update to {wanted:?} (ShutdownGracePeriod), current value is \
         {current:?}"
    )]
    DelayTooShort { wanted: Duration, current: Duration },
    #[error("the agent is stopping")]
    Stopping,
}

/// Follows the login manager, and connects again when that ends.
pub(super) async fn follow(manager: &ShutdownManager, bus: &LoginBus, override_dir: &Path) {
    let mut retry = Retry::new(RETRY);
    let mut last_problem = None;
    loop {
        match follow_once(manager, bus, override_dir, &mut retry).await {
            Ok(()) => tracing::warn!("connection to systemd-logind ended, connecting again"),
            Err(error) => {
                let problem = chain(&error);
                if last_problem.as_ref() != Some(&problem) {
                    tracing::warn!(
                        error = problem,
                        "graceful node shutdown does not work: pods are not ended before the machine shuts down; retrying"
                    );
                    last_problem = Some(problem);
                }
            }
        }
        tokio::time::sleep(retry.next_delay()).await;
    }
}

/// Returns when the connection ends.
async fn follow_once(
    manager: &ShutdownManager,
    bus: &LoginBus,
    override_dir: &Path,
    retry: &mut Retry,
) -> Result<(), FollowError> {
    let mut session = LoginSession::open(bus).await?;
    let announced = session.is_shutting_down().await?;
    // Too late to delay a shutdown that has begun.
    let mut lock = match announced {
        true => None,
        false => Some(delay_shutdowns(manager, &session, override_dir).await?),
    };
    retry.reset();
    tracing::info!(
        total = ?manager.groups().total(),
        "graceful node shutdown: following systemd-logind"
    );
    manager.apply(manager.change(announced)).await;
    while let Some(active) = session.next().await {
        let change = manager.change(active);
        manager.apply(change).await;
        match change {
            // The pods have ended: the shutdown goes on.
            ShutdownChange::Begin => lock = None,
            ShutdownChange::Cancel => lock = Some(session.lock().await?),
            ShutdownChange::Nothing => {}
        }
        tracing::debug!(delays = lock.is_some(), active, "shutdown announcement handled");
    }
    Ok(())
}

/// Takes the lock, after a longer delay was configured if that is needed.
async fn delay_shutdowns(
    manager: &ShutdownManager,
    session: &LoginSession,
    override_dir: &Path,
) -> Result<ShutdownLock, FollowError> {
    let wanted = manager.groups().total();
    if shutdown::needs_override(session.delay().await?, wanted) {
        let (directory, text) = (override_dir.to_owned(), shutdown::delay_override(wanted));
        let written = threads::blocking(move || {
            login::write_override(&directory, shutdown::OVERRIDE_MARK, &text, wanted)
        });
        written.await.map_err(|_| FollowError::Stopping)??;
        session.reload().await?;
        wait_for_delay(session, wanted).await?;
    }
    Ok(session.lock().await?)
}

async fn wait_for_delay(session: &LoginSession, wanted: Duration) -> Result<(), FollowError> {
    let mut current = Duration::ZERO;
    for attempt in 0..CHECKS {
        current = session.delay().await?;
        if !shutdown::needs_override(current, wanted) {
            return Ok(());
        }
        tokio::time::sleep(CHECK.after(attempt)).await;
    }
    Err(FollowError::DelayTooShort { wanted, current })
}
