//! Service account tokens of one pod.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use podwright_core::time::Mono;
use podwright_core::volume::token::{Token, TokenSpec};

use super::volume_type::VolumeRequest;
use crate::resources::objects::Fetched;

/// Caches each token until its renewal time, so that a volume refresh does not fetch it again.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<BTreeMap<TokenSpec, Token>>);

impl Tokens {
    /// Adds the tokens that a volume needs to `fetched` and returns the earliest renewal time.
    pub(super) async fn fetch(
        &self,
        request: VolumeRequest<'_>,
        wanted: &[TokenSpec],
        fetched: &mut Fetched,
    ) -> Option<Mono> {
        let mut renew_at: Option<Mono> = None;
        for wanted in wanted {
            let token = self.current(request, wanted).await;
            let text = token.as_ref().map(|token| token.text.clone()).map_err(Clone::clone);
            fetched.add_token(wanted.clone(), text);
            let next = token.ok().map(|token| token.renew_at);
            renew_at = [renew_at, next].into_iter().flatten().min();
        }
        renew_at
    }

    async fn current(
        &self,
        request: VolumeRequest<'_>,
        wanted: &TokenSpec,
    ) -> Result<Token, String> {
        let now = || request.sources.clock.now();
        let known = self.0.lock().get(wanted).cloned();
        if let Some(token) = known.as_ref().filter(|token| !token.is_due(now())) {
            return Ok(token.clone());
        }
        let answer = request.sources.objects.token(request.pod, wanted).await;
        let fresh = answer.map_err(|error| error.to_string()).and_then(|answer| {
            let token = Token::received(&answer, request.pod, now());
            token.ok_or_else(|| "the API server's response holds no token".to_owned())
        });
        match (fresh, known) {
            (Ok(token), _) => {
                self.0.lock().insert(wanted.clone(), token.clone());
                Ok(token)
            }
            (Err(error), Some(old)) if now().mono < old.ends_at => {
                tracing::warn!(
                    pod = %request.pod.name, error,
                    "renew service account token failed, keeping the old one until it expires"
                );
                Ok(old.kept_for_now(now()))
            }
            (Err(error), _) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use k8s_openapi::api::core::v1;
    use kube::Api;
    use kube::api::{DeleteParams, PostParams};
    use podwright_core::pod::{Pod, Source};
    use podwright_core::time::Now;
    use podwright_host::clock::Clock;
    use serde_json::json;

    use super::*;
    use crate::resources::objects::{Objects, tests::api};
    use crate::resources::volumes::volume_type::Sources;

    #[tokio::test]
    async fn token_is_renewed_in_time_and_kept_while_renewal_fails() {
        let client = api().await;
        let accounts: Api<v1::ServiceAccount> = Api::default_namespaced(client.clone());
        let account = serde_json::from_value(json!({"metadata": {"name": "robot"}})).unwrap();
        accounts.create(&PostParams::default(), &account).await.unwrap();
        let pods: Api<v1::Pod> = Api::default_namespaced(client.clone());
        let pod = json!({"metadata": {"name": "p"}, "spec": {"serviceAccountName": "robot",
            "containers": [{"name": "c", "image": "i"}]}});
        let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await;
        let pod = Arc::new(Pod::parse(pod.unwrap(), Source::Api).unwrap());
        let volume = v1::Volume::default();
        let start = Now { wall: jiff::Timestamp::UNIX_EPOCH, mono: Mono::ZERO };
        let sources = Sources {
            objects: Objects::new(Some(client), "n1".into()),
            allocatable: Default::default(),
            clock: Clock::manual(start),
        };
        let tokens = Tokens::default();
        let request =
            VolumeRequest { pod: &pod, volume: &volume, sources: &sources, tokens: &tokens };
        let wanted = TokenSpec { service_account: "robot".into(), audience: None, seconds: 3600 };
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);

        let first = tokens.current(request, &wanted).await.unwrap();
        sources.clock.advance(minutes(47));
        assert_eq!(tokens.current(request, &wanted).await.unwrap(), first, "not due yet");
        sources.clock.advance(minutes(2));
        let second = tokens.current(request, &wanted).await.unwrap();
        assert!(second.renew_at > first.ends_at - minutes(15), "renewed after 48 minutes");

        // Suspended: only the wall clock has moved on.
        sources.clock.step_wall(jiff::SignedDuration::from_hours(1));
        let before = second;
        let second = tokens.current(request, &wanted).await.unwrap();
        assert_ne!(second, before, "renewed after a suspend");

        accounts.delete("robot", &DeleteParams::default()).await.unwrap();
        sources.clock.advance(minutes(55));
        let kept = tokens.current(request, &wanted).await.unwrap();
        assert_eq!(kept.text, second.text, "the old token is kept until it expires");
        assert_eq!(kept.renew_at.since(sources.clock.now().mono), Duration::from_secs(10));
        sources.clock.advance(minutes(6));
        let error = tokens.current(request, &wanted).await.unwrap_err();
        assert!(error.contains("robot"), "{error}");
    }
}
