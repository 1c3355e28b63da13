//! Endpoint of the runtime.

use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A unix socket. The CRI has no other transport on Linux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEndpoint {
    #[error(
        "runtime endpoint {0:?}: only support unix socket endpoint, such as unix:///run/containerd/containerd.sock"
    )]
    NotUnix(String),
    #[error("runtime endpoint {0:?}: the socket's path must be absolute")]
    Relative(String),
}

impl Endpoint {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let path = match text.split_once("://") {
            Some(("unix", path)) => path,
            Some(_) => return Err(BadEndpoint::NotUnix(text.into())),
            None => text,
        };
        if !path.starts_with('/') {
            return Err(BadEndpoint::Relative(text.into()));
        }
        Ok(Self(path.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_path_is_a_unix_socket_and_tcp_is_refused() {
        let path = |text: &str| text.parse::<Endpoint>().map(|e| e.0);
        assert_eq!(path("unix:///run/x.sock"), Ok("/run/x.sock".into()));
        assert_eq!(path("/run/x.sock"), Ok("/run/x.sock".into()));
        assert_eq!(path("tcp://1.2.3.4:5"), Err(BadEndpoint::NotUnix("tcp://1.2.3.4:5".into())));
        assert_eq!(path("x.sock"), Err(BadEndpoint::Relative("x.sock".into())));
    }
}
