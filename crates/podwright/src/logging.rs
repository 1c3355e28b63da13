//! The agent's own log.
//!
//! People read it on a terminal or in the journal: one compact line per event, coloured where that
//! helps. Collectors read it with `--logging-format=json`: the lines upstream writes, under
//! upstream's keys. How much is said follows upstream's `--v` and `--vmodule`.

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
            let lines = fmt::layer().compact().with_ansi(colours_wanted()).with_writer(io::stderr);
            registry().with(lines.with_filter(verbosity)).try_init()
        }
        LogFormat::Json => {
            registry().with(KlogJson::new(io::stderr).with_filter(verbosity)).try_init()
        }
    }
}

/// Colours are for terminals, and only if nobody objects (<https://no-color.org>).
fn colours_wanted() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && io::stderr().is_terminal()
}
