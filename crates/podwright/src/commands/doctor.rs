//! `podwright doctor`: checks whether this machine can run pods, and names fixes.
//!
//! Each check is a function from a [`Machine`] to findings. Checks are read-only: they load no
//! module, create no link and write no file. What cannot be determined read-only is reported as
//! unknown.

mod cgroups;
mod kernel;
mod machine;
mod manifests;
mod network;
mod node;
mod privileges;
mod programs;
mod runtime;
mod shutdown;
mod storage;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

pub use machine::{LocalMachine, Machine, RuntimeReport, Space};
use node::StandaloneNode;

use crate::cli::{DoctorArgs, Output};
use crate::config::flags::Flags;
use crate::config::host::Host;
use crate::config::kubelet::KubeletConfiguration;
use crate::config::options::NodeOptions;
use crate::config::problem::Invalid;
use crate::config::{self, Preset};

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Verdict {
    #[serde(rename = "ok")]
    Ok,
    /// Pods will run, with limitations.
    #[serde(rename = "warning")]
    Warning,
    /// Pods will not run.
    #[serde(rename = "failure")]
    Failure,
}

/// One finding of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    #[serde(rename = "check")]
    pub check: &'static str,
    #[serde(rename = "verdict")]
    pub verdict: Verdict,
    #[serde(rename = "says")]
    pub message: String,
    /// How to fix it; starts with a verb.
    #[serde(rename = "fix", skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, message: message.into(), fix: None }
    }

    fn warning(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warning, message: message.into(), fix: Some(fix.into()) }
    }

    fn failure(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Failure, message: message.into(), fix: Some(fix.into()) }
    }
}

/// The planned node, as far as checks depend on it.
#[derive(Clone, Debug)]
pub struct Plan {
    pub configuration: KubeletConfiguration,
    pub options: NodeOptions,
    pub runtime: WantedRuntime,
    /// Directory from which the runtime reads the CNI configuration.
    pub networks: PathBuf,
}

/// Which runtime the node will use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedRuntime {
    /// The configured one only.
    Configured,
    /// Any; `podwright up` would start its own.
    Any,
}

impl Plan {
    /// A node with default settings and, if given, this runtime endpoint.
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
    let standalone_node = StandaloneNode::read(&std::path::absolute(&arguments.state_dir)?);
    let mut findings = standalone_node.examine();
    findings.extend(manifests::examine(&standalone_node.roots()));
    let plan = match planned(arguments, &standalone_node)? {
        Ok(plan) => {
            if let Some(file) = &arguments.config {
                findings.push(Finding::ok("configuration", format!("{} is valid", file.display())));
            }
            plan
        }
        Err(invalid) => {
            let fix = "correct the named settings";
            let problems = invalid.problems().iter();
            findings
                .extend(problems.map(|p| Finding::failure("configuration", p.to_string(), fix)));
            Plan::with_runtime(arguments.container_runtime_endpoint.as_deref())
        }
    };
    findings.extend(examine(&machine, &plan));
    match arguments.output {
        Output::Text => print_text(&findings, use_colours(), &mut io::stdout().lock())?,
        Output::Json => print_json(&findings, &mut io::stdout().lock())?,
    }
    Ok(if can_run_pods(&findings) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The node that the arguments describe. Swap is a separate finding, not a configuration error.
fn planned(
    arguments: &DoctorArgs,
    standalone_node: &StandaloneNode,
) -> anyhow::Result<Result<Plan, Invalid>> {
    let endpoint = arguments.container_runtime_endpoint.as_deref();
    let Some(file) = &arguments.config else {
        let plan =
            endpoint.map_or_else(|| standalone_node.plan(), |it| Plan::with_runtime(Some(it)));
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

/// All checks, in the order in which their findings should be fixed.
pub fn examine(machine: &dyn Machine, plan: &Plan) -> Vec<Finding> {
    [
        privileges::examine(machine),
        kernel::examine(machine),
        cgroups::examine(machine, plan),
        programs::examine(machine),
        runtime::examine(machine, plan),
        network::examine(machine, plan),
        storage::examine(machine, plan),
        shutdown::examine(machine, plan),
    ]
    .concat()
}

fn can_run_pods(findings: &[Finding]) -> bool {
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
    serde_json::to_writer_pretty(&mut *out, &Report { ok: can_run_pods(findings), findings })?;
    writeln!(out)
}

fn print_text(findings: &[Finding], colours: bool, out: &mut dyn Write) -> io::Result<()> {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    for finding in findings {
        let (label, colour) = match finding.verdict {
            Verdict::Ok => ("ok  ", "32"),
            Verdict::Warning => ("warn", "33"),
            Verdict::Failure => ("FAIL", "31"),
        };
        let label =
            if colours { format!("\x1b[{colour}m{label}\x1b[0m") } else { label.to_owned() };
        writeln!(out, "{label}  {:width$}  {}", finding.check, finding.message)?;
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

fn use_colours() -> bool {
    let disabled = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !disabled && io::stdout().is_terminal()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests;
