//! Where pods come from: the API server, manifest files, a URL.

pub mod api;
pub mod backoff;
pub mod file;
pub mod url;
