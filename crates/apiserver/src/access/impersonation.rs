//! Asking in somebody else's name, as `kubectl --as` does.
//!
//! Only who may do everything may: an administrator sees so what a service account would. Ignored,
//! the headers would turn a question about another's rights into an answer about one's own.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderValue};

use super::{AUTHENTICATED, Identity, MASTERS, Part};
use crate::status::ApiError;

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";

/// Whom the request speaks for.
pub(crate) fn impersonated(who: Identity, headers: &HeaderMap) -> Result<Identity, ApiError> {
    // What cannot be read must not be taken for "not asked": the answer would be about the caller.
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
        uid: uid.unwrap_or_default().to_owned(),
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
    fn header_that_is_not_text_is_an_error_and_not_the_callers_own_rights() {
        for name in [USER, GROUP, UID] {
            let mut asked = headers(&[]);
            if name != USER {
                asked.insert(USER, HeaderValue::from_static("robot"));
            }
            asked.insert(name, HeaderValue::from_bytes(b"caf\xc3\xa9").unwrap());
            let refused = impersonated(Identity::admin(), &asked);
            assert_eq!(refused.map_err(|error| error.code), Err(400), "{name}");
        }
    }

    #[test]
    fn nobody_else_does() {
        let refused = impersonated(Identity::node("n"), &headers(&[(USER, "admin")]));
        assert_eq!(refused.map_err(|error| error.code), Err(403));
        let refused = impersonated(Identity::admin(), &headers(&[(GROUP, "system:masters")]));
        assert_eq!(refused.map_err(|error| error.code), Err(400));
    }
}
