//! State of the view: what is shown and selected, and what a key changes. Pure.

use std::collections::{BTreeMap, VecDeque};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::client::{ContainerRow, NodeUsage, PodRow, Reading, Usage, Why};
use super::log::{LogBuffer, LogPiece, LogSource};

/// Readings that a curve shows.
const HISTORY: usize = 60;
/// Lines that a page key moves.
const PAGE: usize = 10;
/// Columns that a sideways key moves.
const PAN: usize = 8;
/// Characters of a filter.
const FILTER: usize = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Pods,
    Containers,
    Log,
    Why,
    Events,
    Node,
    Help,
}

/// Order of the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Pods that are not well first, then by name.
    Trouble,
    Name,
    Cpu,
    Memory,
}

impl Order {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Trouble => "trouble",
            Self::Name => "name",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Trouble => Self::Name,
            Self::Name => Self::Cpu,
            Self::Cpu => Self::Memory,
            Self::Memory => Self::Trouble,
        }
    }
}

/// What is to be done because of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Quit,
    OpenLog(LogSource),
    CloseLog,
}

/// The log that is shown.
#[derive(Clone, Debug)]
pub(super) struct LogView {
    pub(super) source: LogSource,
    pub(super) buffer: LogBuffer,
    /// Lines above the end.
    pub(super) up: usize,
    /// Columns that are left out.
    pub(super) pan: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) reading: Reading,
    /// Why the last reading failed; the one before is shown.
    pub(super) problem: Option<String>,
    pub(super) view: View,
    pub(super) order: Order,
    pub(super) filter: String,
    /// Keys go into the filter.
    pub(super) is_typing: bool,
    pub(super) container: usize,
    pub(super) log: Option<LogView>,
    /// First line of a page of text.
    pub(super) scroll: usize,
    selected: Option<String>,
    why: Option<Why>,
    nodes: VecDeque<Usage>,
    pods: BTreeMap<String, VecDeque<Usage>>,
    logs_opened: u64,
}

impl Model {
    pub(super) fn new(reading: Reading) -> Self {
        let mut model = Self {
            reading,
            problem: None,
            view: View::Pods,
            order: Order::Trouble,
            filter: String::new(),
            is_typing: false,
            container: 0,
            log: None,
            scroll: 0,
            selected: None,
            why: None,
            nodes: VecDeque::new(),
            pods: BTreeMap::new(),
            logs_opened: 0,
        };
        model.note_usage();
        model.keep_selection();
        model
    }

    /// Takes a new reading, or the reason why there is none.
    pub(super) fn update(&mut self, reading: anyhow::Result<Reading>) {
        match reading {
            Ok(reading) => {
                self.problem = None;
                if reading.why.is_some() {
                    self.why.clone_from(&reading.why);
                }
                self.reading = reading;
                self.note_usage();
                self.keep_selection();
            }
            Err(error) => self.problem = Some(format!("{error:#}")),
        }
    }

    pub(super) fn log_piece(&mut self, piece: LogPiece) {
        let Some(log) = &mut self.log else { return };
        if log.source.number != piece.number {
            return;
        }
        let before = log.buffer.len();
        log.buffer.push(piece.content);
        // What the user reads stays in place while lines are added below.
        if log.up > 0 {
            log.up =
                (log.up + log.buffer.len() - before.min(log.buffer.len())).min(log.buffer.len());
        }
    }

    fn note_usage(&mut self) {
        push(&mut self.nodes, self.reading.usage.used);
        let rows = &self.reading.pods;
        self.pods.retain(|uid, _| rows.iter().any(|row| row.line.uid == *uid));
        for row in rows {
            if let Some(usage) = row.usage {
                push(self.pods.entry(row.line.uid.clone()).or_default(), usage);
            }
        }
    }

    /// Selects another pod if the selected one is gone.
    fn keep_selection(&mut self) {
        let rows = self.rows();
        let is_shown = |uid: &String| rows.iter().any(|row| row.line.uid == *uid);
        if !self.selected.as_ref().is_some_and(is_shown) {
            self.selected = rows.first().map(|row| row.line.uid.clone());
        }
    }

