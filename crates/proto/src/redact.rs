//! Debug implementations for messages that carry secrets.
//!
//! Requests that contain these messages derive Debug, so a request can be logged without leaking a
//! secret.

use std::fmt;

use crate::cri::{AuthConfig, KeyValue};

impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthConfig")
            .field("server_address", &self.server_address)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// The value of a variable may come from a Secret; the name does not.
impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValue").field("key", &self.key).finish_non_exhaustive()
    }
}
