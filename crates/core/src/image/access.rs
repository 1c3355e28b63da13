//! Who may use an image that is here already.
//!
//! An image pulled with one pod's secret lies on the node for all to find. So it is written down
//! by whose credentials each image came, and a pod that shows none of them has to prove itself to
//! the registry, by pulling again.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::credential::{ObjectId, Origin};

/// `imagePullCredentialsVerificationPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    /// The gate is off: nothing is checked and nothing written down.
    Off,
    NeverVerify,
    /// Images that this node did not pull are everybody's.
    #[default]
    NeverVerifyPreloaded,
    /// Images on the list are: a name, or a prefix with `/*`.
    NeverVerifyListed(Vec<String>),
    AlwaysVerify,
}

impl Verification {
    fn asks_for(&self, repository: &str, pulled_by_us: bool) -> bool {
        match self {
            Self::Off | Self::NeverVerify => false,
            Self::NeverVerifyPreloaded => pulled_by_us,
            Self::NeverVerifyListed(list) => !list.iter().any(|entry| lists(entry, repository)),
            Self::AlwaysVerify => true,
        }
    }
}

fn lists(entry: &str, repository: &str) -> bool {
    match entry.strip_suffix("/*") {
        Some(prefix) => repository.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/')),
        None => entry == repository,
    }
}

pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// More secrets than this are not remembered of one image.
const MOST_SECRETS: usize = 100;

/// A pull that was begun. One that is still here after a crash may have brought the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullIntent {
    #[serde(rename = "kind")]
    pub kind: String,
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    #[serde(rename = "image")]
    pub image: String,
}

impl PullIntent {
    pub fn new(image: &str) -> Self {
        let (kind, api_version) = ("ImagePullIntent".into(), API_VERSION.into());
        Self { kind, api_version, image: image.into() }
    }
}

/// By whose credentials an image came. The form is upstream's, for either to go on with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PulledRecord {
    #[serde(rename = "kind")]
    pub kind: String,
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    #[serde(rename = "lastUpdatedTime")]
    pub last_updated_time: Timestamp,
    #[serde(rename = "imageRef")]
    pub image_ref: String,
    /// By repository.
    #[serde(rename = "credentialMapping", default)]
    credential_mapping: BTreeMap<String, Access>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Access {
    #[serde(rename = "kubernetesSecrets", skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<SecretAccess>,
    #[serde(rename = "kubernetesServiceAccounts", skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<AccountAccess>,
    #[serde(rename = "nodePodsAccessible", skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SecretAccess {
    #[serde(rename = "uid")]
    uid: String,
    #[serde(rename = "namespace")]
    namespace: String,
    #[serde(rename = "name")]
    name: String,
    #[serde(rename = "credentialHash", default)]
    credential_hash: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AccountAccess {
    #[serde(rename = "uid")]
    uid: String,
    #[serde(rename = "namespace")]
    namespace: String,
    #[serde(rename = "name")]
    name: String,
}

/// What a pod has to show for an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    pub origin: Origin,
    /// Of the login: the same one may come in another secret.
    pub hash: String,
}

/// What was found written down about an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    Record(PulledRecord),
    Nothing,
    /// It is there and cannot be read: nobody knows who may.
    Unreadable,
}

/// Whether a pod may have an image that is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The policy asks nobody.
    AllowedByPolicy,
    /// The pod is known to have access. A record that learnt something is to be kept.
    Recorded(Option<PulledRecord>),
    /// It has to show the registry who it is.
    MustAuthenticate,
    /// As good as that, for want of a readable record.
    Unknown,
}

impl Verdict {
    pub fn is_allowed(&self) -> bool {
        match self {
            Self::AllowedByPolicy | Self::Recorded(_) => true,
            Self::MustAuthenticate | Self::Unknown => false,
        }
    }

    /// As the metric names it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::AllowedByPolicy => "credentialPolicyAllowed",
            Self::Recorded(_) => "credentialRecordFound",
            Self::MustAuthenticate => "mustAuthenticate",
            Self::Unknown => "error",
        }
    }
}

/// Whether everybody may have the image; `None` if it depends on who asks.
pub fn without_asking(policy: &Verification, repository: &str, known: &Known) -> Option<Verdict> {
    let record = match known {
        Known::Unreadable if *policy == Verification::Off => return Some(Verdict::AllowedByPolicy),
        Known::Unreadable => return Some(Verdict::Unknown),
        Known::Record(record) => Some(record),
        Known::Nothing => None,
    };
    if !policy.asks_for(repository, record.is_some()) {
        return Some(Verdict::AllowedByPolicy);
    }
    let Some(access) = record.and_then(|record| record.credential_mapping.get(repository)) else {
        return Some(Verdict::MustAuthenticate);
    };
    if access.node_pods_accessible {
        return Some(Verdict::Recorded(None));
    }
    let nobody =
        access.kubernetes_secrets.is_empty() && access.kubernetes_service_accounts.is_empty();
    nobody.then_some(Verdict::MustAuthenticate)
}

