//! Merge of a node's kubeconfig into the user's own.
//!
//! The entries of other clusters, their order and unknown fields are kept; comments are not, as with
//! `kubectl config`. The file is replaced atomically, after a copy of it was kept beside it.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use rustix::fs::OFlags;
use serde_json::{Map, Value};

use crate::standalone::TEMPORARY;

/// Much more than any kubeconfig.
const MAX_SIZE: u64 = 8 << 20;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// The lists of a kubeconfig, and the field that holds an entry's content.
const LISTS: [(&str, &str); 3] =
    [("clusters", "cluster"), ("users", "user"), ("contexts", "context")];

/// What to do if an entry of another cluster has the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameName {
    Refuse,
    Replace,
}

/// Outcome of a merge.
#[derive(Debug, PartialEq, Eq)]
pub struct Merged {
    pub file: PathBuf,
    /// Copy of the file as it was; none if there was none, or it did not change.
    pub backup: Option<PathBuf>,
    /// The context of the node is the current one.
    pub is_current: bool,
}

/// The file to change, as kubectl chooses it: of those in `KUBECONFIG` the first that exists, else
/// the last; without the variable `~/.kube/config`.
pub fn target(kubeconfig: Option<&OsStr>, home: Option<&Path>) -> anyhow::Result<PathBuf> {
    let listed: Vec<PathBuf> = kubeconfig
        .map(|list| std::env::split_paths(list).filter(|it| !it.as_os_str().is_empty()).collect())
        .unwrap_or_default();
    let existing = listed.iter().find(|file| file.exists());
    if let Some(file) = existing.or(listed.last()) {
        return Ok(std::path::absolute(file)?);
    }
    let home = home.filter(|home| home.is_absolute());
    let home =
        home.context("there is no home directory. Fix: set KUBECONFIG to the file to use")?;
    Ok(home.join(".kube/config"))
}

/// Merges a kubeconfig into a file of the current user.
pub fn merge(file: &Path, addition: &str, same_name: SameName) -> anyhow::Result<Merged> {
    // A link is kept: its target is replaced.
    let file = match std::fs::canonicalize(file) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if std::fs::symlink_metadata(file).is_ok() {
                bail!("{} is a dangling link. Fix: delete it", file.display());
            }
            make_directory(file)?;
            file.to_owned()
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", file.display()));
        }
    };
    check_directory(&file)?;
    let _locked = Lock::take(&file)?;
    let before = read(&file)?;
    let shown = file.display();
    let existing = before.as_deref().unwrap_or_default();
    let addition = parse(addition)?;
    let parsed = parse(existing).with_context(|| format!("{shown} is not a kubeconfig"))?;
    let merged = merged(parsed.clone(), &addition, same_name)
        .with_context(|| format!("cannot merge into {shown}; nothing was changed"))?;
    let is_current = merged.get("current-context") == addition.get("current-context");
    if before.is_some() && merged == parsed {
        return Ok(Merged { file, backup: None, is_current });
    }
    let text = serde_saphyr::to_string(&merged).context("cannot write the kubeconfig")?;
    // A misread value would be noticed only when the other cluster is used.
    if parse(&text).ok().as_ref() != Some(&merged) {
        bail!(
            "{shown} has values that cannot be written again; nothing was changed. Fix: use the \
             node's own kubeconfig with KUBECONFIG"
        );
    }
    let backup = before.map(|before| back_up(&file, &before)).transpose()?;
    replace(&file, &text)?;
    Ok(Merged { file, backup, is_current })
}

