//! `podwright top` in a real terminal: tmux shows what a person would see.

use std::path::PathBuf;
use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::kubectl::Release;
use podwright_e2e::{tools, wait};
use serde_json::{Value, json};

use crate::privilege::needs_root;
use crate::standalone::Standalone;
use crate::transcript;

const LIMIT: Duration = Duration::from_secs(120);

/// A terminal in the bed. Dropping it ends everything in it.
struct Terminal<'a> {
    bed: &'a Bed,
    socket: PathBuf,
}

impl<'a> Terminal<'a> {
    async fn open(bed: &'a Bed, name: &str, command: &str) -> Self {
        let terminal = Self { bed, socket: bed.path(&format!("{name}.tmux")) };
        let shell = "env PS1='prompt> ' sh";
        terminal.tmux(&["new-session", "-d", "-x", "80", "-y", "24", shell]).await;
        terminal.type_line(command).await;
        terminal
    }

    async fn tmux(&self, arguments: &[&str]) -> String {
        let socket = self.socket.to_string_lossy();
        let mut command =
            vec!["env", "LANG=C.UTF-8", "tmux", "-u", "-f", "/dev/null", "-S", &socket];
        command.extend(arguments);
        self.bed.exec(&command).await.unwrap()
    }

    async fn type_line(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]).await;
        self.tmux(&["send-keys", "Enter"]).await;
    }

    async fn key(&self, key: &str) {
        self.tmux(&["send-keys", key]).await;
    }

    async fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"]).await
    }

    /// Waits until the screen has these lines in this order; `…` stands for any text.
    async fn shows(&self, lines: &[&str]) -> String {
        let expected: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        let shown = async || {
            let screen = self.screen().await;
            match transcript::missing(&expected, &screen) {
                None => Ok(Some(screen)),
                Some(line) => anyhow::bail!("no line {line:?} on\n{screen}"),
            }
        };
        wait::until(format!("{lines:?} on the screen"), LIMIT, shown).await.unwrap()
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        let mut command = self.bed.command("tmux");
        command.arg("-S").arg(&self.socket).arg("kill-server");
        // It may have ended with its last window.
        let _ = command.output();
    }
}

fn pod(name: &str, command: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "app", "image": "localhost/podwright/test:latest",
                "imagePullPolicy": "Never", "command": ["sh", "-c", command],
            }],
        },
    })
}

