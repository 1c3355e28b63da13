//! Drawing of the model. Everything that others wrote is neutralised before it comes here.

use jiff::Timestamp;
use podwright_core::explain::readable_bytes;
use podwright_node::report::events::RecentEvent;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::client::{ContainerRow, PodRow, Usage};
use super::model::{LogView, Model, View};
use super::theme::Theme;
use crate::commands::why::page;
use crate::printable::printable;

/// The smallest screen that can be used.
const LEAST: (u16, u16) = (40, 10);
/// Lines of the explanation under the pods, and the height from which it is shown.
const DETAIL: u16 = 7;
const DETAIL_FROM: u16 = 16;

pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, theme: &Theme) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let text = format!("terminal too small: at least {}x{}", LEAST.0, LEAST.1);
        return frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
    }
    let rows =
        [Constraint::Length(1), Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)];
    let [header, usage, body, footer] = Layout::vertical(rows).areas(area);
    let theme = *theme;
    frame.render_widget(self::header(model, theme, header.width), header);
    frame.render_widget(self::usage(model, theme, usage.width), usage);
    match model.view {
        View::Pods => pods(frame, model, theme, body),
        View::Containers => containers(frame, model, theme, body),
        View::Log => log(frame, model, theme, body),
        View::Why => page_of(frame, model, theme, body, "why", model.why()),
        View::Node => {
            let text = page::node_text(&model.reading.node);
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            page_of(frame, model, theme, body, "node", &lines);
        }
        View::Events => events(frame, model, theme, body),
        View::Help => {
            let lines = HELP.map(str::to_owned);
            page_of(frame, model, theme, body, "keys", &lines);
        }
    }
    frame.render_widget(self::footer(model, theme), footer);
}

fn header(model: &Model, theme: Theme, width: u16) -> Line<'static> {
    let node = &model.reading.node;
    let (ready, style) =
        if node.ready { ("Ready", theme.good()) } else { ("not Ready", theme.bad()) };
    let pods = model.reading.pods.len();
    let unwell = model.reading.pods.iter().filter(|row| row.line.reason.is_some()).count();
    let mut spans = vec![
        Span::styled("podwright top ", theme.title()),
        Span::raw(format!("{} ", printable(&node.name))),
        Span::styled(ready, style),
        Span::raw(format!("  pods {pods}")),
    ];
    if unwell > 0 {
        spans.push(Span::styled(format!("  not well {unwell}"), theme.warning()));
    }
    if !node.manifests.is_empty() {
        let count = node.manifests.len();
        spans.push(Span::styled(format!("  broken manifests {count}"), theme.warning()));
    }
    if let Some(problem) = &model.problem {
        spans.push(Span::styled(format!("  {}", printable(problem)), theme.bad()));
    } else {
        let time = model.reading.at.strftime("%H:%M:%SZ").to_string();
        let used: usize = spans.iter().map(Span::width).sum();
        let gap = usize::from(width).saturating_sub(used + time.len());
        if gap > 1 {
            spans.push(Span::raw(" ".repeat(gap)));
            spans.push(Span::styled(time, theme.quiet()));
        }
    }
    Line::from(spans)
}

fn usage(model: &Model, theme: Theme, width: u16) -> Line<'static> {
    let (usage, history) = model.node_usage();
    let history: Vec<Usage> = history.copied().collect();
    // The rest is for the numbers, also of a large machine.
    let curve = (usize::from(width).saturating_sub(52) / 2).clamp(4, 40);
    let cpu: Vec<u64> = history.iter().map(|usage| usage.cpu).collect();
    let memory: Vec<u64> = history.iter().map(|usage| usage.memory).collect();
    Line::from(vec![
        Span::styled("CPU ", theme.quiet()),
        Span::styled(theme.sparkline(&cpu, usage.all.cpu, curve), theme.good()),
        Span::raw(format!(" {} of {}   ", cores(usage.used.cpu), cores(usage.all.cpu))),
        Span::styled("memory ", theme.quiet()),
        Span::styled(theme.sparkline(&memory, usage.all.memory, curve), theme.good()),
        Span::raw(format!(
            " {} of {}",
            readable_bytes(usage.used.memory),
            readable_bytes(usage.all.memory)
        )),
    ])
}

