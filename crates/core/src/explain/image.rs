//! What to do about an image that cannot be pulled.

use crate::attempts::StartError;

/// Facts about the image of a container that could not be started.
#[derive(Clone, Copy, Debug)]
pub struct MissingImage<'a> {
    pub container: &'a str,
    pub image: &'a str,
    /// `imagePullPolicy`; empty means the API's default.
    pub policy: &'a str,
    pub reason: StartError,
    pub message: &'a str,
    /// The node has the image.
    pub is_on_node: bool,
}

/// `None`: the reason has nothing to do with a pull.
pub fn fix(missing: &MissingImage<'_>) -> Option<String> {
    let MissingImage { container, image, policy, reason, message, is_on_node } = *missing;
    match reason {
        StartError::ErrImagePull
        | StartError::ImagePullBackOff
        | StartError::RegistryUnavailable
        | StartError::SignatureValidationFailed => {}
        StartError::ErrImageNeverPull => {
            return Some(format!(
                "load the image on this node (podwright images load FILE), or set \
                 imagePullPolicy: IfNotPresent for {container}"
            ));
        }
        StartError::InvalidImageName
        | StartError::ImageInspectError
        | StartError::CreateContainerConfigError
        | StartError::PreCreateHookError
        | StartError::CreateContainerError
        | StartError::PreStartHookError
        | StartError::RunContainerError
        | StartError::PostStartHookError
        | StartError::CrashLoopBackOff => return None,
    }
    if is_on_node {
        return Some(match policy {
            "IfNotPresent" | "Never" => format!(
                "give the pod the imagePullSecrets with which {image} was pulled: it is on this \
                 node, but not every pod may use it"
            ),
            _ => format!(
                "set imagePullPolicy: IfNotPresent for {container}: {image} is on this node, but \
                 imagePullPolicy: Always asks the registry at every start"
            ),
        });
    }
    let message = message.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    Some(if says(&["no such host", "lookup ", "i/o timeout", "network is unreachable"]) {
        format!("check the name of the registry, DNS and the network of this node: {image}")
    } else if says(&["unauthorized", "401", "403", "denied", "forbidden"]) {
        format!(
            "check that {image} exists, and give the pod imagePullSecrets if the registry wants \
             credentials"
        )
    } else if says(&["certificate", "x509", "tls:"]) {
        format!("make the runtime trust the certificate of the registry of {image}")
    } else if says(&["not found", "manifest unknown", "404"]) {
        format!("check the image name and its tag: the registry has no {image}")
    } else {
        format!("check the image name and the registry: {image}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fix_of_a_failed_pull_follows_what_the_registry_said_and_what_is_on_the_node() {
        let pull = StartError::ErrImagePull;
        for (reason, policy, on_node, message, want) in [
            (pull, "Always", true, "refused", Some("set imagePullPolicy: IfNotPresent for app")),
            (pull, "", true, "refused", Some("set imagePullPolicy: IfNotPresent for app")),
            (pull, "IfNotPresent", true, "", Some("imagePullSecrets with which i:1 was pulled")),
            (pull, "Always", false, "connection refused", Some("check the image name and the reg")),
            (pull, "Always", false, "manifest unknown", Some("the registry has no i:1")),
            (pull, "Always", false, "401 Unauthorized", Some("imagePullSecrets if the registry")),
            (pull, "Always", false, "dial: no such host", Some("DNS")),
            (pull, "Always", false, "x509: unknown authority", Some("trust the certificate")),
            (StartError::ImagePullBackOff, "Always", true, "", Some("IfNotPresent")),
            (StartError::ErrImageNeverPull, "Never", false, "", Some("podwright images load")),
            (StartError::CrashLoopBackOff, "Always", true, "", None),
        ] {
            let (container, image, is_on_node) = ("app", "i:1", on_node);
            let missing = MissingImage { container, image, policy, reason, message, is_on_node };
            let fix = fix(&missing);
            let has = want.is_none_or(|want| fix.as_ref().is_some_and(|fix| fix.contains(want)));
            assert!(has && fix.is_some() == want.is_some(), "{missing:?}: {fix:?}");
            if on_node {
                assert!(!fix.unwrap_or_default().contains("the image name"), "{missing:?}");
            }
        }
    }
}
