//! exec, attach, cp and port-forward through a real API server with every kubectl.

use std::io::Write;

use podwright_e2e::bed::Bed;
use podwright_e2e::kubectl::{Kubectl, Release};
use podwright_e2e::process::Daemon;
use podwright_e2e::wait;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{ProgramResult, open_files, run, until_files_closed};
use crate::cluster::{Cluster, LIMIT, NAMESPACE, pod, ready};
use crate::privilege::{figure, needs_root};

async fn exec(kubectl: &Kubectl, flags: &[&str], command: &[&str], input: &[u8]) -> ProgramResult {
    let mut arguments = vec!["-n", NAMESPACE, "exec"];
    arguments.extend_from_slice(flags);
    arguments.extend(["web", "--"]);
    arguments.extend_from_slice(command);
    run(kubectl.command(&arguments), input).await
}

async fn with_web() -> Cluster {
    let cluster = Cluster::start().await;
    cluster.create(pod("web", &["serve"])).await;
    cluster.until("web", "ready", ready).await;
    cluster
}

#[tokio::test]
async fn commands_run_in_containers_with_every_kubectl() {
    needs_root!();
    let cluster = with_web().await;
    let agent = cluster.agent.daemon().pid();
    let before = open_files(agent);
    for release in Release::ALL {
        let kubectl = cluster.kubectl(release);
        let output = exec(&kubectl, &[], &["sh", "-c", "echo out; echo err >&2"], b"").await;
        assert_eq!(
            (output.code, output.out.as_str()),
            (Some(0), "out\n"),
            "{release:?}: {}",
            output.err
        );
        assert!(output.err.contains("err"), "{release:?}: {}", output.err);

        let failed = exec(&kubectl, &[], &["sh", "-c", "exit 7"], b"").await;
        assert_eq!(failed.code, Some(7), "{release:?}: {}", failed.err);

        let text = "a line\n".repeat(50_000);
        let read = exec(&kubectl, &["-i"], &["wc", "-c"], text.as_bytes()).await;
        assert_eq!(read.out.trim(), text.len().to_string(), "{release:?}: {}", read.err);

        let missing = exec(&kubectl, &["-c", "nobody"], &["true"], b"").await;
        assert_ne!(missing.code, Some(0), "{release:?}");
    }
    until_files_closed("the agent", agent, before).await;
    cluster.close();
}

/// Prints its terminal and, as soon as it is known, its size, which arrives after the start.
const IN_A_TERMINAL: &str = "tty; for i in $(seq 100); do \
    stty size 2>/dev/null | grep '45 123' && break; sleep 0.1; done; exit 3";

