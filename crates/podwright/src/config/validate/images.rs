//! Validation of image pull settings.

use super::super::kubelet::ImageCredentialsVerification;
use super::Validator;

pub(super) fn examine(validator: &mut Validator<'_>) {
    parallel_pulls(validator);
    verification(validator);
}

fn parallel_pulls(validator: &mut Validator<'_>) {
    const FIELD: &str = "maxParallelImagePulls";
    let c = validator.configuration;
    let Some(limit) = c.max_parallel_image_pulls else { return };
    validator.require(limit >= 1, FIELD, "must be 1 or more");
    validator.require(
        c.serialize_image_pulls != Some(true) || limit <= 1,
        FIELD,
        "must not be more than 1 while serializeImagePulls is true",
    );
}

fn verification(validator: &mut Validator<'_>) {
    const POLICY: &str = "imagePullCredentialsVerificationPolicy";
    const ALLOWED: &str = "preloadedImagesVerificationAllowlist";
    let c = validator.configuration;
    let policy = c.image_pull_credentials_verification_policy;
    let lists_images = !c.preloaded_images_verification_allowlist.is_empty();
    if !validator.gates.enabled("KubeletEnsureSecretPulledImages") {
        let message = "must not be set while KubeletEnsureSecretPulledImages is off";
        validator.require(policy.is_none(), POLICY, message);
        validator.require(!lists_images, ALLOWED, message);
        return;
    }
    let by_list = policy == Some(ImageCredentialsVerification::NeverVerifyAllowlistedImages);
    validator.require(
        !lists_images || by_list,
        ALLOWED,
        "must be empty unless imagePullCredentialsVerificationPolicy is NeverVerifyAllowlistedImages",
    );
}
