//! Client certificate: renewal time, key usages and subject.

use jiff::{SignedDuration, Timestamp};

/// Validity period of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateValidity {
    pub from: Timestamp,
    pub until: Timestamp,
}

impl CertificateValidity {
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.until <= now
    }

    /// Between 70 and 90 percent of the validity period, so that nodes of a cluster do not renew at
    /// the same time. `chance` is from 0 to 1 and must be the same for the same certificate.
    pub fn renewal(&self, chance: f64) -> Timestamp {
        let whole = self.until.duration_since(self.from);
        let share = 0.7 + 0.2 * chance.clamp(0.0, 1.0);
        let wait = SignedDuration::try_from_secs_f64(whole.as_secs_f64() * share);
        wait.ok().and_then(|wait| self.from.checked_add(wait).ok()).unwrap_or(self.until)
    }
}

/// Whether a certificate that this program issued must be replaced: half of its time is over, or the
/// clock was set back to before it.
pub fn is_due(validity: CertificateValidity, now: Timestamp) -> bool {
    let half = validity.until.duration_since(validity.from) / 2;
    now < validity.from || validity.from.checked_add(half).is_ok_and(|half| now >= half)
}

/// Signer of the node's client certificates.
pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// Key usages to request. Our keys are elliptic-curve keys and do no key encipherment, but clusters
/// before 1.27 auto-approve only requests that include it.
pub fn client_usages(server_minor: Option<u32>) -> Vec<&'static str> {
    let mut usages = vec!["digital signature", "client auth"];
    if server_minor.is_some_and(|minor| minor < 27) {
        usages.push("key encipherment");
    }
    usages
}

/// User name of a node.
pub fn node_user(node: &str) -> String {
    format!("system:node:{node}")
}

/// Group of all nodes.
pub const NODES_GROUP: &str = "system:nodes";

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn issued_certificate_is_replaced_at_half_of_its_time() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let validity = CertificateValidity { from: at(1000), until: at(3000) };
        for (now, due) in [(999, true), (1000, false), (1999, false), (2000, true), (9999, true)] {
            assert_eq!(is_due(validity, at(now)), due, "{now}");
        }
    }

    #[test]
    fn old_cluster_gets_the_usages_it_approves() {
        assert_eq!(client_usages(Some(36)), ["digital signature", "client auth"]);
        assert_eq!(client_usages(None), client_usages(Some(27)));
        assert!(client_usages(Some(26)).contains(&"key encipherment"));
    }

    #[test]
    fn certificate_is_renewed_between_70_and_90_percent_of_its_validity() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let validity = CertificateValidity { from: at(1000), until: at(2000) };
        for (chance, want) in [(0.0, 1700), (0.5, 1800), (1.0, 1900), (7.0, 1900)] {
            assert_eq!(validity.renewal(chance), at(want), "{chance}");
        }
        assert!(!validity.is_expired(at(1999)));
        assert!(validity.is_expired(at(2000)));
    }
}
