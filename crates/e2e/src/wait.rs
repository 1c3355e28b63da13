//! Wait for a condition, with a limit.
//!
//! Nothing in this crate sleeps for a fixed time: a test polls its condition until it holds, and
//! fails with the last error at the limit.

use std::fmt::Display;
use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::time::{Instant, sleep, timeout};

use crate::case;

/// The initial pause is too short to matter. It grows, because every poll costs the polled
/// component.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(150);

/// Time limit of the last poll after the deadline: it may be in progress.
const POLL_LIMIT: Duration = Duration::from_secs(180);

/// Calls `poll` until it returns `Ok(Some(_))`, for at most `limit`.
///
/// `Ok(None)` and `Err(_)` both mean "not yet"; the last error becomes the cause of the failure.
pub async fn until<T>(
    what: impl Display,
    limit: Duration,
    mut poll: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let _waiting = case::waiting_for(what.to_string());
    let began = Instant::now();
    let mut reason = None;
    let polled = async {
        loop {
            match poll().await {
                Ok(Some(value)) => return Some(value),
                Ok(None) => reason = None,
                Err(error) => reason = Some(error),
            }
            if began.elapsed() >= limit {
                return None;
            }
            sleep((began.elapsed() / 20).clamp(PAUSE, LONGEST_PAUSE)).await;
        }
    };
    let late = match timeout(limit + POLL_LIMIT, polled).await {
        Ok(Some(value)) => return Ok(value),
        Ok(None) => format!("waited {} s for {what}", limit.as_secs_f32()),
        Err(_) => format!(
            "waited {} s for {what}, and a poll did not return within {} s",
            limit.as_secs_f32(),
            POLL_LIMIT.as_secs_f32()
        ),
    };
    Err(match reason {
        Some(reason) => reason.context(late),
        None => anyhow!(late),
    })
}

/// Like [`until`], for a boolean condition.
pub async fn until_true(
    what: impl Display,
    limit: Duration,
    mut poll: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    until(what, limit, async || poll().await.map(|yes| yes.then_some(()))).await
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn late_result_is_returned() {
        let mut asked = 0;
        let value = until("the third poll", Duration::from_secs(5), async || {
            asked += 1;
            Ok((asked == 3).then_some(asked))
        });
        assert_eq!(value.await.unwrap(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_poll_is_cancelled_and_named() {
        let value = until::<()>("a response", Duration::from_secs(5), std::future::pending);
        let error = value.await.unwrap_err().to_string();
        assert_eq!(error, "waited 5 s for a response, and a poll did not return within 180 s");
    }

    #[tokio::test]
    async fn failure_names_the_condition_and_the_last_error() {
        let value = until::<()>("a condition", Duration::ZERO, async || Err(anyhow!("not yet")));
        let error = format!("{:#}", value.await.unwrap_err());
        assert_eq!(error, "waited 0 s for a condition: not yet");
    }
}
