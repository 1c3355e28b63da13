//! Keys of objects and of sets of objects in the store.

use std::fmt;

use crate::registry::{Durability, RESOURCES, Resource};

/// `pods/default/web` or `nodes/node1`. The order of keys is the order of lists.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Box<str>);

impl Key {
    pub fn new(resource: &Resource, namespace: &str, name: &str) -> Self {
        if resource.namespaced {
            Self(format!("{}/{namespace}/{name}", resource.storage).into())
        } else {
            Self(format!("{}/{name}", resource.storage).into())
        }
    }

    pub(super) fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// Empty for a cluster-scoped object.
    pub fn namespace(&self) -> &str {
        let mut parts = self.0.split('/').skip(1);
        match (parts.next(), parts.next()) {
            (Some(namespace), Some(_)) => namespace,
            _ => "",
        }
    }

    fn durability(&self) -> Durability {
        let storage = self.0.split('/').next().unwrap_or_default();
        durability(storage)
    }

    pub(super) fn in_memory(&self) -> bool {
        match self.durability() {
            Durability::Disk => false,
            Durability::DiskExceptIn(namespace) => self.namespace() == namespace,
            Durability::Expiring => true,
        }
    }

    pub(super) fn expires(&self) -> bool {
        self.durability() == Durability::Expiring
    }
}

fn durability(storage: &str) -> Durability {
    let resource = RESOURCES.iter().find(|resource| resource.storage == storage);
    resource.map_or(Durability::Disk, |resource| resource.durability)
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// All objects of a resource, or those of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    prefix: Box<str>,
    durability: Durability,
}

impl Scope {
    pub fn new(resource: &Resource, namespace: Option<&str>) -> Self {
        let prefix = match namespace.filter(|_| resource.namespaced) {
            Some(namespace) => format!("{}/{namespace}/", resource.storage),
            None => format!("{}/", resource.storage),
        };
        Self { prefix: prefix.into(), durability: resource.durability }
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn holds(&self, key: &str) -> bool {
        key.starts_with(&*self.prefix)
    }

    pub(super) fn may_be_in_memory(&self) -> bool {
        match self.durability {
            Durability::Disk => false,
            Durability::DiskExceptIn(_) | Durability::Expiring => true,
        }
    }

    pub(super) fn may_be_on_disk(&self) -> bool {
        match self.durability {
            Durability::Disk | Durability::DiskExceptIn(_) => true,
            Durability::Expiring => false,
        }
    }

    /// The first key after the scope: its prefix ends in `/`, and `0` follows `/`.
    pub(super) fn end(&self) -> String {
        let mut end = self.prefix.to_string();
        end.pop();
        end.push('0');
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;

    #[test]
    fn key_has_namespace_name_and_durability() {
        for (key, namespace, name, in_memory, expires) in [
            (Key::new(&registry::PODS, "a", "web"), "a", "web", false, false),
            (Key::new(&registry::NODES, "", "n1"), "", "n1", false, false),
            (
                Key::new(&registry::LEASES, "kube-node-lease", "n1"),
                "kube-node-lease",
                "n1",
                true,
                false,
            ),
            (Key::new(&registry::LEASES, "mine", "leader"), "mine", "leader", false, false),
            (Key::new(&registry::EVENTS_V1, "a", "e"), "a", "e", true, true),
        ] {
            assert_eq!((key.namespace(), key.name()), (namespace, name), "{key}");
            assert_eq!((key.in_memory(), key.expires()), (in_memory, expires), "{key}");
        }
    }

    #[test]
    fn scope_holds_only_its_own_namespace() {
        let scope = Scope::new(&registry::PODS, Some("a"));
        for (key, held) in [("pods/a/x", true), ("pods/a-b/x", false), ("podsx/a/x", false)] {
            assert_eq!(scope.holds(key), held, "{key}");
            let between = key >= scope.prefix() && key < scope.end().as_str();
            assert_eq!(between, held, "{key} by range");
        }
    }
}
