//! How images are pulled and trusted.

use super::super::kubelet::ImageCredentialsVerification;
use super::Examination;

pub(super) fn examine(exam: &mut Examination<'_>) {
    parallel_pulls(exam);
    verification(exam);
}

fn parallel_pulls(exam: &mut Examination<'_>) {
    const FIELD: &str = "maxParallelImagePulls";
    let c = exam.configuration;
    let Some(limit) = c.max_parallel_image_pulls else { return };
    exam.require(limit >= 1, FIELD, "must be 1 or more");
    exam.require(
        c.serialize_image_pulls != Some(true) || limit <= 1,
        FIELD,
        "must not be more than 1 while serializeImagePulls is true",
    );
}

fn verification(exam: &mut Examination<'_>) {
    const POLICY: &str = "imagePullCredentialsVerificationPolicy";
    const ALLOWED: &str = "preloadedImagesVerificationAllowlist";
    let c = exam.configuration;
    let policy = c.image_pull_credentials_verification_policy;
    let lists_images = !c.preloaded_images_verification_allowlist.is_empty();
    if !exam.gates.enabled("KubeletEnsureSecretPulledImages") {
        let trouble = "must not be set while KubeletEnsureSecretPulledImages is off";
        exam.require(policy.is_none(), POLICY, trouble);
        exam.require(!lists_images, ALLOWED, trouble);
        return;
    }
    let by_list = policy == Some(ImageCredentialsVerification::NeverVerifyAllowlistedImages);
    exam.require(
        !lists_images || by_list,
        ALLOWED,
        "must be empty unless imagePullCredentialsVerificationPolicy is NeverVerifyAllowlistedImages",
    );
}
