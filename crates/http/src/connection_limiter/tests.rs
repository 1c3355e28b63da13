#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::time::Instant as WallInstant;

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::*;
use crate::{HttpVersion, serve_http};

const GREEDY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const MODEST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const WIDE: ConnectionLimits = ConnectionLimits {
    all: 1000,
    per_address: 1000,
    unauthenticated: 1000,
    unauthenticated_per_address: 1000,
};

fn take(limiter: &ConnectionLimiter, peer: impl Into<IpAddr>) -> Option<ConnectionPermit> {
    limiter.try_admit(peer.into())
}

fn is_replaced(permit: &ConnectionPermit) -> bool {
    permit.replaced.is_cancelled()
}

#[test]
fn one_address_cannot_take_all_connections() {
    let limiter = ConnectionLimiter::new(ConnectionLimits { all: 5, per_address: 3, ..WIDE });
    let mut held: Vec<_> = (0..3).map(|_| take(&limiter, GREEDY).unwrap()).collect();
    assert!(take(&limiter, GREEDY).is_none(), "at its limit");
    assert!(take(&limiter, GREEDY.to_ipv6_mapped()).is_none(), "same address, as IPv6");
    let other = take(&limiter, MODEST).unwrap();
    held.pop();
    held.push(take(&limiter, GREEDY).unwrap());
    let _last = take(&limiter, MODEST).unwrap();
    assert!(take(&limiter, MODEST).is_none(), "at the total limit");
    drop(other);
    assert!(take(&limiter, MODEST).is_some());
    drop(held);
    let connections = limiter.connections.lock();
    assert_eq!(connections.by_address.len(), 1, "addresses without connections are dropped");
    assert_eq!(connections.unauthenticated.len(), 1);
}

#[test]
fn loopback_is_limited_only_by_the_totals() {
    let limits = ConnectionLimits {
        all: 5,
        per_address: 1,
        unauthenticated: 4,
        unauthenticated_per_address: 1,
    };
    let limiter = ConnectionLimiter::new(limits);
    let held: Vec<_> = (0..5).map(|_| take(&limiter, Ipv4Addr::LOCALHOST).unwrap()).collect();
    let replaced: Vec<_> = held.iter().map(is_replaced).collect();
    assert_eq!(replaced, [true, false, false, false, false]);
    assert!(take(&limiter, Ipv4Addr::LOCALHOST).is_none());
}

#[test]
fn new_unauthenticated_connection_replaces_the_oldest() {
    let limits = ConnectionLimits { unauthenticated: 3, unauthenticated_per_address: 2, ..WIDE };
    let limiter = ConnectionLimiter::new(limits);
    let modest = take(&limiter, MODEST).unwrap();
    let greedy: Vec<_> = (0..4).map(|_| take(&limiter, GREEDY).unwrap()).collect();
    let replaced: Vec<_> = greedy.iter().map(is_replaced).collect();
    assert_eq!(replaced, [true, true, false, false], "an address replaces its own");
    assert!(!is_replaced(&modest));
    let third = take(&limiter, Ipv4Addr::new(10, 0, 0, 4)).unwrap();
    assert!(is_replaced(&modest), "beyond the total the oldest of all");
    third.authenticated();
    let more: Vec<_> = (5..15).map(|n| take(&limiter, Ipv4Addr::new(10, 0, 0, n))).collect();
    assert_eq!(more.iter().flatten().count(), 10);
    assert!(!is_replaced(&third), "an authenticated connection is never replaced");
}

#[tokio::test(start_paused = true)]
async fn connection_that_does_not_authenticate_expires() {
    let limiter = ConnectionLimiter::new(WIDE);
    let permit = take(&limiter, MODEST).unwrap();
    let began = Instant::now();
    permit.expired().await;
    assert_eq!(began.elapsed(), AUTHENTICATION_TIMEOUT);

    // A slow check of credentials is not the client's fault.
    let permit = take(&limiter, MODEST).unwrap();
    let began = Instant::now();
    let checking = async {
        let check = permit.check_credentials();
        tokio::time::sleep(3 * AUTHENTICATION_TIMEOUT).await;
        drop(check);
    };
    tokio::join!(permit.expired(), checking);
    assert_eq!(began.elapsed(), 4 * AUTHENTICATION_TIMEOUT, "the credentials were refused");

    let permit = take(&limiter, MODEST).unwrap();
    permit.authenticated();
    let waited = tokio::time::timeout(1000 * AUTHENTICATION_TIMEOUT, permit.expired()).await;
    assert!(waited.is_err(), "an authenticated connection does not expire");
}

