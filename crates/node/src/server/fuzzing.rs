//! Entry point of the fuzz targets: reads a request as the server does, with no node behind it.

use http::{Request, StatusCode};
use jiff::Timestamp;

use super::query::Query;
use super::response::{HttpResponse, plain_text};
use super::route::{self, Route, Surface};
use super::{logs, missed, streaming};

/// Routes the request on every surface and reads all its options.
pub fn respond<B>(request: &Request<B>) -> HttpResponse {
    let (method, path) = (request.method(), request.uri().path());
    let query = Query::of(request.uri());
    assert!(!route::counted_as(path).is_empty());
    for surface in [Surface::NoDebugging, Surface::ReadOnly] {
        let _ = route::route(surface, method, path);
    }
    let route = match route::route(Surface::Full, method, path) {
        Ok(route) => route,
        Err(miss) => return missed(miss),
    };
    let readable = match route {
        Route::Logs(_) => logs::is_readable(&query, Timestamp::UNIX_EPOCH),
        Route::Exec(_) | Route::Attach(_) | Route::Run(_) | Route::PortForward { .. } => {
            streaming::is_readable(request.headers(), &query)
        }
        Route::Health(_)
        | Route::Pods
        | Route::RunningPods
        | Route::Configuration
        | Route::Metrics(_)
        | Route::Summary => true,
    };
    match readable {
        true => plain_text(StatusCode::OK, "read"),
        false => plain_text(StatusCode::BAD_REQUEST, "not readable"),
    }
}
