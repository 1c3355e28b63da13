//! Logging of the agent.
//!
//! Text format: one compact line per event, coloured on terminals. With `--logging-format=json`:
//! upstream's JSON lines with upstream's keys. Verbosity follows upstream's `--v` and `--vmodule`.

mod klog;
mod verbosity;

use std::io::{self, IsTerminal};

use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{fmt, registry};

pub use klog::KlogJson;
pub use verbosity::Verbosity;

use crate::config::kubelet::{LogFormat, Logging};

/// Starts logging to stderr. Fails if something in this process already logs.
pub fn start(settings: &Logging) -> Result<(), TryInitError> {
    let verbosity = Verbosity::new(settings.verbosity, &settings.vmodule);
    match settings.format {
        LogFormat::Text => {
            let lines = fmt::layer().compact().with_ansi(use_colours()).with_writer(io::stderr);
            registry().with(lines.with_filter(verbosity)).try_init()
        }
        LogFormat::Json => {
            registry().with(KlogJson::new(io::stderr).with_filter(verbosity)).try_init()
        }
    }
}

/// Colours on terminals, unless NO_COLOR is set (<https://no-color.org>).
fn use_colours() -> bool {
    let disabled = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !disabled && io::stderr().is_terminal()
}
