//! Asking in somebody else's name, as `kubectl --as` does.
//!
//! Only who may do everything may: an administrator sees so what a service account would. Ignored,
//! the headers would turn a question about another's rights into an answer about one's own.

use std::collections::BTreeMap;

use http::HeaderMap;

use super::{AUTHENTICATED, Identity, MASTERS, Part};
use crate::status::ApiError;

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";

/// Whom the request speaks for.
pub(crate) fn impersonated(who: Identity, headers: &HeaderMap) -> Result<Identity, ApiError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let groups: Vec<String> = headers
        .get_all(GROUP)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .map(str::to_owned)
        .collect();
    let Some(user) = text(USER) else {
        if groups.is_empty() && text(UID).is_none() {
            return Ok(who);
        }
        return Err(ApiError::bad_request(
            "requested to impersonate groups or a UID without impersonating a user",
        ));
    };
    if !who.is_in(MASTERS) {
        return Err(ApiError::users_forbidden(&who.user, user));
    }
    let mut other = Identity {
        user: user.to_owned(),
        uid: text(UID).unwrap_or_default().to_owned(),
        groups,
        extra: BTreeMap::new(),
    };
    if other.groups.is_empty()
        && let Part::ServiceAccount { namespace, .. } = other.part()
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
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn an_administrator_asks_as_somebody_else() {
        let asked = headers(&[(USER, "system:serviceaccount:default:robot")]);
        let other = impersonated(Identity::admin(), &asked);
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
    fn nobody_else_does() {
        let refused = impersonated(Identity::node("n"), &headers(&[(USER, "admin")]));
        assert_eq!(refused.map_err(|error| error.code), Err(403));
        let refused = impersonated(Identity::admin(), &headers(&[(GROUP, "system:masters")]));
        assert_eq!(refused.map_err(|error| error.code), Err(400));
    }
}
