//! Files of an image layer, added in any order and written sorted.

use std::collections::BTreeMap;

use super::{Blob, Error};

/// The files of a layer. All belong to root, with no modification time.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    tree: Tree,
}

/// A layer in its final bytes, which several images can share.
#[derive(Clone, Debug)]
pub struct PackedLayer(pub(super) Blob);

impl Layer {
    /// Adds a directory. Needed only for one that is empty or not of mode 755: parent directories
    /// are created automatically.
    pub fn directory(&mut self, path: &str, mode: u32) -> Result<(), Error> {
        self.tree.insert(path, Node::Directory { mode })
    }

    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<(), Error> {
        self.tree.file(path, mode, content)
    }

    pub fn symlink(&mut self, path: &str, target: &str) -> Result<(), Error> {
        self.tree.insert(path, Node::Symlink { target: target.into() })
    }

    pub fn pack(&self) -> Result<PackedLayer, Error> {
        Ok(PackedLayer(Blob::new(self.tree.tar()?)))
    }
}

/// A directory tree that gives the same tar regardless of the order it was built in.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    /// By path without the leading slash, so that a directory comes before its content.
    nodes: BTreeMap<String, Node>,
}

#[derive(Clone, Debug)]
enum Node {
    Directory { mode: u32 },
    File { mode: u32, content: Vec<u8> },
    Symlink { target: String },
}

impl Tree {
    pub(super) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<(), Error> {
        self.insert(path, Node::File { mode, content: content.into() })
    }

    fn insert(&mut self, path: &str, node: Node) -> Result<(), Error> {
        let relative = relative(path)?;
        for (end, _) in relative.match_indices('/') {
            let parent = relative.get(..end).unwrap_or_default();
            match self.nodes.get(parent) {
                Some(Node::Directory { .. }) => {}
                Some(Node::File { .. } | Node::Symlink { .. }) => {
                    return Err(Error::Parent { path: path.into(), parent: format!("/{parent}") });
                }
                None => {
                    self.nodes.insert(parent.into(), Node::Directory { mode: 0o755 });
                }
            }
        }
        match self.nodes.get(relative) {
            None => {}
            // A directory that was created as a parent may still be given its mode.
            Some(Node::Directory { mode: 0o755 }) if matches!(node, Node::Directory { .. }) => {}
            Some(_) => return Err(Error::Taken { path: path.into() }),
        }
        self.nodes.insert(relative.into(), node);
        Ok(())
    }

    pub(super) fn tar(&self) -> Result<Vec<u8>, Error> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, node) in &self.nodes {
            let mut header = tar::Header::new_gnu();
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            let written = match node {
                Node::Directory { mode } => {
                    header.set_entry_type(tar::EntryType::Directory);
                    header.set_mode(*mode);
                    header.set_size(0);
                    tar.append_data(&mut header, format!("{path}/"), &[][..])
                }
                Node::File { mode, content } => {
                    header.set_entry_type(tar::EntryType::Regular);
                    header.set_mode(*mode);
                    header.set_size(content.len() as u64);
                    tar.append_data(&mut header, path, content.as_slice())
                }
                Node::Symlink { target } => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_size(0);
                    tar.append_link(&mut header, path, target)
                }
            };
            written.map_err(|source| Error::Write { path: format!("/{path}"), source })?;
        }
        tar.into_inner().map_err(|source| Error::Write { path: "its end".into(), source })
    }
}

fn relative(path: &str) -> Result<&str, Error> {
    let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    path.strip_prefix('/')
        .filter(|relative| relative.split('/').all(plain))
        .ok_or_else(|| Error::Path { path: path.into() })
}
