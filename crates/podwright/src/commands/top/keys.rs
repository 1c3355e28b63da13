//! Keys and other events of the terminal.

use std::time::Duration;

use ratatui::crossterm::event::{self, Event};
use tokio::sync::mpsc;

/// How long the thread of the keys outlives their receiver at most.
const POLL: Duration = Duration::from_millis(200);

/// Reads events in a thread: reading a terminal blocks.
pub(super) fn read(queue: usize) -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(queue);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let event = match event::poll(POLL) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            // Without a terminal there is nothing more to read.
            let Ok(event) = event else { return };
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    receiver
}