/// Whether a pod with these passes may have the image.
pub fn check(
    policy: &Verification,
    repository: &str,
    known: &Known,
    passes: &[Pass],
    now: Timestamp,
) -> Verdict {
    if let Some(verdict) = without_asking(policy, repository, known) {
        return verdict;
    }
    let Known::Record(record) = known else { return Verdict::MustAuthenticate };
    let Some(access) = record.credential_mapping.get(repository) else {
        return Verdict::MustAuthenticate;
    };
    for pass in passes {
        match &pass.origin {
            // Node credentials open an image to all when it is pulled, not afterwards.
            Origin::Node => {}
            Origin::Secret(secret) => {
                let same = |known: &&SecretAccess| is(known, secret);
                let hash = &pass.hash;
                let equal = |known: &&SecretAccess| {
                    !known.credential_hash.is_empty() && known.credential_hash == *hash
                };
                let known_secret = access.kubernetes_secrets.iter().find(same);
                let full = access.kubernetes_secrets.len() >= MOST_SECRETS;
                match (known_secret, access.kubernetes_secrets.iter().any(|s| equal(&s))) {
                    (Some(known), _) if known.credential_hash == *hash => {
                        return Verdict::Recorded(None);
                    }
                    (None, true) if full => return Verdict::Recorded(None),
                    (Some(_), _) | (None, true) => {
                        let mut record = record.clone();
                        record.grant(repository, pass, now);
                        return Verdict::Recorded(Some(record));
                    }
                    (None, false) => {}
                }
            }
            Origin::ServiceAccount(account) => {
                let same = |known: &AccountAccess| {
                    (&known.uid, &known.namespace, &known.name)
                        == (&account.uid, &account.namespace, &account.name)
                };
                if access.kubernetes_service_accounts.iter().any(same) {
                    return Verdict::Recorded(None);
                }
            }
        }
    }
    Verdict::MustAuthenticate
}

impl PulledRecord {
    /// Of an image nobody is known to have access to.
    pub fn closed(image_ref: &str, repository: &str, now: Timestamp) -> Self {
        Self {
            kind: "ImagePulledRecord".into(),
            api_version: API_VERSION.into(),
            last_updated_time: now,
            image_ref: image_ref.into(),
            credential_mapping: [(repository.to_owned(), Access::default())].into(),
        }
    }

    /// Writes down that the image was had with this pass; `None` is nobody's, so everybody's.
    pub fn note_pull(&mut self, repository: &str, pass: Option<&Pass>, now: Timestamp) {
        match pass.filter(|pass| pass.origin != Origin::Node) {
            Some(pass) => self.grant(repository, pass, now),
            None => {
                let open = Access { node_pods_accessible: true, ..Access::default() };
                self.credential_mapping.insert(repository.to_owned(), open);
                self.last_updated_time = now;
            }
        }
    }

    fn grant(&mut self, repository: &str, pass: &Pass, now: Timestamp) {
        let access = self.credential_mapping.entry(repository.to_owned()).or_default();
        if access.node_pods_accessible {
            return;
        }
        self.last_updated_time = now;
        match &pass.origin {
            Origin::Node => access.node_pods_accessible = true,
            Origin::Secret(secret) => {
                access.kubernetes_secrets.retain(|known| !is(known, secret));
                if access.kubernetes_secrets.len() < MOST_SECRETS {
                    let ObjectId { uid, namespace, name } = secret.clone();
                    let credential_hash = pass.hash.clone();
                    let granted = SecretAccess { uid, namespace, name, credential_hash };
                    access.kubernetes_secrets.push(granted);
                }
            }
            Origin::ServiceAccount(account) => {
                let ObjectId { uid, namespace, name } = account.clone();
                let granted = AccountAccess { uid, namespace, name };
                if !access.kubernetes_service_accounts.contains(&granted) {
                    access.kubernetes_service_accounts.push(granted);
                }
            }
        }
    }
}

