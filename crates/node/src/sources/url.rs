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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n\
                       spec: {containers: [{name: app, image: i}]}\n";

    /// Answers each request with the next of these, and then with the last one for ever.
    async fn serve(listener: TcpListener, answers: Vec<(&'static str, String)>) {
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; 4096];
            let read = stream.read(&mut asked).await.unwrap();
            assert!(String::from_utf8_lossy(&asked[..read]).contains("x-token: t"));
            let (status, body) = &answers[number.min(answers.len() - 1)];
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn row_5_errors_keep_the_pods_and_an_empty_answer_removes_them() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/pods", listener.local_addr().unwrap());
        let answers = [
            ("200 OK", POD.to_owned()),
            ("200 OK", POD.to_owned()),
            ("500 Internal Server Error", String::new()),
            ("200 OK", "no manifest at all".to_owned()),
            ("200 OK", "\n".to_owned()),
        ];
        tokio::spawn(serve(listener, answers.to_vec()));
        let headers = [("x-token".parse().unwrap(), "t".parse().unwrap())].into_iter().collect();
        let every = Duration::from_millis(1);
        let remote = Remote { url: url.parse().unwrap(), headers, node: "node-1".into(), every };
        let (deliveries, mut delivered) = mpsc::channel(8);
        let stop = CancellationToken::new();
        let running = tokio::spawn(remote.run(deliveries, stop.clone()));
        for want in [vec!["web-node-1"], vec![]] {
            let delivery = delivered.recv().await.unwrap();
            assert_eq!(delivery.source, Source::Http);
            let News::All(pods) = delivery.news else { panic!("{:?}", delivery.news) };
            let names: Vec<_> =
                pods.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
            assert_eq!(names, want, "nothing but what changed is delivered");
        }
        stop.cancel();
        running.await.unwrap();
        assert!(delivered.recv().await.is_none(), "and nothing twice");
    }
}