    /// The pods that are shown, in their order.
    pub(super) fn rows(&self) -> Vec<&PodRow> {
        let filter = self.filter.to_lowercase();
        let matches = |row: &&PodRow| {
            let line = &row.line;
            let name = format!("{}/{} {}", line.namespace, line.name, line.status);
            name.to_lowercase().contains(&filter)
        };
        let mut rows: Vec<&PodRow> = self.reading.pods.iter().filter(matches).collect();
        let cpu = |row: &PodRow| row.usage.map_or(0, |usage| usage.cpu);
        let memory = |row: &PodRow| row.usage.map_or(0, |usage| usage.memory);
        // The rows are sorted by name already.
        match self.order {
            Order::Trouble => rows.sort_by_key(|row| row.line.reason.is_none()),
            Order::Name => {}
            Order::Cpu => rows.sort_by_key(|row| std::cmp::Reverse(cpu(row))),
            Order::Memory => rows.sort_by_key(|row| std::cmp::Reverse(memory(row))),
        }
        rows
    }

    /// UID of the selected pod.
    pub(super) fn selected(&self) -> Option<&str> {
        self.selected.as_deref()
    }

    pub(super) fn selected_row(&self) -> Option<&PodRow> {
        let selected = self.selected()?;
        self.reading.pods.iter().find(|row| row.line.uid == selected)
    }

    pub(super) fn selected_container(&self) -> Option<&ContainerRow> {
        let containers = &self.selected_row()?.containers;
        containers.get(self.container.min(containers.len().saturating_sub(1)))
    }

    /// The explanation of the selected pod; empty until it is read.
    pub(super) fn why(&self) -> &[String] {
        let own = self.why.as_ref().filter(|why| Some(why.uid.as_str()) == self.selected());
        own.map(|why| why.lines.as_slice()).unwrap_or_default()
    }

    pub(super) fn node_usage(&self) -> (NodeUsage, impl Iterator<Item = &Usage>) {
        (self.reading.usage, self.nodes.iter())
    }

    pub(super) fn usage_of(&self, uid: &str) -> impl Iterator<Item = &Usage> {
        self.pods.get(uid).into_iter().flatten()
    }