fn is(known: &SecretAccess, secret: &ObjectId) -> bool {
    (&known.uid, &known.namespace, &known.name) == (&secret.uid, &secret.namespace, &secret.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPOSITORY: &str = "registry.io/team/app";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn object(name: &str) -> ObjectId {
        ObjectId { uid: format!("uid-{name}"), namespace: "n".into(), name: name.into() }
    }

    fn secret(name: &str, hash: &str) -> Pass {
        Pass { origin: Origin::Secret(object(name)), hash: hash.into() }
    }

    fn pulled_with(pass: Option<&Pass>) -> Known {
        let mut record = PulledRecord::closed("sha256:1", REPOSITORY, at(1));
        record.note_pull(REPOSITORY, pass, at(1));
        Known::Record(record)
    }

    #[test]
    fn the_policy_says_which_images_are_asked_about() {
        use Verification::{
            AlwaysVerify, NeverVerify, NeverVerifyListed, NeverVerifyPreloaded, Off,
        };
        let listed = |entry: &str| NeverVerifyListed(vec![entry.to_owned()]);
        let known = pulled_with(Some(&secret("s", "h")));
        for (policy, preloaded, ours) in [
            (Off, true, true),
            (NeverVerify, true, true),
            (NeverVerifyPreloaded, true, false),
            (AlwaysVerify, false, false),
            (listed(REPOSITORY), true, true),
            (listed("registry.io/team/*"), true, true),
            (listed("registry.io/*"), true, true),
            (listed("registry.io/te/*"), false, false),
            (listed("registry.io/team"), false, false),
        ] {
            let allowed =
                |known: &Known| check(&policy, REPOSITORY, known, &[], at(2)).is_allowed();
            let got = (allowed(&Known::Nothing), allowed(&known));
            assert_eq!(got, (preloaded, ours), "{policy:?}");
        }
    }

    #[test]
    fn row_37_a_pod_has_to_show_what_the_image_came_with() {
        let policy = Verification::default();
        let known = pulled_with(Some(&secret("s", "hash")));
        let check = |passes: &[Pass]| check(&policy, REPOSITORY, &known, passes, at(2));
        assert_eq!(check(&[]), Verdict::MustAuthenticate);
        assert_eq!(check(&[secret("other", "wrong")]), Verdict::MustAuthenticate);
        assert_eq!(check(&[secret("s", "hash")]), Verdict::Recorded(None));
        let Verdict::Recorded(Some(learnt)) = check(&[secret("twin", "hash")]) else {
            panic!("the same login in another secret is known and remembered");
        };
        assert_eq!(learnt.credential_mapping[REPOSITORY].kubernetes_secrets.len(), 2);
        let Verdict::Recorded(Some(renewed)) = check(&[secret("s", "new")]) else {
            panic!("the same secret with a new login is known and remembered");
        };
        assert_eq!(
            renewed.credential_mapping[REPOSITORY].kubernetes_secrets[0].credential_hash,
            "new"
        );
        let node = Pass { origin: Origin::Node, hash: "hash".into() };
        assert_eq!(check(&[node]), Verdict::MustAuthenticate);
    }

    #[test]
    fn what_came_without_or_with_the_nodes_credentials_is_everybodys() {
        let node = Pass { origin: Origin::Node, hash: "h".into() };
        for pass in [None, Some(&node)] {
            let known = pulled_with(pass);
            let verdict = check(&Verification::AlwaysVerify, REPOSITORY, &known, &[], at(2));
            assert_eq!(verdict, Verdict::Recorded(None));
        }
        let mut record = PulledRecord::closed("sha256:1", REPOSITORY, at(1));
        record.note_pull(REPOSITORY, None, at(1));
        record.note_pull(REPOSITORY, Some(&secret("s", "h")), at(2));
        assert!(record.credential_mapping[REPOSITORY].node_pods_accessible, "and stays so");
    }

    #[test]
    fn an_account_opens_an_image_for_its_own_pods() {
        let account =
            |name| Pass { origin: Origin::ServiceAccount(object(name)), hash: "h".into() };
        let known = pulled_with(Some(&account("a")));
        let check = |pass| check(&Verification::default(), REPOSITORY, &known, &[pass], at(2));
        assert!(check(account("a")).is_allowed());
        assert!(!check(account("b")).is_allowed());
    }

    #[test]
    fn an_image_under_another_name_or_without_a_readable_record_is_closed() {
        let known = pulled_with(None);
        let policy = Verification::default();
        let other = check(&policy, "registry.io/other", &known, &[], at(2));
        assert_eq!(other, Verdict::MustAuthenticate);
        assert_eq!(check(&policy, REPOSITORY, &Known::Unreadable, &[], at(2)), Verdict::Unknown);
        let after_a_crash = Known::Record(PulledRecord::closed("sha256:1", REPOSITORY, at(1)));
        let verdict = check(&policy, REPOSITORY, &after_a_crash, &[secret("s", "h")], at(2));
        assert_eq!(verdict, Verdict::MustAuthenticate);
    }

    #[test]
    fn a_hundred_secrets_are_remembered_and_no_more() {
        let mut record = PulledRecord::closed("sha256:1", REPOSITORY, at(1));
        for n in 0..150 {
            record.note_pull(REPOSITORY, Some(&secret(&format!("s{n}"), "h")), at(1));
        }
        assert_eq!(record.credential_mapping[REPOSITORY].kubernetes_secrets.len(), MOST_SECRETS);
        let known = Known::Record(record);
        let late =
            check(&Verification::default(), REPOSITORY, &known, &[secret("late", "h")], at(2));
        assert_eq!(late, Verdict::Recorded(None));
    }

    #[test]
    fn records_have_upstreams_form() {
        let mut record = PulledRecord::closed("sha256:1", REPOSITORY, at(0));
        record.note_pull(REPOSITORY, Some(&secret("s", "abc")), at(0));
        let form = serde_json::json!({
            "kind": "ImagePulledRecord",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "lastUpdatedTime": "1970-01-01T00:00:00Z",
            "imageRef": "sha256:1",
            "credentialMapping": { REPOSITORY: { "kubernetesSecrets": [
                { "uid": "uid-s", "namespace": "n", "name": "s", "credentialHash": "abc" },
            ] } },
        });
        assert_eq!(serde_json::to_value(&record).unwrap(), form);
        assert_eq!(serde_json::from_value::<PulledRecord>(form).unwrap(), record);
    }
}
