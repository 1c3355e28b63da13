//! Identifier types that cannot be mixed up.
//!
//! Each identifier is a type of its own: a static pod has one UID on this node and another in the
//! API (that of its mirror pod), and confusing the two deletes the wrong object. The types do not
//! convert into each other; only the pod manager maps between them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn new(id: impl Into<Arc<str>>) -> Self {
                Self(id.into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

id! {
    /// UID of a pod as this node runs it; for a static pod, the hash of its manifest.
    PodUid
}
id! {
    /// UID of the API object that mirrors a static pod.
    MirrorUid
}
id! {
    /// The runtime's id of one container instance, without the `containerd://` scheme.
    ContainerId
}
id! {
    /// The runtime's id of one pod sandbox.
    SandboxId
}

/// Namespace and name of a pod.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodName {
    #[serde(rename = "namespace")]
    pub namespace: Arc<str>,
    #[serde(rename = "name")]
    pub name: Arc<str>,
}

impl PodName {
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

/// `namespace/name`.
impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PodName({self})")
    }
}
