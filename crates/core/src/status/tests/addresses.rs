use super::scene::Scene;

fn pod_ips(scene: &Scene) -> Vec<String> {
    let status = scene.status();
    let ips: Vec<_> = status.pod_ips.into_iter().flatten().map(|ip| ip.ip).collect();
    assert_eq!(status.pod_ip.as_ref(), ips.first());
    ips
}

fn host_ips(scene: &Scene) -> Vec<String> {
    let status = scene.status();
    let ips: Vec<_> = status.host_ips.into_iter().flatten().map(|ip| ip.ip).collect();
    assert_eq!(status.host_ip.as_ref(), ips.first());
    ips
}

#[test]
fn pod_shows_one_address_per_family_with_the_nodes_family_first() {
    let many = ["fd00::5", "10.0.0.5", "10.0.0.6", "fd00::6"];
    for (node, want) in [
        (&["192.0.2.7"][..], ["10.0.0.5", "fd00::5"]),
        (&["2001:db8::7"], ["fd00::5", "10.0.0.5"]),
        (&[], ["10.0.0.5", "fd00::5"]),
    ] {
        let mut scene = Scene::new("Always", &["c"]);
        scene.node.host_ips = node.iter().map(|ip| ip.parse().unwrap()).collect();
        assert_eq!(pod_ips(scene.sandbox(&many)), want, "{node:?}");
    }
}

#[test]
fn address_stays_until_a_new_sandbox_has_one() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    assert_eq!(pod_ips(scene.sandbox_dies()), ["10.0.0.5"]);
    scene.report();
    assert_eq!(pod_ips(scene.sandbox(&["10.0.0.9"])), ["10.0.0.9"]);
    scene.observed.sandboxes[0].ips = None;
    assert_eq!(pod_ips(&scene), ["10.0.0.5"], "the new one was not inspected yet");
}

#[test]
fn host_network_pod_keeps_its_first_node_address() {
    let mut scene = Scene::edited("Always", &["c"], |o| o["spec"]["hostNetwork"] = true.into());
    scene.sandbox(&[]).runs("c").report();
    assert_eq!(pod_ips(&scene), ["192.0.2.7"]);
    scene.node.host_ips = vec!["192.0.2.8".parse().unwrap(), "2001:db8::8".parse().unwrap()];
    assert_eq!(
        pod_ips(&scene),
        ["192.0.2.7", "2001:db8::8"],
        "the second family may be added later"
    );
    assert_eq!(host_ips(&scene), ["192.0.2.8", "2001:db8::8"]);
}

#[test]
fn unknown_node_addresses_keep_the_reported_ones() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.report();
    scene.node.host_ips.clear();
    assert_eq!(host_ips(&scene), ["192.0.2.7"]);
}