/// `0.42`, `12.0`.
fn cores(milli: u64) -> String {
    if milli < 10_000 {
        format!("{}.{:02}", milli / 1000, milli % 1000 / 10)
    } else {
        format!("{}.{}", milli / 1000, milli % 1000 / 100)
    }
}

/// Widths of the columns of pods.
struct Columns {
    pod: usize,
    status: usize,
    curve: usize,
}

impl Columns {
    fn of(width: u16) -> Self {
        let width = usize::from(width);
        let (status, curve) = if width >= 100 { (20, 10) } else { (16, 4) };
        // Mark, READY, RESTARTS, numbers of CPU and memory, AGE, and the spaces between.
        let fixed = 2 + 6 + 4 + (5 + 1) + (7 + 1) + 6 + 2;
        let pod = width.saturating_sub(fixed + status + 1 + 2 * curve).max(8);
        Self { pod, status, curve }
    }
}

fn pods(frame: &mut Frame<'_>, model: &Model, theme: Theme, area: Rect) {
    let rows = model.rows();
    let detail = if frame.area().height >= DETAIL_FROM { DETAIL } else { 0 };
    let parts = [Constraint::Length(1), Constraint::Min(1), Constraint::Length(detail)];
    let [head, list, below] = Layout::vertical(parts).areas(area);
    let columns = Columns::of(area.width);
    let Columns { pod, status, curve } = columns;
    let title = format!(
        "  {} {:5} {} {:3} {:>w$} {:>m$} {:>5}",
        fit(&format!("POD by {}", model.order.as_str()), pod),
        "READY",
        fit("STATUS", status),
        "RST",
        "CPU",
        "MEMORY",
        "AGE",
        w = 6 + curve,
        m = 8 + curve,
    );
    frame.render_widget(Line::styled(title, theme.title()), head);
    if rows.is_empty() {
        let text = match model.filter.as_str() {
            "" => "no pods on this node".to_owned(),
            filter => format!("no pod matches {filter:?}"),
        };
        frame.render_widget(Line::styled(text, theme.quiet()), list);
    }
    let selected = rows.iter().position(|row| Some(row.line.uid.as_str()) == model.selected());
    let first = first_shown(selected.unwrap_or(0), list.height);
    let shown = rows.iter().enumerate().skip(first).take(usize::from(list.height));
    let highest = model.highest();
    for ((index, row), area) in shown.zip(list.rows()) {
        let is_selected = Some(index) == selected;
        frame.render_widget(pod_line(model, row, &columns, highest, theme, is_selected), area);
    }
    if detail > 0 {
        self::detail(frame, model, theme, below);
    }
}

fn pod_line(
    model: &Model,
    row: &PodRow,
    columns: &Columns,
    highest: Usage,
    theme: Theme,
    is_selected: bool,
) -> Line<'static> {
    let line = &row.line;
    let history: Vec<Usage> = model.usage_of(&line.uid).copied().collect();
    let cpu: Vec<u64> = history.iter().map(|usage| usage.cpu).collect();
    let memory: Vec<u64> = history.iter().map(|usage| usage.memory).collect();
    let shown = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let style = match &line.reason {
        None => theme.good(),
        Some(_) if is_bad(&line.status) => theme.bad(),
        Some(_) => theme.warning(),
    };
    let mark = if is_selected { "> " } else { "  " };
    let name = format!("{}/{}", line.namespace, line.name);
    let ready = format!("{}/{}", line.ready, line.containers);
    let usage = row.usage;
    let milli = shown(usage.map(|usage| format!("{}m", usage.cpu)));
    let bytes = shown(usage.map(|usage| readable_bytes(usage.memory)));
    let spans = vec![
        Span::raw(mark),
        Span::raw(format!("{} {ready:>5} ", fit(&name, columns.pod))),
        Span::styled(format!("{} ", fit(&line.status, columns.status)), style),
        Span::raw(format!("{:>3} {milli:>5} ", line.restarts)),
        Span::styled(theme.sparkline(&cpu, highest.cpu, columns.curve), theme.quiet()),
        Span::raw(format!(" {bytes:>7} ")),
        Span::styled(theme.sparkline(&memory, highest.memory, columns.curve), theme.quiet()),
        Span::raw(format!(" {:>5}", line.age)),
    ];
    let style = if is_selected { theme.selected() } else { Style::new() };
    Line::from(spans).style(style)
}

