//! Logs that grow.

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

/// The numbers of the lines in a log, in order.
fn numbers(text: &str) -> impl Iterator<Item = u64> {
    text.lines().filter_map(|line| {
        let said = line.splitn(4, ' ').nth(3)?.strip_prefix("line ")?;
        said.trim_end_matches('.').parse().ok()
    })
}

#[tokio::test]
async fn a_chatty_containers_log_is_rotated_and_no_line_is_lost() {
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

    let folder = async || {
        let pods = agent.log_directories()?;
        Ok(pods.first().map(|pod| pod.join("app")).filter(|folder| folder.exists()))
    };
    let folder = wait::until("the log's folder", LIMIT, folder).await.unwrap();
    let files = || {
        let mut files: Vec<_> =
            fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.path()).collect();
        // Put aside, oldest first; then the one in use.
        files.sort_by_key(|path| (path.extension().is_some_and(|e| e == "log"), path.clone()));
        files
    };
    let is_compressed = |path: &Path| path.extension().is_some_and(|ending| ending == "gz");
    let rotated = async || {
        let files = files();
        let whole = files.iter().all(|path| path.extension().is_none_or(|e| e != "tmp"));
        Ok(files.len() == 4 && whole && files.iter().filter(|p| is_compressed(p)).count() == 2)
    };
    wait::until_true("two compressed logs, one put aside and one in use", LIMIT, rotated)
        .await
        .unwrap();
    agent.stop().await.unwrap();
    let files = files();
    assert!(!is_compressed(&files[2]), "the newest put aside stays as it is: {files:?}");
    let all: String = files.iter().map(|path| text(path)).collect();
    let numbers: Vec<u64> = numbers(&all).collect();
    assert!(numbers.len() > 1000, "{}", numbers.len());
    let gap = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1);
    assert_eq!(gap, None, "in {files:?}");
    drop(agent);
    bed.close().unwrap();
}
