//! Screens of the view, drawn into memory and compared with files, and what keys do.

use podwright_node::report::events::RecentEvent;
use podwright_node::server::debug_socket::{NodeExplanation, PodReason};
use podwright_node::sources::problems::{ManifestEffect, ManifestProblem};
use podwright_testkit::snapshot;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use super::client::{ContainerRow, NodeUsage, PodRow, Reading, Usage, Why};
use super::log::{LogContent, LogPiece};
use super::model::{Effect, Model, View};
use super::screen;
use super::theme::Theme;
use crate::commands::status::pod::PodLine;

const COLOURED: [(&str, &str); 1] = [("LANG", "C.UTF-8")];
const PLAIN: [(&str, &str); 2] = [("LANG", "C"), ("NO_COLOR", "1")];

fn theme(variables: &'static [(&'static str, &'static str)]) -> Theme {
    Theme::of_environment(|name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

fn pod(name: &str, status: &str, reason: Option<&str>, usage: Option<(u64, u64)>) -> PodRow {
    let app = ContainerRow {
        name: "app".into(),
        kind: "",
        image: "registry.example/app:1".into(),
        state: if reason.is_none() { "running" } else { status }.into(),
        ready: reason.is_none(),
        restarts: if reason.is_none() { 0 } else { 4 },
        usage: usage.map(|(cpu, memory)| Usage { cpu, memory }),
    };
    let proxy = ContainerRow {
        name: "proxy".into(),
        kind: "sidecar",
        state: "running".into(),
        ready: true,
        restarts: 0,
        usage: None,
        ..app.clone()
    };
    PodRow {
        line: PodLine {
            namespace: "default".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
            ready_sandbox: true,
            ip: Some("10.88.0.5".into()),
            ready: usize::from(reason.is_none()),
            running: 1,
            containers: 2,
            status: status.into(),
            reason: reason.map(Into::into),
            restarts: app.restarts.unsigned_abs(),
            since: None,
            restarts_text: app.restarts.to_string(),
            age: "5m".into(),
        },
        usage: app.usage,
        containers: vec![proxy, app],
    }
}

fn reading(second: i64) -> Reading {
    let at = jiff::Timestamp::from_second(1_767_225_600 + second).unwrap();
    let step = u64::try_from(second).unwrap();
    let event = |ago: i64, warning, reason: &str, message: &str, times| RecentEvent {
        at: jiff::Timestamp::from_second(1_767_225_600 + second - ago).unwrap(),
        warning,
        kind: "Pod".into(),
        namespace: "default".into(),
        name: "web".into(),
        reason: reason.into(),
        message: message.into(),
        times,
    };
    let uid = "uid-crashing".to_owned();
    Reading {
        at,
        node: NodeExplanation {
            name: "node-1".into(),
            ready: true,
            why: "the node can run pods".into(),
            fix: None,
            conditions: Vec::new(),
            pods: 3,
            stuck: vec![PodReason {
                namespace: "default".into(),
                name: "crashing".into(),
                uid: uid.clone(),
                well: false,
                stuck: true,
                why: "app is waiting: back-off 40s (CrashLoopBackOff)".into(),
                since: None,
            }],
            manifests: vec![ManifestProblem {
                file: "/etc/podwright/manifests/dns.yaml".into(),
                line: Some(12),
                error: "pod dns: spec.containers[0].image: Required value".into(),
                effect: ManifestEffect::Ignored,
                since: at,
            }],
            evictions: None,
            as_of: at,
        },
        usage: NodeUsage {
            used: Usage { cpu: 200 + 40 * step, memory: (3 << 30) + (step << 26) },
            all: Usage { cpu: 2000, memory: 8 << 30 },
        },
        pods: vec![
            pod(
                "crashing",
                "CrashLoopBackOff",
                Some("app is waiting: back-off 40s (CrashLoopBackOff)"),
                Some((0, 4 << 20)),
            ),
            pod("pending", "Pending", Some("cpu: requested 4, free 1.5 of 2 allocatable"), None),
            pod("web", "Running", None, Some((25 * (step % 5), (90 << 20) + (step << 20)))),
        ],
        events: vec![
            event(65, false, "Pulled", "Container image \"app:1\" already present on machine", 1),
            event(7, false, "Started", "Container started", 1),
            event(3, true, "BackOff", "Back-off restarting failed container app \u{1b}[2J", 5),
        ],
        why: Some(Why {
            uid,
            lines: [
                "default/crashing (uid-crashing, source: api): should be running",
                "  why        app is waiting: back-off 40s (CrashLoopBackOff), for 12s",
                "  next       in 28s",
                "  fix        find out why it exits: kubectl logs -n default crashing --previous",
                "  container  app: waiting: CrashLoopBackOff, restarted 4 times, next start in 28s",
                "  exit       app: exit code 3, ran 2s, 12s ago",
                "  log        app: cannot open /etc/app.conf: no such file",
            ]
            .map(str::to_owned)
            .to_vec(),
        }),
    }
}

fn compare(name: &str, screen: &str) {
    snapshot::check(env!("CARGO_MANIFEST_DIR"), name, screen);
}

/// A view that has been open for some seconds.
fn model() -> Model {
    let mut model = Model::new(reading(0));
    for second in 1..12 {
        model.update(Ok(reading(second)));
    }
    model
}

fn key(model: &mut Model, code: KeyCode) -> Option<Effect> {
    model.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn keys(model: &mut Model, text: &str) {
    for character in text.chars() {
        key(model, KeyCode::Char(character));
    }
}

fn terminal(model: &Model, size: (u16, u16), theme: Theme) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    terminal.draw(|frame| screen::draw(frame, model, &theme)).unwrap();
    terminal
}

/// The characters of the screen.
fn shown(model: &Model, size: (u16, u16), theme: Theme) -> String {
    let terminal = terminal(model, size, theme);
    let buffer = terminal.backend().buffer();
    let rows = (0..size.1).map(|y| {
        let row: String = (0..size.0).map(|x| buffer[(x, y)].symbol()).collect();
        row.trim_end().to_owned()
    });
    rows.collect::<Vec<_>>().join("\n") + "\n"
}

#[test]
fn screens_are_those_of_the_snapshots() {
    let small = (80, 24);
    compare("top-pods", &shown(&model(), small, theme(&PLAIN)));
    compare("top-wide", &shown(&model(), (100, 26), theme(&COLOURED)));
    let mut containers = model();
    key(&mut containers, KeyCode::Enter);
    compare("top-containers", &shown(&containers, small, theme(&PLAIN)));
    for (name, keys) in
        [("top-events", "e"), ("top-node", "n"), ("top-why", "w"), ("top-keys", "?")]
    {
        let mut model = model();
        self::keys(&mut model, keys);
        compare(name, &shown(&model, small, theme(&PLAIN)));
    }
}

#[test]
fn log_is_shown_from_its_end_without_what_controls_a_terminal() {
    let mut model = model();
    let Some(Effect::OpenLog(source)) = key(&mut model, KeyCode::Char('l')) else { panic!() };
    assert_eq!((source.pod.as_str(), source.container.as_str()), ("crashing", "proxy"));
    assert!(source.follow && !source.previous);
    let piece = |number, text: &str| {
        let content = LogContent::Bytes(text.as_bytes().to_vec());
        LogPiece { number, content }
    };
    for line in 0..40 {
        model.log_piece(piece(source.number, &format!("line {line} \u{1b}[2J\u{7}\n")));
    }
    model.log_piece(piece(source.number + 1, "of another log\n"));
    compare("top-log", &shown(&model, (80, 24), theme(&PLAIN)));
    // While the user reads older lines, new ones do not move them.
    key(&mut model, KeyCode::PageUp);
    let before = shown(&model, (80, 24), theme(&PLAIN));
    assert!(before.contains("line 29 ") && !before.contains("line 30 "), "{before}");
    model.log_piece(piece(source.number, "one more\n"));
    let after = shown(&model, (80, 24), theme(&PLAIN));
    assert!(after.contains("line 29 ") && !after.contains("line 30 "), "{after}");
    // The instance before, and back.
    let Some(Effect::OpenLog(previous)) = key(&mut model, KeyCode::Char('p')) else { panic!() };
    assert!(previous.previous && !previous.follow && previous.number > source.number);
    model.log_piece(piece(source.number, "late\n"));
    assert!(!shown(&model, (80, 24), theme(&PLAIN)).contains("late"));
    let Some(Effect::OpenLog(next)) = key(&mut model, KeyCode::Char('c')) else { panic!() };
    assert_eq!((next.container.as_str(), next.previous), ("app", true));
    model.log_piece(LogPiece {
        number: next.number,
        content: LogContent::End(Some("previous terminated container not found\u{1b}c".into())),
    });
    let ended = shown(&model, (80, 24), theme(&PLAIN));
    assert!(ended.contains("previous terminated container not found\\u{1b}c"), "{ended}");
    assert_eq!(key(&mut model, KeyCode::Esc), Some(Effect::CloseLog));
    assert_eq!(model.view, View::Containers);
}

#[test]
fn no_screen_has_a_control_character_or_a_colour_that_was_refused() {
    let mut hostile = model();
    let text = "\u{1b}]0;owned\u{7}\u{1b}[2J\r\n\u{202e}";
    hostile.reading.node.name = text.into();
    hostile.reading.node.why = text.into();
    hostile.reading.events[0].reason = text.into();
    hostile.reading.events[0].name = text.into();
    hostile.problem = Some(text.into());
    for view in [View::Pods, View::Containers, View::Why, View::Events, View::Node, View::Help] {
        hostile.view = view;
        for size in [(80, 24), (40, 10), (200, 60), (10, 3), (1, 1)] {
            let terminal = terminal(&hostile, size, theme(&PLAIN));
            for cell in terminal.backend().buffer().content() {
                assert!(!cell.symbol().chars().any(char::is_control), "{view:?}: {cell:?}");
                assert!(!cell.symbol().contains('\u{202e}'), "{view:?}");
                assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset), "{view:?}");
            }
        }
    }
    let coloured = terminal(&model(), (80, 24), theme(&COLOURED));
    let red = coloured.backend().buffer().content().iter().any(|cell| cell.fg == Color::Red);
    assert!(red, "the status of the crashing pod");
}

