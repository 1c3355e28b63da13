//! Short texts in fields and headers, and container logs.

use podwright_api::quantity::{self, Quantity};
use podwright_core::log::{Filter, Flow, Line, Selection, Stream, tail_start};
use podwright_core::probe::http::{HttpTarget, redirect};
use podwright_core::users::{IdBlock, UserRange};

pub(crate) fn quantities(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let stored = quantity::as_stored(text);
    match text.parse::<Quantity>() {
        Ok(quantity) => {
            let written = quantity.to_string();
            let again = written.parse::<Quantity>();
            let again = again.unwrap_or_else(|error| panic!("{text:?} as {written:?}: {error}"));
            assert_eq!(again.value(), quantity.value(), "{text:?} as {written:?}");
            let _ = (quantity.milli_value(), quantity.unsigned_value());
        }
        Err(_) => assert!(stored.is_err(), "{text:?} is stored and cannot be read"),
    }
    let _ = text.parse::<podwright::config::duration::GoDuration>();
    let _ = UserRange::from_subids(text, 65_536);
    let _ = IdBlock::from_file(bytes);
}

pub(crate) fn quantity_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&[
        "100m",
        "1.5Gi",
        "-3e2",
        "1E6",
        "9223372036854775807",
        "0.000000001n",
        "+12Ei",
        "1h2m3.5s",
        "-1.5us",
        "0: kubelet 131072 7208960\n",
    ])
}

/// The lines of a log, after a byte that chooses what is requested.
pub(crate) fn logs(bytes: &[u8]) {
    let Some((choice, log)) = bytes.split_first() else { return };
    let has = |bit: u8| choice & (1 << bit) != 0;
    let limit = has(0).then_some(u64::from(*choice) * 8);
    let selection = Selection {
        tail: has(1).then_some(u64::from(choice >> 4)),
        since: has(2).then(|| jiff::Timestamp::from_second(1_767_323_045).unwrap_or_default()),
        stream: has(3).then_some(Stream::Stdout),
        timestamps: has(4),
        limit_bytes: limit,
    };
    let start = match selection.tail {
        Some(lines) => tail_start(log, lines, true).unwrap_or(0),
        None => 0,
    };
    let log = log.get(start..).unwrap_or_else(|| panic!("the tail begins after the end"));
    let mut filter = Filter::new(selection);
    let mut out = Vec::new();
    for raw in log.split_inclusive(|byte| *byte == b'\n') {
        if let Some((_, line)) = Line::recognise(raw) {
            assert!(line.text.len() <= raw.len(), "text is longer than its line");
        }
        if filter.take(raw, &mut out) == Flow::Full {
            break;
        }
    }
    if let Some(limit) = limit {
        assert!(u64::try_from(out.len()).is_ok_and(|length| length <= limit), "beyond the limit");
    }
}

pub(crate) fn log_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&[
        "\x002026-01-02T03:04:05.678901234Z stdout F a line\n\
         2026-01-02T03:04:06.678901234+01:00 stderr P half \n2026-01-02T03:04:07Z stderr F a line\n",
        "\u{1f}{\"log\":\"a line\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-02T03:04:05.6Z\"}\n\
         {\"log\":\"\\u001b[0m\",\"stream\":\"stderr\",\"time\":\"2026-01-02T03:04:05.6Z\"}\n",
    ])
}

/// The `Location` of a response to a probe.
pub(crate) fn redirects(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut at = HttpTarget {
        https: false,
        host: "10.0.0.1".to_owned(),
        port: 8080,
        path: "/a/b?c".to_owned(),
    };
    let first = at.clone();
    for (followed, location) in text.lines().enumerate() {
        if let Ok(Some(next)) = redirect(&first, &at, followed, 302, Some(location)) {
            assert!(next.to.host.eq_ignore_ascii_case(&first.host), "{location:?}");
            assert!(next.to.path.starts_with('/'), "{location:?}: {:?}", next.to);
            at = next.to;
        }
    }
}

pub(crate) fn redirect_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&[
        "http://10.0.0.1:9090/x/../y?q=1#f\n//10.0.0.1/\nz/./w",
        "https://user:pass@10.0.0.1\n?q\n/..//a%2f\nhttp://[::1]:80/",
    ])
}