fn is_bad(status: &str) -> bool {
    let words = ["Error", "BackOff", "Err", "OOMKilled", "Evicted", "OutOf", "Failed", "Invalid"];
    words.iter().any(|word| status.contains(word))
}

/// The explanation of the pod under the cursor.
fn detail(frame: &mut Frame<'_>, model: &Model, theme: Theme, area: Rect) {
    let name = model.selected_row().map(|row| format!("{}/{}", row.line.namespace, row.line.name));
    let title = name.map_or_else(String::new, |name| format!("why {name}"));
    let mut areas = area.rows();
    if let Some(area) = areas.next() {
        frame.render_widget(rule(&title, theme, area.width), area);
    }
    // The first line is the name again.
    for (line, area) in model.why().iter().skip(1).zip(areas) {
        frame.render_widget(explained(line, theme), area);
    }
}

/// A line of an explanation, its label set off.
fn explained(line: &str, theme: Theme) -> Line<'static> {
    const LABEL: usize = 12;
    match line.split_at_checked(LABEL) {
        Some((label, text)) if line.starts_with("  ") => {
            let style = match label.trim() {
                "why" | "fix" => theme.title(),
                "failed" | "exit" | "stuck" | "manifest" | "pending" => theme.warning(),
                _ => theme.quiet(),
            };
            Line::from(vec![Span::styled(label.to_owned(), style), Span::raw(text.to_owned())])
        }
        _ => Line::raw(line.to_owned()),
    }
}

fn rule(title: &str, theme: Theme, width: u16) -> Line<'static> {
    let dash = if theme.unicode { "─" } else { "-" };
    let title = if title.is_empty() { String::new() } else { format!(" {} ", fit_end(title, 60)) };
    let rest = usize::from(width).saturating_sub(2 + Span::raw(title.as_str()).width());
    Line::from(vec![
        Span::styled(dash.repeat(2), theme.quiet()),
        Span::styled(title, theme.title()),
        Span::styled(dash.repeat(rest), theme.quiet()),
    ])
}

fn containers(frame: &mut Frame<'_>, model: &Model, theme: Theme, area: Rect) {
    let Some(row) = model.selected_row() else {
        return frame.render_widget(Line::styled("the pod is gone", theme.quiet()), area);
    };
    let name = format!("containers of {}/{}", row.line.namespace, row.line.name);
    let parts = [Constraint::Length(1), Constraint::Length(1), Constraint::Min(1)];
    let [top, head, list] = Layout::vertical(parts).areas(area);
    frame.render_widget(rule(&name, theme, top.width), top);
    let width = usize::from(area.width).saturating_sub(2 + 8 + 6 + 4 + 7 + 9).max(20);
    let (name, state) = (width * 2 / 5, width - width * 2 / 5 - 1);
    let title = format!(
        "  {} {} {:7} {:5} {:>3} {:>6} {:>8}",
        fit("CONTAINER", name),
        fit("STATE", state),
        "KIND",
        "READY",
        "RST",
        "CPU",
        "MEMORY"
    );
    frame.render_widget(Line::styled(title, theme.title()), head);
    let chosen = model.container.min(row.containers.len().saturating_sub(1));
    let first = first_shown(chosen, list.height);
    let shown = row.containers.iter().enumerate().skip(first);
    for ((index, container), area) in shown.zip(list.rows()) {
        let line = container_line(container, (name, state), theme, index == chosen);
        frame.render_widget(line, area);
    }
}

