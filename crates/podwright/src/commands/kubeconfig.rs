//! `podwright kubeconfig`: a kubeconfig for another user, and its revocation.
//!
//! The certificate names the user and no group, so what it may do is what bindings grant the user:
//! without bindings it may do nothing, even before it expires.

use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use jiff::SignedDuration;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding, Subject};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, ResourceExt as _};
use nix::unistd::{Uid, User};
use podwright_api::rbac::GROUP;
use serde_json::json;

use crate::cli::{KubeconfigArgs, KubeconfigMergeArgs, UserRole};
use crate::service;
use crate::standalone::kubeconfig::EntryNames;
use crate::standalone::kubeconfig::merge::{self, SameName};
use crate::standalone::{Layout, api, credentials, kubeconfig};

/// Much more than a kubeconfig that this program writes.
const MAX_INPUT: u64 = 1 << 20;

pub fn run(arguments: &KubeconfigArgs) -> anyhow::Result<()> {
    let layout = Layout::new(&std::path::absolute(&arguments.state_dir)?);
    let Some(user) = &arguments.user else { return merge_admin(&layout, arguments.same_name()) };
    check_user(user)?;
    let state = layout.state().display();
    let port = api::stored_port(&layout).with_context(|| {
        format!("no node was started in {state}, or it cannot be read. Fix: run podwright up, and use sudo")
    })?;
    if arguments.revoke {
        let removed =
            service::runtime()?.block_on(async { revoke(&client(&layout).await?, user).await })?;
        writeln!(std::io::stderr(), "{user}: removed from {removed} bindings")?;
        return Ok(());
    }
    let validity = credentials::valid_for(SignedDuration::try_from(arguments.expires)?)?;
    let pair = credentials::authority(&layout.api())?.client(user, &[], validity)?;
    let server = std::fs::read_to_string(layout.api().join("ca.crt"))
        .with_context(|| format!("cannot read the certificate authority of the node in {state}"))?;
    service::runtime()?
        .block_on(async { grant(&client(&layout).await?, user, arguments).await })?;
    let url = format!("https://127.0.0.1:{port}");
    let names = EntryNames::of_user(&layout, user);
    let text = kubeconfig::text(&url, &server, &names, &pair);
    if arguments.merge {
        return merge_for_user(&text, arguments.same_name());
    }
    write!(std::io::stdout(), "{text}")?;
    Ok(())
}

/// Merges the owner's kubeconfig of the node.
fn merge_admin(layout: &Layout, same_name: SameName) -> anyhow::Result<()> {
    let path = layout.kubeconfig();
    let text = std::fs::read_to_string(&path).with_context(|| {
        format!("cannot read {}. Fix: run podwright up, and use sudo", path.display())
    })?;
    merge_for_user(&text, same_name)?;
    let note = "the certificate is valid for at most 7 days; merge again to renew it";
    writeln!(std::io::stderr(), "{note}")?;
    Ok(())
}

/// Merges into the kubeconfig of the user that ran the command. Under sudo that is done by a process
/// of that user: in a directory of theirs, root could be made to replace any file.
fn merge_for_user(text: &str, same_name: SameName) -> anyhow::Result<()> {
    let invoking = kubeconfig::invoking_user().filter(|(user, _)| *user != 0);
    let (user, group) = match invoking {
        Some(ids) if rustix::process::geteuid().is_root() => ids,
        Some(_) | None => {
            let home = std::env::home_dir();
            return merge_here(text, home.as_deref(), same_name);
        }
    };
    let account = User::from_uid(Uid::from_raw(user))?
        .with_context(|| format!("user {user}, who ran sudo, does not exist"))?;
    // The program may be in a directory that the user cannot enter.
    let mut command = Command::new("/proc/self/exe");
    command.arg("kubeconfig-merge");
    if same_name == SameName::Replace {
        command.arg("--replace");
    }
    let mut child = command
        .uid(user)
        .gid(group)
        .env("HOME", &account.dir)
        .current_dir("/")
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot run a process as the user who ran sudo")?;
    let mut input = child.stdin.take().context("the process has no input")?;
    let sent = input.write_all(text.as_bytes());
    drop(input);
    let status = child.wait()?;
    // The process has printed the reason.
    if !status.success() {
        anyhow::bail!("the kubeconfig of {} was not changed", account.name);
    }
    sent.context("cannot pass the kubeconfig on")
}

/// The part of a merge that runs as the user who ran sudo.
pub fn run_merge(arguments: &KubeconfigMergeArgs) -> anyhow::Result<()> {
    let mut text = String::new();
    std::io::stdin().lock().take(MAX_INPUT).read_to_string(&mut text)?;
    let same_name = if arguments.replace { SameName::Replace } else { SameName::Refuse };
    merge_here(&text, std::env::home_dir().as_deref(), same_name)
}

fn merge_here(text: &str, home: Option<&Path>, same_name: SameName) -> anyhow::Result<()> {
    let context = Kubeconfig::from_yaml(text)?.current_context.unwrap_or_default();
    let target = merge::target(std::env::var_os("KUBECONFIG").as_deref(), home)?;
    let merged = merge::merge(&target, text, same_name)?;
    let mut out = std::io::stdout();
    writeln!(out, "context {context} merged into {}", merged.file.display())?;
    if let Some(backup) = merged.backup {
        writeln!(out, "the earlier file is kept as {}", backup.display())?;
    }
    if !merged.is_current {
        writeln!(out, "use it with: kubectl --context {context}")?;
    }
    Ok(())
}

