//! Pod sources: the API server, manifest files, a manifest URL; adoption of
//! static pods that run already.

pub mod adoption;
pub mod api;
pub mod backoff;
pub mod file;
pub mod problems;
pub mod url;
