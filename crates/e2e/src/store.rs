//! Snapshot of a cluster: the keys and values in its etcd. Once saved it can be restored, and the
//! API server and its controllers follow as with any other change.

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

/// Maximum number of operations per etcd transaction.
const AT_ONCE: usize = 100;

/// Keys private to the API server and its controllers: identities, allocations, leases. They would
/// not notice a change.
const PRIVATE_KEYS: [&str; 7] = [
    "/registry/flowschemas/",
    "/registry/leases/kube-system/",
    "/registry/masterleases/",
    "/registry/prioritylevelconfigurations/",
    "/registry/ranges/",
    "/registry/secrets/kube-system/",
    "/registry/serviceaccounts/kube-system/",
];

const NAMESPACES: &str = "/registry/namespaces/";

/// Values by key, all in base64 as in etcd's JSON API.
type Pairs = BTreeMap<String, String>;

/// The saved content.
#[derive(Debug, Default)]
pub(crate) struct SavedStore(Pairs);

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Change {
    RequestPut { key: String, value: String },
    RequestDeleteRange { key: String },
}

/// The etcd of a control plane, accessed directly.
pub(crate) struct Store<'a> {
    url: &'a str,
    netns: &'a NetNs,
}

impl<'a> Store<'a> {
    pub(crate) fn at(url: &'a str, netns: &'a NetNs) -> Self {
        Self { url, netns }
    }

    pub(crate) async fn keep(&self) -> Result<SavedStore> {
        self.read().await.map(SavedStore)
    }

    /// Restores everything. Late changes by controllers, in reaction to the restore, are reverted
    /// too.
    pub(crate) async fn put_back(&self, kept: &SavedStore) -> Result<()> {
        let same = async || {
            let mut changes = differences(&kept.0, &self.read().await?);
            // With the namespace gone, its objects are not recreated after their removal.
            if changes.iter().any(Change::ends_a_namespace) {
                changes.retain(Change::ends_a_namespace);
            }
            for some in changes.chunks(AT_ONCE) {
                self.ask("txn", &json!({ "success": some })).await?;
            }
            Ok(changes.is_empty())
        };
        wait::until_true("the cluster to be restored", LIMIT, same).await
    }

    async fn read(&self) -> Result<Pairs> {
        #[derive(Deserialize)]
        struct RangeResponse {
            kvs: Vec<Pair>,
        }
        #[derive(Deserialize)]
        struct Pair {
            key: String,
            #[serde(default)]
            value: String,
        }
        // All keys that begin with "/": the range ends at the next byte.
        let range = json!({ "key": STANDARD.encode("/"), "range_end": STANDARD.encode("0") });
        let response: RangeResponse = serde_json::from_slice(&self.ask("range", &range).await?)?;
        Ok(response.kvs.into_iter().map(|pair| (pair.key, pair.value)).collect())
    }

    pub(crate) async fn ask(&self, what: &str, body: &Value) -> Result<Bytes> {
        let request = Request::post(format!("{}/v3/kv/{what}", self.url));
        let request = request.body(Bytes::from(body.to_string()))?;
        let response = send(self.netns, request, &Tls::default()).await?;
        ensure!(response.status.is_success(), "etcd rejected {what}: {}", response.text());
        Ok(response.body)
    }
}

impl Change {
    fn ends_a_namespace(&self) -> bool {
        matches!(self, Self::RequestDeleteRange { key } if plain(key).starts_with(NAMESPACES))
    }
}

/// Operations that turn `now` back into `then`.
fn differences(then: &Pairs, now: &Pairs) -> Vec<Change> {
    let ours = |key: &String| {
        let key = plain(key);
        !PRIVATE_KEYS.iter().any(|theirs| key.starts_with(theirs))
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
    fn restore_deletes_new_reverts_changed_and_keeps_private_keys() {
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
        let reported: Vec<_> = differences(&then, &now)
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
        let reported: std::collections::BTreeSet<_> = reported.iter().map(String::as_str).collect();
        assert_eq!(reported, want.into());
        assert_eq!(differences(&then, &then), []);
    }

    #[test]
    fn change_is_encoded_for_etcd() {
        let change = Change::RequestPut { key: "a".into(), value: "b".into() };
        let want = json!({ "requestPut": { "key": "a", "value": "b" } });
        assert_eq!(serde_json::to_value(change).ok(), Some(want));
    }
}
