//! The terminal while it is ours: alternate screen and raw mode, given back in every case.

use anyhow::Context as _;
use ratatui::DefaultTerminal;

use super::model::Model;
use super::screen;
use super::theme::Theme;

/// Dropping it gives the terminal back; so does the panic hook that opening it installs.
pub(super) struct Screen(DefaultTerminal);

impl Screen {
    pub(super) fn open() -> anyhow::Result<Self> {
        ratatui::try_init()
            .map(Self)
            .inspect_err(|_| ratatui::restore())
            .context("cannot use the terminal for a full-screen view. Fix: check the variable TERM")
    }

    pub(super) fn draw(&mut self, model: &Model, theme: &Theme) -> anyhow::Result<()> {
        let drawn = self.0.draw(|frame| screen::draw(frame, model, theme));
        drawn.map(drop).context("cannot write to the terminal")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
