//! What somebody wants of a node.
//!
//! It holds from `up` to `down`: whoever closed the API to pods should not find it open because
//! the agent was started again by a shorter command line. What is asked for later changes it, as
//! far as the pods that run allow.

use anyhow::bail;
use podwright_cri::Endpoint;
use serde::{Deserialize, Serialize};

use super::network::{Network, Subnet};
use crate::cli::UpArgs;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wishes {
    /// The endpoint of somebody else's runtime; without it, a private containerd.
    #[serde(rename = "runtime")]
    pub runtime: Option<String>,
    #[serde(rename = "api_port")]
    pub api_port: Option<u16>,
    #[serde(rename = "no_pod_api")]
    pub no_pod_api: bool,
}

impl Wishes {
    /// Of a node that is not there yet.
    pub fn of(arguments: &UpArgs) -> anyhow::Result<Self> {
        Ok(Self {
            runtime: asked_runtime(arguments)?,
            api_port: arguments.api_port,
            no_pod_api: arguments.no_pod_api.unwrap_or(false),
        })
    }

    /// Of a node that is there, with a network of its own: what is asked for now goes before what
    /// was asked for then.
    pub fn amended(&self, arguments: &UpArgs, network: &Network) -> anyhow::Result<Self> {
        let state = arguments.state_dir.display();
        if let Some(asked) = &arguments.pod_cidr {
            let asked: Subnet = asked.parse().map_err(anyhow::Error::msg)?;
            if network.subnet.parse() != Ok(asked) {
                bail!(
                    "the pods of this node have addresses of {}; for {asked} stop them first: \
                     podwright down --state-dir {state}",
                    network.subnet
                );
            }
        }
        let asked = asked_runtime(arguments)?;
        if asked.is_some() && asked != self.runtime {
            bail!(
                "the pods of this node are in {}; for {} stop them first: \
                 podwright down --state-dir {state}",
                self.runtime.as_deref().unwrap_or("its private containerd"),
                asked.unwrap_or_default(),
            );
        }
        Ok(Self {
            runtime: self.runtime.clone(),
            api_port: arguments.api_port.or(self.api_port),
            no_pod_api: arguments.no_pod_api.unwrap_or(self.no_pod_api),
        })
    }
}

/// In one spelling, so that it can be compared.
fn asked_runtime(arguments: &UpArgs) -> anyhow::Result<Option<String>> {
    let Some(text) = &arguments.container_runtime_endpoint else { return Ok(None) };
    let endpoint: Endpoint = text.parse()?;
    Ok(Some(format!("unix://{}", endpoint.path().display())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    fn arguments(line: &str) -> UpArgs {
        let command = UpArgs::augment_args(clap::Command::new("up").no_binary_name(true));
        let words = line.split_whitespace();
        UpArgs::from_arg_matches(&command.try_get_matches_from(words).unwrap()).unwrap()
    }

    fn network() -> Network {
        Network { bridge: "pw-1".into(), subnet: "10.213.0.0/16".into(), plugins: "/".into() }
    }

    #[test]
    fn what_is_asked_for_later_changes_what_it_names_and_nothing_else() {
        let first = Wishes::of(&arguments("--no-pod-api --api-port 7000")).unwrap();
        for (line, port, closed) in [
            ("", 7000, true),
            ("--api-port 7001", 7001, true),
            ("--no-pod-api", 7000, true),
            ("--no-pod-api=false", 7000, false),
            ("--pod-cidr 10.213.0.0/16", 7000, true),
        ] {
            let now = first.amended(&arguments(line), &network()).unwrap();
            assert_eq!((now.api_port, now.no_pod_api), (Some(port), closed), "{line}");
        }
        assert!(!Wishes::of(&arguments("")).unwrap().no_pod_api);
    }

    #[test]
    fn what_running_pods_stand_on_is_not_changed_under_them() {
        let private = Wishes::default();
        let guest = Wishes::of(&arguments("--container-runtime-endpoint /run/a.sock")).unwrap();
        for (wishes, line, refused) in [
            (&private, "--pod-cidr 10.9.0.0/16", true),
            (&private, "--container-runtime-endpoint /run/a.sock", true),
            (&guest, "--container-runtime-endpoint unix:///run/a.sock", false),
            (&guest, "--container-runtime-endpoint /run/b.sock", true),
            (&guest, "", false),
        ] {
            let outcome = wishes.amended(&arguments(line), &network());
            let told = outcome.as_ref().err().map(ToString::to_string);
            assert_eq!(told.is_some(), refused, "{line}");
            assert!(told.is_none_or(|told| told.contains("podwright down")), "{line}");
        }
    }
}