#[tokio::test]
async fn exec_allocates_a_terminal_with_the_right_size() {
    needs_root!();
    let cluster = with_web().await;
    for release in Release::ALL {
        let kubectl = cluster.kubectl(release);
        let wanted = ["-n", NAMESPACE, "exec", "-it", "web", "--", "sh", "-c", IN_A_TERMINAL];
        let inner = kubectl.command(&wanted);
        let words = std::iter::once(inner.get_program()).chain(inner.get_args());
        let words: Vec<String> = words
            .map(|word| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''")))
            .collect();
        // kubectl needs a terminal itself before it requests one.
        let mut command = std::process::Command::new("script");
        command.args(["-qec", &format!("stty cols 123 rows 45; {}", words.join(" ")), "/dev/null"]);
        command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let ended = run(command, b"").await;
        assert!(ended.out.contains("/dev/pts/"), "{release:?}: {} {}", ended.out, ended.err);
        assert!(ended.out.contains("45 123"), "{release:?}: {}", ended.out);
        assert_eq!(ended.code, Some(3), "{release:?}: {}", ended.out);
    }
    cluster.close();
}

#[tokio::test]
async fn attach_delivers_standard_input() {
    needs_root!();
    let cluster = Cluster::start().await;
    for (at, release) in Release::ALL.into_iter().enumerate() {
        let name = format!("echo-{at}");
        let mut echo = pod(&name, &[]);
        echo["spec"]["restartPolicy"] = json!("Never");
        let container = &mut echo["spec"]["containers"][0];
        container["command"] = json!(["sh", "-c", "while read line; do echo got $line; done"]);
        container["stdin"] = json!(true);
        container["stdinOnce"] = json!(true);
        cluster.create(echo).await;
        cluster.until(&name, "ready", ready).await;
        let kubectl = cluster.kubectl(release);
        let attach = kubectl.command(&["-n", NAMESPACE, "attach", "-i", &name]);
        let received = run(attach, b"one\ntwo\n").await;
        assert!(
            received.out.contains("got one\ngot two\n"),
            "{release:?}: {}{}",
            received.out,
            received.err
        );
        cluster.until(&name, "to finish", |status| status["phase"] == "Succeeded").await;
    }
    cluster.close();
}

/// A forwarding kubectl and its local port.
async fn forwarded(cluster: &Cluster, kubectl: &Kubectl, at: usize, to: &str) -> (Daemon, u16) {
    let command = kubectl.command(&["-n", NAMESPACE, "port-forward", "pod/web", to]);
    let forward = cluster.bed.daemon(&format!("port-forward-{at}"), command).unwrap();
    let port = forward.until("a port", LIMIT, async || {
        let log = forward.log();
        let rest = log.split_once("127.0.0.1:").map(|(_, rest)| rest.to_owned());
        let digits = rest.map(|rest| rest.chars().take_while(char::is_ascii_digit).collect());
        Ok(digits.and_then(|digits: String| digits.parse::<u16>().ok()))
    });
    let port = port.await.unwrap();
    (forward, port)
}

#[tokio::test]
async fn ports_are_forwarded_with_every_kubectl() {
    needs_root!();
    let cluster = with_web().await;
    for (at, release) in Release::ALL.into_iter().enumerate() {
        let kubectl = cluster.kubectl(release);
        let (forward, port) = forwarded(&cluster, &kubectl, at, ":8080").await;
        for _ in 0..3 {
            let url = format!("http://127.0.0.1:{port}/");
            let page = async || Ok(Some(cluster.bed.http_get(&url).await?));
            let page = wait::until("the pod's page", LIMIT, page).await.unwrap();
            assert!(page.status.is_success(), "{release:?}: {}", page.text());
        }
        forward.kill().await.unwrap();
    }
    cluster.close();
}

/// After a client has closed its sending side it can still receive: the end of input reaches the
/// pod, and the pod's later output reaches the client.
#[tokio::test]
async fn forwarded_connection_supports_half_close() {
    needs_root!();
    let cluster = Cluster::start().await;
    cluster.create(pod("web", &["serve", "--tcp", "7070"])).await;
    cluster.until("web", "ready", ready).await;
    for (at, release) in Release::ALL.into_iter().enumerate() {
        let kubectl = cluster.kubectl(release);
        let (forward, port) = forwarded(&cluster, &kubectl, at, ":7070").await;
        let talk = async || {
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
            let mut stream = cluster.bed.netns().connect(address).await?;
            let output = vec![b'x'; 200_000];
            let (mut reading, mut writing) = stream.split();
            let mut received = Vec::new();
            let saying = async {
                writing.write_all(&output).await?;
                writing.shutdown().await
            };
            let (said_all, read) = tokio::join!(saying, reading.read_to_end(&mut received));
            said_all?;
            read?;
            anyhow::ensure!(received == output, "{} bytes were returned", received.len());
            Ok(Some(()))
        };
        wait::until(format!("{release:?}: all of it to come back"), LIMIT, talk).await.unwrap();
        forward.kill().await.unwrap();
    }
    cluster.close();
}

#[tokio::test]
async fn idle_stream_is_closed() {
    needs_root!();
    let short = |_: &Bed| json!({ "streamingConnectionIdleTimeout": "10s" });
    let cluster = Cluster::configured(Bed::builder().control_plane(), short).await;
    cluster.create(pod("web", &["serve"])).await;
    cluster.until("web", "ready", ready).await;
    let agent = cluster.agent.daemon().pid();
    let before = open_files(agent);
    // This release sends no pings.
    let kubectl = cluster.kubectl(Release::V1_20);
    // In total longer than the idle timeout.
    let talks = "for i in $(seq 24); do echo $i; sleep 0.5; done";
    let spoke = exec(&kubectl, &[], &["sh", "-c", talks], b"").await;
    assert_eq!(spoke.out.lines().count(), 24, "{}", spoke.err);
    let slept = exec(&kubectl, &[], &["sh", "-c", "echo in; sleep 1000; echo out"], b"").await;
    assert_eq!(slept.out, "in\n", "{}", slept.err);
    until_files_closed("the agent", agent, before).await;
    drop(kubectl);
    cluster.close();
}

/// The same bytes in both directions: backpressure loses nothing.
#[tokio::test]
async fn files_are_copied_in_both_directions() {
    needs_root!();
    let cluster = with_web().await;
    let agent = cluster.agent.daemon().pid();
    let megabytes = if std::env::var_os("PODWRIGHT_LONG").is_some() { 200 } else { 20 };
    let (there, back) = (cluster.bed.path("there"), cluster.bed.path("back"));
    let mut file = std::fs::File::create(&there).unwrap();
    let mut noise: u64 = 1;
    for _ in 0..megabytes * 128 {
        let block: Vec<u8> = (0..1024)
            .flat_map(|_| {
                noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                noise.to_le_bytes()
            })
            .collect();
        file.write_all(&block).unwrap();
    }
    drop(file);
    let sum = |path: &std::path::Path| {
        use sha2::{Digest, Sha256};
        let digest = Sha256::digest(std::fs::read(path).unwrap());
        digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let want = sum(&there);
    let began = std::time::Instant::now();
    for release in [Release::V1_20, Release::V1_36] {
        let kubectl = cluster.kubectl(release);
        let remote = format!("{NAMESPACE}/web:/tmp/file");
        let (there, back) = (there.to_str().unwrap(), back.to_str().unwrap());
        let copied = run(kubectl.command(&["cp", there, &remote]), b"").await;
        assert_eq!(copied.code, Some(0), "{release:?}: {}", copied.err);
        let summed = exec(&kubectl, &[], &["sha256sum", "/tmp/file"], b"").await;
        assert!(summed.out.starts_with(&want), "{release:?}: {}{}", summed.out, summed.err);
        let copied = run(kubectl.command(&["cp", &remote, back]), b"").await;
        assert_eq!(copied.code, Some(0), "{release:?}: {}", copied.err);
        assert_eq!(sum(back.as_ref()), want, "{release:?}");
    }
    let peak = std::fs::read_to_string(format!("/proc/{agent}/status")).unwrap();
    let peak = peak.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default().to_owned();
    let kilobytes: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kilobytes < 150_000, "bytes must be streamed, not buffered: {peak}");
    let seconds = began.elapsed().as_secs_f64();
    figure(&format!(
        "kubectl cp: 4 times {megabytes} MB in {seconds:.1} s; the agent at most {kilobytes} kB"
    ));
    cluster.close();
}

#[tokio::test]
async fn concurrent_streams_and_killed_clients_leave_nothing_open() {
    needs_root!();
    let cluster = with_web().await;
    let (agent, runtime) = (cluster.agent.daemon().pid(), cluster.bed.containerd().daemon().pid());
    let kubectl = cluster.kubectl(Release::V1_32);
    let warm = exec(&kubectl, &[], &["true"], b"").await;
    assert_eq!(warm.code, Some(0), "{}", warm.err);
    let before = (open_files(agent), open_files(runtime));
    let sleep = ["-n", NAMESPACE, "exec", "web", "--", "sh", "-c", "echo in; sleep 1000"];
    let sleepers: Vec<_> = (0..50)
        .map(|at| {
            let name = format!("sleeper-{at}");
            cluster.bed.daemon(&name, kubectl.command(&sleep)).unwrap()
        })
        .collect();
    for sleeper in &sleepers {
        let inside = async || Ok(sleeper.log().contains("in").then_some(()));
        sleeper.until("a command to run", LIMIT * 4, inside).await.unwrap();
    }
    for sleeper in &sleepers {
        sleeper.kill().await.unwrap();
    }
    until_files_closed("the agent", agent, before.0).await;
    // Their commands keep running, as on any node; when those exit, the runtime keeps nothing open
    // either.
    let ended = exec(&kubectl, &[], &["killall", "sleep"], b"").await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    until_files_closed("the runtime", runtime, before.1).await;
    drop(kubectl);
    cluster.close();
}
