//! The bed that Podwright's black-box tests run in: real containerd, runc and CNI plugins, real
//! etcd, kube-apiserver and kube-controller-manager, each test's own while it runs, on one machine.
//!
//! Why all this: what a kubelet gets wrong shows between the parts, in a cgroup that stays, a mount
//! that hides, a watch that the server ends. A fake has only the faults one thought of.
//!
//! A [`bed::Bed`] stands on [`ground::Ground`]: a folder, a network namespace and a subtree of
//! cgroups, watched over by a process ([`guardian`]) that takes everything away again, however the
//! test ends. Beds do not see each other; tests run side by side. A control plane is on ground of
//! its own, joined to the bed by a cable, and goes over to a later bed as if it had just begun.
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
pub mod bench;
pub mod bystanders;
pub mod case;
pub mod cell;
pub mod cgroup;
pub mod containerd;
pub mod control_plane;
pub mod cri;
pub mod embedded;
pub mod fixture;
pub mod ground;
pub mod guardian;
pub mod http;
pub mod images;
pub mod kubeconfig;
pub mod kubectl;
pub mod machine;
mod mounts;
pub mod netns;
pub mod pki;
pub mod process;
pub mod registry;
pub mod remains;
mod roster;
mod settings;
mod store;
pub mod tools;
pub mod vm;
pub mod wait;
pub mod watch;
pub mod wiretap;
