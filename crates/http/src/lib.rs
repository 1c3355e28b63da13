//! A connection from its first byte to its last, for whoever serves one.
//!
//! The kubelet's server and the embedded API server both listen to strangers. Until a stranger has
//! asked for something, and after it was answered, its connection must cost little and not stay for
//! ever: [`speak`] sees to that, and [`Places`] that nobody takes all the room. What is asked, and who
//! may ask it, is the servers' own business.

mod conversation;
mod places;
mod quiet;

pub use conversation::{HEADER_BYTES, HEADERS, Negotiated, keep_alive, speak};
pub use places::{Free, Place, Places};
pub use quiet::Held;
