//! HTTP router: from a request to a verb, and from its result to a response.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body::Body as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use podwright_http::UnreadLimit;

use crate::access::{AccessRequest, Attributes, Identity, denied};
use crate::decode::Encoded;
use crate::encode::{Encoder, Include};
use crate::in_flight::{PeerShare, RequestClass, RequestPermit};
use crate::metrics::is_measured;
use crate::negotiate::{self, Discovery, Encoding, MEDIA_TYPES, YAML};
use crate::object::Object;
use crate::options::{DeleteOptions, Freshness, ListOptions, Query, WriteKind, WriteOptions};
use crate::patch::PatchType;
use crate::registry::Verb;
use crate::request::{self, PathError, RequestInfo, Target};
use crate::rest::{PatchBody, read_only};
use crate::server::ApiServer;
use crate::status::{ApiError, Details, success};
use crate::unserved::{self, CUSTOM_KINDS};
use crate::{connect, decode, discovery, events, metrics, protobuf, strategy};

/// Maximum body size, as in kube-apiserver.
const MAX_BODY_BYTES: usize = 3 << 20;
/// Maximum body size of what is not stored: reviews, bindings, evictions, options. Every pod may
/// send reviews.
const MAX_SMALL_BODY_BYTES: usize = 64 << 10;
/// Media type of a server-side apply.
const APPLY: &str = "application/apply-patch+yaml";
/// How long a response may wait for its client.
const UNREAD_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for reading a body; kube-apiserver's limit for a whole request.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

impl ApiServer {
    /// The server as a network service: the caller must attach an [`Identity`] to each request; a
    /// request without one is refused.
    pub fn router(&self) -> Router {
        Router::new().fallback(handle).with_state(self.clone())
    }

    /// The server as an in-process service with a fixed identity, for a `kube::Client`.
    pub fn service(&self, identity: Identity) -> Router {
        self.router().layer(axum::Extension(identity))
    }

    /// As [`Self::service`], for a client that names itself, as field managers show it.
    pub fn service_for(&self, identity: Identity, user_agent: HeaderValue) -> Router {
        let named = move |mut request: Request<Body>| {
            request.headers_mut().insert(header::USER_AGENT, user_agent.clone());
            request
        };
        self.service(identity).layer(tower::util::MapRequestLayer::new(named))
    }
}

