//! `exit` command: ends with a code, and writes the message that a kubelet reads as the termination
//! message.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;

#[derive(Args)]
pub(crate) struct Exit {
    code: u8,
    /// Wait this long first
    #[arg(long, value_name = "SECONDS", value_parser = crate::seconds)]
    after: Option<Duration>,
    /// Write this to the termination log
    #[arg(long, value_name = "TEXT")]
    message: Option<String>,
    #[arg(long, value_name = "FILE", default_value = "/dev/termination-log")]
    message_path: PathBuf,
}

impl Exit {
    pub(crate) async fn run(self) -> anyhow::Result<u8> {
        if let Some(after) = self.after {
            tokio::time::sleep(after).await;
        }
        if let Some(message) = self.message {
            let path = self.message_path;
            std::fs::write(&path, message).with_context(|| {
                format!("cannot write the termination message to {}", path.display())
            })?;
        }
        Ok(self.code)
    }
}
