use std::sync::atomic::{AtomicUsize, Ordering};

use podwright_testkit::builders::pod;
use serde_json::{Value, json};

use super::*;

const IMAGE: &str = "registry.io/team/app";

/// One account, with these annotations, whose tokens are all different.
#[derive(Default)]
struct OneAccount {
    annotations: BTreeMap<String, String>,
    tokens: AtomicUsize,
}

impl Accounts for OneAccount {
    fn account<'a>(
        &'a self,
        _: &'a Pod,
    ) -> BoxFuture<'a, Result<Option<(ObjectId, ServiceAccountView)>, String>> {
        let id = ObjectId { uid: "u".into(), namespace: "default".into(), name: "sa".into() };
        let view = ServiceAccountView { annotations: self.annotations.clone() };
        async move { Ok(Some((id, view))) }.boxed()
    }

    fn token<'a>(&'a self, _: &'a Pod, _: &'a str) -> BoxFuture<'a, Result<String, String>> {
        let number = self.tokens.fetch_add(1, Ordering::Relaxed);
        async move { Ok(format!("token-{number}")) }.boxed()
    }
}

struct Scene {
    accounts: Arc<OneAccount>,
    metrics: Arc<Metrics>,
    plugins: Plugins,
    runs: Arc<AtomicUsize>,
}

/// A plugin that counts its runs and returns this password. It is no process: one that is being
/// started holds on to mounts of other tests for a moment.
fn scene(token: Option<Value>, password: &str, keep: &str) -> Scene {
    let reply = json!({
        "kind": "CredentialProviderResponse",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "cacheKeyType": "Image", "cacheDuration": keep,
        "auth": { "registry.io": { "username": "me", "password": password } },
    });
    let reply = reply.to_string().into_bytes();
    let mut provider = json!({
        "name": "plugin", "matchImages": ["registry.io"], "defaultCacheDuration": "1m",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
    });
    if let Some(token) = token {
        provider["tokenAttributes"] = token;
    }
    let config = json!({
        "kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1",
        "providers": [provider],
    });
    let (accounts, metrics) = (Arc::<OneAccount>::default(), Arc::<Metrics>::default());
    let mut plugins = Plugins::new(
        credential::providers(&[config]).unwrap(),
        PathBuf::from("/plugins"),
        accounts.clone(),
        Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap()),
        metrics.clone(),
    );
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    plugins.runner = Arc::new(move |program, _, _| {
        assert_eq!(program, PathBuf::from("/plugins/plugin"));
        let (counted, reply) = (counted.clone(), reply.clone());
        async move {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok(reply)
        }
        .boxed()
    });
    Scene { accounts, metrics, plugins, runs }
}

impl Scene {
    async fn lookup(&self, name: &str) -> usize {
        self.plugins.lookup(&pod(name).build(), IMAGE).await.len()
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::Relaxed)
    }
}

fn token(caching: &str, annotations: &[&str]) -> Option<Value> {
    Some(json!({
        "serviceAccountTokenAudience": "registry", "cacheType": caching,
        "requireServiceAccount": true, "requiredServiceAccountAnnotationKeys": annotations,
    }))
}

#[tokio::test]
async fn pods_that_ask_the_same_at_the_same_time_share_one_run_of_the_plugin() {
    let scene = scene(None, "secret", "0s");
    let names: Vec<String> = (0..50).map(|n| format!("p{n}")).collect();
    let found = futures::future::join_all(names.iter().map(|name| scene.lookup(name))).await;
    assert_eq!(found, [1; 50]);
    assert_eq!(scene.runs(), 1);
    scene.lookup("later").await;
    assert_eq!(scene.runs(), 2, "what is not to be kept is not");
}

#[tokio::test]
async fn credentials_kept_by_account_need_no_further_token() {
    let scene = scene(token("ServiceAccount", &[]), "secret", "10m");
    assert_eq!((scene.lookup("a").await, scene.lookup("b").await), (1, 1));
    assert_eq!((scene.runs(), scene.accounts.tokens.load(Ordering::Relaxed)), (1, 1));
}

#[tokio::test]
async fn plugin_that_returns_the_token_it_was_shown_is_refused_unless_kept_by_token() {
    for (caching, want) in [("ServiceAccount", 0), ("Token", 1)] {
        let scene = scene(token(caching, &[]), "token-0", "10m");
        assert_eq!(scene.lookup("a").await, want, "{caching}");
    }
}

#[tokio::test]
async fn account_without_the_required_annotation_is_not_a_failure_of_the_plugin() {
    let scene = scene(token("ServiceAccount", &["example.com/opt-in"]), "secret", "10m");
    assert_eq!((scene.lookup("a").await, scene.runs()), (0, 0));
    let mut page = crate::telemetry::metrics::Exposition::default();
    scene.metrics.write(&mut page);
    assert!(!page.into_page().contains("plugin_name=\"plugin\""), "nothing is counted");
}

#[tokio::test]
async fn credentials_kept_by_token_are_found_again_because_the_pod_keeps_its_token() {
    let scene = scene(token("Token", &[]), "secret", "10m");
    for (name, runs) in [("a", 1), ("a", 1), ("b", 2), ("a", 2)] {
        assert_eq!(scene.lookup(name).await, 1);
        assert_eq!((scene.runs(), scene.accounts.tokens.load(Ordering::Relaxed)), (runs, runs));
    }
}

#[test]
fn token_is_used_again_for_three_quarters_of_an_hour_by_both_clocks() {
    let at = |wall: &str, mono: u64| Now {
        wall: wall.parse().unwrap(),
        mono: Mono(Duration::from_secs(mono)),
    };
    let since = at("2026-01-01T12:00:00Z", 0);
    for (case, now, want) in [
        ("at once", at("2026-01-01T12:00:00Z", 0), true),
        ("later", at("2026-01-01T12:44:00Z", 44 * 60), true),
        ("too late", at("2026-01-01T12:45:00Z", 45 * 60), false),
        ("after a suspend", at("2026-01-01T18:00:00Z", 60), false),
        ("after the clock was set back", at("2026-01-01T11:00:00Z", 60), false),
    ] {
        assert_eq!(is_reusable(since, now), want, "{case}");
    }
}