async fn handle(State(server): State<ApiServer>, request: Request<Body>) -> Response {
    match respond(&server, request).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn respond(server: &ApiServer, request: Request<Body>) -> Result<Response, ApiError> {
    let identity = request.extensions().get::<Identity>().cloned();
    let identity = identity.ok_or_else(ApiError::unauthorized)?;
    let identity = server.impersonated(identity, request.headers())?;
    let query = Query::of(request.uri())?;
    let path = request.uri().path();
    let target = match request::parse(request.method(), path, query.flag("watch")) {
        Ok(target) => target,
        Err(PathError::Unknown) => return Ok(page_not_found()),
        Err(PathError::NotServed(what)) => return Err(ApiError::not_served(&what)),
        Err(PathError::Unserved(_)) if request.method() == Method::GET && path == CUSTOM_KINDS => {
            return Ok(plain_json(StatusCode::OK, unserved::no_custom_kinds().to_string().into()));
        }
        Err(PathError::Unserved(kind)) => {
            return Err(ApiError::unserved_kind(kind, request.method()));
        }
        Err(PathError::MethodNotAllowed) => return Err(ApiError::method_not_allowed()),
        Err(PathError::BadName(name)) => {
            return Err(ApiError::bad_request(format!("invalid resource name {name:?}")));
        }
    };
    match target {
        Target::Resource(info) => {
            let stream = info.verb == Verb::Watch || connect::is_stream(&info);
            let class = match stream {
                true => RequestClass::Stream,
                false => RequestClass::Short,
            };
            let permit = begin(&request, class)?;
            let named = selected_name(&info, &query);
            let mut requested = Attributes::from(&info);
            if let Some(name) = &named {
                requested.name = name;
            }
            let allowed = server.authorize(&identity, &AccessRequest::Objects(requested));
            allowed.map_err(|why| denied(&identity, &requested, &why))?;
            if connect::runs_in_container(&info, path) && info.verb == Verb::Get {
                // A WebSocket begins with GET, but what it does is not reading.
                let create = Attributes { verb: Verb::Create.as_str(), ..requested };
                server
                    .authorize(&identity, &AccessRequest::Objects(create))
                    .map_err(|why| denied(&identity, &create, &why))?;
            }
            if connect::is_stream(&info) {
                let response = serve_stream(server, &info, &query, request).await?;
                // A person may stop reading a log for as long as they like.
                return Ok(match permit {
                    Some(permit) => permit.until_sent(response),
                    None => response,
                });
            }
            let is_read = matches!(info.verb, Verb::Get | Verb::List);
            let response = serve(server, info, identity, query, request, permit.as_ref()).await?;
            let size = response.body().size_hint().lower();
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            if is_read && permit.as_ref().is_some_and(|permit| !permit.may_send(size)) {
                return Err(ApiError::too_many_requests());
            }
            Ok(sent_with(permit, response))
        }
        other => {
            let permit = begin(&request, RequestClass::Short)?;
            let verb = request.method().as_str().to_lowercase();
            let requested = AccessRequest::Path { verb: &verb, path };
            if server.authorize(&identity, &requested).is_err() {
                return Err(ApiError::path_forbidden(&identity.user, &verb, path));
            }
            if !matches!(*request.method(), Method::GET | Method::HEAD) {
                return Err(ApiError::method_not_allowed());
            }
            let response = describe(server, &other, request.headers())?;
            Ok(sent_with(permit, response))
        }
    }
}

/// Counts a request from the network; those of this process are not counted.
fn begin(request: &Request<Body>, class: RequestClass) -> Result<Option<RequestPermit>, ApiError> {
    let share = request.extensions().get::<PeerShare>();
    share.map(|share| share.begin(class)).transpose()
}

/// Keeps a request from the network in progress until its response is sent, which may not take for
/// ever.
fn sent_with(permit: Option<RequestPermit>, response: Response) -> Response {
    let Some(permit) = permit else { return response };
    let mut response = permit.until_sent(response);
    response.extensions_mut().insert(UnreadLimit(UNREAD_LIMIT));
    response
}

/// The name in the field selector of a collection request: a rule may allow one name only.
fn selected_name(info: &RequestInfo, query: &Query) -> Option<String> {
    if !matches!(info.verb, Verb::List | Verb::Watch | Verb::DeleteCollection)
        || !info.name.is_empty()
    {
        return None;
    }
    let name = query.get("fieldSelector")?.strip_prefix("metadata.name=")?;
    let name = name.strip_prefix('=').unwrap_or(name);
    (!name.contains([',', '=', '!', '\\'])).then(|| name.to_owned())
}

fn page_not_found() -> Response {
    (
        StatusCode::NOT_FOUND,
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8")],
        "404 page not found\n",
    )
        .into_response()
}

/// Requests that are not for objects: discovery, version, health, OpenAPI.
fn describe(
    server: &ApiServer,
    target: &Target,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let aggregated = negotiate::discovery(headers) == Discovery::Aggregated;
    let body = match target {
        Target::CoreVersions | Target::Groups if aggregated => {
            let body = discovery::aggregated(*target == Target::CoreVersions);
            let kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            return Ok(json_response(StatusCode::OK, body.to_string().into(), kind));
        }
        Target::CoreVersions => discovery::core_versions(server.settings().service),
        Target::Groups => discovery::groups(),
        Target::Group(name) => discovery::group(name),
        Target::GroupVersion { group, version } => discovery::resources(group, version),
        Target::Version => discovery::version(),
        Target::Health => return Ok("ok".into_response()),
        Target::OpenApi(page) => return Ok(page.serve(headers)),
        Target::Resource(_) => return Ok(page_not_found()),
    };
    Ok(plain_json(StatusCode::OK, body.to_string().into()))
}

fn plain_json(code: StatusCode, body: Bytes) -> Response {
    json_response(code, body, "application/json")
}

fn json_response(code: StatusCode, body: Bytes, kind: &'static str) -> Response {
    (code, [(header::CONTENT_TYPE, kind)], body).into_response()
}

/// Serves an authorized request for a stream of a container.
async fn serve_stream(
    server: &ApiServer,
    info: &RequestInfo,
    query: &Query,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    if info.subresource.is_some_and(|sub| !sub.verbs.contains(&info.verb)) {
        return Err(ApiError::method_not_allowed());
    }
    server.connect(info, query, request).await
}

/// Serves an authorized request for objects.
async fn serve(
    server: &ApiServer,
    info: RequestInfo,
    identity: Identity,
    query: Query,
    request: Request<Body>,
    permit: Option<&RequestPermit>,
) -> Result<Response, ApiError> {
    let allowed = match info.subresource {
        Some(sub) => sub.verbs.contains(&info.verb),
        None => info.resource.is_stored() || info.resource.allows(info.verb),
    };
    if !allowed {
        return Err(ApiError::method_not_allowed());
    }
    let (parts, body) = request.into_parts();
    let (view, encoding) = negotiate::view(&parts.headers)?;
    let include = Include::parse(query.get("includeObject"), view)?;
    let encoder = Encoder { resource: info.resource, view, encoding, include };
    server.restrict_existing(&identity, &info)?;
    let call = Call { server, info, encoder, query, headers: parts.headers };
    match call.info.verb {
        Verb::Get | Verb::List if is_measured(call.info.resource) => return call.measure().await,
        Verb::Get => return call.get(),
        Verb::List => return call.list(),
        Verb::Watch => return call.watch(permit.cloned()),
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => {}
    }
    let body = read_body(body, call.max_body_bytes(), permit).await?;
    let _turn = match permit {
        Some(permit) => permit.turn(body.len()).await,
        None => None,
    };
    match call.info.verb {
        Verb::Get | Verb::List | Verb::Watch => Err(ApiError::method_not_allowed()),
        Verb::Create => call.create(&identity, body).await,
        Verb::Update => call.update(&identity, body).await,
        Verb::Patch => call.patch(&identity, body).await,
        Verb::Delete => call.delete(body).await,
        Verb::DeleteCollection => call.delete_collection(body).await,
    }
}

async fn read_body(
    body: Body,
    limit: usize,
    permit: Option<&RequestPermit>,
) -> Result<Bytes, ApiError> {
    let reading = tokio::time::timeout(BODY_TIMEOUT, collect(Limited::new(body, limit), permit));
    let Ok(read) = reading.await else {
        return Err(ApiError::timed_out("the body of the request did not come in time"));
    };
    match read {
        Ok(body) => Ok(body),
        Err(BodyError::Refused(error)) => Err(error),
        Err(BodyError::Unread(error)) if error.downcast_ref::<LengthLimitError>().is_some() => {
            Err(ApiError::too_large(limit))
        }
        Err(BodyError::Unread(error)) => {
            Err(ApiError::bad_request(format!("cannot read the body: {error}")))
        }
    }
}

/// Why a body was not read.
enum BodyError {
    Refused(ApiError),
    Unread(Box<dyn std::error::Error + Send + Sync>),
}

/// Reads a body; each frame is counted before it is kept.
async fn collect(
    mut body: Limited<Body>,
    permit: Option<&RequestPermit>,
) -> Result<Bytes, BodyError> {
    let mut collected = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(BodyError::Unread)?.into_data() else { continue };
        if let Some(permit) = permit {
            permit.reserve(data.len()).map_err(BodyError::Refused)?;
        }
        collected.extend_from_slice(&data);
    }
    Ok(collected.into())
}

