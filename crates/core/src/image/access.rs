//! Access check for images that are already present on the node.
//!
//! An image pulled with the secret of one pod is present for all pods of the node. The credentials
//! of each pull are therefore recorded, and a pod that has none of them must authenticate to the
//! registry by pulling again.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::credential::{CredentialOrigin, ObjectId};

/// `imagePullCredentialsVerificationPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    /// The feature gate is disabled: nothing is checked or recorded.
    Off,
    NeverVerify,
    /// Images that this node did not pull are accessible to all pods.
    #[default]
    NeverVerifyPreloaded,
    /// Images on the list are accessible to all pods: a name, or a prefix with `/*`.
    NeverVerifyListed(Vec<String>),
    AlwaysVerify,
}

impl Verification {
    fn requires_check(&self, repository: &str, pulled_by_us: bool) -> bool {
        match self {
            Self::Off | Self::NeverVerify => false,
            Self::NeverVerifyPreloaded => pulled_by_us,
            Self::NeverVerifyListed(list) => {
                !list.iter().any(|entry| entry_matches(entry, repository))
            }
            Self::AlwaysVerify => true,
        }
    }
}

fn entry_matches(entry: &str, repository: &str) -> bool {
    match entry.strip_suffix("/*") {
        Some(prefix) => repository.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/')),
        None => entry == repository,
    }
}

pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// Maximum number of secrets recorded for one image.
const MOST_SECRETS: usize = 100;

/// Record of a started pull. If it still exists after a crash, the image may have been pulled.
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

/// Credentials with which an image was pulled. The format is upstream's, so that either agent can
/// read it.
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

/// Credential that a pod presents for an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullCredential {
    pub origin: CredentialOrigin,
    /// Hash of the login: the same login may be in another secret.
    pub hash: String,
}

/// Stored record of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredPullRecord {
    Record(PulledRecord),
    Nothing,
    /// The record exists but cannot be read, so access is unknown.
    Unreadable,
}

/// Decision whether a pod may use an image that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageAccessDecision {
    /// The policy requires no check.
    AllowedByPolicy,
    /// A record grants the pod access. `Some` is an updated record to be stored.
    Recorded(Option<PulledRecord>),
    /// The pod must authenticate to the registry.
    MustAuthenticate,
    /// The record is unreadable; treated like `MustAuthenticate`.
    Unknown,
}

impl ImageAccessDecision {
    pub fn is_allowed(&self) -> bool {
        match self {
            Self::AllowedByPolicy | Self::Recorded(_) => true,
            Self::MustAuthenticate | Self::Unknown => false,
        }
    }

    /// Value of the metric label.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::AllowedByPolicy => "credentialPolicyAllowed",
            Self::Recorded(_) => "credentialRecordFound",
            Self::MustAuthenticate => "mustAuthenticate",
            Self::Unknown => "error",
        }
    }
}

/// Decision that does not depend on credentials; `None` if the credentials have to be checked.
pub fn decide_by_policy(
    policy: &Verification,
    repository: &str,
    known: &StoredPullRecord,
) -> Option<ImageAccessDecision> {
    let record = match known {
        StoredPullRecord::Unreadable if *policy == Verification::Off => {
            return Some(ImageAccessDecision::AllowedByPolicy);
        }
        StoredPullRecord::Unreadable => return Some(ImageAccessDecision::Unknown),
        StoredPullRecord::Record(record) => Some(record),
        StoredPullRecord::Nothing => None,
    };
    if !policy.requires_check(repository, record.is_some()) {
        return Some(ImageAccessDecision::AllowedByPolicy);
    }
    let Some(access) = record.and_then(|record| record.credential_mapping.get(repository)) else {
        return Some(ImageAccessDecision::MustAuthenticate);
    };
    if access.node_pods_accessible {
        return Some(ImageAccessDecision::Recorded(None));
    }
    let no_credentials =
        access.kubernetes_secrets.is_empty() && access.kubernetes_service_accounts.is_empty();
    no_credentials.then_some(ImageAccessDecision::MustAuthenticate)
}