/// A client that sends forged tokens without end keeps no connection, and no place.
#[tokio::test(start_paused = true)]
async fn refused_credentials_do_not_keep_a_connection() {
    let limiter = ConnectionLimiter::new(WIDE);
    let permit = take(&limiter, MODEST).unwrap();
    let began = Instant::now();
    let forging = async {
        loop {
            let check = permit.check_credentials();
            tokio::time::sleep(Duration::from_secs(1)).await;
            // The next one begins before this one ends, so that one is always being checked.
            let next = permit.check_credentials();
            drop(check);
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(next);
        }
    };
    tokio::select! {
        () = permit.expired() => {}
        () = forging => {}
    }
    assert!(began.elapsed() < 2 * AUTHENTICATION_TIMEOUT, "{:?}", began.elapsed());
    // one that is accepted after all stays
    let permit = take(&limiter, MODEST).unwrap();
    drop(permit.check_credentials());
    permit.authenticated();
    let waited = tokio::time::timeout(1000 * AUTHENTICATION_TIMEOUT, permit.expired()).await;
    assert!(waited.is_err());
}

#[test]
fn connections_being_checked_are_as_few_as_those_without_credentials() {
    let limits = ConnectionLimits { unauthenticated: 5, unauthenticated_per_address: 3, ..WIDE };
    let limiter = ConnectionLimiter::new(limits);
    let greedy: Vec<_> = (0..8).map(|_| take(&limiter, GREEDY).unwrap()).collect();
    let checks: Vec<_> = greedy.iter().map(ConnectionPermit::check_credentials).collect();
    let modest = take(&limiter, MODEST).unwrap();
    let check = modest.check_credentials();
    let _more: Vec<_> = (0..20).map(|_| take(&limiter, GREEDY).unwrap()).collect();
    assert!(!is_replaced(&modest), "a check of another address is not in the way");
    let kept = greedy.iter().filter(|permit| !is_replaced(permit)).count();
    assert_eq!(kept, 3, "as many as an address may have without credentials");
    drop((check, checks));
    let connections = limiter.connections.lock();
    assert!(connections.checked.is_empty());
}

/// Sends a request with credentials and reads the response.
async fn request(stream: &mut TcpStream) {
    let request = b"GET / HTTP/1.1\r\nhost: a\r\nauthorization: Bearer t\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"done") {
        assert_ne!(stream.read_buf(&mut response).await.unwrap(), 0, "closed: {response:?}");
    }
    assert!(response.starts_with(b"HTTP/1.1 200 OK"));
}

/// Twice as many connections as the server accepts in total, none of which sends a byte.
#[tokio::test]
async fn flood_of_silent_connections_does_not_shut_out_a_client_with_credentials() {
    let limits = ConnectionLimits {
        all: 200,
        per_address: 200,
        unauthenticated: 50,
        unauthenticated_per_address: 25,
    };
    let limiter = ConnectionLimiter::new(limits);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        loop {
            let Ok(Some((stream, permit))) = limiter.accept(&listener).await else { continue };
            tokio::spawn(async move {
                let permit = Arc::new(permit);
                let seen = permit.clone();
                let handler = move |request: Request<Incoming>| {
                    if request.headers().contains_key(header::AUTHORIZATION) {
                        seen.authenticated();
                    }
                    async { Response::new(Full::new(Bytes::from("done"))) }
                };
                let stop = CancellationToken::new();
                tokio::select! {
                    _ = serve_http(stream, HttpVersion::Http1, handler, &stop) => {}
                    () = permit.expired() => {}
                }
            });
        }
    });
    let mut client = TcpStream::connect(address).await.unwrap();
    request(&mut client).await;
    let mut silent = Vec::new();
    for round in 0..4 {
        for _ in 0..100 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let began = WallInstant::now();
        // A connection from before the flood, and a new one.
        request(&mut client).await;
        request(&mut TcpStream::connect(address).await.unwrap()).await;
        assert!(began.elapsed() < Duration::from_secs(5), "round {round}");
    }
    let mut closed = 0;
    for stream in &mut silent {
        let read = tokio::time::timeout(Duration::from_millis(1), stream.read(&mut [0])).await;
        closed += usize::from(read.is_ok());
    }
    assert!(closed >= 350, "{closed} of 400 were closed");
    server.abort();
}