/// One authorized request for objects.
struct Call<'a> {
    server: &'a ApiServer,
    info: RequestInfo,
    encoder: Encoder,
    query: Query,
    headers: HeaderMap,
}

impl Call<'_> {
    fn max_body_bytes(&self) -> usize {
        let is_unstored = self.info.resource.storage.is_empty()
            || matches!(self.info.verb, Verb::Delete | Verb::DeleteCollection)
            || self.info.verb == Verb::Create && self.info.subresource.is_some();
        if is_unstored { MAX_SMALL_BODY_BYTES } else { MAX_BODY_BYTES }
    }

    fn get(&self) -> Result<Response, ApiError> {
        let document = self.server.get(&self.info, Freshness::of_get(&self.query)?)?;
        let body = self.encoder.document(&document, self.server.now())?;
        Ok(self.encoded_response(StatusCode::OK, body))
    }

    /// The usage of nodes or pods.
    async fn measure(&self) -> Result<Response, ApiError> {
        let options = ListOptions::parse(&self.info, &self.query)?;
        // Usage has no protobuf form here, and clients that prefer it accept JSON.
        let encoding = match self.encoder.encoding {
            Encoding::Yaml => Encoding::Yaml,
            Encoding::Json | Encoding::Protobuf => Encoding::Json,
        };
        let encoder = Encoder { encoding, ..self.encoder };
        let body = metrics::serve(self.server, &self.info, &options, encoder).await?;
        Ok(json_response(StatusCode::OK, body.into(), encoding.media_type()))
    }

    fn list(&self) -> Result<Response, ApiError> {
        if !self.info.resource.allows(Verb::List) {
            return Err(ApiError::method_not_allowed());
        }
        let options = ListOptions::parse(&self.info, &self.query)?;
        let page = self.server.list(&self.info, &options)?;
        let body = self.encoder.page(&page, self.server.now())?;
        Ok(self.encoded_response(StatusCode::OK, body))
    }

    fn watch(&self, permit: Option<RequestPermit>) -> Result<Response, ApiError> {
        if !self.info.resource.allows(Verb::Watch) {
            return Err(ApiError::method_not_allowed());
        }
        let options = ListOptions::parse(&self.info, &self.query)?;
        let kind = self.encoder.encoding.stream_type()?;
        let body = self.server.watch(&self.info, options, self.encoder, permit)?;
        Ok((StatusCode::OK, [(header::CONTENT_TYPE, kind)], body).into_response())
    }

    async fn create(&self, identity: &Identity, body: Bytes) -> Result<Response, ApiError> {
        let options = WriteOptions::parse(WriteKind::Create, &self.query, &self.headers)?;
        if self.info.resource.storage.is_empty() {
            let review = self.unstored_object(&body)?;
            let reviewed = self.server.review(self.info.resource, identity, review)?;
            return Ok(plain_json(StatusCode::CREATED, reviewed.value().to_string().into()));
        }
        match self.info.subresource.map(|sub| sub.name) {
            Some("binding") => {
                let binding = self.unstored_object(&body)?;
                self.server.bind(&self.info, &binding, options.dry_run).await?;
                return Ok(success(Some(StatusCode::CREATED), None));
            }
            Some("eviction") => {
                let eviction = self.unstored_object(&body)?;
                self.server.evict(&self.info, &eviction, options.dry_run).await?;
                return Ok(success(Some(StatusCode::CREATED), None));
            }
            Some("token") => return self.issue_token(identity, &body),
            Some(_) => return Err(ApiError::method_not_allowed()),
            None => {}
        }
        if !self.info.resource.allows(Verb::Create) {
            return Err(read_only(self.info.resource));
        }
        let decoded =
            decode::object(self.info.resource, self.encoded(&body)?, options.field_validation)?;
        let object = events::to_stored(self.info.resource, decoded.object);
        let mut warnings = decoded.warnings;
        warnings.extend(self.server.check_new(identity, &self.info, &object)?);
        let stored = self.server.create(&self.info, object, &options).await?;
        Ok(self.written(StatusCode::CREATED, stored, &warnings))
    }

    fn issue_token(&self, identity: &Identity, body: &[u8]) -> Result<Response, ApiError> {
        let request = self.unstored_object(body)?;
        self.server.restrict_create(identity, &self.info, &request)?;
        let issued = self.server.issue_token(&self.info, request)?;
        Ok(plain_json(StatusCode::CREATED, issued.value().to_string().into()))
    }

    /// An object of a kind that is not stored.
    fn unstored_object(&self, body: &[u8]) -> Result<Object, ApiError> {
        let kind = self.info.subresource.map_or(self.info.resource.kind, |sub| sub.kind);
        let value = decode::unstored(kind, self.encoded(body)?)?;
        Object::try_from(value)
            .map_err(|error| ApiError::bad_request(format!("the body is not a {kind}: {error}")))
    }

    fn delete_options(&self, body: &[u8]) -> Result<DeleteOptions, ApiError> {
        if body.is_empty() {
            return DeleteOptions::parse(&self.query, None);
        }
        let options = decode::unstored("DeleteOptions", self.encoded(body)?)?;
        DeleteOptions::parse(&self.query, Some(&options))
    }

    async fn update(&self, identity: &Identity, body: Bytes) -> Result<Response, ApiError> {
        let options = WriteOptions::parse(WriteKind::Update, &self.query, &self.headers)?;
        let decoded =
            decode::object(self.info.resource, self.encoded(&body)?, options.field_validation)?;
        let object = events::to_stored(self.info.resource, decoded.object);
        let updated = self.server.update(identity, &self.info, object, &options).await?;
        let code = if updated.created { StatusCode::CREATED } else { StatusCode::OK };
        let warnings = [decoded.warnings, updated.warnings].concat();
        Ok(self.written(code, updated.object, &warnings))
    }

    async fn patch(&self, identity: &Identity, text: Bytes) -> Result<Response, ApiError> {
        if self.content_type() == APPLY {
            let options = WriteOptions::parse(WriteKind::Apply, &self.query, &self.headers)?;
            let applied = self.server.apply(identity, &self.info, &text, &options).await?;
            let code = if applied.created { StatusCode::CREATED } else { StatusCode::OK };
            return Ok(self.written(code, applied.object, &applied.warnings));
        }
        let kind = self.patch_type()?;
        let options = WriteOptions::parse(WriteKind::Patch, &self.query, &self.headers)?;
        let body = PatchBody { kind, text };
        let (object, warnings) = self.server.patch(identity, &self.info, &body, &options).await?;
        Ok(self.written(StatusCode::OK, object, &warnings))
    }

    async fn delete(&self, body: Bytes) -> Result<Response, ApiError> {
        let options = self.delete_options(&body)?;
        let deleted = self.server.delete(&self.info, &options).await?;
        if !deleted.removed || strategy::shows_deleted(self.info.resource) {
            let pending = !deleted.removed && options.cascades;
            let code = if pending { StatusCode::ACCEPTED } else { StatusCode::OK };
            return Ok(self.written(code, deleted.object, &[]));
        }
        let details = Details {
            name: self.info.name.clone(),
            group: self.info.resource.group.into(),
            kind: self.info.resource.plural.to_owned(),
            uid: deleted.object.uid().to_owned(),
            ..Details::default()
        };
        Ok(success(None, Some(&details)))
    }

    async fn delete_collection(&self, body: Bytes) -> Result<Response, ApiError> {
        let list = ListOptions::parse(&self.info, &self.query)?;
        let options = self.delete_options(&body)?;
        let page = self.server.delete_collection(&self.info, &list, &options).await?;
        let body = self.encoder.page(&page, self.server.now())?;
        Ok(self.encoded_response(StatusCode::OK, body))
    }

    /// A body that the encoder wrote.
    fn encoded_response(&self, code: StatusCode, body: Vec<u8>) -> Response {
        json_response(code, body.into(), self.encoder.encoding.media_type())
    }

    /// An object after a write, with its warnings.
    fn written(&self, code: StatusCode, object: Object, warnings: &[String]) -> Response {
        let body = self.encoder.object(object, self.server.now());
        let mut response = self.encoded_response(code, body);
        for warning in warnings {
            let text = format!("299 - {warning:?}");
            if let Ok(value) = HeaderValue::from_str(&text) {
                response.headers_mut().append(header::WARNING, value);
            }
        }
        response
    }

    fn content_type(&self) -> &str {
        let header = self.headers.get(header::CONTENT_TYPE);
        let text = header.and_then(|value| value.to_str().ok()).unwrap_or_default();
        text.split(';').next().unwrap_or_default().trim()
    }

    fn encoded<'b>(&self, body: &'b [u8]) -> Result<Encoded<'b>, ApiError> {
        match self.content_type() {
            "" | "application/json" => Ok(Encoded::Json(body)),
            YAML => Ok(Encoded::Yaml(body)),
            protobuf::MEDIA_TYPE => Ok(Encoded::Protobuf(body)),
            _ => Err(ApiError::unsupported_media_type(MEDIA_TYPES)),
        }
    }

    fn patch_type(&self) -> Result<PatchType, ApiError> {
        match self.content_type() {
            "application/json-patch+json" => Ok(PatchType::Json),
            "application/merge-patch+json" => Ok(PatchType::Merge),
            "application/strategic-merge-patch+json" => Ok(PatchType::Strategic),
            _ => Err(ApiError::unsupported_patch()),
        }
    }
}
