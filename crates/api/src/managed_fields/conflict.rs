//! Conflicts between field managers.

use super::entry::{Manager, Operation};
use super::field_set::FieldSet;

/// Bytes of the fields that are listed; all are counted.
const MAX_LISTED_BYTES: usize = 64 << 10;

/// Fields that an apply would change and that others own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflicts(pub(super) Vec<(Manager, FieldSet)>);

/// One field of a conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    pub message: String,
    pub field: String,
}

impl Conflicts {
    /// Every field, with its owner.
    pub fn causes(&self) -> Vec<Cause> {
        let mut causes = Vec::new();
        for (owner, paths) in self.by_owner() {
            let message = format!("conflict with {owner}");
            causes.extend(paths.into_iter().map(|field| Cause { message: message.clone(), field }));
        }
        causes
    }

    /// The message that clients print.
    pub fn message(&self) -> String {
        let owners = self.by_owner();
        let count: usize = self.0.iter().map(|(_, set)| set.len()).sum();
        if count == 1
            && let [(owner, paths)] = owners.as_slice()
            && let [path] = paths.as_slice()
        {
            return format!("Apply failed with 1 conflict: conflict with {owner}: {path}");
        }
        let mut lines = Vec::new();
        for (owner, paths) in owners {
            lines.push(format!("conflicts with {owner}:"));
            lines.extend(paths.into_iter().map(|path| format!("- {path}")));
        }
        format!("Apply failed with {count} conflicts: {}", lines.join("\n"))
    }

    fn by_owner(&self) -> Vec<(String, Vec<String>)> {
        let mut left = MAX_LISTED_BYTES;
        let mut owners = Vec::with_capacity(self.0.len());
        for (manager, set) in &self.0 {
            let (owner, paths) = (shown(manager), set.paths(left));
            let listed = paths.iter().map(String::len).sum::<usize>() + owner.len();
            left = left.saturating_sub(listed);
            owners.push((owner, paths));
        }
        owners.sort();
        owners
    }
}

fn shown(manager: &Manager) -> String {
    let mut text = format!("{:?}", manager.name);
    if !manager.subresource.is_empty() {
        text.push_str(&format!(" with subresource {:?}", manager.subresource));
    }
    if manager.operation == Operation::Update {
        text.push_str(&format!(" using {}", manager.api_version));
    }
    text
}
