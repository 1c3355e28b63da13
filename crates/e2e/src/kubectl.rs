//! kubectl in three releases, the oldest and the newest six years apart.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use anyhow::Result;

use crate::environment::TestEnvironment;
use crate::process::output_of;
use crate::tools::provide;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// The one in `KUBEBUILDER_ASSETS` if set, else 1.32.
    #[default]
    Assets,
    V1_20,
    V1_32,
    V1_36,
}

impl Release {
    /// Those that are always available.
    pub const ALL: [Self; 3] = [Self::V1_20, Self::V1_32, Self::V1_36];

    fn tool(self) -> &'static str {
        match self {
            Self::Assets => "kubectl",
            Self::V1_20 => "kubectl-1.20",
            Self::V1_32 => "kubectl-1.32",
            Self::V1_36 => "kubectl-1.36",
        }
    }
}

/// A kubectl that runs inside a bed.
#[derive(Clone)]
pub struct Kubectl {
    environment: Arc<TestEnvironment>,
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    pub(crate) fn new(
        environment: Arc<TestEnvironment>,
        release: Release,
        kubeconfig: PathBuf,
    ) -> Result<Self> {
        let program = provide(release.tool())?.join("kubectl");
        Ok(Self { environment, program, kubeconfig })
    }

    /// The command itself, for what [`Self::run`] cannot do.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.environment.command(&self.program);
        // Its discovery cache is below HOME.
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig);
        command.env("HOME", self.environment.path("home"));
        command
    }

    /// Runs it and returns its output; an error contains its standard error.
    pub async fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_with(arguments, "").await
    }

    /// Runs it with standard input, such as a manifest for `apply -f -`.
    pub async fn run_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        let (mut command, input) = (self.command(arguments), input.to_owned());
        tokio::task::spawn_blocking(move || output_of(&mut command, input.as_bytes())).await?
    }
}
