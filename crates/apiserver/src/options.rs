//! Request options: from the query, and for a deletion also from the body.

use axum::extract::Query as Extract;
use http::{HeaderMap, Uri, header};
use podwright_api::validation::field::quote;
use serde::Deserialize;
use serde_json::Value;

use crate::registry::Verb;
use crate::request::RequestInfo;
use crate::selector::Selector;
use crate::status::{ApiError, FieldError};

/// The query of a request, parsed once.
#[derive(Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn of(uri: &Uri) -> Result<Self, ApiError> {
        Extract::<Vec<(String, String)>>::try_from_uri(uri)
            .map(|Extract(pairs)| Self(pairs))
            .map_err(|error| ApiError::bad_request(error.to_string()))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Every value of an option that may be given more than once.
    pub fn all<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// `1`, `true` and a bare name are true.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !matches!(value, "0" | "false" | "False" | "FALSE"))
    }

    fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        match self.get(name) {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                ApiError::bad_request(format!(
                    "strconv.ParseInt: parsing \"{text}\": invalid syntax"
                ))
            }),
        }
    }
}

/// Required freshness of a response (`resourceVersion` and `resourceVersionMatch`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The newest. (kube-apiserver may serve "any" from an older cache; there is no cache here.)
    Newest,
    /// Any version; a watch starts with the current objects.
    Any,
    /// Not older than a revision that the client has already seen.
    NotOlderThan(u64),
    /// Exactly this revision.
    Exactly(u64),
}

