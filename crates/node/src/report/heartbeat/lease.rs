//! Node lease: renewed every quarter of its duration.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::PostParams;
use podwright_core::backoff::{Doubling, Retry};
use podwright_host::clock::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::own_node::OwnNode;
use super::{Timing, within};

const NAMESPACE: &str = "kube-node-lease";
const RETRY: Doubling = Doubling::new(Duration::from_millis(200), Duration::from_secs(7));

pub struct LeaseRenewer {
    /// With the connection of the heartbeat.
    pub client: kube::Client,
    pub node: Arc<str>,
    pub timing: Timing,
    pub shown: watch::Receiver<OwnNode>,
    pub clock: Clock,
}

/// Reason that a renewal failed.
enum RenewError {
    /// It was deleted or changed by another client.
    Stale,
    Other(String),
}

impl LeaseRenewer {
    /// Renews until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        let work = async {
            let mut held: Option<Lease> = None;
            loop {
                let answer = self.renew_until_done(held.take()).await;
                held = Some(answer);
                tokio::time::sleep(self.timing.jittered(self.timing.lease / 4)).await;
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Retries until the lease is renewed; logs the problem once.
    async fn renew_until_done(&mut self, mut held: Option<Lease>) -> Lease {
        let (mut retry, mut logged) = (Retry::new(RETRY), false);
        // Times of this renewal's attempts: one that seemed to fail may have taken effect.
        let mut attempted = Vec::new();
        loop {
            let problem = match self.renew(held.as_ref(), &mut attempted).await {
                Ok(lease) => {
                    if logged {
                        tracing::info!(node = &*self.node, "node lease is renewed again");
                    }
                    return lease;
                }
                Err(RenewError::Stale) => match self.reread(held.take(), &attempted).await {
                    Ok(lease) => {
                        held = lease;
                        continue;
                    }
                    Err(problem) => problem,
                },
                Err(RenewError::Other(problem)) => problem,
            };
            if !logged {
                tracing::warn!(problem, "cannot renew the node lease, retrying");
                logged = true;
            }
            tokio::time::sleep(retry.next_delay()).await;
        }
    }

    /// Replaces the held lease, or creates it.
    async fn renew(
        &mut self,
        held: Option<&Lease>,
        attempted: &mut Vec<i64>,
    ) -> Result<Lease, RenewError> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        let lease = self.lease(held).await;
        attempted.extend(renewed(&lease).map(jiff::Timestamp::as_microsecond));
        let params = PostParams::default();
        let (timeout, name) = (self.timing.request_timeout(), self.node.clone());
        let answer = match held {
            Some(_) => within(timeout, leases.replace(&name, &params, &lease)).await,
            None => within(timeout, leases.create(&params, &lease)).await,
        };
        match answer {
            Ok(lease) => Ok(lease),
            // The namespace is missing; it is created with the cluster.
            Err(kube::Error::Api(status)) if status.code == 404 && held.is_none() => {
                Err(RenewError::Other(status.message))
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                Err(RenewError::Stale)
            }
            Err(error) => Err(RenewError::Other(error.to_string())),
        }
    }

    /// Reads the lease; warns if another client renewed it.
    async fn reread(
        &self,
        held: Option<Lease>,
        attempted: &[i64],
    ) -> Result<Option<Lease>, String> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        let found = within(self.timing.request_timeout(), leases.get_opt(&self.node)).await;
        let found = found.map_err(|error| error.to_string())?;
        if let (Some(held), Some(found)) = (&held, &found)
            && renewed_by_another(held, found, attempted)
        {
            tracing::warn!(
                node = &*self.node,
                "another client renews the lease of this node: two machines have the same node \
                 name. Fix: give one of them another name with --hostname-override"
            );
        }
        Ok(found)
    }

    async fn lease(&mut self, held: Option<&Lease>) -> Lease {
        let mut lease = held.cloned().unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.node.to_string()),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        if lease.metadata.owner_references.as_ref().is_none_or(Vec::is_empty) {
            lease.metadata.owner_references = Some(vec![self.owner().await]);
        }
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        spec.holder_identity = Some(self.node.to_string());
        let seconds = self.timing.lease.as_secs();
        spec.lease_duration_seconds = Some(i32::try_from(seconds).unwrap_or(i32::MAX));
        spec.renew_time = Some(MicroTime(self.clock.now().wall));
        lease
    }

    /// The Node object owns the lease, so the lease waits for the Node.
    async fn owner(&mut self) -> OwnerReference {
        let uid_of = |shown: &OwnNode| shown.object().and_then(|node| node.metadata.uid.clone());
        let uid = match self.shown.wait_for(|shown| uid_of(shown).is_some()).await {
            Ok(shown) => uid_of(&shown),
            Err(_) => None, // the node is stopping
        };
        OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node.to_string(),
            uid: uid.unwrap_or_default(),
            ..OwnerReference::default()
        }
    }
}

fn renewed(lease: &Lease) -> Option<jiff::Timestamp> {
    Some(lease.spec.as_ref()?.renew_time.as_ref()?.0)
}

/// Whether another client renewed the lease. `attempted` are the renew times that this node tried to
/// write, in microseconds, the precision of the API.
fn renewed_by_another(held: &Lease, found: &Lease, attempted: &[i64]) -> bool {
    let newer = renewed(found) > renewed(held);
    newer && !renewed(found).is_some_and(|at| attempted.contains(&at.as_microsecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(at: &str) -> Lease {
        let renew_time = Some(MicroTime(at.parse().unwrap()));
        Lease { spec: Some(LeaseSpec { renew_time, ..Default::default() }), ..Default::default() }
    }

    #[test]
    fn own_attempt_that_took_effect_is_not_reported_as_another_client() {
        let held = lease("2026-01-01T00:00:00Z");
        let sent: jiff::Timestamp = "2026-01-01T00:00:10.123456789Z".parse().unwrap();
        let attempted = [sent.as_microsecond()];
        for (case, found, want) in [
            ("unchanged", "2026-01-01T00:00:00Z", false),
            ("own attempt, in the precision of the API", "2026-01-01T00:00:10.123456Z", false),
            ("another client", "2026-01-01T00:00:10.2Z", true),
        ] {
            assert_eq!(renewed_by_another(&held, &lease(found), &attempted), want, "{case}");
        }
    }
}
