//! Validation of settings that exist only on one operating system.

use k8s_openapi::api::core::v1::{PodSpec, WindowsSecurityContextOptions};

use super::field::Errors;
use super::{each_container, format};
use crate::schema::Path;

const CREDENTIALS_KIB: usize = 64;
const USER_NAME_LIMIT: usize = 104;
const DOMAIN_LIMIT: usize = 256;

pub(super) fn options(
    options: Option<&WindowsSecurityContextOptions>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let Some(options) = options else { return };
    if let Some(name) = &options.gmsa_credential_spec_name {
        let field = field.child("gmsaCredentialSpecName");
        errors.malformed(&field, name, &format::dns_subdomain(name));
    }
    if let Some(text) = &options.gmsa_credential_spec {
        let field = field.child("gmsaCredentialSpec");
        if text.is_empty() {
            errors.invalid(&field, text, "gmsaCredentialSpec cannot be an empty string");
        } else if text.len() > CREDENTIALS_KIB * 1024 {
            let detail = format!("gmsaCredentialSpec size must be under {CREDENTIALS_KIB} KiB");
            errors.invalid(&field, text, &detail);
        }
    }
    if let Some(name) = &options.run_as_user_name {
        for problem in user_name(name) {
            errors.invalid(&field.child("runAsUserName"), name, &problem);
        }
    }
}

/// `USER` or `DOMAIN\USER`.
fn user_name(name: &str) -> Vec<String> {
    if name.is_empty() {
        return vec!["runAsUserName cannot be an empty string".to_owned()];
    }
    if name.chars().any(|c| c.is_ascii_control()) {
        return vec!["runAsUserName cannot contain control characters".to_owned()];
    }
    let (domain, user) = match name.split_once('\\') {
        Some((_, rest)) if rest.contains('\\') => {
            return vec!["runAsUserName cannot contain more than one backslash".to_owned()];
        }
        Some((domain, user)) => (Some(domain), user),
        None => (None, name),
    };
    let mut problems = Vec::new();
    if domain.is_some_and(|domain| domain.len() >= DOMAIN_LIMIT) {
        problems
            .push(format!("runAsUserName's Domain length must be under {DOMAIN_LIMIT} characters"));
    }
    if domain.is_some_and(|domain| !is_domain(domain)) {
        problems
            .push("runAsUserName's Domain doesn't match the NetBios nor the DNS format".to_owned());
    }
    if user.is_empty() {
        problems.push("runAsUserName's User cannot be empty".to_owned());
    } else if user.len() > USER_NAME_LIMIT {
        problems.push(format!(
            "runAsUserName's User length must not be longer than {USER_NAME_LIMIT} characters"
        ));
    }
    if !user.is_empty() && user.chars().all(|c| c == '.' || c == ' ') {
        problems.push("runAsUserName's User cannot contain only periods or spaces".to_owned());
    }
    if user
        .contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']'])
    {
        problems.push(
            "runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]"
                .to_owned(),
        );
    }
    problems
}

fn is_domain(domain: &str) -> bool {
    let bad = ['\\', '/', ':', '*', '?', '"', '<', '>', '|'];
    let length = domain.chars().count();
    let net_bios = (1..=15).contains(&length) && !domain.starts_with('.') && !domain.contains(bad);
    let dns = domain.split('.').all(|label| {
        let alnum = |b: u8| b.is_ascii_alphanumeric();
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| alnum(b) || b == b'-')
            && label.bytes().next().is_some_and(alnum)
            && label.bytes().last().is_some_and(alnum)
    });
    net_bios || dns
}

/// The operating system of a pod, and the fields it rules out.
pub(super) fn os(spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    let Some(os) = &spec.os else { return };
    match os.name.as_str() {
        "" => errors.required(&field.child("os").child("name"), ""),
        "linux" => not_for_linux(spec, field, errors),
        "windows" => not_for_windows(spec, field, errors),
        other => errors.not_supported(&field.child("os"), other, &["linux", "windows"]),
    }
}

