//! Node-wide rate of requests to the API server: `kubeAPIQPS` and `kubeAPIBurst`.
//!
//! It keeps a mass failure on one node from flooding the API server. Watches and Events do not count,
//! as upstream: Events have their own rate. Leases, the node's status and changes of Ready are sent
//! by clients without a limit, so that a busy node is neither taken for lost nor late to take
//! traffic away from a pod.

use std::sync::Arc;

use http::Request;
use kube::client::Body;
use parking_lot::Mutex;
use podwright_core::throttle::{RequestLimit, Throttle, counts_as_request};
use podwright_core::time::Mono;
use podwright_host::clock::Clock;

pub struct RequestRate {
    /// `None`: no limit.
    throttle: Mutex<Option<Throttle>>,
    clock: Clock,
}

impl RequestRate {
    pub fn new(limit: RequestLimit, clock: Clock) -> Arc<Self> {
        let throttle = Throttle::new(limit.per_second, limit.burst, clock.now().mono);
        Arc::new(Self { throttle: Mutex::new(throttle), clock })
    }

    /// When the next request may be sent; its place is taken.
    pub fn reserve(&self) -> Mono {
        let now = self.clock.now().mono;
        match self.throttle.lock().as_mut() {
            Some(throttle) => now + throttle.reserve(now),
            None => now,
        }
    }

    /// The same client with the limit.
    pub fn limit(self: &Arc<Self>, client: kube::Client) -> kube::Client {
        if self.throttle.lock().is_none() {
            return client;
        }
        let (rate, namespace) = (self.clone(), client.default_namespace().to_owned());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (rate, client) = (rate.clone(), client.clone());
            async move {
                let (path, query) = (request.uri().path(), request.uri().query());
                if counts_as_request(path, query.unwrap_or_default()) {
                    let wait = rate.reserve().since(rate.clock.now().mono);
                    if !wait.is_zero() {
                        tokio::time::sleep(wait).await;
                    }
                }
                client.send(request).await
            }
        });
        kube::Client::new(service, namespace)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use http::Response;
    use tokio::time::Instant;

    use super::*;

    /// A client whose server answers at once and counts.
    fn counting(answered: &Arc<AtomicUsize>) -> kube::Client {
        let answered = answered.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            answered.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, std::convert::Infallible>(Response::new(Body::empty())) }
        });
        kube::Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn requests_beyond_the_burst_wait_and_watches_do_not() {
        let answered = Arc::new(AtomicUsize::new(0));
        let limit = RequestLimit { per_second: 10, burst: 2 };
        let rate = RequestRate::new(limit, Clock::real());
        let client = rate.limit(counting(&answered));
        let send = async |uri: &str| {
            client.send(Request::get(uri).body(Body::empty()).unwrap()).await.unwrap();
        };
        let began = Instant::now();
        for _ in 0..5 {
            send("/api/v1/namespaces/default/secrets/s").await;
        }
        assert_eq!(began.elapsed().as_millis(), 300, "two at once, then one every 100 ms");
        for _ in 0..50 {
            send("/api/v1/pods?watch=true").await;
            send("/api/v1/namespaces/default/events").await;
        }
        assert_eq!(began.elapsed().as_millis(), 300);
        assert_eq!(answered.load(Ordering::Relaxed), 105);
        let unlimited = RequestRate::new(RequestLimit::NONE, Clock::real());
        assert!((0..1000).all(|_| unlimited.reserve().since(Mono::ZERO) < Duration::from_secs(1)));
    }
}
