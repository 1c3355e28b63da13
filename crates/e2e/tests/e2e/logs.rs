//! Rotation of container logs.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::wait;
use serde_json::json;

use crate::cluster::pod;
use crate::privilege::needs_root;

const LIMIT: Duration = Duration::from_secs(90);

fn text(path: &Path) -> String {
    let mut text = String::new();
    let mut file = File::open(path).unwrap();
    match path.extension().is_some_and(|ending| ending == "gz") {
        true => flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap(),
        false => file.read_to_string(&mut text).unwrap(),
    };
    text
}

/// The line numbers in a log, in order.
fn numbers(text: &str) -> impl Iterator<Item = u64> {
    text.lines().filter_map(|line| {
        let output = line.splitn(4, ' ').nth(3)?.strip_prefix("line ")?;
        output.trim_end_matches('.').parse().ok()
    })
}

#[tokio::test]
async fn large_container_log_is_rotated_without_losing_lines() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let rotation = json!({
        "containerLogMaxSize": "200Ki",
        "containerLogMaxFiles": 4,
        "containerLogMonitorInterval": "3s",
    });
    let agent = bed.agent("node-1").configure(rotation).start().unwrap();
    agent.healthy().await.unwrap();
    let mut chatty = pod("chatty", &["lines", "0", "--bytes", "200", "--every", "1"]);
    chatty["spec"]["nodeName"] = json!(null);
    agent.add_manifest("chatty", &chatty).unwrap();

    let directory = async || {
        let pods = agent.log_directories()?;
        Ok(pods.first().map(|pod| pod.join("app")).filter(|directory| directory.exists()))
    };
    let directory = wait::until("the log directory", LIMIT, directory).await.unwrap();
    let files = || {
        let mut files: Vec<_> =
            fs::read_dir(&directory).unwrap().flatten().map(|entry| entry.path()).collect();
        // Rotated files, oldest first; then the current one.
        files.sort_by_key(|path| (path.extension().is_some_and(|e| e == "log"), path.clone()));
        files
    };
    let is_compressed = |path: &Path| path.extension().is_some_and(|ending| ending == "gz");
    let rotated = async || {
        let files = files();
        let whole = files.iter().all(|path| path.extension().is_none_or(|e| e != "tmp"));
        Ok(files.len() == 4 && whole && files.iter().filter(|p| is_compressed(p)).count() == 2)
    };
    wait::until_true("two compressed logs, one rotated and one current", LIMIT, rotated)
        .await
        .unwrap();
    agent.stop().await.unwrap();
    let files = files();
    assert!(!is_compressed(&files[2]), "the newest rotated log is not compressed: {files:?}");
    let all: String = files.iter().map(|path| text(path)).collect();
    let numbers: Vec<u64> = numbers(&all).collect();
    assert!(numbers.len() > 1000, "{}", numbers.len());
    let gap = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1);
    assert_eq!(gap, None, "in {files:?}");
    drop(agent);
    bed.close().unwrap();
}