fn not_for_linux(spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    let detail = "windows options cannot be set for a linux pod";
    if spec.security_context.as_ref().is_some_and(|context| context.windows_options.is_some()) {
        errors.forbidden(&field.child("securityContext").child("windowsOptions"), detail);
    }
    each_container(spec, field, |container, field| {
        let context = container.security_context.as_ref();
        if context.is_some_and(|context| context.windows_options.is_some()) {
            errors.forbidden(&field.child("securityContext").child("windowsOptions"), detail);
        }
    });
}

fn not_for_windows(spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    let detail = "cannot be set for a windows pod";
    let at_context = field.child("securityContext");
    if let Some(context) = &spec.security_context {
        for (name, of_context, set) in [
            ("appArmorProfile", true, context.app_armor_profile.is_some()),
            ("seLinuxOptions", true, context.se_linux_options.is_some()),
            ("hostUsers", false, spec.host_users.is_some()),
            ("hostPID", false, spec.host_pid == Some(true)),
            ("hostIPC", false, spec.host_ipc == Some(true)),
            ("seccompProfile", true, context.seccomp_profile.is_some()),
            ("fsGroup", true, context.fs_group.is_some()),
            ("fsGroupChangePolicy", true, context.fs_group_change_policy.is_some()),
            ("sysctls", true, context.sysctls.as_ref().is_some_and(|list| !list.is_empty())),
            ("shareProcessNamespace", false, spec.share_process_namespace.is_some()),
            ("runAsUser", true, context.run_as_user.is_some()),
            ("runAsGroup", true, context.run_as_group.is_some()),
            ("supplementalGroups", true, context.supplemental_groups.is_some()),
            ("supplementalGroupsPolicy", true, context.supplemental_groups_policy.is_some()),
            ("seLinuxChangePolicy", true, context.se_linux_change_policy.is_some()),
        ] {
            if set {
                let parent = if of_context { &at_context } else { field };
                errors.forbidden(&parent.child(name), detail);
            }
        }
    }
    each_container(spec, field, |container, field| {
        let Some(context) = &container.security_context else { return };
        let field = field.child("securityContext");
        for (name, set) in [
            ("appArmorProfile", context.app_armor_profile.is_some()),
            ("seLinuxOptions", context.se_linux_options.is_some()),
            ("seccompProfile", context.seccomp_profile.is_some()),
            ("capabilities", context.capabilities.is_some()),
            ("readOnlyRootFilesystem", context.read_only_root_filesystem.is_some()),
            ("privileged", context.privileged.is_some()),
            ("allowPrivilegeEscalation", context.allow_privilege_escalation.is_some()),
            ("procMount", context.proc_mount.is_some()),
            ("runAsUser", context.run_as_user.is_some()),
            ("runAsGroup", context.run_as_group.is_some()),
        ] {
            if set {
                errors.forbidden(&field.child(name), detail);
            }
        }
    });
}

/// Windows HostProcess containers: all containers of a pod or none, and on the host network.
pub(super) fn host_process(spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    let of_pod = spec
        .security_context
        .as_ref()
        .and_then(|context| context.windows_options.as_ref())
        .and_then(|options| options.host_process);
    let (mut all, mut on_host) = (0, 0);
    each_container(spec, field, |container, field| {
        all += 1;
        let own = container
            .security_context
            .as_ref()
            .and_then(|context| context.windows_options.as_ref())
            .and_then(|options| options.host_process);
        if let (Some(of_pod), Some(own)) = (of_pod, own)
            && of_pod != own
        {
            let field = field.child("securityContext");
            let field = field.child("windowsOptions");
            let detail = format!(
                "pod hostProcess value must be identical if both are specified, was {of_pod}"
            );
            errors.invalid(&field.child("hostProcess"), own, &detail);
        }
        if own.or(of_pod) == Some(true) {
            on_host += 1;
        }
    });
    if on_host == 0 {
        return;
    }
    if on_host != all {
        let detail = "If pod contains any hostProcess containers then all containers must be \
                      HostProcess containers";
        errors.invalid(field, "", detail);
    }
    if spec.host_network != Some(true) {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.invalid(&field.child("hostNetwork"), false, detail);
    }
}