/// Decides whether a pod with these credentials may use the image.
pub fn check(
    policy: &Verification,
    repository: &str,
    known: &StoredPullRecord,
    passes: &[PullCredential],
    now: Timestamp,
) -> ImageAccessDecision {
    if let Some(verdict) = decide_by_policy(policy, repository, known) {
        return verdict;
    }
    let StoredPullRecord::Record(record) = known else {
        return ImageAccessDecision::MustAuthenticate;
    };
    let Some(access) = record.credential_mapping.get(repository) else {
        return ImageAccessDecision::MustAuthenticate;
    };
    for pass in passes {
        match &pass.origin {
            // Node credentials make an image accessible to all only when it is pulled with them.
            CredentialOrigin::Node => {}
            CredentialOrigin::Secret(secret) => {
                let same = |known: &&SecretAccess| is_same_secret(known, secret);
                let hash = &pass.hash;
                let equal = |known: &&SecretAccess| {
                    !known.credential_hash.is_empty() && known.credential_hash == *hash
                };
                let known_secret = access.kubernetes_secrets.iter().find(same);
                let full = access.kubernetes_secrets.len() >= MOST_SECRETS;
                match (known_secret, access.kubernetes_secrets.iter().any(|s| equal(&s))) {
                    (Some(known), _) if known.credential_hash == *hash => {
                        return ImageAccessDecision::Recorded(None);
                    }
                    (None, true) if full => return ImageAccessDecision::Recorded(None),
                    (Some(_), _) | (None, true) => {
                        let mut record = record.clone();
                        record.grant(repository, pass, now);
                        return ImageAccessDecision::Recorded(Some(record));
                    }
                    (None, false) => {}
                }
            }
            CredentialOrigin::ServiceAccount(account) => {
                let same = |known: &AccountAccess| {
                    (&known.uid, &known.namespace, &known.name)
                        == (&account.uid, &account.namespace, &account.name)
                };
                if access.kubernetes_service_accounts.iter().any(same) {
                    return ImageAccessDecision::Recorded(None);
                }
            }
        }
    }
    ImageAccessDecision::MustAuthenticate
}

impl PulledRecord {
    /// Record of an image without any known access.
    pub fn closed(image_ref: &str, repository: &str, now: Timestamp) -> Self {
        Self {
            kind: "ImagePulledRecord".into(),
            api_version: API_VERSION.into(),
            last_updated_time: now,
            image_ref: image_ref.into(),
            credential_mapping: [(repository.to_owned(), Access::default())].into(),
        }
    }

    /// Records a pull with this credential; `None` is an anonymous pull, which makes the image
    /// accessible to all.
    pub fn note_pull(&mut self, repository: &str, pass: Option<&PullCredential>, now: Timestamp) {
        match pass.filter(|pass| pass.origin != CredentialOrigin::Node) {
            Some(pass) => self.grant(repository, pass, now),
            None => {
                let open = Access { node_pods_accessible: true, ..Access::default() };
                self.credential_mapping.insert(repository.to_owned(), open);
                self.last_updated_time = now;
            }
        }
    }

    fn grant(&mut self, repository: &str, pass: &PullCredential, now: Timestamp) {
        let access = self.credential_mapping.entry(repository.to_owned()).or_default();
        if access.node_pods_accessible {
            return;
        }
        self.last_updated_time = now;
        match &pass.origin {
            CredentialOrigin::Node => access.node_pods_accessible = true,
            CredentialOrigin::Secret(secret) => {
                access.kubernetes_secrets.retain(|known| !is_same_secret(known, secret));
                if access.kubernetes_secrets.len() < MOST_SECRETS {
                    let ObjectId { uid, namespace, name } = secret.clone();
                    let credential_hash = pass.hash.clone();
                    let granted = SecretAccess { uid, namespace, name, credential_hash };
                    access.kubernetes_secrets.push(granted);
                }
            }
            CredentialOrigin::ServiceAccount(account) => {
                let ObjectId { uid, namespace, name } = account.clone();
                let granted = AccountAccess { uid, namespace, name };
                if !access.kubernetes_service_accounts.contains(&granted) {
                    access.kubernetes_service_accounts.push(granted);
                }
            }
        }
    }
}

