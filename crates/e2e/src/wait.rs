//! Waiting for a condition, with a limit.
//!
//! Nothing in this crate sleeps for a fixed time: a test asks its question again and again until
//! the answer is there, and when it never comes it fails with the last reason heard.

use std::fmt::Display;
use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::time::{Instant, sleep};

/// Between the first two questions: too short to be seen. What takes long is asked for less often:
/// every question costs whoever answers it.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(150);

/// Asks `question` until it answers `Ok(Some(_))`, at most `limit` long.
///
/// `Ok(None)` and `Err(_)` both mean "not yet"; the last error becomes the cause of the failure.
pub async fn until<T>(
    what: impl Display,
    limit: Duration,
    mut question: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let began = Instant::now();
    loop {
        let reason = match question().await {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if began.elapsed() >= limit {
            let late = format!("waited {} s for {what}", limit.as_secs_f32());
            return Err(match reason {
                Some(reason) => reason.context(late),
                None => anyhow!(late),
            });
        }
        sleep((began.elapsed() / 20).clamp(PAUSE, LONGEST_PAUSE)).await;
    }
}

/// Like [`until`], for a condition that is simply true or not yet.
pub async fn until_true(
    what: impl Display,
    limit: Duration,
    mut question: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    until(what, limit, async || question().await.map(|yes| yes.then_some(()))).await
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answer_that_comes_late_is_taken() {
        let mut asked = 0;
        let answer = until("the third answer", Duration::from_secs(5), async || {
            asked += 1;
            Ok((asked == 3).then_some(asked))
        });
        assert_eq!(answer.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn failure_names_the_question_and_the_last_reason() {
        let answer = until::<()>("a miracle", Duration::ZERO, async || Err(anyhow!("none today")));
        let error = format!("{:#}", answer.await.unwrap_err());
        assert_eq!(error, "waited 0 s for a miracle: none today");
    }
}
