//! Metrics of requests to the API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use parking_lot::Mutex;

use super::exposition::{Counter, Exposition, Histogram};

const BUCKETS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

#[derive(Default)]
pub struct RequestMetrics {
    series: Mutex<Series>,
}

#[derive(Default)]
struct Series {
    results: BTreeMap<(Arc<str>, &'static str, String), Counter>,
    durations: BTreeMap<(Arc<str>, &'static str), Histogram>,
}

impl RequestMetrics {
    /// `code`: of the response, if there was one.
    pub fn answered(&self, host: &str, method: &Method, code: Option<u16>) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        let mut series = self.series.lock();
        series.results.entry((host.into(), known(method), code)).or_default().inc();
    }

    /// Duration of a request, except for watches.
    pub fn took(&self, host: &str, method: &Method, time: Duration) {
        let mut series = self.series.lock();
        let durations = series.durations.entry((host.into(), known(method)));
        durations.or_insert_with(|| Histogram::new(BUCKETS)).observe(time);
    }

    pub(super) fn write(&self, out: &mut Exposition) {
        let series = self.series.lock();
        out.counters(
            "rest_client_requests_total",
            "Number of HTTP requests, partitioned by status code, method, and host.",
            series.results.iter().map(|((host, method, code), count)| {
                (vec![("code", code.as_str()), ("host", &**host), ("method", *method)], count)
            }),
        );
        out.histograms(
            "rest_client_request_duration_seconds",
            "Duration in seconds of requests, by verb and host.",
            series.durations.iter().map(|((host, verb), durations)| {
                (vec![("host", &**host), ("verb", *verb)], durations)
            }),
        );
    }
}

fn known(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "OTHER",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_counted_by_code_and_errors_separately() {
        let metrics = RequestMetrics::default();
        metrics.answered("api:6443", &Method::GET, Some(200));
        metrics.answered("api:6443", &Method::GET, Some(200));
        metrics.answered("api:6443", &Method::PATCH, None);
        metrics.took("api:6443", &Method::GET, Duration::from_millis(30));
        let mut out = Exposition::default();
        metrics.write(&mut out);
        let page = out.into_page();
        for line in [
            r#"rest_client_requests_total{code="200",host="api:6443",method="GET"} 2"#,
            r#"rest_client_requests_total{code="<error>",host="api:6443",method="PATCH"} 1"#,
            r#"rest_client_request_duration_seconds_bucket{host="api:6443",verb="GET",le="0.1"} 1"#,
        ] {
            assert!(page.lines().any(|written| written == line), "{line}\n{page}");
        }
    }
}
