//! Validation of file paths in a pod spec.

use super::field::Errors;
use crate::schema::Path;

const STEP_UP: &str = "must not contain '..'";

pub(super) fn is_absolute(path: &str) -> bool {
    path.starts_with('/')
}

pub fn steps_up(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

pub fn no_steps_up(path: &str, field: &Path<'_>, errors: &mut Errors) {
    if steps_up(path) {
        errors.invalid(field, path, STEP_UP);
    }
}

/// The path must stay below the directory it is relative to.
pub(super) fn below(path: &str, field: &Path<'_>, errors: &mut Errors) {
    if is_absolute(path) {
        errors.invalid(field, path, "must be a relative path");
    }
    no_steps_up(path, field, errors);
}

/// The same, and it must not collide with the links used for atomic updates of a volume.
pub(super) fn below_and_free(path: &str, field: &Path<'_>, errors: &mut Errors) {
    below(path, field, errors);
    if path.starts_with("..") && !path.starts_with("../") {
        errors.invalid(field, path, "must not start with '..'");
    }
}

pub(super) fn mode(mode: Option<i32>, field: &Path<'_>, errors: &mut Errors) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.invalid(field, mode, detail);
    }
}
