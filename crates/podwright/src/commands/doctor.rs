//! `podwright doctor`: whether this machine can run pods, and what to do if not.
//!
//! Each check is a function from a [`Machine`] to findings. It looks and changes nothing: no module
//! is loaded, no link made, no file written. What cannot be seen without touching is said to be
//! unknown, not guessed.

mod cgroups;
mod kernel;
mod machine;
mod network;
mod node;
mod privileges;
mod programs;
mod runtime;
mod storage;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

pub use machine::{LocalMachine, Machine, RuntimeReport, Space};
use node::Standing;

use crate::cli::{DoctorArgs, Output};
use crate::config::flags::Flags;
use crate::config::host::Host;
use crate::config::kubelet::KubeletConfiguration;
use crate::config::options::NodeOptions;
use crate::config::problem::Invalid;
use crate::config::{self, Preset};

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Verdict {
    #[serde(rename = "ok")]
    Ok,
    /// Pods will run, but something will not be as it could.
    #[serde(rename = "warning")]
    Warning,
    /// Pods will not run.
    #[serde(rename = "failure")]
    Failure,
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    #[serde(rename = "check")]
    pub check: &'static str,
    #[serde(rename = "verdict")]
    pub verdict: Verdict,
    #[serde(rename = "says")]
    pub says: String,
    /// What to do about it.
    #[serde(rename = "fix", skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, says: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, says: says.into(), fix: None }
    }

    fn warning(check: &'static str, says: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warning, says: says.into(), fix: Some(fix.into()) }
    }

    fn failure(check: &'static str, says: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Failure, says: says.into(), fix: Some(fix.into()) }
    }
}

/// The node to be, as far as checks depend on it.
#[derive(Clone, Debug)]
pub struct Plan {
    pub configuration: KubeletConfiguration,
    pub options: NodeOptions,
    pub runtime: WantedRuntime,
    /// Where the runtime looks for the pod network.
    pub networks: PathBuf,
}

/// Whose runtime the node will use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedRuntime {
    /// The one that is configured, and no other.
    Configured,
    /// Whatever is there; `podwright up` would start its own.
    Any,
}

impl Plan {
    /// A node with the default settings and perhaps a given runtime.
    pub fn with_runtime(endpoint: Option<&str>) -> Self {
        let mut configuration = KubeletConfiguration::default();
        let options = NodeOptions::default();
        let networks = PathBuf::from(network::USUAL);
        let Some(endpoint) = endpoint else {
            return Self { configuration, options, runtime: WantedRuntime::Any, networks };
        };
        endpoint.clone_into(&mut configuration.container_runtime_endpoint);
        Self { configuration, options, runtime: WantedRuntime::Configured, networks }
    }
}

pub fn run(arguments: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let machine = LocalMachine::new();
    let standing = Standing::look(&std::path::absolute(&arguments.state_dir)?);
    let mut findings = standing.examine();
    let plan = match planned(arguments, &standing)? {
        Ok(plan) => {
            if let Some(file) = &arguments.config {
                findings.push(Finding::ok("configuration", format!("{} is sound", file.display())));
            }
            plan
        }
        Err(invalid) => {
            let fix = "correct the settings that are named";
            let problems = invalid.problems().iter();
            findings
                .extend(problems.map(|p| Finding::failure("configuration", p.to_string(), fix)));
            Plan::with_runtime(arguments.container_runtime_endpoint.as_deref())
        }
    };
    findings.extend(examine(&machine, &plan));
    match arguments.output {
        Output::Text => print_text(&findings, colours_wanted(), &mut io::stdout().lock())?,
        Output::Json => print_json(&findings, &mut io::stdout().lock())?,
    }
    Ok(if is_fit(&findings) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The node the arguments describe. Swap is a finding of its own here, not a reason to refuse the
/// configuration.
fn planned(arguments: &DoctorArgs, standing: &Standing) -> anyhow::Result<Result<Plan, Invalid>> {
    let endpoint = arguments.container_runtime_endpoint.as_deref();
    let Some(file) = &arguments.config else {
        let plan = endpoint.map_or_else(|| standing.plan(), |it| Plan::with_runtime(Some(it)));
        return Ok(Ok(plan));
    };
    let mut flags = vec![OsString::from("--config"), file.into()];
    flags
        .extend(endpoint.map(|endpoint| format!("--container-runtime-endpoint={endpoint}").into()));
    let host = Host { swap: Vec::new(), ..Host::observe()? };
    let settings = config::resolve(&Flags::parse(flags), &Preset::kubelet(), &host);
    Ok(settings.map(|settings| Plan {
        configuration: settings.configuration,
        options: settings.options,
        runtime: WantedRuntime::Configured,
        networks: PathBuf::from(network::USUAL),
    }))
}

/// Every check, in the order one would fix what they find.
pub fn examine(machine: &dyn Machine, plan: &Plan) -> Vec<Finding> {
    [
        privileges::examine(machine),
        kernel::examine(machine),
        cgroups::examine(machine, plan),
        programs::examine(machine),
        runtime::examine(machine, plan),
        network::examine(machine, plan),
        storage::examine(machine, plan),
    ]
    .concat()
}

fn is_fit(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.verdict < Verdict::Failure)
}

fn print_json(findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    #[derive(Serialize)]
    struct Report<'a> {
        #[serde(rename = "ok")]
        ok: bool,
        #[serde(rename = "findings")]
        findings: &'a [Finding],
    }
    serde_json::to_writer_pretty(&mut *out, &Report { ok: is_fit(findings), findings })?;
    writeln!(out)
}

fn print_text(findings: &[Finding], colours: bool, out: &mut dyn Write) -> io::Result<()> {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    for finding in findings {
        let (word, colour) = match finding.verdict {
            Verdict::Ok => ("ok  ", "32"),
            Verdict::Warning => ("warn", "33"),
            Verdict::Failure => ("FAIL", "31"),
        };
        let word = if colours { format!("\x1b[{colour}m{word}\x1b[0m") } else { word.to_owned() };
        writeln!(out, "{word}  {:width$}  {}", finding.check, finding.says)?;
        if let Some(fix) = &finding.fix {
            writeln!(out, "      {:width$}  fix: {fix}", "")?;
        }
    }
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (failures, warnings) = (count(Verdict::Failure), count(Verdict::Warning));
    match (failures, warnings) {
        (0, 0) => writeln!(out, "\nThis machine can run pods."),
        (0, warnings) => writeln!(out, "\nThis machine can run pods; warnings: {warnings}."),
        (failures, _) => writeln!(out, "\nThis machine cannot run pods yet; failures: {failures}."),
    }
}

fn colours_wanted() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && io::stdout().is_terminal()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests;