fn is_same_secret(known: &SecretAccess, secret: &ObjectId) -> bool {
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

    fn secret(name: &str, hash: &str) -> PullCredential {
        PullCredential { origin: CredentialOrigin::Secret(object(name)), hash: hash.into() }
    }

    fn pulled_with(pass: Option<&PullCredential>) -> StoredPullRecord {
        let mut record = PulledRecord::closed("sha256:1", REPOSITORY, at(1));
        record.note_pull(REPOSITORY, pass, at(1));
        StoredPullRecord::Record(record)
    }

    #[test]
    fn policy_selects_the_images_to_check() {
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
            let allowed = |known: &StoredPullRecord| {
                check(&policy, REPOSITORY, known, &[], at(2)).is_allowed()
            };
            let got = (allowed(&StoredPullRecord::Nothing), allowed(&known));
            assert_eq!(got, (preloaded, ours), "{policy:?}");
        }
    }

    #[test]
    fn pod_needs_a_credential_the_image_was_pulled_with() {
        let policy = Verification::default();
        let known = pulled_with(Some(&secret("s", "hash")));
        let check = |passes: &[PullCredential]| check(&policy, REPOSITORY, &known, passes, at(2));
        assert_eq!(check(&[]), ImageAccessDecision::MustAuthenticate);
        assert_eq!(check(&[secret("other", "wrong")]), ImageAccessDecision::MustAuthenticate);
        assert_eq!(check(&[secret("s", "hash")]), ImageAccessDecision::Recorded(None));
        let ImageAccessDecision::Recorded(Some(learnt)) = check(&[secret("twin", "hash")]) else {
            panic!("the same login in another secret grants access and is recorded");
        };
        assert_eq!(learnt.credential_mapping[REPOSITORY].kubernetes_secrets.len(), 2);
        let ImageAccessDecision::Recorded(Some(renewed)) = check(&[secret("s", "new")]) else {
            panic!("the same secret with a new login grants access and is recorded");
        };
        assert_eq!(
            renewed.credential_mapping[REPOSITORY].kubernetes_secrets[0].credential_hash,
            "new"
        );
        let node = PullCredential { origin: CredentialOrigin::Node, hash: "hash".into() };
        assert_eq!(check(&[node]), ImageAccessDecision::MustAuthenticate);
    }

    #[test]
    fn anonymous_pull_or_node_credentials_make_an_image_accessible_to_all() {
        let node = PullCredential { origin: CredentialOrigin::Node, hash: "h".into() };
        for pass in [None, Some(&node)] {
            let known = pulled_with(pass);
            let verdict = check(&Verification::AlwaysVerify, REPOSITORY, &known, &[], at(2));
            assert_eq!(verdict, ImageAccessDecision::Recorded(None));
        }
        let mut record = PulledRecord::closed("sha256:1", REPOSITORY, at(1));
        record.note_pull(REPOSITORY, None, at(1));
        record.note_pull(REPOSITORY, Some(&secret("s", "h")), at(2));
        assert!(record.credential_mapping[REPOSITORY].node_pods_accessible, "and stays so");
    }

    #[test]
    fn service_account_grants_access_to_its_own_pods() {
        let account = |name| PullCredential {
            origin: CredentialOrigin::ServiceAccount(object(name)),
            hash: "h".into(),
        };
        let known = pulled_with(Some(&account("a")));
        let check = |pass| check(&Verification::default(), REPOSITORY, &known, &[pass], at(2));
        assert!(check(account("a")).is_allowed());
        assert!(!check(account("b")).is_allowed());
    }

    #[test]
    fn image_under_another_name_or_with_an_unreadable_record_requires_authentication() {
        let known = pulled_with(None);
        let policy = Verification::default();
        let other = check(&policy, "registry.io/other", &known, &[], at(2));
        assert_eq!(other, ImageAccessDecision::MustAuthenticate);
        assert_eq!(
            check(&policy, REPOSITORY, &StoredPullRecord::Unreadable, &[], at(2)),
            ImageAccessDecision::Unknown
        );
        let after_a_crash =
            StoredPullRecord::Record(PulledRecord::closed("sha256:1", REPOSITORY, at(1)));
        let verdict = check(&policy, REPOSITORY, &after_a_crash, &[secret("s", "h")], at(2));
        assert_eq!(verdict, ImageAccessDecision::MustAuthenticate);
    }

    #[test]
    fn at_most_one_hundred_secrets_are_recorded() {
        let mut record = PulledRecord::closed("sha256:1", REPOSITORY, at(1));
        for n in 0..150 {
            record.note_pull(REPOSITORY, Some(&secret(&format!("s{n}"), "h")), at(1));
        }
        assert_eq!(record.credential_mapping[REPOSITORY].kubernetes_secrets.len(), MOST_SECRETS);
        let known = StoredPullRecord::Record(record);
        let late =
            check(&Verification::default(), REPOSITORY, &known, &[secret("late", "h")], at(2));
        assert_eq!(late, ImageAccessDecision::Recorded(None));
    }

    #[test]
    fn records_have_upstreams_format() {
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
