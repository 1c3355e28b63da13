//! Passing of the pod CIDRs to the runtime: a CNI configuration that is a template is not ready
//! without them.

use std::time::Duration;

use k8s_openapi::api::core::v1;
use podwright_cri as cri;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::own_node::OwnNode;

/// Delay before a failed update is retried.
const RETRY: Duration = Duration::from_secs(10);

/// Passes the pod CIDRs of the Node object to the runtime when they change, until stopped. Without
/// any, `configured` is used: the cluster may not allocate node CIDRs.
pub async fn sync_pod_cidrs(
    runtime: cri::Client,
    configured: String,
    mut shown: watch::Receiver<OwnNode>,
    stop: CancellationToken,
) {
    let work = async {
        let (mut told, mut logged, mut closed) = (String::new(), false, false);
        loop {
            let given = shown.borrow_and_update().object().map(|node| ranges(node));
            let given = given.filter(|given| !given.is_empty());
            // A node keeps its range until it gets another one.
            let before = if told.is_empty() { &configured } else { &told };
            let wanted = given.unwrap_or_else(|| before.clone());
            let mut late = false;
            if !wanted.is_empty() && wanted != told {
                match runtime.set_pod_cidr(&wanted).await {
                    Ok(()) => {
                        tracing::info!(ranges = wanted, "set pod CIDR of the runtime");
                        (told, logged) = (wanted, false);
                    }
                    Err(error) => {
                        if !logged {
                            tracing::warn!(
                                %error, ranges = wanted,
                                "cannot set pod CIDR of the runtime, retrying"
                            );
                        }
                        (late, logged) = (true, true);
                    }
                }
            }
            tokio::select! {
                // Cancel-safe: an unseen change stays marked.
                changed = shown.changed(), if !closed => closed = changed.is_err(),
                () = tokio::time::sleep(RETRY), if late => {}
                else => return,
            }
        }
    };
    stop.run_until_cancelled(work).await;
}

/// One per address family, comma-separated.
fn ranges(node: &v1::Node) -> String {
    let Some(spec) = &node.spec else { return String::new() };
    match spec.pod_cidrs.as_deref() {
        Some(ranges) if !ranges.is_empty() => ranges.join(","),
        Some(_) | None => spec.pod_cidr.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use podwright_fake_runtime::{Fake, FakeOptions, Rpc};
    use serde_json::{Value, json};

    use super::*;

    fn node(spec: &Value) -> v1::Node {
        serde_json::from_value(json!({ "metadata": { "name": "n" }, "spec": spec })).unwrap()
    }

    #[test]
    fn both_address_families_are_used_with_fallback_to_pod_cidr() {
        for (spec, want) in [
            (json!({}), ""),
            (json!({ "podCIDR": "10.1.0.0/24" }), "10.1.0.0/24"),
            (
                json!({ "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00::/64"] }),
                "10.1.0.0/24,fd00::/64",
            ),
        ] {
            assert_eq!(ranges(&node(&spec)), want);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn runtime_is_updated_once_per_change() {
        let fake = Fake::start(FakeOptions::default());
        let (sender, shown) = watch::channel(OwnNode::Unknown);
        let stop = CancellationToken::new();
        let task = tokio::spawn(sync_pod_cidrs(fake.client(), String::new(), shown, stop.clone()));
        let told = async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            fake.count(Rpc::UpdateRuntimeConfig)
        };
        assert_eq!(told().await, 0);
        for (range, want) in [("10.1.0.0/24", 1), ("10.1.0.0/24", 1), ("10.2.0.0/24", 2)] {
            let spec = json!({ "podCIDRs": [range] });
            sender.send_replace(OwnNode::Present(Arc::new(node(&spec))));
            assert_eq!(told().await, want, "{range}");
        }
        stop.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn configured_range_is_used_until_the_node_has_one() {
        let fake = Fake::start(FakeOptions::default());
        let (sender, shown) = watch::channel(OwnNode::Unknown);
        let stop = CancellationToken::new();
        let configured = "10.100.0.0/24".to_owned();
        let task = tokio::spawn(sync_pod_cidrs(fake.client(), configured, shown, stop));
        for (spec, want) in [
            (json!({}), "10.100.0.0/24"),
            (json!({ "podCIDR": "10.1.0.0/24" }), "10.1.0.0/24"),
            (json!({}), "10.1.0.0/24"),
        ] {
            sender.send_replace(OwnNode::Present(Arc::new(node(&spec))));
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(fake.pod_cidr().as_deref(), Some(want));
        }
        assert_eq!(fake.count(Rpc::UpdateRuntimeConfig), 2);
        // No more updates: the task ends.
        drop(sender);
        task.await.unwrap();
    }
}