    /// The highest usage of any pod that a curve shows, so that the curves compare.
    pub(super) fn highest(&self) -> Usage {
        self.pods.values().flatten().fold(Usage::default(), |highest, usage| Usage {
            cpu: highest.cpu.max(usage.cpu),
            memory: highest.memory.max(usage.memory),
        })
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Option<Effect> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return Some(Effect::Quit);
        }
        if self.is_typing {
            self.type_key(key.code);
            return None;
        }
        match key.code {
            KeyCode::Char('q') => return Some(Effect::Quit),
            KeyCode::Char('?' | 'h') => self.open(View::Help),
            KeyCode::Char('e') => self.open(View::Events),
            KeyCode::Char('n') => self.open(View::Node),
            KeyCode::Char('w') if self.selected.is_some() => self.open(View::Why),
            KeyCode::Esc | KeyCode::Backspace => return self.back(),
            KeyCode::Char('l') if self.view != View::Log => return self.open_log(false),
            KeyCode::Char('s') if self.view == View::Pods => self.order = self.order.next(),
            KeyCode::Char('/') if self.view == View::Pods => self.is_typing = true,
            KeyCode::Enter | KeyCode::Right if self.view == View::Pods => {
                if self.selected.is_some() {
                    self.container = 0;
                    self.open(View::Containers);
                }
            }
            KeyCode::Enter | KeyCode::Right if self.view == View::Containers => {
                return self.open_log(false);
            }
            KeyCode::Left if self.view != View::Log => return self.back(),
            KeyCode::Char('p' | 'f' | 'c') | KeyCode::Left | KeyCode::Right
                if self.view == View::Log =>
            {
                return self.log_key(key.code);
            }
            code => self.movement(code),
        }
        None
    }

    fn type_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(character)
                if !character.is_control() && self.filter.chars().count() < FILTER =>
            {
                self.filter.push(character);
            }
            _ => {}
        }
        self.keep_selection();
    }

    fn open(&mut self, view: View) {
        self.view = view;
        self.scroll = 0;
    }

    fn back(&mut self) -> Option<Effect> {
        match self.view {
            View::Pods => {
                self.filter.clear();
                None
            }
            View::Log => {
                self.log = None;
                self.open(View::Containers);
                Some(Effect::CloseLog)
            }
            View::Containers | View::Why | View::Events | View::Node | View::Help => {
                // A log is still there behind another page.
                let behind = if self.log.is_some() { View::Log } else { View::Pods };
                self.open(behind);
                None
            }
        }
    }

    fn open_log(&mut self, previous: bool) -> Option<Effect> {
        let (row, container) = (self.selected_row()?, self.selected_container()?);
        let source = LogSource {
            namespace: row.line.namespace.clone(),
            pod: row.line.name.clone(),
            container: container.name.clone(),
            previous,
            // A log that has ended grows no more.
            follow: !previous,
            number: self.logs_opened + 1,
        };
        Some(self.show_log(source))
    }

    fn show_log(&mut self, source: LogSource) -> Effect {
        self.logs_opened = source.number;
        let buffer = LogBuffer::default();
        self.log = Some(LogView { source: source.clone(), buffer, up: 0, pan: 0 });
        self.open(View::Log);
        Effect::OpenLog(source)
    }

    fn log_key(&mut self, code: KeyCode) -> Option<Effect> {
        let number = self.logs_opened + 1;
        let containers = self.selected_row().map_or(0, |row| row.containers.len());
        let log = self.log.as_mut()?;
        let source = log.source.clone();
        match code {
            KeyCode::Left => log.pan = log.pan.saturating_sub(PAN),
            KeyCode::Right => log.pan = log.pan.saturating_add(PAN).min(10_000),
            KeyCode::Char('p') => {
                let previous = !source.previous;
                return Some(self.show_log(LogSource {
                    previous,
                    follow: !previous,
                    number,
                    ..source
                }));
            }
            KeyCode::Char('f') if !source.previous => {
                let follow = !source.follow;
                return Some(self.show_log(LogSource { follow, number, ..source }));
            }
            KeyCode::Char('c') if containers > 1 => {
                self.container = (self.container + 1) % containers;
                return self.open_log(source.previous);
            }
            _ => {}
        }
        None
    }

    fn movement(&mut self, code: KeyCode) {
        let Some(step) = Step::of(code) else { return };
        match self.view {
            View::Pods => {
                let uids: Vec<String> =
                    self.rows().iter().map(|row| row.line.uid.clone()).collect();
                let selected = self.selected.as_ref();
                let at = uids.iter().position(|uid| Some(uid) == selected).unwrap_or(0);
                self.selected = uids.get(step.from(at, uids.len())).cloned();
                self.container = 0;
            }
            View::Containers => {
                let containers = self.selected_row().map_or(0, |row| row.containers.len());
                self.container = step.from(self.container, containers);
            }
            View::Log => {
                if let Some(log) = &mut self.log {
                    // Lines are counted from the end.
                    log.up = step.reversed().from(log.up, log.buffer.len());
                }
            }
            View::Why | View::Events | View::Node | View::Help => {
                let lines = match self.view {
                    View::Why => self.why().len(),
                    View::Events => self.reading.events.len(),
                    View::Pods | View::Containers | View::Log | View::Node | View::Help => 500,
                };
                self.scroll = step.from(self.scroll, lines);
            }
        }
    }
}

/// A movement in a list.
#[derive(Clone, Copy)]
enum Step {
    Back(usize),
    Forth(usize),
}

impl Step {
    fn of(code: KeyCode) -> Option<Self> {
        Some(match code {
            KeyCode::Up | KeyCode::Char('k') => Self::Back(1),
            KeyCode::Down | KeyCode::Char('j') => Self::Forth(1),
            KeyCode::PageUp => Self::Back(PAGE),
            KeyCode::PageDown | KeyCode::Char(' ') => Self::Forth(PAGE),
            KeyCode::Home | KeyCode::Char('g') => Self::Back(usize::MAX),
            KeyCode::End | KeyCode::Char('G') => Self::Forth(usize::MAX),
            _ => return None,
        })
    }

    fn reversed(self) -> Self {
        match self {
            Self::Back(by) => Self::Forth(by),
            Self::Forth(by) => Self::Back(by),
        }
    }

    fn from(self, at: usize, count: usize) -> usize {
        let last = count.saturating_sub(1);
        match self {
            Self::Back(by) => at.saturating_sub(by).min(last),
            Self::Forth(by) => at.saturating_add(by).min(last),
        }
    }
}

fn push(history: &mut VecDeque<Usage>, usage: Usage) {
    if history.len() == HISTORY {
        history.pop_front();
    }
    history.push_back(usage);
}