#[tokio::test]
async fn top_shows_pods_logs_and_reasons_in_a_terminal_and_gives_it_back() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    let kubectl = node.kubectl(Release::V1_32);
    let talks = "i=0; while true; do i=$((i+1)); printf 'line %s \\033[2J\\033]0;owned\\007\\n' $i; \
                 sleep 1; done";
    let mut large = pod("large", "sleep 1000");
    large["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "900"}});
    let all = [pod("talks", talks), pod("crashes", "echo no configuration; exit 3"), large];
    let all = all.map(|pod| pod.to_string()).join("\n");
    kubectl.run_with(&["apply", "-f", "-"], &all).await.unwrap();
    kubectl.run(&["wait", "--for=condition=Ready", "pod/talks", "--timeout=180s"]).await.unwrap();

    let program = tools::podwright().unwrap();
    let top = format!("{} top --state-dir {}", program.display(), node.state);
    let terminal = Terminal::open(&bed, "top", &top).await;
    // The cursor stays with its pod, which was the first one before the other crashed.
    terminal.shows(&["…default/crashes… CrashLoopBackOff…"]).await;
    terminal.key("Home").await;
    let screen = terminal
        .shows(&[
            "podwright top … Ready  pods 3  not well 2…",
            "CPU … of …   memory … of …",
            "  POD … READY STATUS…RST…CPU…MEMORY…AGE",
            "> default/crashes… 0/1 …",
            "  default/large… 0/1 Pending …",
            "  default/talks… 1/1 Running …",
            "── why default/crashes ─…",
            "  why        app is waiting: back-off…",
            "enter open  l log  w why…q quit",
        ])
        .await;
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    // A pod that only the API has is explained as well.
    terminal.key("Down").await;
    terminal
        .shows(&["> default/large…", "── why default/large ─…", "…cpu: requested 900, free…"])
        .await;
    terminal.key("Down").await;
    terminal.key("Enter").await;
    terminal.shows(&["── containers of default/talks ─…", "> app … running … yes …"]).await;
    terminal.key("Enter").await;
    let log = terminal
        .shows(&[
            "── log of default/talks app, following ─…",
            "line 3 \\u{1b}[2J\\u{1b}]0;owned\\u{7}",
        ])
        .await;
    assert!(!log.contains("prompt>"), "{log}");
    // It follows: a later line appears without a key.
    terminal.shows(&["…line 8 …"]).await;
    terminal.key("Escape").await;
    terminal.key("e").await;
    terminal
        .shows(&["── events of this agent, the newest first ─…", "…BackOff … default/crashes…"])
        .await;
    terminal.key("n").await;
    terminal
        .shows(&["── node ─…", "node …: Ready, pods: …", "  stuck      default/crashes: …"])
        .await;
    terminal.key("Escape").await;

    // The previous instance of a container that crashed.
    terminal.key("Home").await;
    terminal.key("l").await;
    terminal.key("p").await;
    terminal
        .shows(&["── log of default/crashes app, previous instance ─…", "no configuration"])
        .await;
    terminal.key("Escape").await;
    terminal.key("Escape").await;

    // Another size.
    terminal.tmux(&["resize-window", "-x", "120", "-y", "30"]).await;
    let wide = terminal.shows(&["  POD … AGE", "> default/crashes…", "enter open…q quit"]).await;
    assert!(wide.lines().any(|line| line.chars().count() > 90), "{wide}");
    terminal.tmux(&["resize-window", "-x", "30", "-y", "8"]).await;
    terminal.shows(&["terminal too small: at least…"]).await;
    terminal.tmux(&["resize-window", "-x", "80", "-y", "24"]).await;
    terminal.shows(&["> default/crashes…"]).await;

    // The terminal is as before: after q, and after SIGTERM.
    terminal.key("q").await;
    terminal.shows(&["prompt> /…", "prompt>"]).await;
    terminal.type_line("stty -a | grep -o -w -e -icanon -e icanon -e -echo -e echo").await;
    terminal.shows(&["icanon", "echo", "prompt>"]).await;
    terminal.type_line(&format!("NO_COLOR=1 {top}")).await;
    terminal.shows(&["> default/crashes…"]).await;
    let escapes = terminal.tmux(&["capture-pane", "-p", "-e"]).await;
    // 39 is the terminal's own colour.
    let colours = escapes.replace("\u{1b}[39m", "");
    assert!(!colours.contains("\u{1b}[3"), "a colour in {escapes:?}");
    let shell = terminal.tmux(&["list-panes", "-F", "#{pane_pid}"]).await;
    let top = bed.exec(&["pgrep", "--parent", shell.trim()]).await.unwrap();
    bed.exec(&["kill", "-TERM", top.trim()]).await.unwrap();
    terminal.shows(&["prompt> NO_COLOR=1…", "prompt>"]).await;
    terminal.type_line("stty -a | grep -o -w -e -icanon -e icanon; echo end").await;
    let restored = terminal.shows(&["icanon", "end", "prompt>"]).await;
    assert!(!restored.lines().any(|line| line == "-icanon"), "{restored}");

    // Without a terminal it says what to use instead.
    let refused = format!("{:#}", node.run(&["top"]).await.unwrap_err());
    assert!(refused.contains("needs a terminal"), "{refused}");
    drop(terminal);
    node.run(&["down"]).await.unwrap();
    drop(kubectl);
    bed.close().unwrap();
}
