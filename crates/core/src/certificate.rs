//! When a certificate is renewed, and what is asked for.

use jiff::{SignedDuration, Timestamp};

/// How long a certificate is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    pub from: Timestamp,
    pub until: Timestamp,
}

impl Life {
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.until <= now
    }

    /// Between 70 and 90 percent of its life, so that a cluster's nodes do not all come at once.
    /// `chance` is anything from 0 to 1, and should be the same for the same certificate.
    pub fn renewal(&self, chance: f64) -> Timestamp {
        let whole = self.until.duration_since(self.from);
        let share = 0.7 + 0.2 * chance.clamp(0.0, 1.0);
        let wait = SignedDuration::try_from_secs_f64(whole.as_secs_f64() * share);
        wait.ok().and_then(|wait| self.from.checked_add(wait).ok()).unwrap_or(self.until)
    }
}

/// Who signs a node's client certificates.
pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// What the certificate is for. Our keys are elliptic and encipher no other key; but before 1.27
/// the cluster approves by itself only what says that they do.
pub fn client_usages(server_minor: Option<u32>) -> Vec<&'static str> {
    let mut usages = vec!["digital signature", "client auth"];
    if server_minor.is_some_and(|minor| minor < 27) {
        usages.push("key encipherment");
    }
    usages
}

/// The user that a node is.
pub fn node_user(node: &str) -> String {
    format!("system:node:{node}")
}

/// The group that all nodes are in.
pub const NODES_GROUP: &str = "system:nodes";

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_old_cluster_is_asked_in_its_own_words() {
        assert_eq!(client_usages(Some(36)), ["digital signature", "client auth"]);
        assert_eq!(client_usages(None), client_usages(Some(27)));
        assert!(client_usages(Some(26)).contains(&"key encipherment"));
    }

    #[test]
    fn a_certificate_is_renewed_late_in_its_life_but_not_too_late() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let life = Life { from: at(1000), until: at(2000) };
        for (chance, want) in [(0.0, 1700), (0.5, 1800), (1.0, 1900), (7.0, 1900)] {
            assert_eq!(life.renewal(chance), at(want), "{chance}");
        }
        assert!(!life.is_over(at(1999)));
        assert!(life.is_over(at(2000)));
    }
}
