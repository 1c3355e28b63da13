//! Impersonation, as with `kubectl --as`.
//!
//! It needs the verb `impersonate` on each user, group and UID that is requested. If the headers
//! were ignored, a review of another user's permissions would return the caller's own.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderValue};

use super::{AUTHENTICATED, AccessRequest, Attributes, Identity, IdentityKind, denied};
use crate::server::ApiServer;
use crate::status::ApiError;

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";

impl ApiServer {
    /// The effective identity of the request.
    pub(crate) fn impersonated(
        &self,
        identity: Identity,
        headers: &HeaderMap,
    ) -> Result<Identity, ApiError> {
        let Some(requested) = requested(headers)? else { return Ok(identity) };
        let check = |group: &str, resource: &str, namespace: &str, name: &str| {
            let wanted = Attributes {
                verb: "impersonate",
                group,
                resource,
                subresource: "",
                namespace,
                name,
            };
            let allowed = self.authorize(&identity, &AccessRequest::Objects(wanted));
            allowed.map_err(|why| denied(&identity, &wanted, &why))
        };
        match requested.kind() {
            IdentityKind::ServiceAccount { namespace, name } => {
                check("", "serviceaccounts", namespace, name)?;
            }
            IdentityKind::Node(_) | IdentityKind::Other => {
                check("", "users", "", &requested.user)?;
            }
        }
        for group in &requested.groups {
            check("", "groups", "", group)?;
        }
        if !requested.uid.is_empty() {
            check("authentication.k8s.io", "uids", "", &requested.uid)?;
        }
        Ok(with_own_groups(requested))
    }
}

/// The identity in the headers, with the groups that they name; none without such headers.
fn requested(headers: &HeaderMap) -> Result<Option<Identity>, ApiError> {
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
    if let Some(name) = headers.keys().find(|name| name.as_str().starts_with(EXTRA)) {
        return Err(ApiError::bad_request(format!("the header {name} is not supported here")));
    }
    let groups = headers.get_all(GROUP).iter().map(group).collect::<Result<Vec<String>, _>>()?;
    let (user, uid) = (text(USER)?, text(UID)?);
    let Some(user) = user else {
        if groups.is_empty() && uid.is_none() {
            return Ok(None);
        }
        return Err(ApiError::bad_request(
            "requested to impersonate groups or a UID without impersonating a user",
        ));
    };
    Ok(Some(Identity {
        user: user.to_owned(),
        uid: uid.unwrap_or_default().to_owned(),
        groups,
        extra: BTreeMap::new(),
    }))
}

/// Adds the groups that a user of this name always has.
fn with_own_groups(mut other: Identity) -> Identity {
    if other.groups.is_empty()
        && let IdentityKind::ServiceAccount { namespace, .. } = other.kind()
    {
        let own = format!("system:serviceaccounts:{namespace}");
        other.groups = vec!["system:serviceaccounts".to_owned(), own];
    }
    if !other.is_in(AUTHENTICATED) && other.user != "system:anonymous" {
        other.groups.push(AUTHENTICATED.to_owned());
    }
    other
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
    fn impersonated_account_has_its_groups() {
        let given = headers(&[(USER, "system:serviceaccount:default:robot")]);
        let other = requested(&given).map(|found| found.map(with_own_groups));
        let groups =
            ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"];
        let want = Identity {
            user: "system:serviceaccount:default:robot".to_owned(),
            uid: String::new(),
            groups: groups.map(str::to_owned).to_vec(),
            extra: BTreeMap::new(),
        };
        assert_eq!(other, Ok(Some(want)));
        assert_eq!(requested(&headers(&[])), Ok(None));
    }

    #[test]
    fn header_that_cannot_be_honoured_is_refused() {
        for name in [USER, GROUP, UID] {
            let mut given = headers(&[]);
            if name != USER {
                given.insert(USER, HeaderValue::from_static("robot"));
            }
            given.insert(name, HeaderValue::from_bytes(b"caf\xc3\xa9").unwrap());
            let refused = requested(&given);
            assert_eq!(refused.map_err(|error| error.code), Err(400), "{name}");
        }
        for given in [
            headers(&[(GROUP, "system:masters")]),
            headers(&[(USER, "robot"), ("impersonate-extra-scopes", "all")]),
        ] {
            assert_eq!(requested(&given).map_err(|error| error.code), Err(400), "{given:?}");
        }
    }
}
