//! `podwright kubeconfig`: a kubeconfig for another user, and its revocation.
//!
//! The certificate names the user and no group, so what it may do is what bindings grant the user:
//! without bindings it may do nothing, even before it expires.

use std::io::Write as _;

use anyhow::Context as _;
use jiff::SignedDuration;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding, Subject};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, ResourceExt as _};
use podwright_api::rbac::GROUP;
use serde_json::json;

use crate::cli::{KubeconfigArgs, UserRole};
use crate::service;
use crate::standalone::{Layout, api, credentials, kubeconfig};

pub fn run(arguments: &KubeconfigArgs) -> anyhow::Result<()> {
    let layout = Layout::new(&std::path::absolute(&arguments.state_dir)?);
    check_user(&arguments.user)?;
    let state = layout.state().display();
    let port = api::stored_port(&layout).with_context(|| {
        format!("no node was started in {state}, or it cannot be read. Fix: run podwright up, and use sudo")
    })?;
    let user = &arguments.user;
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
    service::runtime()?.block_on(async { grant(&client(&layout).await?, arguments).await })?;
    let url = format!("https://127.0.0.1:{port}");
    let text = kubeconfig::text(&url, &server, user, &pair);
    write!(std::io::stdout(), "{text}")?;
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
async fn grant(client: &Client, arguments: &KubeconfigArgs) -> anyhow::Result<()> {
    let role = arguments.role.cluster_role();
    let name = format!("podwright:user:{}:{role}", arguments.user);
    let body = json!({
        "metadata": {"name": name},
        "subjects": [{"kind": "User", "apiGroup": GROUP, "name": arguments.user}],
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
            user: "bob".to_owned(),
            role: UserRole::View,
            namespace: "default".to_owned(),
            all_namespaces: false,
            expires: Duration::from_secs(600),
            revoke: false,
        };
        assert!(!reads("default").await);
        grant(&admin, &arguments).await.unwrap();
        grant(&admin, &arguments).await.unwrap(); // again
        assert!(reads("default").await && !reads("kube-system").await);
        grant(&admin, &KubeconfigArgs { all_namespaces: true, ..arguments }).await.unwrap();
        assert!(reads("kube-system").await);
        assert_eq!(revoke(&admin, "bob").await.unwrap(), 2);
        assert!(!reads("default").await && !reads("kube-system").await);
        assert_eq!(revoke(&admin, "bob").await.unwrap(), 0);
    }
}
