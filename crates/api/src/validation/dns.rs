//! Validation of DNS settings and host aliases.

use k8s_openapi::api::core::v1::{HostAlias, PodSpec};

use super::field::Errors;
use super::{format, text};
use crate::schema::Path;

const SERVERS: usize = 3;
const SEARCHES: usize = 32;
const SEARCH_CHARACTERS: usize = 2048;

pub(super) fn policy(spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    const POLICIES: [&str; 4] = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    let field = field.child("dnsPolicy");
    match text(&spec.dns_policy) {
        "" => errors.required(&field, ""),
        known if POLICIES.contains(&known) => {}
        other => errors.not_supported(&field, other, &POLICIES),
    }
}

pub(super) fn config(spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    let field = field.child("dnsConfig");
    let alone = text(&spec.dns_policy) == "None";
    let Some(config) = &spec.dns_config else {
        if alone {
            errors.required(&field, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        return;
    };
    let servers = config.nameservers.as_deref().unwrap_or_default();
    let at_servers = field.child("nameservers");
    if alone && servers.is_empty() {
        let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        return errors.required(&at_servers, detail);
    }
    if servers.len() > SERVERS {
        let detail = format!("must not have more than {SERVERS} nameservers");
        errors.invalid(&at_servers, servers, &detail);
    }
    for (index, server) in servers.iter().enumerate() {
        errors.malformed(&at_servers.index(index), server, &format::ip_address(server));
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    let at_searches = field.child("searches");
    if searches.len() > SEARCHES {
        let detail = format!("must not have more than {SEARCHES} search paths");
        errors.invalid(&at_searches, searches, &detail);
    }
    if searches.join(" ").len() > SEARCH_CHARACTERS {
        let detail = format!(
            "must not have more than {SEARCH_CHARACTERS} characters (including spaces) in the \
             search list"
        );
        errors.invalid(&at_searches, searches, &detail);
    }
    for (index, search) in searches.iter().enumerate().filter(|(_, search)| *search != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        let problems = format::dns_subdomain_with_underscores(search);
        errors.malformed(&at_searches.index(index), search, &problems);
    }
    let at_options = field.child("options");
    for (index, option) in config.options.iter().flatten().enumerate() {
        if text(&option.name).is_empty() {
            errors.required(&at_options.index(index), "must not be empty");
        }
    }
}

pub(super) fn host_aliases(aliases: &[HostAlias], field: &Path<'_>, errors: &mut Errors) {
    for (index, alias) in aliases.iter().enumerate() {
        let field = field.index(index);
        errors.malformed(&field.child("ip"), &alias.ip, &format::ip_address(&alias.ip));
        let field = field.child("hostnames");
        for (index, name) in alias.hostnames.iter().flatten().enumerate() {
            errors.malformed(&field.index(index), name, &format::dns_subdomain(name));
        }
    }
}
