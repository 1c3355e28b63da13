//! Settings of image pulls: parallelism, rate limits, credentials and credential verification.

use std::path::{Path, PathBuf};

use anyhow::Context;
use podwright_core::credential::{self, Provider};
use podwright_core::image::access::Verification;
use podwright_node::runtime::images::ImageSettings;

use crate::config::KubeletSettings;
use crate::config::kubelet::{
    ImageCredentialsVerification as Policy, ImagePulls, KubeletConfiguration,
};

pub(super) fn settings(settings: &KubeletSettings) -> anyhow::Result<ImageSettings> {
    let (configuration, options) = (&settings.configuration, &settings.options);
    let listed = configuration.preloaded_images_verification_allowlist.clone();
    let verification = match configuration.image_pull_credentials_verification_policy {
        _ if !settings.gates.enabled("KubeletEnsureSecretPulledImages") => Verification::Off,
        None | Some(Policy::NeverVerifyPreloadedImages) => Verification::NeverVerifyPreloaded,
        Some(Policy::NeverVerify) => Verification::NeverVerify,
        Some(Policy::NeverVerifyAllowlistedImages) => Verification::NeverVerifyListed(listed),
        Some(Policy::AlwaysVerify) => Verification::AlwaysVerify,
    };
    let at_least = |value: i32| u32::try_from(value).unwrap_or(0);
    let mut docker_configs = vec![options.root_dir.clone()];
    docker_configs.extend(std::env::current_dir());
    docker_configs.extend(std::env::home_dir().map(|home| home.join(".docker")));
    docker_configs.push("/.docker".into());
    let plugins = credential_plugins(options.image_credential_provider_config.as_deref())?;
    let shows_tokens = settings.gates.enabled("KubeletServiceAccountTokenForCredentialProviders");
    if let Some(plugin) = plugins.iter().find(|plugin| plugin.token.is_some() && !shows_tokens) {
        anyhow::bail!(
            "credential provider {:?} has tokenAttributes, but the feature gate \
             KubeletServiceAccountTokenForCredentialProviders is off",
            plugin.name
        );
    }
    Ok(ImageSettings {
        parallel: parallel_pulls(configuration),
        per_second: at_least(configuration.registry_pull_qps),
        burst: at_least(configuration.registry_burst),
        verification,
        docker_configs,
        plugins,
        plugins_dir: options.image_credential_provider_bin_dir.clone().unwrap_or_default(),
    })
}

/// Providers of a configuration file, or of all files of a directory in the order of their names.
fn credential_plugins(path: Option<&Path>) -> anyhow::Result<Vec<Provider>> {
    let Some(path) = path else { return Ok(Vec::new()) };
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        files = std::fs::read_dir(path)?
            .map(|entry| Ok(entry?.path()))
            .collect::<anyhow::Result<_>>()?;
        let is_config = |path: &PathBuf| {
            let ending = path.extension().and_then(|ending| ending.to_str());
            matches!(ending, Some("json" | "yaml" | "yml"))
        };
        files.retain(is_config);
        files.sort();
    }
    let read = |file: &PathBuf| -> anyhow::Result<serde_json::Value> {
        let text = std::fs::read_to_string(file)?;
        Ok(serde_saphyr::from_str(&text)?)
    };
    let documents = files
        .iter()
        .map(|file| read(file).with_context(|| file.display().to_string()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    credential::providers(&documents).with_context(|| path.display().to_string())
}

fn parallel_pulls(configuration: &KubeletConfiguration) -> usize {
    match configuration.image_pulls() {
        ImagePulls::OneAtATime => 1,
        ImagePulls::Parallel { at_most } => usize::try_from(at_most).unwrap_or(1),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn credential_plugins_are_read_from_a_file_or_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let config = |name: &str| {
            format!(
                "kind: CredentialProviderConfig\napiVersion: kubelet.config.k8s.io/v1\nproviders:\n\
                 - name: {name}\n  matchImages: ['*.io']\n  defaultCacheDuration: 1m\n  \
                 apiVersion: credentialprovider.kubelet.k8s.io/v1\n"
            )
        };
        std::fs::write(directory.path().join("2.yaml"), config("second")).unwrap();
        std::fs::write(directory.path().join("1.yml"), config("first")).unwrap();
        std::fs::write(directory.path().join("notes.txt"), "not one").unwrap();
        let names = |path: &Path| -> Vec<String> {
            let plugins = credential_plugins(Some(path)).unwrap();
            plugins.into_iter().map(|plugin| plugin.name).collect()
        };
        assert_eq!(names(directory.path()), ["first", "second"]);
        assert_eq!(names(&directory.path().join("2.yaml")), ["second"]);
        assert!(credential_plugins(None).unwrap().is_empty());
        std::fs::write(directory.path().join("3.yaml"), config("first")).unwrap();
        let error = format!("{:#}", credential_plugins(Some(directory.path())).unwrap_err());
        assert!(error.contains("named twice"), "{error}");
    }
}
