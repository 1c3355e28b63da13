//! Black-box cases on real parts. One binary, so that it is linked once; each module is a subject.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod agent;
mod alike;
mod api_pods;
mod bed;
mod bench;
mod boot;
mod bystanders;
mod clean_up;
mod cluster;
mod control_plane;
mod down;
mod endurance;
mod gc;
mod golden;
mod host_mounts;
mod images;
mod joining;
mod kubelet_server;
mod logs;
mod machine_unchanged;
mod node_object;
mod privilege;
mod probes;
mod resize;
mod room;
mod standalone;
mod static_pods;
mod traffic;
mod up_kubectl;
mod up_reach;
mod up_room;
mod up_verbs;
mod upgrade;
mod upheaval;
mod users;
mod volumes;
mod why;