#[derive(Debug)]
pub struct ListOptions {
    pub selector: Selector,
    pub freshness: Freshness,
    /// 0 is no limit.
    pub limit: usize,
    pub continue_token: Option<String>,
    pub watch: WatchOptions,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct WatchOptions {
    pub bookmarks: bool,
    pub timeout_seconds: Option<u64>,
    /// Start with the current objects, then send a bookmark where they end.
    pub send_initial_events: Option<bool>,
}

impl ListOptions {
    /// Parses the options of a list or a watch, depending on the request.
    pub fn parse(info: &RequestInfo, query: &Query) -> Result<Self, ApiError> {
        check_match(query, info.verb == Verb::Watch)?;
        let continue_token =
            query.get("continue").filter(|token| !token.is_empty()).map(str::to_owned);
        let selector = Selector::parse(
            info.resource,
            query.text("labelSelector"),
            query.text("fieldSelector"),
        )
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
        // A negative limit is no limit.
        let limit = usize::try_from(query.integer("limit")?.unwrap_or(0)).unwrap_or(0);
        let freshness = match (Freshness::of_get(query)?, query.text("resourceVersionMatch")) {
            (Freshness::NotOlderThan(_) | Freshness::Exactly(_), _) if continue_token.is_some() => {
                return Err(ApiError::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            (Freshness::NotOlderThan(number), "Exact") => Freshness::Exactly(number),
            (freshness, _) => freshness,
        };
        let seconds = query.integer("timeoutSeconds")?;
        Ok(Self {
            selector,
            freshness,
            limit,
            continue_token,
            watch: WatchOptions {
                bookmarks: query.flag("allowWatchBookmarks"),
                timeout_seconds: seconds
                    .and_then(|seconds| u64::try_from(seconds).ok())
                    .filter(|seconds| *seconds > 0),
                send_initial_events: query
                    .get("sendInitialEvents")
                    .map(|_| query.flag("sendInitialEvents")),
            },
        })
    }
}

impl Freshness {
    /// For a get, which has only `resourceVersion`.
    pub fn of_get(query: &Query) -> Result<Self, ApiError> {
        match query.text("resourceVersion") {
            "" => Ok(Self::Newest),
            "0" => Ok(Self::Any),
            text => Ok(Self::NotOlderThan(parse_version(text)?)),
        }
    }
}

/// Checks `resourceVersionMatch` against the other options. Reports all errors at once.
fn check_match(query: &Query, watching: bool) -> Result<(), ApiError> {
    let mut errors = Vec::new();
    let mut forbid = |field: &str, why: &str| {
        errors.push(FieldError {
            reason: "FieldValueForbidden",
            field: field.to_owned(),
            message: format!("Forbidden: {why}"),
        });
    };
    let field = "resourceVersionMatch";
    let version = query.text("resourceVersion");
    let matching = query.text(field);
    let initial = query.get("sendInitialEvents").is_some();
    let continued = !query.text("continue").is_empty();
    if watching {
        if initial && matching != "NotOlderThan" {
            forbid(
                field,
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            );
        }
        if !matching.is_empty() && !initial {
            let why =
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            forbid(field, why);
        }
    } else {
        if !matching.is_empty() && version.is_empty() {
            forbid(field, "resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if matching == "Exact" && version == "0" {
            forbid(field, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
        if initial {
            forbid("sendInitialEvents", "sendInitialEvents is forbidden for list");
        }
    }
    if !matching.is_empty() && continued {
        forbid(field, "resourceVersionMatch is forbidden when continue is provided");
    }
    let (supported, listed): (&[&str], _) = if watching {
        (&["", "NotOlderThan"], "\"NotOlderThan\"")
    } else {
        (&["", "NotOlderThan", "Exact"], "\"Exact\", \"NotOlderThan\", \"\"")
    };
    if !supported.contains(&matching) {
        errors.push(unsupported(field, &format!("{matching:?}"), listed));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid("ListOptions", "meta.k8s.io", "", &errors))
}

/// A `resourceVersion` as a number.
pub fn parse_version(text: &str) -> Result<u64, ApiError> {
    text.parse().map_err(|_| {
        ApiError::bad_request(format!(
            "resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"
        ))
    })
}

/// `value` is written as JSON writes it.
fn unsupported(field: &str, value: &str, supported: &str) -> FieldError {
    FieldError {
        reason: "FieldValueNotSupported",
        field: field.to_owned(),
        message: format!("Unsupported value: {value}: supported values: {supported}"),
    }
}

/// Handling of unknown and duplicate fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    /// Accept the rest, and report it in a warning header.
    #[default]
    Warn,
    Strict,
}

/// Kind of a write, which decides about its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    Create,
    Update,
    Patch,
    Apply,
}

impl WriteKind {
    const fn options(self) -> &'static str {
        match self {
            Self::Create => "CreateOptions",
            Self::Update => "UpdateOptions",
            Self::Patch | Self::Apply => "PatchOptions",
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub field_validation: FieldValidation,
    /// Name of the manager that owns what is written.
    pub manager: String,
    /// An apply takes fields from other managers.
    pub force: bool,
}

impl WriteOptions {
    /// For a write of the server itself.
    pub fn of_server() -> Self {
        Self { manager: "podwright".to_owned(), ..Self::default() }
    }

    pub fn parse(kind: WriteKind, query: &Query, headers: &HeaderMap) -> Result<Self, ApiError> {
        let mut errors = Vec::new();
        if kind == WriteKind::Patch && query.get("force").is_some() {
            errors.push(FieldError {
                reason: "FieldValueForbidden",
                field: "force".to_owned(),
                message: "Forbidden: may not be specified for non-apply patch".to_owned(),
            });
        }
        let manager = query.text("fieldManager");
        if kind == WriteKind::Apply && manager.is_empty() {
            errors.push(FieldError {
                reason: "FieldValueRequired",
                field: "fieldManager".to_owned(),
                message: "Required value: is required for apply patch".to_owned(),
            });
        }
        check_manager(manager, &mut errors);
        let dry_run = dry_run(query.get("dryRun")).unwrap_or_else(|error| {
            errors.push(error);
            false
        });
        let field_validation = match query.text("fieldValidation") {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                let supported = "\"\", \"Ignore\", \"Strict\", \"Warn\"";
                errors.push(unsupported("fieldValidation", &format!("{other:?}"), supported));
                FieldValidation::Warn
            }
        };
        if !errors.is_empty() {
            return Err(ApiError::invalid(kind.options(), "meta.k8s.io", "", &errors));
        }
        let manager = match manager {
            "" => manager_of_client(headers),
            given => given.to_owned(),
        };
        let force = kind == WriteKind::Apply && query.flag("force");
        Ok(Self { dry_run, field_validation, manager, force })
    }
}

const MAX_MANAGER_BYTES: usize = 128;

/// The name of the client, if it does not say which manager it is.
fn manager_of_client(headers: &HeaderMap) -> String {
    let agent = headers.get(header::USER_AGENT).map(|value| value.as_bytes()).unwrap_or_default();
    let agent = String::from_utf8_lossy(agent);
    let name = agent.split('/').next().unwrap_or_default();
    let mut manager = String::new();
    for c in name.chars().filter(|c| !is_hidden(*c)) {
        if manager.len() + c.len_utf8() > MAX_MANAGER_BYTES {
            break;
        }
        manager.push(c);
    }
    manager
}

fn is_hidden(c: char) -> bool {
    c.is_control() || (c.is_whitespace() && c != ' ')
}

/// Validates the field manager.
fn check_manager(name: &str, errors: &mut Vec<FieldError>) {
    let field = || "fieldManager".to_owned();
    if name.len() > MAX_MANAGER_BYTES {
        errors.push(FieldError {
            reason: "FieldValueTooLong",
            field: field(),
            message: format!("Too long: may not be more than {MAX_MANAGER_BYTES} bytes"),
        });
    }
    for (at, c) in name.char_indices().filter(|(_, c)| is_hidden(*c)) {
        let (name, code) = (quote(name), u32::from(c));
        errors.push(FieldError {
            reason: "FieldValueInvalid",
            field: field(),
            message: format!(
                "Invalid value: {name}: invalid character U+{code:04X} (at position {at})"
            ),
        });
    }
}

fn dry_run(value: Option<&str>) -> Result<bool, FieldError> {
    match value {
        None | Some("") => Ok(false),
        Some("All") => Ok(true),
        Some(other) => Err(unsupported("dryRun", &format!("[{other:?}]"), "\"All\"")),
    }
}

/// What happens to the objects that name the deleted one as their owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They stay and lose the owner reference.
    Orphan,
    /// They are deleted after it.
    Background,
    /// They are deleted before it.
    Foreground,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    pub grace: Option<i64>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub propagation: Option<Propagation>,
    /// The client requested that dependents be deleted too, and the response reports if that takes
    /// time.
    pub cascades: bool,
    pub dry_run: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeleteBody {
    grace_period_seconds: Option<i64>,
    preconditions: Option<Preconditions>,
    propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
    dry_run: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

impl DeleteOptions {
    /// The body takes precedence over the query.
    pub fn parse(query: &Query, body: Option<&Value>) -> Result<Self, ApiError> {
        let Some(body) = body else {
            return Self::from_body(DeleteBody {
                grace_period_seconds: query.integer("gracePeriodSeconds")?,
                preconditions: None,
                propagation_policy: query.get("propagationPolicy").map(str::to_owned),
                orphan_dependents: query
                    .get("orphanDependents")
                    .map(|_| query.flag("orphanDependents")),
                dry_run: query.get("dryRun").map(|value| vec![value.to_owned()]),
            });
        };
        Self::from_value(body)
    }

    /// From a request body, or from inside an Eviction.
    pub fn from_value(value: &Value) -> Result<Self, ApiError> {
        let refuse =
            |why: &str| ApiError::bad_request(format!("DeleteOptions cannot be read: {why}"));
        if !value.is_object() {
            return Err(refuse("they are not a JSON object"));
        }
        let body = DeleteBody::deserialize(value).map_err(|error| refuse(&error.to_string()))?;
        Self::from_body(body)
    }

    fn from_body(body: DeleteBody) -> Result<Self, ApiError> {
        let policy = body.propagation_policy.as_deref();
        let mut errors = Vec::new();
        if let (Some(policy), Some(_)) = (policy, body.orphan_dependents) {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError {
                reason: "FieldValueInvalid",
                field: "propagationPolicy".to_owned(),
                message: format!("Invalid value: {policy:?}: {why}"),
            });
        }
        let propagation = match (policy, body.orphan_dependents) {
            (None, None) => None,
            (None, Some(true)) | (Some("Orphan"), _) => Some(Propagation::Orphan),
            (None, Some(false)) | (Some("Background"), _) => Some(Propagation::Background),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some(other), _) => {
                let supported = "\"Foreground\", \"Background\", \"Orphan\", \"nil\"";
                let value = format!("{other:?}");
                errors.push(unsupported("propagationPolicy", &value, supported));
                None
            }
        };
        let mut dry = false;
        for value in body.dry_run.iter().flatten() {
            match dry_run(Some(value)) {
                Ok(requested) => dry |= requested,
                Err(error) => errors.push(error),
            }
        }
        if !errors.is_empty() {
            return Err(ApiError::invalid("DeleteOptions", "meta.k8s.io", "", &errors));
        }
        let preconditions = body.preconditions.unwrap_or_default();
        Ok(Self {
            grace: body.grace_period_seconds,
            uid: preconditions.uid,
            resource_version: preconditions.resource_version,
            propagation,
            cascades: propagation == Some(Propagation::Foreground)
                || body.orphan_dependents == Some(false),
            dry_run: dry,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;

    fn query(text: &str) -> Query {
        let uri = Uri::try_from(format!("/x?{text}")).unwrap_or_default();
        Query::of(&uri).unwrap_or_default()
    }

    #[test]
    fn list_options_are_parsed_or_refused() {
        let fresh = |text: &str| {
            let verb = if text.contains("watch") { Verb::Watch } else { Verb::List };
            let info = RequestInfo {
                verb,
                resource: &registry::PODS,
                subresource: None,
                namespace: String::new(),
                name: String::new(),
            };
            ListOptions::parse(&info, &query(text)).map(|o| o.freshness).map_err(|e| e.code)
        };
        for (text, want) in [
            ("", Ok(Freshness::Newest)),
            ("resourceVersion=0", Ok(Freshness::Any)),
            ("resourceVersion=7", Ok(Freshness::NotOlderThan(7))),
            ("resourceVersion=7&resourceVersionMatch=Exact", Ok(Freshness::Exactly(7))),
            ("resourceVersion=7&resourceVersionMatch=NotOlderThan", Ok(Freshness::NotOlderThan(7))),
            ("resourceVersion=0&resourceVersionMatch=Exact", Err(422)),
            ("resourceVersionMatch=Exact", Err(422)),
            ("resourceVersion=7&resourceVersionMatch=Nope", Err(422)),
            ("resourceVersion=7&continue=x", Err(400)),
            ("resourceVersion=-7", Err(400)),
            ("limit=-1", Ok(Freshness::Newest)),
            ("limit=x", Err(400)),
            (
                "watch&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
                Ok(Freshness::Newest),
            ),
            ("watch&sendInitialEvents=true", Err(422)),
            ("watch&resourceVersion=7&resourceVersionMatch=NotOlderThan", Err(422)),
            ("watch&resourceVersion=7", Ok(Freshness::NotOlderThan(7))),
            ("sendInitialEvents=true", Err(422)),
        ] {
            assert_eq!(fresh(text), want, "{text}");
        }
    }

    #[test]
    fn manager_is_named_by_the_query_or_the_client() {
        let manager = |kind: WriteKind, text: &str, agent: &'static str| {
            let mut headers = HeaderMap::new();
            if !agent.is_empty() {
                headers.insert(header::USER_AGENT, http::HeaderValue::from_static(agent));
            }
            WriteOptions::parse(kind, &query(text), &headers)
                .map(|options| options.manager)
                .map_err(|error| error.message)
        };
        let long = "m".repeat(128);
        for (kind, text, agent, want) in [
            (WriteKind::Create, "fieldManager=m", "curl/7", Ok("m")),
            (WriteKind::Create, "", "curl/7", Ok("curl")),
            (WriteKind::Patch, "", "kubelet/v1.36.4 (linux/amd64) podwright/0.1.0", Ok("kubelet")),
            (WriteKind::Update, "", "my\ttool", Ok("mytool")),
            (WriteKind::Update, "", "", Ok("")),
            (
                WriteKind::Apply,
                "",
                "curl/7",
                Err(
                    "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
                ),
            ),
            (
                WriteKind::Patch,
                "force=true",
                "curl/7",
                Err(
                    "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch",
                ),
            ),
            (
                WriteKind::Apply,
                "fieldManager=m%0A",
                "",
                Err(
                    "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Invalid value: \"m\\n\": invalid character U+000A (at position 1)",
                ),
            ),
        ] {
            let want = want.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(manager(kind, text, agent), want, "{text} {agent}");
        }
        let agent: &'static str = Box::leak(format!("{long}m/1").into_boxed_str());
        assert_eq!(manager(WriteKind::Create, "", agent), Ok(long));
    }

    #[test]
    fn delete_options_come_from_body_or_query() {
        let parsed = |text: &str, body: &str| {
            let body = serde_json::from_str(body).ok();
            DeleteOptions::parse(&query(text), body.as_ref()).map_err(|e| e.code)
        };
        let plain = DeleteOptions::default();
        for (text, body, want) in [
            ("", "", Ok(plain.clone())),
            ("gracePeriodSeconds=3", "", Ok(DeleteOptions { grace: Some(3), ..plain.clone() })),
            ("gracePeriodSeconds=3", "{}", Ok(plain.clone())),
            (
                "",
                r#"{"gracePeriodSeconds":0,"preconditions":{"uid":"u"}}"#,
                Ok(DeleteOptions { grace: Some(0), uid: Some("u".to_owned()), ..plain.clone() }),
            ),
            (
                "propagationPolicy=Foreground",
                "",
                Ok(DeleteOptions {
                    propagation: Some(Propagation::Foreground),
                    cascades: true,
                    ..plain.clone()
                }),
            ),
            ("dryRun=All", "", Ok(DeleteOptions { dry_run: true, ..plain })),
            ("dryRun=Some", "", Err(422)),
            ("propagationPolicy=Nope", "", Err(422)),
            ("propagationPolicy=Orphan&orphanDependents=true", "", Err(422)),
            ("", r#"{"gracePeriodSeconds":"soon"}"#, Err(400)),
            ("", "[1]", Err(400)),
        ] {
            assert_eq!(parsed(text, body), want, "{text} {body}");
        }
    }
}
