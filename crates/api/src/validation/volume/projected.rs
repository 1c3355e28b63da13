//! Validation of projected volumes.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    KeyToPath, ProjectedVolumeSource, ServiceAccountTokenProjection, VolumeProjection,
};

use super::super::field::Errors;
use super::super::file_path;
use super::{downward_file, key};
use crate::schema::Path;

const CLASH: &str = "conflicting duplicate paths";
const TOKEN_SECONDS_MIN: i64 = 600;
const TOKEN_SECONDS_MAX: i64 = 1 << 32;

pub(super) fn check(source: &ProjectedVolumeSource, field: &Path<'_>, errors: &mut Errors) {
    file_path::mode(source.default_mode, &field.child("defaultMode"), errors);
    let mut files = Files { taken: BTreeSet::new(), field };
    let at_sources = field.child("sources");
    for (index, source) in source.sources.iter().flatten().enumerate() {
        one(source, &mut files, field, &at_sources.index(index), errors);
    }
}

/// Each file must have exactly one source.
struct Files<'a> {
    taken: BTreeSet<String>,
    field: &'a Path<'a>,
}

impl Files<'_> {
    fn take(&mut self, path: &str, shown: &str, errors: &mut Errors) {
        if !self.taken.insert(path.to_owned()) {
            errors.invalid(self.field, shown, CLASH);
        }
    }

    fn take_items(
        &mut self,
        items: Option<&[KeyToPath]>,
        source: &str,
        field: &Path<'_>,
        errors: &mut Errors,
    ) {
        let field = field.child("items");
        for (index, item) in items.into_iter().flatten().enumerate() {
            key(item, &field.index(index), errors);
            if !item.path.is_empty() {
                self.take(&item.path, source, errors);
            }
        }
    }
}

fn one(
    source: &VolumeProjection,
    files: &mut Files<'_>,
    volume: &Path<'_>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let mut given = 0_usize;
    if let Some(secret) = &source.secret {
        given += 1;
        let field = field.child("secret");
        if secret.name.is_empty() {
            errors.required(&field.child("name"), "");
        }
        files.take_items(secret.items.as_deref(), &secret.name, &field, errors);
    }
    if let Some(map) = &source.config_map {
        given += 1;
        let field = field.child("configMap");
        if map.name.is_empty() {
            errors.required(&field.child("name"), "");
        }
        files.take_items(map.items.as_deref(), &map.name, &field, errors);
    }
    if let Some(fields) = &source.downward_api {
        given += 1;
        let field = field.child("downwardAPI");
        for file in fields.items.iter().flatten() {
            downward_file(file, &field, errors);
            if !file.path.is_empty() {
                files.take(&file.path, &file.path, errors);
            }
        }
    }
    if let Some(source) = &source.service_account_token {
        given += 1;
        token(source, volume, &field.child("serviceAccountToken"), errors);
    }
    // Sources that need a certificate authority in the cluster are off by default and dropped
    // before.
    given += usize::from(source.cluster_trust_bundle.is_some());
    given += usize::from(source.pod_certificate.is_some());
    if given > 1 {
        errors.forbidden(field, "may not specify more than 1 volume type per source");
    }
}

fn token(
    source: &ServiceAccountTokenProjection,
    volume: &Path<'_>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let seconds = source.expiration_seconds.unwrap_or(0);
    let at_seconds = field.child("expirationSeconds");
    if seconds < TOKEN_SECONDS_MIN {
        errors.invalid(&at_seconds, seconds, "may not specify a duration less than 10 minutes");
    }
    if seconds > TOKEN_SECONDS_MAX {
        let detail = "may not specify a duration larger than 2^32 seconds";
        errors.invalid(&at_seconds, seconds, detail);
    }
    // The path is that of the volume, not of the source, as in the API server.
    match source.path.as_str() {
        "" => errors.required(&volume.child("path"), ""),
        path => file_path::below_and_free(path, &volume.child("path"), errors),
    }
}
