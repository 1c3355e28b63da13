//! Black-box cases on real components. One binary, so that it is linked once; one module per
//! subject.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod admission;
mod agent;
mod api_parity;
mod api_pods;
mod attacks;
mod bed;
mod bench;
mod boot;
mod bystanders;
mod clean_up;
mod cluster;
mod control_plane;
mod disruptions;
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
mod operations;
mod privilege;
mod probes;
mod resize;
mod standalone;
mod static_pods;
mod supervision;
mod traffic;
mod up_access;
mod up_api;
mod up_kubectl;
mod up_scheduling;
mod up_verbs;
mod upgrade;
mod users;
mod volumes;
mod why;