/// The existing kubeconfig with the entries of the addition.
fn merged(
    mut existing: Map<String, Value>,
    addition: &Map<String, Value>,
    same_name: SameName,
) -> anyhow::Result<Map<String, Value>> {
    for (list, content) in LISTS {
        let present = existing.entry(list).or_insert_with(|| Value::Array(Vec::new()));
        if present.is_null() {
            *present = Value::Array(Vec::new());
        }
        let present = present.as_array_mut().with_context(|| format!("{list} is not a list"))?;
        for entry in addition.get(list).and_then(Value::as_array).into_iter().flatten() {
            let name = entry.get("name");
            let Some(old) = present.iter_mut().find(|it| it.get("name") == name) else {
                present.push(entry.clone());
                continue;
            };
            if same_name == SameName::Refuse && !is_same(list, old, entry, content) {
                let name = name.and_then(Value::as_str).unwrap_or_default();
                bail!(
                    "{list} has another entry {name}. Fix: rename it, or replace it with --replace"
                );
            }
            // Other fields, such as the namespace of a context, stay.
            let (Some(Value::Object(old)), Some(Value::Object(new))) =
                (old.get_mut(content), entry.get(content))
            else {
                *old = entry.clone();
                continue;
            };
            if same_name == SameName::Replace && list != "contexts" {
                old.clear();
            }
            old.extend(new.clone());
        }
    }
    for (key, value) in [("apiVersion", "v1"), ("kind", "Config")] {
        existing.entry(key).or_insert_with(|| value.into());
    }
    let current = existing.get("current-context").and_then(Value::as_str).unwrap_or_default();
    if current.is_empty()
        && let Some(context) = addition.get("current-context")
    {
        existing.insert("current-context".to_owned(), context.clone());
    }
    Ok(existing)
}

/// Whether an entry of the same name is of the same node: a cluster has the same authority, a
/// context the same cluster and user. Certificates of users are renewed, so they are not compared.
fn is_same(list: &str, old: &Value, new: &Value, content: &str) -> bool {
    let field = |entry: &Value, name: &str| entry.get(content)?.get(name).cloned();
    let equal = |name: &str| field(old, name) == field(new, name);
    match list {
        "clusters" => equal("certificate-authority-data"),
        "contexts" => equal("cluster") && equal("user"),
        _ => field(old, "exec").is_none() && field(old, "token").is_none(),
    }
}

fn parse(text: &str) -> anyhow::Result<Map<String, Value>> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match serde_saphyr::from_str(text)? {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        _ => bail!("it is not a mapping"),
    }
}

/// The content of the file, which must be a regular file of the current user.
fn read(path: &Path) -> anyhow::Result<Option<String>> {
    let shown = path.display();
    // A FIFO would block.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
    };
    let found = file.metadata().with_context(|| format!("cannot read {shown}"))?;
    let me = rustix::process::geteuid().as_raw();
    if !found.is_file() {
        bail!("{shown} is not a regular file");
    }
    if found.uid() != me {
        bail!(
            "{shown} belongs to user {} and is not changed. Fix: run as that user, or set \
             KUBECONFIG to another file",
            found.uid()
        );
    }
    let mut text = String::new();
    let read = file.take(MAX_SIZE + 1).read_to_string(&mut text);
    let read = read.with_context(|| format!("cannot read {shown}"))?;
    if u64::try_from(read).unwrap_or(u64::MAX) > MAX_SIZE {
        bail!("{shown} is larger than {} MiB", MAX_SIZE >> 20);
    }
    Ok(Some(text))
}

fn make_directory(file: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    let above = file.parent().unwrap_or(Path::new("/"));
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(above)
        .with_context(|| format!("cannot create directory {}", above.display()))
}

/// Refuses a directory in which another user could replace the file.
fn check_directory(file: &Path) -> anyhow::Result<()> {
    let above = file.parent().unwrap_or(Path::new("/"));
    let shown = above.display();
    let found = std::fs::metadata(above).with_context(|| format!("cannot read {shown}"))?;
    let me = rustix::process::geteuid().as_raw();
    let others = found.mode() & WRITABLE_BY_OTHERS != 0 && found.mode() & STICKY == 0;
    if (found.uid() != me && found.uid() != 0) || others {
        bail!("other users can replace files in {shown}. Fix: set KUBECONFIG to another file");
    }
    Ok(())
}

/// kubectl's lock, a file beside the kubeconfig.
struct Lock(PathBuf);