fn container_line(
    container: &ContainerRow,
    (name, state): (usize, usize),
    theme: Theme,
    is_selected: bool,
) -> Line<'static> {
    let mark = if is_selected { "> " } else { "  " };
    let style = match container.state.as_str() {
        "running" if container.ready => theme.good(),
        text if is_bad(text) => theme.bad(),
        _ => theme.quiet(),
    };
    let usage = container.usage;
    let milli = usage.map_or_else(|| "-".to_owned(), |usage| format!("{}m", usage.cpu));
    let bytes = usage.map_or_else(|| "-".to_owned(), |usage| readable_bytes(usage.memory));
    let ready = if container.ready { "yes" } else { "no" };
    let line = Line::from(vec![
        Span::raw(format!("{mark}{} ", fit(&container.name, name))),
        Span::styled(fit(&container.state, state), style),
        Span::raw(format!(
            " {:7} {ready:5} {:>3} {milli:>6} {bytes:>8}",
            container.kind, container.restarts
        )),
    ]);
    line.style(if is_selected { theme.selected() } else { Style::new() })
}

fn log(frame: &mut Frame<'_>, model: &Model, theme: Theme, area: Rect) {
    let Some(LogView { source, buffer, up, pan }) = &model.log else { return };
    let which = if source.previous { ", previous instance" } else { "" };
    let following = match (source.follow, buffer.end.is_some()) {
        (true, false) => ", following",
        (true, true) | (false, _) => "",
    };
    let title = format!(
        "log of {}/{} {}{which}{following}",
        source.namespace, source.pod, source.container
    );
    let parts = [Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)];
    let [top, list, end] = Layout::vertical(parts).areas(area);
    frame.render_widget(rule(&title, theme, top.width), top);
    let height = usize::from(list.height);
    let up = (*up).min(buffer.len().saturating_sub(height));
    let last = buffer.len() - up;
    let first = last.saturating_sub(height);
    let lines = buffer.lines().skip(first).take(last - first);
    for (line, area) in lines.zip(list.rows()) {
        let shown: String = line.chars().skip(*pan).collect();
        frame.render_widget(Line::raw(shown), area);
    }
    let count = buffer.len();
    let state = match &buffer.end {
        Some(reason) => printable(reason).into_owned(),
        None if count == 0 => "no lines yet".to_owned(),
        None => String::new(),
    };
    let below = if up > 0 { format!("{up} lines below  ") } else { String::new() };
    frame.render_widget(Line::styled(format!("{below}{state}"), theme.quiet()), end);
}

fn events(frame: &mut Frame<'_>, model: &Model, theme: Theme, area: Rect) {
    let parts = [Constraint::Length(1), Constraint::Min(1)];
    let [top, list] = Layout::vertical(parts).areas(area);
    frame.render_widget(rule("events of this agent, the newest first", theme, top.width), top);
    let events = &model.reading.events;
    if events.is_empty() {
        frame.render_widget(Line::styled("no events yet", theme.quiet()), list);
    }
    let shown = events.iter().rev().skip(model.scroll);
    for (event, area) in shown.zip(list.rows()) {
        frame.render_widget(event_line(event, model.reading.at, theme), area);
    }
}

fn event_line(event: &RecentEvent, now: Timestamp, theme: Theme) -> Line<'static> {
    let RecentEvent { at, warning, kind, namespace, name, reason, message, times } = event;
    let seconds = now.duration_since(*at).as_secs().max(0);
    let age = podwright_apiserver::table::age_of(*at, now.max(*at));
    let object = match namespace.as_str() {
        "" => format!("{kind}/{name}"),
        namespace => format!("{namespace}/{name}"),
    };
    let style = match (*warning, seconds) {
        (true, _) => theme.warning(),
        (false, ..10) => theme.good(),
        (false, _) => Style::new(),
    };
    let times = if *times > 1 { format!(" ({times} times)") } else { String::new() };
    Line::from(vec![
        Span::styled(format!("{age:>6} "), theme.quiet()),
        Span::styled(format!("{} ", fit(&printable(reason), 18)), style),
        Span::raw(format!("{} ", fit(&printable(&object), 24))),
        Span::raw(format!("{}{times}", printable(message))),
    ])
}

