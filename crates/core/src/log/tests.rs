use k8s_openapi::api::core::v1;
use proptest::prelude::*;
use serde_json::json;

use super::*;

const LOG: [&str; 5] = [
    "2026-01-01T00:00:00.1Z stdout F one\n",
    "2026-01-01T00:00:01.123456789Z stderr F oops\n",
    "2026-01-01T00:00:02+01:00 stdout P tw\n",
    "2026-01-01T00:00:03Z stdout F:tag o\n",
    "2026-01-01T00:00:04Z stdout F \n",
];

fn filtered(lines: &[&str], selection: Selection) -> String {
    let (mut filter, mut out) = (Filter::new(selection), Vec::new());
    for line in lines {
        if filter.take(line.as_bytes(), &mut out) == Flow::Full {
            break;
        }
    }
    String::from_utf8(out).unwrap()
}

#[test]
fn lines_lose_their_prefix_and_split_ones_are_joined() {
    assert_eq!(filtered(&LOG, Selection::default()), "one\noops\ntwo\n\n");
}

#[test]
fn selection_filters_the_log() {
    let all = Selection::default;
    for (case, selection, want) in [
        ("stdout", Selection { stream: Some(Stream::Stdout), ..all() }, "one\ntwo\n\n"),
        ("stderr", Selection { stream: Some(Stream::Stderr), ..all() }, "oops\n"),
        (
            "since, in whatever zone",
            Selection { since: Some("2026-01-01T00:00:01Z".parse().unwrap()), ..all() },
            "oops\no\n\n",
        ),
        ("bytes", Selection { limit_bytes: Some(6), ..all() }, "one\noo"),
        ("exactly all", Selection { limit_bytes: Some(14), ..all() }, "one\noops\ntwo\n\n"),
        (
            "times, of whole lines, in nanoseconds and as they were",
            Selection { timestamps: true, ..all() },
            "2026-01-01T00:00:00.100000000Z one\n\
             2026-01-01T00:00:01.123456789Z oops\n\
             2026-01-01T00:00:02.000000000+01:00 two\n\
             2026-01-01T00:00:04.000000000Z \n",
        ),
        (
            "times count as bytes",
            Selection { timestamps: true, limit_bytes: Some(10), ..all() },
            "2026-01-01",
        ),
    ] {
        assert_eq!(filtered(&LOG, selection), want, "{case}");
    }
}

#[test]
fn invalid_lines_are_skipped() {
    let garbage = [
        "",
        "\n",
        "half a li",
        "2026-01-01T00:00:00Z stdout",
        "2026-01-01T00:00:00Z stdwhat F text\n",
        "yesterday stdout F text\n",
        "{\"log\":\"torn",
    ];
    let mut lines = garbage.to_vec();
    lines.push(LOG[0]);
    lines.extend(garbage);
    assert_eq!(filtered(&lines, Selection::default()), "one\n");
}

#[test]
fn docker_format_is_detected_from_the_first_line() {
    let lines = [
        r#"{"log":"a\n","stream":"stdout","time":"2026-01-01T00:00:00.5Z"}"#,
        r#"{"log":"b \"c\"","stream":"stderr","time":"2026-01-01T00:00:01Z"}"#,
        LOG[0],
        r#"{"log":"\n","stream":"stderr","time":"2026-01-01T00:00:01Z"}"#,
    ];
    assert_eq!(filtered(&lines, Selection::default()), "a\nb \"c\"\n");
}

#[test]
fn last_lines_are_found_from_the_end() {
    let text = b"a\nbb\nccc\n";
    for (lines, want) in [(1, Ok(5)), (2, Ok(2)), (3, Err(1)), (9, Err(7))] {
        assert_eq!(tail_start(text, lines, true), want, "{lines}");
    }
    assert_eq!(tail_start(b"a\nbb\ncut", 1, true), Ok(5), "a line without end is a line");
    assert_eq!(tail_start(b"a\nbb\n", 1, false), Ok(5), "it begins in the block behind");
    assert_eq!(tail_start(b"", 1, true), Err(1));
}

proptest! {
    #[test]
    fn arbitrary_lines_neither_panic_nor_exceed_the_byte_limit(
        lines in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..8),
        limit in 0u64..100,
    ) {
        let selection = Selection { limit_bytes: Some(limit), timestamps: true, ..Default::default() };
        let (mut filter, mut out) = (Filter::new(selection), Vec::new());
        for line in &lines {
            filter.take(line, &mut out);
            let mut odd = b"2026-01-01T00:00:00Z stdout F ".to_vec();
            odd.extend(line);
            if filter.take(&odd, &mut out) == Flow::Full {
                break;
            }
        }
        prop_assert!(out.len() as u64 <= limit);
    }
}

