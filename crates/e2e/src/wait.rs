//! Waiting for a condition, with a limit.
//!
//! Nothing in this crate sleeps for a fixed time: a test asks its question again and again until
//! the answer is there, and when it never comes it fails with the last reason heard.

use std::fmt::Display;
use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::time::{Instant, sleep, timeout};

use crate::case;

/// Between the first two questions: too short to be seen. What takes long is asked for less often:
/// every question costs whoever answers it.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(150);

/// How long the last question may take when the time is over: it can be just on its way.
const QUESTION: Duration = Duration::from_secs(180);

/// Asks `question` until it answers `Ok(Some(_))`, at most `limit` long.
///
/// `Ok(None)` and `Err(_)` both mean "not yet"; the last error becomes the cause of the failure.
pub async fn until<T>(
    what: impl Display,
    limit: Duration,
    mut question: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let _waiting = case::waiting_for(what.to_string());
    let began = Instant::now();
    let mut reason = None;
    let answered = async {
        loop {
            match question().await {
                Ok(Some(answer)) => return Some(answer),
                Ok(None) => reason = None,
                Err(error) => reason = Some(error),
            }
            if began.elapsed() >= limit {
                return None;
            }
            sleep((began.elapsed() / 20).clamp(PAUSE, LONGEST_PAUSE)).await;
        }
    };
    let late = match timeout(limit + QUESTION, answered).await {
        Ok(Some(answer)) => return Ok(answer),
        Ok(None) => format!("waited {} s for {what}", limit.as_secs_f32()),
        Err(_) => format!(
            "waited {} s for {what}, and a question had no answer in {} s",
            limit.as_secs_f32(),
            QUESTION.as_secs_f32()
        ),
    };
    Err(match reason {
        Some(reason) => reason.context(late),
        None => anyhow!(late),
    })
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

    #[tokio::test(start_paused = true)]
    async fn question_without_an_answer_is_ended_and_named() {
        let answer = until::<()>("a reply", Duration::from_secs(5), std::future::pending);
        let error = answer.await.unwrap_err().to_string();
        assert_eq!(error, "waited 5 s for a reply, and a question had no answer in 180 s");
    }

    #[tokio::test]
    async fn failure_names_the_question_and_the_last_reason() {
        let answer = until::<()>("a miracle", Duration::ZERO, async || Err(anyhow!("none today")));
        let error = format!("{:#}", answer.await.unwrap_err());
        assert_eq!(error, "waited 0 s for a miracle: none today");
    }
}
