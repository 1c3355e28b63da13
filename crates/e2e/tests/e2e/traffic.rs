//! Bandwidth limits of pods.

use std::time::{Duration, Instant};

use podwright_e2e::bed::Bed;
use podwright_e2e::cri::Cri;
use podwright_e2e::wait;
use serde_json::json;

use crate::cluster::pod;
use crate::privilege::needs_root;

const LIMIT: Duration = Duration::from_secs(180);
/// Bits per second, and the amount sent at that rate. containerd requests a burst of half a
/// gigabyte, whatever the rate; counted in the kernel's 32-bit ticks it overflows, at this rate to
/// almost zero.
const RATE: u32 = 15_616_000;
const BYTES: usize = 8 << 20;

async fn address(cri: &Cri, name: &str) -> anyhow::Result<Option<String>> {
    let named = |s: &&podwright_proto::cri::PodSandbox| {
        s.metadata.as_ref().is_some_and(|metadata| metadata.name.starts_with(name))
    };
    let sandboxes = cri.sandboxes().await?;
    let Some(sandbox) = sandboxes.iter().find(named) else { return Ok(None) };
    Ok(cri.sandbox_status(&sandbox.id).await?.network.map(|network| network.ip))
}

#[tokio::test]
async fn bandwidth_annotation_limits_the_rate() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let agent = bed.agent("node-1").start().unwrap();
    agent.healthy().await.unwrap();
    let cri = bed.cri().await.unwrap();
    let mut took = Vec::new();
    for (name, annotations) in [
        ("free", json!({})),
        (
            "slow",
            json!({
                "kubernetes.io/egress-bandwidth": RATE.to_string(),
                "kubernetes.io/ingress-bandwidth": RATE.to_string(),
            }),
        ),
    ] {
        let mut manifest = pod(name, &["serve", "--http", "8080"]);
        manifest["spec"]["nodeName"] = json!(null);
        manifest["metadata"]["annotations"] = annotations;
        agent.add_manifest(name, &manifest).unwrap();
        let ip =
            wait::until("an address", LIMIT, async || address(&cri, name).await).await.unwrap();
        let page = format!("http://{ip}:8080");
        let answers = async || Ok(bed.http_get(&format!("{page}/healthz")).await.is_ok());
        wait::until_true("the pod to respond", LIMIT, answers).await.unwrap();
        let began = Instant::now();
        let sent = bed.http_get(&format!("{page}/bytes/{BYTES}")).await.unwrap();
        assert_eq!(sent.body.len(), BYTES);
        took.push(began.elapsed());
    }
    // The limit holds whatever else the machine does, so only the lower bound is certain.
    let least = Duration::from_secs_f64(BYTES as f64 * 8.0 / f64::from(RATE) * 0.8);
    assert!(took[1] >= least, "{took:?}: 8 MiB at this rate take no less than {least:?}");
    drop(agent);
    bed.close().unwrap();
}
