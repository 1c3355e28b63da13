//! Tells the runtime which addresses its pods have: a network whose configuration is a template is
//! not ready before.

use std::time::Duration;

use k8s_openapi::api::core::v1;
use podwright_cri as cri;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::own_node::OwnNode;

/// How soon a runtime that did not take them is told again.
const RETRY: Duration = Duration::from_secs(10);

/// Passes on what the node's object says, whenever that changes, until stopped. While it says
/// nothing, `configured` counts: there may be nobody who gives nodes their ranges.
pub async fn pass_on(
    runtime: cri::Client,
    configured: String,
    mut shown: watch::Receiver<OwnNode>,
    stop: CancellationToken,
) {
    let work = async {
        let (mut told, mut complained, mut closed) = (String::new(), false, false);
        loop {
            let given = shown.borrow_and_update().object().map(|node| ranges(node));
            let given = given.filter(|given| !given.is_empty());
            // A node that had a range keeps it until it gets another.
            let before = if told.is_empty() { &configured } else { &told };
            let wanted = given.unwrap_or_else(|| before.clone());
            let mut late = false;
            if !wanted.is_empty() && wanted != told {
                match runtime.set_pod_cidr(&wanted).await {
                    Ok(()) => {
                        tracing::info!(ranges = wanted, "the runtime knows the addresses of pods");
                        (told, complained) = (wanted, false);
                    }
                    Err(error) => {
                        if !complained {
                            tracing::warn!(%error, ranges = wanted, "cannot tell the runtime yet");
                        }
                        (late, complained) = (true, true);
                    }
                }
            }
            tokio::select! {
                // Cancel-safe: a change stays until it is seen.
                changed = shown.changed(), if !closed => closed = changed.is_err(),
                () = tokio::time::sleep(RETRY), if late => {}
                else => return,
            }
        }
    };
    stop.run_until_cancelled(work).await;
}

/// One of each family, in one text.
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

    use podwright_cri::fake::{Fake, FakeOptions, Rpc};
    use serde_json::{Value, json};

    use super::*;

    fn node(spec: &Value) -> v1::Node {
        serde_json::from_value(json!({ "metadata": { "name": "n" }, "spec": spec })).unwrap()
    }

    #[test]
    fn both_families_are_told_and_an_old_object_has_one() {
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
    async fn the_runtime_is_told_once_for_each_change() {
        let fake = Fake::start(FakeOptions::default());
        let (sender, shown) = watch::channel(OwnNode::Unknown);
        let stop = CancellationToken::new();
        let task = tokio::spawn(pass_on(fake.client(), String::new(), shown, stop.clone()));
        let told = async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            fake.count(Rpc::UpdateRuntimeConfig)
        };
        assert_eq!(told().await, 0);
        for (range, want) in [("10.1.0.0/24", 1), ("10.1.0.0/24", 1), ("10.2.0.0/24", 2)] {
            let spec = json!({ "podCIDRs": [range] });
            sender.send_replace(OwnNode::There(Arc::new(node(&spec))));
            assert_eq!(told().await, want, "{range}");
        }
        stop.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_configured_counts_until_the_node_has_a_range() {
        let fake = Fake::start(FakeOptions::default());
        let (sender, shown) = watch::channel(OwnNode::Unknown);
        let stop = CancellationToken::new();
        let configured = "10.100.0.0/24".to_owned();
        let task = tokio::spawn(pass_on(fake.client(), configured, shown, stop));
        for (spec, want) in [
            (json!({}), "10.100.0.0/24"),
            (json!({ "podCIDR": "10.1.0.0/24" }), "10.1.0.0/24"),
            (json!({}), "10.1.0.0/24"),
        ] {
            sender.send_replace(OwnNode::There(Arc::new(node(&spec))));
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(fake.pod_cidr().as_deref(), Some(want));
        }
        assert_eq!(fake.count(Rpc::UpdateRuntimeConfig), 2);
        // Nobody will say any more: then it is over.
        drop(sender);
        task.await.unwrap();
    }
}
