//! What a cluster consists of: the keys and values in its etcd. Kept once, it can be put back, and
//! the API server and its controllers follow as they follow any other change.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use hyper::body::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::http::{Tls, send};
use crate::netns::NetNs;
use crate::wait;

const LIMIT: Duration = Duration::from_secs(30);

/// How many changes etcd takes at once.
const AT_ONCE: usize = 100;

/// Of the API server and its controllers alone: who they are, what they have given out, that they
/// live. They would not notice that it was changed.
const THEIRS: [&str; 7] = [
    "/registry/flowschemas/",
    "/registry/leases/kube-system/",
    "/registry/masterleases/",
    "/registry/prioritylevelconfigurations/",
    "/registry/ranges/",
    "/registry/secrets/kube-system/",
    "/registry/serviceaccounts/kube-system/",
];

const NAMESPACES: &str = "/registry/namespaces/";

/// Values by their keys, all in base64 as etcd tells them.
type Pairs = BTreeMap<String, String>;

/// The store as it was.
#[derive(Debug, Default)]
pub(crate) struct Kept(Pairs);

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Change {
    RequestPut { key: String, value: String },
    RequestDeleteRange { key: String },
}

/// The etcd of a control plane, past its API server.
pub(crate) struct Store<'a> {
    url: &'a str,
    netns: &'a NetNs,
}

impl<'a> Store<'a> {
    pub(crate) fn at(url: &'a str, netns: &'a NetNs) -> Self {
        Self { url, netns }
    }

    pub(crate) async fn keep(&self) -> Result<Kept> {
        self.read().await.map(Kept)
    }

    /// Puts everything back. What controllers still do about what is gone is taken back as well.
    pub(crate) async fn put_back(&self, kept: &Kept) -> Result<()> {
        let same = async || {
            let mut changes = differences(&kept.0, &self.read().await?);
            // Without its namespace nothing comes back of what is taken out of it next.
            if changes.iter().any(Change::ends_a_namespace) {
                changes.retain(Change::ends_a_namespace);
            }
            for some in changes.chunks(AT_ONCE) {
                self.ask("txn", &json!({ "success": some })).await?;
            }
            Ok(changes.is_empty())
        };
        wait::until_true("the cluster to be as it was", LIMIT, same).await
    }

    async fn read(&self) -> Result<Pairs> {
        #[derive(Deserialize)]
        struct Answer {
            kvs: Vec<Pair>,
        }
        #[derive(Deserialize)]
        struct Pair {
            key: String,
            #[serde(default)]
            value: String,
        }
        // All that begins with "/": up to the next letter.
        let range = json!({ "key": STANDARD.encode("/"), "range_end": STANDARD.encode("0") });
        let answer: Answer = serde_json::from_slice(&self.ask("range", &range).await?)?;
        Ok(answer.kvs.into_iter().map(|pair| (pair.key, pair.value)).collect())
    }

    pub(crate) async fn ask(&self, what: &str, body: &Value) -> Result<Bytes> {
        let request = Request::post(format!("{}/v3/kv/{what}", self.url));
        let request = request.body(Bytes::from(body.to_string()))?;
        let answer = send(self.netns, request, &Tls::default()).await?;
        ensure!(answer.status.is_success(), "etcd refused to {what}: {}", answer.text());
        Ok(answer.body)
    }
}

impl Change {
    fn ends_a_namespace(&self) -> bool {
        matches!(self, Self::RequestDeleteRange { key } if plain(key).starts_with(NAMESPACES))
    }
}

/// What is to be done so that `now` becomes `then` again.
fn differences(then: &Pairs, now: &Pairs) -> Vec<Change> {
    let ours = |key: &String| {
        let key = plain(key);
        !THEIRS.iter().any(|theirs| key.starts_with(theirs))
    };
    let new = now.keys().filter(|key| !then.contains_key(*key));
    let ends = new.map(|key| (key, Change::RequestDeleteRange { key: key.clone() }));
    let changed = then.iter().filter(|(key, value)| now.get(*key) != Some(value));
    let puts = changed
        .map(|(key, value)| (key, Change::RequestPut { key: key.clone(), value: value.clone() }));
    ends.chain(puts).filter(|(key, _)| ours(key)).map(|(_, change)| change).collect()
}

/// A key as the API server wrote it.
fn plain(key: &str) -> String {
    let bytes = STANDARD.decode(key).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(plain: &[(&str, &str)]) -> Pairs {
        plain.iter().map(|(key, value)| (STANDARD.encode(key), (*value).to_owned())).collect()
    }

    #[test]
    fn what_is_new_goes_what_changed_comes_back_and_what_is_not_ours_stays() {
        let then = pairs(&[
            ("/registry/namespaces/default", "1"),
            ("/registry/serviceaccounts/default/default", "1"),
            ("/registry/pods/default/gone", "1"),
            ("/registry/masterleases/10.99.0.1", "1"),
        ]);
        let now = pairs(&[
            ("/registry/namespaces/default", "1"),
            ("/registry/namespaces/shop", "1"),
            ("/registry/serviceaccounts/default/default", "2"),
            ("/registry/serviceaccounts/kube-system/late", "1"),
            ("/registry/masterleases/10.99.0.1", "2"),
        ]);
        let told: Vec<_> = differences(&then, &now)
            .into_iter()
            .map(|change| match change {
                Change::RequestPut { key, value } => format!("{}={value}", plain(&key)),
                Change::RequestDeleteRange { key } => format!("{} ends", plain(&key)),
            })
            .collect();
        let want = [
            "/registry/namespaces/shop ends",
            "/registry/pods/default/gone=1",
            "/registry/serviceaccounts/default/default=1",
        ];
        let told: std::collections::BTreeSet<_> = told.iter().map(String::as_str).collect();
        assert_eq!(told, want.into());
        assert_eq!(differences(&then, &then), []);
    }

    #[test]
    fn a_change_is_told_as_etcd_understands_it() {
        let change = Change::RequestPut { key: "a".into(), value: "b".into() };
        let want = json!({ "requestPut": { "key": "a", "value": "b" } });
        assert_eq!(serde_json::to_value(change).ok(), Some(want));
    }
}