impl Lock {
    fn take(file: &Path) -> anyhow::Result<Self> {
        let path = beside(file, ".lock");
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(_) => Ok(Self(path)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
                "{} exists: another program is changing the kubeconfig. Fix: try again, or delete \
                 the file if none is",
                path.display()
            ),
            Err(error) => Err(error).with_context(|| format!("cannot create {}", path.display())),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // kubectl names the file in its error.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn beside(file: &Path, end: &str) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(end);
    file.with_file_name(name)
}

fn back_up(file: &Path, content: &str) -> anyhow::Result<PathBuf> {
    let now = Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    for attempt in 0..100_u32 {
        let end = match attempt {
            0 => format!(".backup-{now}"),
            attempt => format!(".backup-{now}-{attempt}"),
        };
        let path = beside(file, &end);
        let failed = || format!("cannot write {}", path.display());
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let mut copy = match opened {
            Ok(copy) => copy,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error).with_context(failed),
        };
        copy.write_all(content.as_bytes()).and_then(|()| copy.sync_all()).with_context(failed)?;
        return Ok(path);
    }
    bail!("cannot keep a copy of {}: too many exist", file.display())
}

fn replace(file: &Path, text: &str) -> anyhow::Result<()> {
    let above = file.parent().unwrap_or(Path::new("/"));
    let write = || {
        let mut new = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(above)?;
        new.write_all(text.as_bytes())?;
        new.as_file().sync_all()?;
        new.persist(file).map_err(|error| error.error)?;
        File::open(above)?.sync_all()
    };
    write().with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn node(cluster: &str, authority: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: {cluster}\n\
             clusters:\n- name: {cluster}\n  cluster:\n    server: https://127.0.0.1:6443\n    \
             certificate-authority-data: {authority}\n\
             users:\n- name: admin@{cluster}\n  user:\n    client-key-data: key\n\
             contexts:\n- name: {cluster}\n  context:\n    cluster: {cluster}\n    \
             user: admin@{cluster}\n"
        )
    }

    const OTHERS: &str = "\
# mine
apiVersion: v1
kind: Config
preferences: {colors: true}
current-context: work
clusters:
- name: zeta
  cluster: {server: 'https://z', extensions: [{name: x, extension: {a: '0123', b: 'yes', c: null}}]}
- {name: alpha, cluster: {server: 'https://a', insecure-skip-tls-verify: true}}
users:
- name: me
  user: {exec: {apiVersion: v1, command: login, args: ['1', 'on', '~', '1e3']}}