/// A page of text that can be scrolled.
fn page_of(
    frame: &mut Frame<'_>,
    model: &Model,
    theme: Theme,
    area: Rect,
    title: &str,
    lines: &[String],
) {
    let parts = [Constraint::Length(1), Constraint::Min(1)];
    let [top, text] = Layout::vertical(parts).areas(area);
    frame.render_widget(rule(title, theme, top.width), top);
    if lines.is_empty() {
        return frame.render_widget(Line::styled("reading …", theme.quiet()), text);
    }
    // The last lines stay on the screen.
    let scroll = model.scroll.min(lines.len().saturating_sub(1));
    let lines: Vec<Line<'_>> =
        lines.iter().skip(scroll).map(|line| explained(line, theme)).collect();
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), text);
}

fn footer(model: &Model, theme: Theme) -> Line<'static> {
    if model.is_typing {
        return Line::from(vec![
            Span::styled("filter: ", theme.title()),
            Span::raw(format!("{}_", model.filter)),
            Span::styled("  enter keep  esc clear", theme.quiet()),
        ]);
    }
    let filter = match model.filter.as_str() {
        "" => "/ filter".to_owned(),
        filter => format!("/{filter}"),
    };
    let keys: Vec<&str> = match model.view {
        View::Pods => vec![
            "enter open",
            "l log",
            "w why",
            "e events",
            "n node",
            "s sort",
            &filter,
            "? keys",
            "q quit",
        ],
        View::Containers => vec!["enter log", "w why", "e events", "esc back", "? keys", "q quit"],
        View::Log => {
            vec!["f follow", "p previous", "c container", "arrows move", "esc back", "q quit"]
        }
        View::Why | View::Events | View::Node | View::Help => {
            vec!["arrows scroll", "l log", "w why", "e events", "n node", "esc back", "q quit"]
        }
    };
    Line::styled(keys.join("  "), theme.quiet())
}

const HELP: [&str; 17] = [
    "  up, k       up; also Page Up, Home, g",
    "  down, j     down; also Page Down, space, End, G",
    "  enter       containers of the pod, then the log of the container",
    "  l           log of the container (of the first one, from the list of pods)",
    "  w           why: what the pod waits for, and the fix",
    "  e           events of this agent",
    "  n           node: conditions, and the pods that are stuck",
    "  s           sort by trouble, name, CPU or memory",
    "  /           show only pods whose name or status contains a text",
    "  f           in a log: follow it, or stop following",
    "  p           in a log: the instance before the current one, and back",
    "  c           in a log: the next container of the pod",
    "  left, right in a log: move sideways",
    "  esc         back",
    "  ?           this page",
    "  q, ctrl-c   quit",
    "  Numbers are those of kubectl; curves show the last two minutes.",
];

/// The first row that is shown, so that the selected one is visible.
fn first_shown(selected: usize, height: u16) -> usize {
    (selected + 1).saturating_sub(usize::from(height))
}

/// The text in exactly this many columns, cut at its end.
fn fit(text: &str, width: usize) -> String {
    let cut = fit_end(text, width);
    let padding = width.saturating_sub(Span::raw(cut.as_str()).width());
    format!("{cut}{}", " ".repeat(padding))
}

/// The text in at most this many columns.
fn fit_end(text: &str, width: usize) -> String {
    if Span::raw(text).width() <= width {
        return text.to_owned();
    }
    let (mut cut, mut used) = (String::new(), 0);
    for character in text.chars() {
        let own = Span::raw(character.to_string()).width();
        if used + own + 1 > width {
            break;
        }
        cut.push(character);
        used += own;
    }
    if width > 0 {
        cut.push('~');
    }
    cut
}
