//! API tests: requests to the server and their responses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::print_stdout)]

mod access;
mod apply;
mod binding;
mod claims;
mod deleting;
mod dependents;
mod encodings;
mod full_disk;
mod golden;
mod hostile;
mod kube_client;
mod metrics;
mod namespaces;
mod paging;
mod pod_security;
mod rbac;
mod serving;
mod test_server;
mod tokens;
mod watching;
mod wording;
mod writing;
