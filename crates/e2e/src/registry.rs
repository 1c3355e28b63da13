//! Image registry inside a test: plain HTTP on loopback inside a bed, with the bed's own images,
//! optionally protected by a login.
//!
//! Runtimes use plain HTTP for 127.0.0.1 by default, so no bed needs configuration for it, and no
//! traffic leaves the bed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::bed::Bed;
use crate::images::{Archive, archives};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A running registry; stopped on drop.
pub struct Registry {
    address: String,
    content: Arc<RegistryContent>,
    task: JoinHandle<()>,
}

struct RegistryContent {
    /// By digest.
    blobs: BTreeMap<String, Bytes>,
    /// The only image, under any name.
    manifest: String,
    /// The accepted login; `None` accepts everyone.
    login: Option<(String, String)>,
    /// Requests that resolve a tag: one for each pull, accepted and rejected.
    served: AtomicUsize,
    refused: AtomicUsize,
}

impl Registry {
    /// Serves the bed's test image under every name, to clients with this login.
    pub async fn start(bed: &Bed, login: Option<(&str, &str)>) -> Result<Self> {
        let listener = bed.netns().listen(([127, 0, 0, 1], 0).into()).await?;
        let address = listener.local_addr()?.to_string();
        let archives = archives()?;
        let test = archives.iter().find(|a| a.names.iter().any(|name| name.contains("/test")));
        let (blobs, manifest) = unpack(test.context("no test image; run cargo xtask images")?)?;
        let content = Arc::new(RegistryContent {
            blobs,
            manifest,
            login: login.map(|(user, password)| (user.to_owned(), password.to_owned())),
            served: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        });
        let task = tokio::spawn(serve(listener, content.clone()));
        Ok(Self { address, content, task })
    }

    /// The reference of an image in it.
    pub fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    /// A Docker configuration with a login for it.
    pub fn docker_config(&self, user: &str, password: &str) -> Value {
        let auth = BASE64_STANDARD.encode(format!("{user}:{password}"));
        serde_json::json!({ "auths": { &self.address: { "auth": auth } } })
    }

    /// Number of accepted and rejected tag requests.
    pub fn visits(&self) -> (usize, usize) {
        (self.content.served.load(Relaxed), self.content.refused.load(Relaxed))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, content: Arc<RegistryContent>) {
    while let Ok((stream, _)) = listener.accept().await {
        let content = content.clone();
        tokio::spawn(async move {
            let reply = service_fn(move |request| {
                let response = content.reply(&request);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = hyper::server::conn::http1::Builder::new();
            // Errors of a client that disconnects do not matter.
            let _ = connection.serve_connection(TokioIo::new(stream), reply).await;
        });
    }
}

impl RegistryContent {
    /// `/v2/`, `/v2/<name>/manifests/<reference>`, `/v2/<name>/blobs/<digest>`.
    fn reply(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        let of_manifest = path.contains("/manifests/");
        if !self.is_authorized(request) {
            if of_manifest {
                self.refused.fetch_add(1, Relaxed);
            }
            let refusal = Response::builder()
                .status(StatusCode::UNAUTHORIZED)
                .header(WWW_AUTHENTICATE, "Basic realm=\"podwright\"");
            return refusal.body(Full::default()).unwrap_or_default();
        }
        let Some(rest) = path.strip_prefix("/v2/") else { return status(StatusCode::NOT_FOUND) };
        if rest.is_empty() {
            return status(StatusCode::OK);
        }
        let reference = rest.rsplit('/').next().unwrap_or_default();
        let digest = match reference.starts_with("sha256:") {
            true => reference,
            false if of_manifest => &self.manifest,
            false => return status(StatusCode::NOT_FOUND),
        };
        let Some(blob) = self.blobs.get(digest) else { return status(StatusCode::NOT_FOUND) };
        if of_manifest && reference != digest {
            self.served.fetch_add(1, Relaxed);
        }
        let kind = if of_manifest { MANIFEST } else { "application/octet-stream" };
        let body = match *request.method() {
            Method::HEAD => Full::default(),
            _ => Full::new(blob.clone()),
        };
        Response::builder()
            .header(CONTENT_TYPE, kind)
            .header("Docker-Content-Digest", digest)
            .header("Content-Length", blob.len())
            .body(body)
            .unwrap_or_default()
    }

    fn is_authorized(&self, request: &Request<Incoming>) -> bool {
        let Some((user, password)) = &self.login else { return true };
        let want = format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")));
        request
            .headers()
            .get(AUTHORIZATION)
            .is_some_and(|shown| shown.as_bytes() == want.as_bytes())
    }
}

fn status(code: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = code;
    response
}

/// The blobs of an OCI archive, and the digest of its manifest. A label makes it differ from the
/// image in the archive, so that a runtime which has that one must really pull this one.
fn unpack(archive: &Archive) -> Result<(BTreeMap<String, Bytes>, String)> {
    let (mut blobs, mut manifest) = (BTreeMap::new(), None);
    for entry in tar::Archive::new(File::open(&archive.path)?).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().trim_start_matches("./").to_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        if let Some(digest) = path.strip_prefix("blobs/sha256/") {
            blobs.insert(format!("sha256:{digest}"), Bytes::from(content));
        } else if path == "index.json" {
            let index: Value = serde_json::from_slice(&content)?;
            let digest = index.pointer("/manifests/0/digest").and_then(Value::as_str);
            manifest = digest.map(str::to_owned);
        }
    }
    let manifest = manifest.context("the archive has no index.json")?;
    let read = |digest: &str| -> Result<Value> {
        Ok(serde_json::from_slice(blobs.get(digest).context("a blob is missing")?)?)
    };
    let mut document = read(&manifest)?;
    let digest = document.pointer("/config/digest").and_then(Value::as_str);
    let mut config = read(digest.unwrap_or_default())?;
    let settings = config.pointer_mut("/config").and_then(Value::as_object_mut);
    let settings = settings.context("the image has no settings")?;
    settings.insert("Labels".to_owned(), json!({ "from": "a registry" }));
    let (digest, config) = blob(&config);
    let about = document.pointer_mut("/config").and_then(Value::as_object_mut);
    let about = about.context("the manifest names no settings")?;
    about.insert("size".to_owned(), config.len().into());
    about.insert("digest".to_owned(), digest.as_str().into());
    blobs.insert(digest, config);
    let (manifest, document) = blob(&document);
    blobs.insert(manifest.clone(), document);
    Ok((blobs, manifest))
}

fn blob(document: &Value) -> (String, Bytes) {
    let bytes = Bytes::from(document.to_string());
    let hex: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    (format!("sha256:{hex}"), bytes)
}