#[test]
fn selection_stays_with_its_pod_and_moves_on_when_that_is_gone() {
    let mut model = model();
    assert_eq!(model.selected(), Some("uid-crashing"), "trouble first");
    key(&mut model, KeyCode::Down);
    key(&mut model, KeyCode::Down);
    key(&mut model, KeyCode::Down);
    assert_eq!(model.selected(), Some("uid-web"), "the last one");
    key(&mut model, KeyCode::Char('s'));
    key(&mut model, KeyCode::Char('s'));
    let order: Vec<_> = model.rows().iter().map(|row| row.line.name.clone()).collect();
    assert_eq!(order, ["web", "crashing", "pending"], "by CPU");
    assert_eq!(model.selected(), Some("uid-web"));
    let mut gone = reading(20);
    gone.pods.retain(|row| row.line.name != "web");
    model.update(Ok(gone));
    assert_eq!(model.selected(), Some("uid-crashing"));
    let mut none = reading(21);
    none.pods.clear();
    model.update(Ok(none));
    assert_eq!(model.selected(), None);
    for code in [KeyCode::Enter, KeyCode::Char('l'), KeyCode::Char('w'), KeyCode::Down] {
        assert_eq!(key(&mut model, code), None, "{code:?}");
    }
    assert!(shown(&model, (80, 24), theme(&PLAIN)).contains("no pods on this node"));
}

