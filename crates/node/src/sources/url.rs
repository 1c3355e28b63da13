//! Pod source: static pods from a manifest URL, fetched periodically.

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
use podwright_core::pod::merge::SourceUpdate;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::pods::Delivery;

const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_SIZE: usize = 10 * 1024 * 1024;

pub struct ManifestUrl {
    pub url: Uri,
    pub headers: HeaderMap,
    pub node: Arc<str>,
    /// `httpCheckFrequency`.
    pub every: Duration,
}

impl ManifestUrl {
    pub async fn run(self, deliveries: mpsc::Sender<Delivery>, stop: CancellationToken) {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let mut last = None;
        let work = async {
            loop {
                match self.fetch(&client).await {
                    // Stored before it is parsed, so that an invalid document is logged once.
                    Ok(body) if last.as_ref() != Some(&body) => {
                        if let Some(pods) = self.read(&body) {
                            let delivery =
                                Delivery { source: Source::Http, news: SourceUpdate::All(pods) };
                            if deliveries.send(delivery).await.is_err() {
                                return;
                            }
                        }
                        last = Some(body);
                    }
                    Ok(_) => {}
                    Err(problem) => {
                        tracing::warn!(url = %self.url, error = problem, "fetch manifest URL failed, pods keep running");
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
        let response = async {
            let response = client.request(request).await.map_err(|error| error.to_string())?;
            if response.status() != StatusCode::OK {
                return Err(format!("the server responded with {}", response.status()));
            }
            let body = Limited::new(response.into_body(), MAX_SIZE).collect().await;
            Ok(body.map_err(|error| error.to_string())?.to_bytes())
        };
        tokio::time::timeout(TIMEOUT, response)
            .await
            .map_err(|_| "no response within 10 s".to_owned())?
    }

    /// The pods of a document; `None` if it is invalid. An empty body means no pods.
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
                tracing::warn!(url = %self.url, %error, "invalid manifest, ignored; pods keep running");
                return None;
            }
        };
        let valid = pods.into_iter().filter_map(|pod| match pod {
            Ok(pod) => Some(pod),
            Err(error) => {
                tracing::warn!(url = %self.url, %error, "invalid pod in manifest, ignored");
                None
            }
        });
        Some(valid.collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n\
                       spec: {containers: [{name: app, image: i}]}\n";

    /// Responds to each request with the next of these, then always with the last one.
    async fn serve(listener: TcpListener, responses: Vec<(&'static str, String)>) {
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            assert!(String::from_utf8_lossy(&request[..read]).contains("x-token: t"));
            let (status, body) = &responses[number.min(responses.len() - 1)];
            let length = body.len();
            let response = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn errors_keep_the_pods_and_an_empty_document_removes_them() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/pods", listener.local_addr().unwrap());
        let responses = [
            ("200 OK", POD.to_owned()),
            ("200 OK", POD.to_owned()),
            ("500 Internal Server Error", String::new()),
            ("200 OK", "no manifest at all".to_owned()),
            ("200 OK", "\n".to_owned()),
        ];
        tokio::spawn(serve(listener, responses.to_vec()));
        let headers = [("x-token".parse().unwrap(), "t".parse().unwrap())].into_iter().collect();
        let every = Duration::from_millis(1);
        let remote =
            ManifestUrl { url: url.parse().unwrap(), headers, node: "node-1".into(), every };
        let (deliveries, mut delivered) = mpsc::channel(8);
        let stop = CancellationToken::new();
        let running = tokio::spawn(remote.run(deliveries, stop.clone()));
        for want in [vec!["web-node-1"], vec![]] {
            let delivery = delivered.recv().await.unwrap();
            assert_eq!(delivery.source, Source::Http);
            let SourceUpdate::All(pods) = delivery.news else { panic!("{:?}", delivery.news) };
            let names: Vec<_> =
                pods.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
            assert_eq!(names, want, "only changes are delivered");
        }
        stop.cancel();
        running.await.unwrap();
        assert!(delivered.recv().await.is_none(), "nothing is delivered twice");
    }
}