#[test]
fn at_most_max_files_are_kept_and_the_newest_rotated_one_is_uncompressed() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let present = names(&[
        "0.log",
        "0.log.20260101-000001.gz",
        "0.log.20260101-000002.gz",
        "0.log.20260101-000003",
        "0.log.20260101-000004",
        "0.log.20260101-000005.tmp",
        "0.log.20260101-000003.gz",
        "10.log",
        "10.log.20260101-000000",
    ]);
    let plan_rotation = |max_files| plan_rotation("0.log", &present, max_files);
    let five = plan_rotation(5);
    assert_eq!(
        five.remove,
        ["0.log.20260101-000003", "0.log.20260101-000005.tmp", "0.log.20260101-000001.gz"]
    );
    assert_eq!(five.compress, ["0.log.20260101-000004"]);
    assert_eq!(plan_rotation(2).compress, Vec::<String>::new());
    assert_eq!(plan_rotation(2).remove.len(), 6, "only the one about to be rotated is kept");
    let now = "2026-02-03T04:05:06.7Z".parse().unwrap();
    assert_eq!(rotated_name("0.log", now), "0.log.20260203-040506");
}

#[test]
fn log_instance_follows_from_the_status() {
    let ended = |id: &str| json!({ "terminated": { "exitCode": 1, "containerID": id } });
    let status = |state: serde_json::Value, last: serde_json::Value| -> v1::PodStatus {
        serde_json::from_value(json!({ "containerStatuses": [{
            "name": "app", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "containerID": "containerd://now", "state": state, "lastState": last,
        }]}))
        .unwrap()
    };
    let waiting = |reason: &str| json!({ "waiting": { "reason": reason } });
    let running = || json!({ "running": {} });
    for (case, status, previous, want) in [
        ("running", status(running(), ended("containerd://old")), false, Ok("now")),
        ("the previous instance", status(running(), ended("containerd://old")), true, Ok("old")),
        (
            "no previous instance",
            status(running(), json!({})),
            true,
            Err("previous terminated container \"app\" in pod \"web\" not found"),
        ),
        ("ended", status(ended("containerd://end"), json!({})), false, Ok("end")),
        ("ended unborn", status(ended(""), ended("containerd://old")), false, Ok("old")),
        (
            "terminated without an id",
            status(ended(""), json!({})),
            false,
            Err("container \"app\" in pod \"web\" is terminated"),
        ),
        (
            "in a crash loop",
            status(waiting("CrashLoopBackOff"), ended("containerd://old")),
            false,
            Ok("old"),
        ),
        (
            "no image",
            status(waiting("ErrImagePull"), json!({})),
            false,
            Err("container \"app\" in pod \"web\" is waiting to start: image can't be pulled"),
        ),
        (
            "image pull back-off",
            status(waiting("ImagePullBackOff"), json!({})),
            false,
            Err(
                "container \"app\" in pod \"web\" is waiting to start: trying and failing to pull image",
            ),
        ),
        (
            "creating",
            status(waiting("ContainerCreating"), json!({})),
            false,
            Err("container \"app\" in pod \"web\" is waiting to start: ContainerCreating"),
        ),
    ] {
        let got = instance_to_read("web", &status, "app", previous);
        let got = got.map(|id| id.to_string()).map_err(|error| error.to_string());
        assert_eq!(got.as_deref().map_err(String::as_str), want, "{case}");
    }
    let unavailable = instance_to_read("web", &v1::PodStatus::default(), "app", false).unwrap_err();
    assert_eq!(unavailable.to_string(), "container \"app\" in pod \"web\" is not available");
}

#[test]
fn oldest_rotated_log_is_known_by_its_time_of_change_and_not_by_its_name() {
    // An upstream kubelet at UTC+9 put these aside; then we did, an hour later, with a UTC name.
    let by_time = ["0.log.20260101-120000.gz", "0.log.20260101-123000", "0.log.20260101-043000"];
    let by_time = by_time.map(str::to_owned);
    let four = plan_rotation("0.log", &by_time, 4);
    assert_eq!(four.remove, ["0.log.20260101-120000.gz"]);
    assert_eq!(four.compress, ["0.log.20260101-123000", "0.log.20260101-043000"]);
    // Compressed while the next one was put aside, so its time of change may be the later one.
    let by_time = ["0.log.20260101-123000", "0.log.20260101-120000.gz"].map(str::to_owned);
    assert_eq!(plan_rotation("0.log", &by_time, 3).remove, ["0.log.20260101-120000.gz"]);
}
