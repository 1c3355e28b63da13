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
fn a_pod_shows_one_address_of_each_family_and_the_nodes_family_first() {
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
fn an_address_outlives_its_sandbox_but_not_its_successor() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    assert_eq!(pod_ips(scene.sandbox_dies()), ["10.0.0.5"]);
    scene.report();
    assert_eq!(pod_ips(scene.sandbox(&["10.0.0.9"])), ["10.0.0.9"]);
    scene.observed.sandboxes[0].ips = None;
    assert_eq!(pod_ips(&scene), ["10.0.0.5"], "nobody looked at the new one yet");
}

#[test]
fn a_pod_on_the_host_network_keeps_the_nodes_address_it_began_with() {
    let mut scene = Scene::edited("Always", &["c"], |o| o["spec"]["hostNetwork"] = true.into());
    scene.sandbox(&[]).runs("c").report();
    assert_eq!(pod_ips(&scene), ["192.0.2.7"]);
    scene.node.host_ips = vec!["192.0.2.8".parse().unwrap(), "2001:db8::8".parse().unwrap()];
    assert_eq!(pod_ips(&scene), ["192.0.2.7", "2001:db8::8"], "the second family may come later");
    assert_eq!(host_ips(&scene), ["192.0.2.8", "2001:db8::8"]);
}

#[test]
fn a_node_that_does_not_know_its_addresses_takes_none_back() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.report();
    scene.node.host_ips.clear();
    assert_eq!(host_ips(&scene), ["192.0.2.7"]);
}
