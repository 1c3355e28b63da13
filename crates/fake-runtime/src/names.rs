//! Name reservations.
//!
//! A name is reserved from the start of a creation until the object is removed, not only while the
//! object is visible. This is why a hanging call is hard to handle: its name is in use, and nothing
//! shows by what.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tonic::Status;

/// Names of one kind, each with the id that has it.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Arc<Mutex<BTreeMap<String, String>>>);

/// A name reserved for an object in creation; released unless it is kept.
#[derive(Debug)]
pub(super) struct Reservation {
    names: Names,
    name: String,
    kept: bool,
}

impl Names {
    /// `kind` is `sandbox` or `container`, for the error message.
    pub(super) fn reserve(
        &self,
        kind: &str,
        name: String,
        id: String,
    ) -> Result<Reservation, Status> {
        let mut names = self.0.lock();
        if let Some(holder) = names.get(&name) {
            return Err(Status::unknown(format!(
                "failed to reserve {kind} name {name:?}: name {name:?} is reserved for {holder:?}"
            )));
        }
        names.insert(name.clone(), id);
        Ok(Reservation { names: self.clone(), name, kept: false })
    }

    #[cfg(test)]
    pub(super) fn are_all_free(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub(super) fn release(&self, name: &str) {
        self.0.lock().remove(name);
    }
}

impl Reservation {
    /// The object is created: it keeps the name until it is removed.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.kept {
            self.names.release(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_reserved_during_and_after_creation() {
        let names = Names::default();
        let reserve = |id: &str| names.reserve("sandbox", "web_ns_uid_0".into(), id.into());
        let first = reserve("s1").unwrap();
        let refused = reserve("s2").unwrap_err();
        assert_eq!(
            refused.message(),
            "failed to reserve sandbox name \"web_ns_uid_0\": \
             name \"web_ns_uid_0\" is reserved for \"s1\""
        );
        drop(first);
        reserve("s3").unwrap().keep();
        assert!(reserve("s4").is_err());
        names.release("web_ns_uid_0");
        assert!(reserve("s5").is_ok());
    }
}
