//! Static pods from a URL, asked for again and again.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::{HeaderMap, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1;
use podwright_core::pod::Source;
use podwright_core::pod::manifest::{self, Origin};
use podwright_core::pod::merge::News;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::pods::Delivery;

const TIMEOUT: Duration = Duration::from_secs(10);
const LARGEST: usize = 10 * 1024 * 1024;

pub struct Remote {
    pub url: Uri,
    pub headers: HeaderMap,
    pub node: Arc<str>,
    /// `httpCheckFrequency`.
    pub every: Duration,
}

impl Remote {
    pub async fn run(self, deliveries: mpsc::Sender<Delivery>, stop: CancellationToken) {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let mut last = None;
        let work = async {
            loop {
                match self.fetch(&client).await {
                    // Remembered before it is read: a bad document is told once, not every time.
                    Ok(body) if last.as_ref() != Some(&body) => {
                        if let Some(pods) = self.read(&body) {
                            let delivery = Delivery { source: Source::Http, news: News::All(pods) };
                            if deliveries.send(delivery).await.is_err() {
                                return;
                            }
                        }
                        last = Some(body);
                    }
                    Ok(_) => {}
                    Err(problem) => {
                        tracing::warn!(url = %self.url, problem, "cannot fetch manifests; pods run on");
                    }
                }
                tokio::time::sleep(self.every).await;
            }
        };
        stop.run_until_cancelled(work).await;
    }

    async fn fetch(&self, client: &Client<HttpConnector, Empty<Bytes>>) -> Result<Bytes, String> {
        let mut request = Request::get(self.url.clone());
        if let Some(headers) = request.headers_mut() {
            headers.extend(self.headers.clone());
        }
        let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
        let answer = async {
            let response = client.request(request).await.map_err(|error| error.to_string())?;
            if response.status() != StatusCode::OK {
                return Err(format!("the server answered {}", response.status()));
            }
            let body = Limited::new(response.into_body(), LARGEST).collect().await;
            Ok(body.map_err(|error| error.to_string())?.to_bytes())
        };
        tokio::time::timeout(TIMEOUT, answer).await.map_err(|_| "no answer in 10 s".to_owned())?
    }

    /// The pods of a document; `None` if it is none at all. An empty body means: no pods.
    fn read(&self, body: &Bytes) -> Option<Vec<v1::Pod>> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Some(Vec::new());
        }
        let location = self.url.to_string();
        let origin = Origin { source: Source::Http, location: &location, node: &self.node };
        let text = String::from_utf8_lossy(body);
        let pods = match manifest::pods(&text, origin) {
            Ok(pods) => pods,
            Err(error) => {
                tracing::warn!(%error, "pods from before run on");
                return None;
            }
        };
        let good = pods.into_iter().filter_map(|pod| match pod {
            Ok(pod) => Some(pod),
            Err(error) => {
                tracing::warn!(%error, "this pod is not used");
                None
            }
        });
        Some(good.collect())
    }
}
