//! Container logs through a real API server with every kubectl.

use podwright_e2e::kubectl::Release;
use podwright_e2e::wait;
use serde_json::json;

use super::{ClientIdentity, open_files, run, until_files_closed};
use crate::cluster::{Cluster, LIMIT, NAMESPACE, pod, ready};
use crate::privilege::{figure, needs_root};

#[tokio::test]
async fn kubectl_reads_current_followed_and_previous_logs() {
    needs_root!();
    let cluster = Cluster::start().await;
    // Prints three lines and exits, repeatedly; then one that keeps running.
    let mut crashing = pod("crashing", &[]);
    crashing["spec"]["containers"][0]["command"] =
        json!(["sh", "-c", "echo one; echo two >&2; echo three; exit 1"]);
    cluster.create(crashing).await;
    cluster.create(pod("talking", &["lines", "0", "--every", "100"])).await;
    cluster.until("talking", "ready", ready).await;
    // During back-off its log does not change under the reader.
    let resting = |status: &serde_json::Value| {
        let container = &status["containerStatuses"][0];
        container["restartCount"].as_u64() >= Some(1)
            && container["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    };
    for release in Release::ALL {
        let kubectl = cluster.kubectl(release);
        let logs = async |arguments: &[&str]| {
            let all: Vec<&str> =
                ["-n", NAMESPACE, "logs"].iter().chain(arguments).copied().collect();
            run(kubectl.command(&all), b"").await
        };
        cluster.until("crashing", "back-off after a restart", resting).await;
        // The back-off may end right now; then the previous container changes a moment later.
        let looks_back = async || {
            let before = logs(&["--previous", "crashing"]).await;
            let mut lines: Vec<&str> = before.out.lines().collect();
            lines.sort_unstable();
            anyhow::ensure!(lines == ["one", "three", "two"], "{release:?}: {}", before.err);
            Ok(true)
        };
        wait::until_true("the previous log", LIMIT, looks_back).await.unwrap();
        // A container that was just started has printed nothing yet.
        let one_line = async || {
            let tail = logs(&["--tail=1", "crashing"]).await;
            let count = tail.out.lines().count();
            anyhow::ensure!(count == 1, "{release:?}: {}{}", tail.out, tail.err);
            Ok(true)
        };
        wait::until_true("the last line", LIMIT, one_line).await.unwrap();
        let few = logs(&["--limit-bytes=4", "talking"]).await;
        assert_eq!(few.out, "line", "{release:?}: {}", few.err);
        let stamped = logs(&["--timestamps", "--tail=1", "talking"]).await;
        assert!(stamped.out.contains("Z line "), "{release:?}: {}", stamped.out);
        let none = logs(&["--previous", "talking"]).await;
        assert!(none.err.contains("previous terminated container"), "{release:?}: {}", none.err);

        let command = kubectl.command(&["-n", NAMESPACE, "logs", "-f", "--tail=1", "talking"]);
        let name = format!("following-{release:?}");
        let following = cluster.bed.daemon(&name, command).unwrap();
        let goes_on = async || Ok((following.log().lines().count() >= 5).then_some(()));
        following.until("lines as they are written", LIMIT, goes_on).await.unwrap();
        following.kill().await.unwrap();
    }
    // A follower ends when its container exits.
    let mut short = pod("short", &["lines", "3", "--every", "300"]);
    short["spec"]["restartPolicy"] = json!("Never");
    cluster.create(short).await;
    cluster
        .until("short", "started", |status| {
            let state = &status["containerStatuses"][0]["state"];
            state["running"].is_object() || state["terminated"].is_object()
        })
        .await;
    let kubectl = cluster.kubectl(Release::V1_32);
    let whole = run(kubectl.command(&["-n", NAMESPACE, "logs", "-f", "short"]), b"").await;
    assert_eq!(whole.out, "line 1\nline 2\nline 3\n", "{}", whole.err);
    drop(kubectl);
    cluster.close();
}

#[tokio::test]
async fn followers_leave_no_open_files() {
    needs_root!();
    let cluster = Cluster::start().await;
    cluster.create(pod("talking", &["lines", "0", "--every", "200"])).await;
    cluster.until("talking", "ready", ready).await;
    let agent = cluster.agent.daemon().pid();
    let ClientIdentity::Certificate(pair) = cluster.admin() else { unreachable!() };
    let before = open_files(agent);
    let many = if std::env::var_os("PODWRIGHT_LONG").is_some() { 500 } else { 50 };
    let url = format!(
        "{}/containerLogs/{NAMESPACE}/talking/app?follow=true&tailLines=1",
        cluster.agent.url()
    );
    let followers: Vec<_> = (0..many)
        .map(|_| {
            let (url, pair, netns) = (url.clone(), pair.clone(), cluster.bed.netns().clone());
            tokio::spawn(async move {
                let tls = podwright_e2e::http::Tls { identity: Some(pair), ..Default::default() };
                let request = http::Request::get(url).body(hyper::body::Bytes::new())?;
                podwright_e2e::http::send(&netns, request, &tls).await
            })
        })
        .collect();
    let inotify = || {
        let fds = std::fs::read_dir(format!("/proc/{agent}/fd")).unwrap().flatten();
        let links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        links.filter(|link| link.to_string_lossy().contains("inotify")).count()
    };
    let all_follow = async || Ok(open_files(agent) >= before + 2 * many);
    wait::until_true("a socket and a file for each follower", LIMIT, all_follow).await.unwrap();
    assert!(inotify() <= 4, "{} inotify instances", inotify());
    let open = open_files(agent);
    figure(&format!("{many} followers: {} inotify instances, {open} open files", inotify()));
    for follower in followers {
        follower.abort();
    }
    until_files_closed("the agent", agent, before).await;
    cluster.close();
}
