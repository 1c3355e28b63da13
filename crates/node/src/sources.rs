//! Pod sources: the API server, manifest files, a manifest URL.

pub mod api;
pub mod backoff;
pub mod file;
pub mod url;