#[test]
fn filter_takes_keys_until_it_is_left() {
    let mut model = model();
    keys(&mut model, "/webq");
    assert_eq!((model.filter.as_str(), model.rows().len()), ("webq", 0));
    key(&mut model, KeyCode::Backspace);
    assert_eq!(model.selected(), Some("uid-web"));
    key(&mut model, KeyCode::Enter);
    assert!(!model.is_typing);
    assert_eq!(model.rows().len(), 1);
    key(&mut model, KeyCode::Esc);
    assert_eq!(model.rows().len(), 3);
    keys(&mut model, "/");
    keys(&mut model, &"x".repeat(1000));
    assert!(model.filter.len() < 100);
}

#[test]
fn lost_agent_is_named_and_the_last_reading_stays() {
    let mut model = model();
    model.update(Err(anyhow::anyhow!("cannot get /node from the agent")));
    let screen = shown(&model, (120, 24), theme(&PLAIN));
    assert!(screen.contains("cannot get /node") && screen.contains("default/web"), "{screen}");
    model.update(Ok(reading(30)));
    assert!(!shown(&model, (120, 24), theme(&PLAIN)).contains("cannot get"));
}

#[test]
fn quit_keys_quit_in_every_view() {
    for view in ["", "e", "n", "w", "?"] {
        let mut model = model();
        keys(&mut model, view);
        assert_eq!(key(&mut model, KeyCode::Char('q')), Some(Effect::Quit), "{view}");
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(model.key(control_c), Some(Effect::Quit), "{view}");
    }
}

#[test]
fn memory_of_curves_is_bounded() {
    let mut model = model();
    for second in 0..500 {
        model.update(Ok(reading(second)));
    }
    assert_eq!(model.usage_of("uid-web").count(), 60);
    assert_eq!(model.usage_of("uid-pending").count(), 0);
    assert_eq!(model.node_usage().1.count(), 60);
}
