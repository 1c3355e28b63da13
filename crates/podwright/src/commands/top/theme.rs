//! Colours and characters of the view, as far as the terminal has them.

use ratatui::style::{Color, Modifier, Style};

/// How things look. Without colour, modifiers carry the same meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Theme {
    colour: bool,
    /// The terminal shows more than ASCII.
    pub(super) unicode: bool,
}

impl Theme {
    /// By `NO_COLOR`, `TERM` and the locale.
    pub(super) fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
        let locale = locale.unwrap_or_default().to_ascii_lowercase();
        let plain = set("TERM").is_some_and(|term| term == "dumb" || term.ends_with("-m"));
        let unicode = locale.contains("utf-8") || locale.contains("utf8");
        Self { colour: set("NO_COLOR").is_none() && !plain, unicode }
    }

    pub(super) fn good(self) -> Style {
        self.coloured(Color::Green, Modifier::empty())
    }

    pub(super) fn warning(self) -> Style {
        self.coloured(Color::Yellow, Modifier::BOLD)
    }

    pub(super) fn bad(self) -> Style {
        self.coloured(Color::Red, Modifier::BOLD)
    }

    pub(super) fn title(self) -> Style {
        self.coloured(Color::Cyan, Modifier::BOLD)
    }

    pub(super) fn quiet(self) -> Style {
        self.coloured(Color::DarkGray, Modifier::DIM)
    }

    pub(super) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    fn coloured(self, colour: Color, without: Modifier) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new().add_modifier(without) }
    }

    /// A curve of the values, the newest last, as wide as `width`; the highest value is `top`.
    pub(super) fn sparkline(self, values: &[u64], top: u64, width: usize) -> String {
        const UNICODE: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        const ASCII: [char; 8] = ['_', '.', ',', '-', '=', '+', '*', '#'];
        let steps = if self.unicode { UNICODE } else { ASCII };
        let shown = values.get(values.len().saturating_sub(width)..).unwrap_or_default();
        let mut line = " ".repeat(width.saturating_sub(shown.len()));
        for value in shown {
            let most = u64::try_from(steps.len() - 1).unwrap_or(7);
            let step = value.saturating_mul(most).checked_div(top.max(1)).unwrap_or(0).min(most);
            let step = usize::try_from(step).unwrap_or(0);
            line.push(steps.get(step).copied().unwrap_or(' '));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn theme_follows_the_environment() {
        let theme = |variables: &'static [(&str, &str)]| {
            Theme::of_environment(|name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        for (variables, colour, unicode) in [
            (&[][..], true, false),
            (&[("LANG", "en_US.UTF-8")], true, true),
            (&[("LANG", "C.UTF-8"), ("NO_COLOR", "1")], false, true),
            (&[("LANG", "C.UTF-8"), ("NO_COLOR", "")], true, true),
            (&[("LC_ALL", "C"), ("LANG", "C.UTF-8")], true, false),
            (&[("TERM", "dumb")], false, false),
        ] {
            assert_eq!(theme(variables), Theme { colour, unicode }, "{variables:?}");
        }
    }

    #[test]
    fn sparkline_ends_with_the_newest_value() {
        let plain = Theme { colour: false, unicode: false };
        let fine = Theme { colour: false, unicode: true };
        assert_eq!(plain.sparkline(&[0, 50, 100], 100, 5), "  _-#");
        assert_eq!(fine.sparkline(&[1, 2, 0, 70, 100], 100, 3), "▁▅█");
        assert_eq!(fine.sparkline(&[], 0, 2), "  ");
        assert_eq!(fine.sparkline(&[u64::MAX], 0, 1), "█");
        assert_eq!(fine.sparkline(&[1], 1, 0), "");
    }
}
