//! Files of the agent itself, which a crash or a full disk may have left incomplete.

use std::collections::BTreeMap;

use podwright_core::users::IdBlock;
use podwright_host::checkpoint::{Checkpoint, IncrementalCheckpoint};
use podwright_host::files::Root;
use serde_json::Value;

const NAME: &str = "state";
const VERSION: u32 = 1;

/// A checkpoint, and the log of its changes. Half of the inputs get a valid envelope, which no
/// mutation finds because of the checksum.
pub(crate) fn checkpoints(bytes: &[u8]) {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let directory = directory.unwrap_or_else(|error| panic!("temporary directory: {error}"));
    let open = || Root::open(directory.path()).unwrap_or_else(|error| panic!("{error}"));
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let checkpoint = || Checkpoint::new(open(), NAME, VERSION);
    let mut changes = rest;
    if first % 2 == 0 {
        write(directory.path().join(NAME), rest);
    } else {
        // The content is the text up to the first NUL.
        let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
        let (content, log) = rest.split_at_checked(end).unwrap_or((rest, &[]));
        changes = log;
        let content = String::from_utf8_lossy(content).into_owned();
        if let Err(error) = checkpoint().save(&content) {
            panic!("{error}");
        }
    }
    write(directory.path().join(format!("{NAME}.changes")), changes);
    let incremental = IncrementalCheckpoint::new(checkpoint());
    let incremental = incremental.unwrap_or_else(|error| panic!("{error}"));
    let _ = incremental.load(|all: &mut Value, change: Value| *all = change);
    let _ = checkpoint().load::<BTreeMap<String, Value>>();
    // A corrupt file is moved aside, so the next start finds none.
    let again = checkpoint().load::<Value>();
    assert!(again.is_ok(), "{:?}", again.err());
}

fn write(path: std::path::PathBuf, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap_or_else(|error| panic!("{error}"));
}

pub(crate) fn checkpoint_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&[
        "\u{0}{\"version\":1,\"sha256\":\
         \"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a\",\"data\":{}}",
        "\u{1}{\"u\":1}\u{0}{\"base\":\"\
         44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a\"}\n{\"a\":1}\n",
    ])
}

/// The record of a pod's user ids.
pub(crate) fn records(bytes: &[u8]) {
    if let Some(block) = IdBlock::from_file(bytes) {
        assert_eq!(IdBlock::from_file(&block.to_file()), Some(block));
    }
}

pub(crate) fn record_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&[
        r#"{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}"#,
    ])
}
