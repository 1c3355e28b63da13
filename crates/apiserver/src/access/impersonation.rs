//! Impersonation, as with `kubectl --as`.
//!
//! Only administrators may impersonate, for example to see what a service account may do. If the
//! headers were ignored, a review of another user's permissions would return the caller's own.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderValue};

use super::{AUTHENTICATED, Identity, IdentityKind, MASTERS};
use crate::status::ApiError;

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";

/// The effective identity of the request.
pub(crate) fn impersonated(identity: Identity, headers: &HeaderMap) -> Result<Identity, ApiError> {
    // An unreadable header must not count as absent: the response would be about the caller.
    let unreadable = |name: &str| ApiError::bad_request(format!("the header {name} is not text"));
    let text = |name: &'static str| {
        let value = headers.get(name).map(|value| value.to_str().map_err(|_| unreadable(name)));
        value.transpose()
    };
    let group = |value: &HeaderValue| match value.to_str() {
        Ok(group) => Ok(group.to_owned()),
        Err(_) => Err(unreadable(GROUP)),
    };
    let groups = headers.get_all(GROUP).iter().map(group).collect::<Result<Vec<String>, _>>()?;
    let (user, uid) = (text(USER)?, text(UID)?);
    let Some(user) = user else {
        if groups.is_empty() && uid.is_none() {
            return Ok(identity);
        }
        return Err(ApiError::bad_request(
            "requested to impersonate groups or a UID without impersonating a user",
        ));
    };
    if !identity.is_in(MASTERS) {
        return Err(ApiError::users_forbidden(&identity.user, user));
    }
    let mut other = Identity {
        user: user.to_owned(),
        uid: uid.unwrap_or_default().to_owned(),
        groups,
        extra: BTreeMap::new(),
    };
    if other.groups.is_empty()
        && let IdentityKind::ServiceAccount { namespace, .. } = other.kind()
    {
        let own = format!("system:serviceaccounts:{namespace}");
        other.groups = vec!["system:serviceaccounts".to_owned(), own];
    }
    if !other.is_in(AUTHENTICATED) && user != "system:anonymous" {
        other.groups.push(AUTHENTICATED.to_owned());
    }
    Ok(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn administrator_can_impersonate() {
        let requested = headers(&[(USER, "system:serviceaccount:default:robot")]);
        let other = impersonated(Identity::admin(), &requested);
        let groups =
            ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"];
        let want = Identity {
            user: "system:serviceaccount:default:robot".to_owned(),
            uid: String::new(),
            groups: groups.map(str::to_owned).to_vec(),
            extra: BTreeMap::new(),
        };
        assert_eq!(other, Ok(want));
        assert_eq!(impersonated(Identity::admin(), &headers(&[])), Ok(Identity::admin()));
    }

    #[test]
    fn header_that_is_not_text_is_refused() {
        for name in [USER, GROUP, UID] {
            let mut requested = headers(&[]);
            if name != USER {
                requested.insert(USER, HeaderValue::from_static("robot"));
            }
            requested.insert(name, HeaderValue::from_bytes(b"caf\xc3\xa9").unwrap());
            let refused = impersonated(Identity::admin(), &requested);
            assert_eq!(refused.map_err(|error| error.code), Err(400), "{name}");
        }
    }

    #[test]
    fn others_cannot_impersonate() {
        let refused = impersonated(Identity::node("n"), &headers(&[(USER, "admin")]));
        assert_eq!(refused.map_err(|error| error.code), Err(403));
        let refused = impersonated(Identity::admin(), &headers(&[(GROUP, "system:masters")]));
        assert_eq!(refused.map_err(|error| error.code), Err(400));
    }
}
