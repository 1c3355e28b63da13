//! Test bed for Podwright's black-box tests: real containerd, runc and CNI plugins, real etcd,
//! kube-apiserver and kube-controller-manager, exclusive to each test while it runs, on one
//! machine.
//!
//! Real components are used because a kubelet's faults show in their interaction: a cgroup that is
//! not removed, a mount that hides another, a watch that the server closes. A fake only has the
//! faults its author thought of.
//!
//! A [`bed::Bed`] runs in a [`environment::TestEnvironment`]: a directory, a network namespace
//! and a cgroup subtree, with a cleanup process ([`cleanup`]) that removes everything however the test
//! ends. Beds do not see each other; tests run concurrently. A control plane has its own
//! environment, connected to the bed by a veth pair, and is reset and reused by later beds.
//! `testbed/provide` obtains the programs.
//!
//! ```no_run
//! # async fn test() -> anyhow::Result<()> {
//! use podwright_e2e::bed::Bed;
//!
//! let bed = Bed::builder().control_plane().start().await?;
//! let agent = bed.agent("node-1").joined()?.start()?;
//! agent.healthy().await?;
//! let nodes = bed.kubectl(Default::default())?.run(&["get", "nodes"]).await?;
//! # Ok(())
//! # }
//! ```

pub mod agent;
pub mod audit;
pub mod bed;
mod bed_list;
pub mod bench;
pub mod bystanders;
pub mod case;
pub mod cgroup;
pub mod cleanup;
pub mod containerd;
pub mod control_plane;
pub mod cri;
pub mod cri_proxy;
pub mod embedded;
pub mod environment;
pub mod fixture;
pub mod http;
pub mod images;
pub mod isolation;
pub mod kubeconfig;
pub mod kubectl;
pub mod leftovers;
pub mod machine;
mod mounts;
pub mod netns;
pub mod pki;
pub mod process;
pub mod registry;
mod settings;
mod store;
pub mod tools;
pub mod vm;
pub mod wait;
pub mod watch;