/// Names that Kubernetes gives a meaning of their own are refused: a user with the name of a
/// service account would have its permissions.
fn check_user(user: &str) -> anyhow::Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.@+".contains(c);
    if user.is_empty() || user.len() > 63 || !user.chars().all(allowed) {
        anyhow::bail!(
            "--user {user:?} is not a user name. Fix: use 1 to 63 letters, digits and the characters -_.@+"
        );
    }
    Ok(())
}

async fn client(layout: &Layout) -> anyhow::Result<Client> {
    let file = Kubeconfig::read_from(layout.kubeconfig()).with_context(|| {
        format!(
            "cannot read {}. Fix: run podwright up, and use sudo",
            layout.kubeconfig().display()
        )
    })?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Creates the binding; an equal one may exist.
async fn grant(client: &Client, user: &str, arguments: &KubeconfigArgs) -> anyhow::Result<()> {
    let role = arguments.role.cluster_role();
    let name = format!("podwright:user:{user}:{role}");
    let body = json!({
        "metadata": {"name": name},
        "subjects": [{"kind": "User", "apiGroup": GROUP, "name": user}],
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
    });
    let everywhere = arguments.all_namespaces || arguments.role == UserRole::ClusterAdmin;
    let created = if everywhere {
        let binding: ClusterRoleBinding = serde_json::from_value(body)?;
        let api = Api::<ClusterRoleBinding>::all(client.clone());
        api.create(&PostParams::default(), &binding).await.map(drop)
    } else {
        let binding: RoleBinding = serde_json::from_value(body)?;
        let api = Api::<RoleBinding>::namespaced(client.clone(), &arguments.namespace);
        api.create(&PostParams::default(), &binding).await.map(drop)
    };
    match created {
        Ok(()) => Ok(()),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        Err(error) => Err(error).context("cannot create the binding. Fix: check podwright status"),
    }
}

/// Removes the user from all bindings, and those that then have no subject.
async fn revoke(client: &Client, user: &str) -> anyhow::Result<usize> {
    let without = |subjects: &Option<Vec<Subject>>| -> Option<Vec<Subject>> {
        let subjects = subjects.as_ref()?;
        let is_user = |it: &Subject| it.kind == "User" && it.name == user;
        subjects
            .iter()
            .any(is_user)
            .then(|| subjects.iter().filter(|it| !is_user(it)).cloned().collect())
    };
    let (all, delete, post) =
        (ListParams::default(), DeleteParams::default(), PostParams::default());
    let mut removed = 0;
    for mut binding in Api::<ClusterRoleBinding>::all(client.clone()).list(&all).await? {
        let Some(left) = without(&binding.subjects) else { continue };
        let api = Api::<ClusterRoleBinding>::all(client.clone());
        let name = binding.name_any();
        if left.is_empty() {
            api.delete(&name, &delete).await?;
        } else {
            binding.subjects = Some(left);
            api.replace(&name, &post, &binding).await?;
        }
        removed += 1;
    }
    for mut binding in Api::<RoleBinding>::all(client.clone()).list(&all).await? {
        let Some(left) = without(&binding.subjects) else { continue };
        let namespace = binding.namespace().unwrap_or_default();
        let api = Api::<RoleBinding>::namespaced(client.clone(), &namespace);
        let name = binding.name_any();
        if left.is_empty() {
            api.delete(&name, &delete).await?;
        } else {
            binding.subjects = Some(left);
            api.replace(&name, &post, &binding).await?;
        }
        removed += 1;
    }
    Ok(removed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use podwright_apiserver::{ApiServer, Clock, Identity, Ids, Limits, Settings, Store};
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;

    #[test]
    fn user_name_cannot_be_one_of_the_system() {
        for name in ["bob", "bob@example.com", "a_b-c.d+e"] {
            assert!(check_user(name).is_ok(), "{name}");
        }
        for name in ["", "system:serviceaccount:default:default", "a b", "a/b", &"x".repeat(64)] {
            assert!(check_user(name).is_err(), "{name}");
        }
    }

    #[tokio::test]
    async fn granted_user_can_do_what_its_role_allows_until_it_is_revoked() {
        let store = Store::in_memory(Limits::default(), Clock::system()).unwrap();
        let settings = Settings::new(Clock::system(), Ids::system());
        let server = ApiServer::start(store, settings).await.unwrap();
        let admin = Client::new(server.service(Identity::admin()), "default");
        let bob = Identity {
            user: "bob".to_owned(),
            uid: String::new(),
            groups: vec!["system:authenticated".to_owned()],
            extra: BTreeMap::new(),
        };
        let bob = Client::new(server.service(bob), "default");
        let reads = async |namespace: &str| {
            let api = Api::<k8s_openapi::api::core::v1::Pod>::namespaced(bob.clone(), namespace);
            api.list(&ListParams::default()).await.is_ok()
        };
        let arguments = KubeconfigArgs {
            state_dir: "/nowhere".into(),
            user: Some("bob".to_owned()),
            merge: false,
            replace: false,
            role: UserRole::View,
            namespace: "default".to_owned(),
            all_namespaces: false,
            expires: Duration::from_secs(600),
            revoke: false,
        };
        assert!(!reads("default").await);
        grant(&admin, "bob", &arguments).await.unwrap();
        grant(&admin, "bob", &arguments).await.unwrap(); // again
        assert!(reads("default").await && !reads("kube-system").await);
        grant(&admin, "bob", &KubeconfigArgs { all_namespaces: true, ..arguments }).await.unwrap();
        assert!(reads("kube-system").await);
        assert_eq!(revoke(&admin, "bob").await.unwrap(), 2);
        assert!(!reads("default").await && !reads("kube-system").await);
        assert_eq!(revoke(&admin, "bob").await.unwrap(), 0);
    }
}
