//! GET of an object or a list.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::decode::json_fault;
use crate::document::{Document, Revision};
use crate::options::{Freshness, ListOptions};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{HistoryError, Key, Page, Scope};

/// One page of a list.
#[derive(Debug)]
pub struct ListPage {
    pub items: Vec<(Key, Document)>,
    /// The revision from which a watch continues.
    pub revision: Revision,
    pub continue_token: Option<String>,
    /// Not counted if a selector would have to be applied to all of them.
    pub remaining: Option<usize>,
}

/// Continue token. The revision stays that of the first page: later pages may show newer objects,
/// and a watch from that revision reports every change since.
#[derive(Serialize, Deserialize)]
struct Token {
    #[serde(rename = "v")]
    v: String,
    #[serde(rename = "rv")]
    rv: Revision,
    #[serde(rename = "start")]
    start: String,
}

const TOKEN_VERSION: &str = "meta.k8s.io/v1";

impl ApiServer {
    /// The stored object of the request.
    pub fn get(&self, info: &RequestInfo, freshness: Freshness) -> Result<Document, ApiError> {
        self.check_not_future(freshness)?;
        let key = Key::new(info.resource, &info.namespace, &info.name);
        let document = self.store().get(&key)?;
        document.ok_or_else(|| ApiError::not_found(info.resource, &info.name))
    }

    pub fn list(&self, info: &RequestInfo, options: &ListOptions) -> Result<ListPage, ApiError> {
        self.check_not_future(options.freshness)?;
        let scope = Scope::new(info.resource, info.namespace_option());
        let token = options.continue_token.as_deref().map(read_token).transpose()?;
        let after = token.as_ref().map(|token| format!("{}{}", scope.prefix(), token.start));
        if let Some(token) = &token {
            self.check_history_kept(&scope, token.rv)?;
        }
        // A selector has to be applied to all of them.
        let most = match options.limit {
            limit if limit > 0 && options.selector.is_empty() => limit,
            _ => usize::MAX,
        };
        let Page { objects, rest, revision } =
            self.store().list_page(&scope, after.as_deref(), most)?;
        if let Freshness::Exactly(requested) = options.freshness {
            self.unchanged_since(&scope, requested)?;
        }
        let revision = match (&token, options.freshness) {
            (Some(token), _) => token.rv,
            (None, Freshness::Exactly(requested)) => requested,
            (None, _) => revision,
        };
        if rest > 0 {
            let token = next_page(&scope, &objects, revision);
            let (items, remaining) = (objects, Some(rest));
            return Ok(ListPage { items, revision, continue_token: Some(token), remaining });
        }
        page(&scope, objects, revision, options)
    }

    fn check_not_future(&self, freshness: Freshness) -> Result<(), ApiError> {
        let current = self.store().revision();
        match freshness {
            Freshness::NotOlderThan(requested) | Freshness::Exactly(requested)
                if requested > current =>
            {
                Err(ApiError::version_too_large(requested, current))
            }
            _ => Ok(()),
        }
    }

    /// A list can be continued as long as the history since its start is kept.
    fn check_history_kept(&self, scope: &Scope, revision: Revision) -> Result<(), ApiError> {
        match self.store().history(scope, revision, 1) {
            Ok(_) => Ok(()),
            Err(HistoryError::Store(error)) => Err(error.into()),
            Err(HistoryError::TooOld { .. }) => Err(ApiError::expired(
                "The provided continue parameter is too old to display a consistent list result. You can start a new \
                 list without the continue parameter.",
            )),
        }
    }

    /// Old versions are not kept, so an exact version is served only if nothing changed since.
    fn unchanged_since(&self, scope: &Scope, revision: Revision) -> Result<(), ApiError> {
        let gone = || ApiError::expired("The resourceVersion for the provided list is too old.");
        match self.store().history(scope, revision, 1) {
            Ok(history) if history.events.is_empty() => Ok(()),
            Ok(_) | Err(HistoryError::TooOld { .. }) => Err(gone()),
            Err(HistoryError::Store(error)) => Err(error.into()),
        }
    }
}

fn page(
    scope: &Scope,
    objects: Vec<(Key, Document)>,
    revision: Revision,
    options: &ListOptions,
) -> Result<ListPage, ApiError> {
    let limit = if options.limit == 0 { usize::MAX } else { options.limit };
    let mut items = Vec::new();
    for (key, document) in objects {
        if !options.selector.matches(&document)? {
            continue;
        }
        if items.len() == limit {
            let continue_token = Some(next_page(scope, &items, revision));
            return Ok(ListPage { items, revision, continue_token, remaining: None });
        }
        items.push((key, document));
    }
    Ok(ListPage { items, revision, continue_token: None, remaining: None })
}

/// The token of the page after these objects.
fn next_page(scope: &Scope, items: &[(Key, Document)], revision: Revision) -> String {
    let start = items.last().and_then(|(key, _)| key.as_str().strip_prefix(scope.prefix()));
    write_token(revision, start.unwrap_or_default())
}

fn write_token(revision: Revision, start: &str) -> String {
    // As in kube-apiserver, the zero byte means "after this one".
    let start = format!("{start}\0");
    let token = Token { v: TOKEN_VERSION.to_owned(), rv: revision, start };
    BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
}

fn read_token(text: &str) -> Result<Token, ApiError> {
    let refuse = |why: &str| {
        ApiError::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
    };
    let bytes = decode_loosely(text)
        .map_err(|at| refuse(&format!("illegal base64 data at input byte {at}")))?;
    let mut token: Token = serde_json::from_slice(&bytes)
        .map_err(|error| refuse(&json_fault(&bytes).unwrap_or_else(|| error.to_string())))?;
    if token.v != TOKEN_VERSION {
        return Err(refuse(&format!(
            "server does not recognize this encoded version \"{}\"",
            token.v
        )));
    }
    if token.start.ends_with('\0') {
        token.start.pop();
    }
    if token.start.split('/').any(|part| part == "..") {
        return Err(refuse("it leads out of the list"));
    }
    Ok(token)
}

/// Base64 as Go decodes it: leftover bits at the end are ignored.
fn decode_loosely(text: &str) -> Result<Vec<u8>, usize> {
    let mut out = Vec::with_capacity(text.len());
    let (mut bits, mut count) = (0_u32, 0_u32);
    for (at, byte) in text.bytes().enumerate() {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return Err(at),
        };
        bits = (bits << 6 | u32::from(six)) & 0xffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push(u8::try_from((bits >> count) & 0xff).unwrap_or_default());
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continue_token_round_trips() {
        let token = read_token(&write_token(7, "default/web")).map_err(|e| e.message);
        assert_eq!(token.map(|t| (t.rv, t.start)), Ok((7, "default/web".to_owned())));
    }

    #[test]
    fn bad_tokens_are_refused() {
        for (token, why) in [
            ("zzz", "invalid character '\u{cf}' looking for beginning of value"),
            ("!", "illegal base64 data at input byte 0"),
            ("", "unexpected end of JSON input"),
        ] {
            let refused = read_token(token).map(|_| ()).map_err(|e| e.message);
            let want = format!("invalid continue token: continue key is not valid: {why}");
            assert_eq!(refused, Err(want), "{token}");
        }
        let elsewhere = read_token(&write_token(7, "../secrets/x"));
        assert!(elsewhere.is_err());
    }
}
