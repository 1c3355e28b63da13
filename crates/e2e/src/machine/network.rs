//! Links, addresses, routes, routing rules and listening unix sockets of a machine snapshot.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Entry, Kind, THREAD};
use crate::process::output;

pub(super) fn entries() -> Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = ip(&["address", "show"])?.iter().map(link).collect();
    for family in ["-4", "-6"] {
        let routes = ip(&[family, "route", "show", "table", "all"])?;
        entries.extend(routes.iter().filter(|route| !is_automatic(route)).map(route));
        entries
            .extend(ip(&[family, "rule", "show"])?.iter().map(|rule| routing_rule(family, rule)));
    }
    entries.extend(unix_sockets()?);
    Ok(entries)
}

fn ip(arguments: &[&str]) -> Result<Vec<Value>> {
    let text = output(Command::new("ip").args(["-json", "-details"]).args(arguments))?;
    if text.trim().is_empty() {
        return Ok(Vec::new()); // some versions print this for "none"
    }
    let list = serde_json::from_str(&text);
    list.with_context(|| format!("machine snapshot: ip {arguments:?} printed {text:?}"))
}

/// Includes the index of the link: one that was deleted and created again is no longer the user's.
fn link(link: &Value) -> Entry {
    let text = |field: &str| link[field].as_str().unwrap_or("none").to_owned();
    let addresses = link["addr_info"].as_array().into_iter().flatten();
    // The kernel adds a link-local address itself, shortly after the link is up.
    let addresses = addresses.filter(|address| address["scope"] != "link").filter_map(|address| {
        Some(format!(" {}/{}", address["local"].as_str()?, address["prefixlen"]))
    });
    let flags = link["flags"].as_array().into_iter().flatten();
    let up = flags.into_iter().any(|flag| flag == "UP");
    let detail = format!(
        "number {} {} master {} mtu {} {}{}",
        link["ifindex"],
        link.pointer("/linkinfo/info_kind").and_then(Value::as_str).unwrap_or("plain"),
        text("master"),
        link["mtu"],
        if up { "up" } else { "down" },
        addresses.collect::<String>(),
    );
    Entry::new(Kind::Link, text("ifname"), detail)
}

fn route(route: &Value) -> Entry {
    let text = |field: &str| match &route[field] {
        Value::String(text) => text.clone(),
        Value::Null => "none".to_owned(),
        other => other.to_string(),
    };
    let name = format!("{} table {} dev {}", text("dst"), text("table"), text("dev"));
    let fields = ["type", "gateway", "prefsrc", "scope", "metric"];
    let detail = fields.map(|field| format!("{field} {}", text(field))).join(" ");
    Entry::new(Kind::Route, name, detail)
}

/// Routing policy rules: which table serves which traffic.
fn routing_rule(family: &str, rule: &Value) -> Entry {
    let name = format!("ip {family} priority {}", rule["priority"]);
    Entry::new(Kind::Rule, name, rule.to_string())
}

/// Routes that the kernel adds itself, shortly after a link is up.
fn is_automatic(route: &Value) -> bool {
    let to = route["dst"].as_str().unwrap_or_default();
    to.starts_with("fe80:") || to.starts_with("ff00:") || route["type"] == "multicast"
}

fn unix_sockets() -> Result<Vec<Entry>> {
    /// `__SO_ACCEPTCON` in the flags column: a listening socket.
    const LISTENS: &str = "00010000";
    let table = fs::read_to_string(Path::new(THREAD).join("net/unix"))
        .context("machine snapshot: listing unix sockets")?;
    let sockets = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [_, _, _, flags, _, _, _, path] if *flags == LISTENS => {
                Some(Entry::new(Kind::UnixSocket, without_descriptor(path), "listens"))
            }
            _ => None,
        }
    });
    Ok(sockets.collect())
}

/// A socket in a directory with a long path is bound through a file descriptor, whose number is not
/// part of the socket's name.
fn without_descriptor(path: &str) -> String {
    let through = path.strip_prefix("/proc/self/fd/").and_then(|rest| rest.split_once('/'));
    through.map_or_else(|| path.to_owned(), |(_, name)| format!("/proc/self/fd/*/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_bound_through_descriptor_compares_without_its_number() {
        for (path, want) in [
            ("/run/x.sock", "/run/x.sock"),
            ("/proc/self/fd/18/podwright.sock", "/proc/self/fd/*/podwright.sock"),
        ] {
            assert_eq!(without_descriptor(path), want);
        }
    }
}
