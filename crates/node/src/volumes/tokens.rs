//! The service account tokens of one pod.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use podwright_core::time::Mono;
use podwright_core::volume::token::{Token, Wanted};

use super::kind::Ask;
use crate::objects::Fetched;

/// A token is fetched again when it gets old, not whenever a volume is looked at.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<BTreeMap<Wanted, Token>>);

impl Tokens {
    /// Adds the tokens that a volume wants to what was fetched for it, and returns when the first
    /// of them should be fetched again.
    pub(super) async fn fetch(
        &self,
        ask: Ask<'_>,
        wanted: &[Wanted],
        fetched: &mut Fetched,
    ) -> Option<Mono> {
        let mut renew_at: Option<Mono> = None;
        for wanted in wanted {
            let token = self.current(ask, wanted).await;
            let text = token.as_ref().map(|token| token.text.clone()).map_err(Clone::clone);
            fetched.add_token(wanted.clone(), text);
            let next = token.ok().map(|token| token.renew_at);
            renew_at = [renew_at, next].into_iter().flatten().min();
        }
        renew_at
    }

    async fn current(&self, ask: Ask<'_>, wanted: &Wanted) -> Result<Token, String> {
        let now = || ask.sources.clock.now().mono;
        let known = self.0.lock().get(wanted).cloned();
        if let Some(token) = known.as_ref().filter(|token| now() < token.renew_at) {
            return Ok(token.clone());
        }
        let answer = ask.sources.objects.token(ask.pod, wanted).await;
        let fresh = answer.map_err(|error| error.to_string()).and_then(|answer| {
            let token = Token::received(&answer, ask.pod, now());
            token.ok_or_else(|| "the API server's answer holds no token".to_owned())
        });
        match (fresh, known) {
            (Ok(token), _) => {
                self.0.lock().insert(wanted.clone(), token.clone());
                Ok(token)
            }
            (Err(error), Some(old)) if now() < old.ends_at => {
                tracing::warn!(pod = %ask.pod.name, error, "cannot renew a token; the old one stays");
                Ok(old.kept_for_now(now()))
            }
            (Err(error), _) => Err(error),
        }
    }
}