contexts:
- {name: work, context: {cluster: zeta, user: me, namespace: '007'}}
extra: \"line\\nbreak: # not a comment\"
";

    fn names(map: &Map<String, Value>, list: &str) -> Vec<String> {
        let entries = map[list].as_array().unwrap();
        entries.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn foreign_entries_and_their_order_are_kept() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("config");
        std::fs::write(&file, OTHERS).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let merged = merge(&file, &node("podwright", "CA"), SameName::Refuse).unwrap();
        assert!(!merged.is_current);
        let backup = merged.backup.unwrap();
        assert_eq!(std::fs::read_to_string(&backup).unwrap(), OTHERS);
        for path in [&file, &backup] {
            let mode = std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", path.display());
        }
        let (before, mut after) =
            (parse(OTHERS).unwrap(), parse(&std::fs::read_to_string(&file).unwrap()).unwrap());
        assert_eq!(names(&after, "clusters"), ["zeta", "alpha", "podwright"]);
        assert_eq!(names(&after, "users"), ["me", "admin@podwright"]);
        assert_eq!(names(&after, "contexts"), ["work", "podwright"]);
        for (list, _) in LISTS {
            after[list].as_array_mut().unwrap().pop();
        }
        assert_eq!(after, before);
        // Again: nothing changes, so there is no further copy.
        let again = merge(&file, &node("podwright", "CA"), SameName::Refuse).unwrap();
        assert_eq!(again.backup, None);
        let left = std::fs::read_dir(home.path()).unwrap().count();
        assert_eq!(left, 2, "the file and one copy");
    }

    #[test]
    fn new_file_gets_the_context_and_two_nodes_do_not_replace_each_other() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(".kube/config");
        let merged = merge(&file, &node("podwright", "CA"), SameName::Refuse).unwrap();
        assert_eq!((merged.backup, merged.is_current), (None, true));
        let merged = merge(&file, &node("podwright-2", "CA2"), SameName::Refuse).unwrap();
        assert!(merged.backup.is_some() && !merged.is_current);
        let after = parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(names(&after, "contexts"), ["podwright", "podwright-2"]);
        let read = kube::config::Kubeconfig::read_from(&file).unwrap();
        assert_eq!(read.auth_infos.len(), 2);
    }

    #[test]
    fn entry_of_another_cluster_with_the_same_name_is_replaced_only_on_request() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("config");
        merge(&file, &node("podwright", "old"), SameName::Refuse).unwrap();
        let before = std::fs::read_to_string(&file).unwrap();
        let refused = merge(&file, &node("podwright", "new"), SameName::Refuse).unwrap_err();
        assert!(format!("{refused:#}").contains("--replace"), "{refused:#}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
        assert!(!beside(&file, ".lock").exists());
        merge(&file, &node("podwright", "new"), SameName::Replace).unwrap();
        let after = parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(after["clusters"][0]["cluster"]["certificate-authority-data"], "new");
    }

    #[test]
    fn namespace_that_the_user_set_in_the_context_is_kept() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("config");
        let set = node("podwright", "CA")
            .replace("    user: admin", "    namespace: shop\n    user: admin");
        std::fs::write(&file, set).unwrap();
        let renewed = node("podwright", "CA").replace("key-data: key", "key-data: renewed");
        merge(&file, &renewed, SameName::Refuse).unwrap();
        let after = parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(after["contexts"][0]["context"]["namespace"], "shop");
        assert_eq!(after["users"][0]["user"]["client-key-data"], "renewed");
    }

    #[test]
    fn link_is_kept_and_what_is_not_a_kubeconfig_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let (file, real) = (home.path().join("config"), home.path().join("dotfiles"));
        std::fs::write(&real, OTHERS).unwrap();
        std::os::unix::fs::symlink("dotfiles", &file).unwrap();
        let merged = merge(&file, &node("podwright", "CA"), SameName::Refuse).unwrap();
        assert_eq!(merged.file, real.canonicalize().unwrap());
        assert!(std::fs::symlink_metadata(&file).unwrap().is_symlink());

        let addition = node("podwright", "CA");
        let refused =
            |file: &Path| format!("{:#}", merge(file, &addition, SameName::Replace).unwrap_err());
        let dangling = home.path().join("dangling");
        std::os::unix::fs::symlink("nowhere", &dangling).unwrap();
        assert!(refused(&dangling).contains("dangling"));
        let list = home.path().join("list");
        std::fs::write(&list, "- a\n").unwrap();
        assert!(refused(&list).contains("not a kubeconfig"));
        let wrong = home.path().join("wrong");
        std::fs::write(&wrong, "clusters: 7\n").unwrap();
        assert!(refused(&wrong).contains("clusters is not a list"));
        assert!(refused(home.path()).contains("not a regular file"));
        let fifo = home.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(refused(&fifo).contains("not a regular file"));
        let open = home.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused(&open.join("config")).contains("other users"));
        std::fs::write(beside(&real, ".lock"), "").unwrap();
        assert!(refused(&file).contains("another program"));
    }

    #[test]
    fn target_follows_the_rules_of_kubectl() {
        let home = tempfile::tempdir().unwrap();
        let there = home.path().join("there");
        std::fs::write(&there, "").unwrap();
        let there = there.to_str().unwrap();
        for (list, want) in [
            (None, home.path().join(".kube/config").to_str().unwrap().to_owned()),
            (Some(String::new()), home.path().join(".kube/config").to_str().unwrap().to_owned()),
            (Some("/a/b:/c/d".to_owned()), "/c/d".to_owned()),
            (Some(format!("/a/b:{there}:/c/d")), there.to_owned()),
            (Some("/a/b::".to_owned()), "/a/b".to_owned()),
        ] {
            let found = target(list.as_deref().map(OsStr::new), Some(home.path())).unwrap();
            assert_eq!(found.to_str().unwrap(), want, "{list:?}");
        }
        assert!(target(None, None).is_err());
    }
}
