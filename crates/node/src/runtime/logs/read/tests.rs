use std::fs::OpenOptions;
use std::io::Write;

use podwright_core::builders::{observed, pod, t};
use podwright_core::log::Stream;

use super::super::directory_watch::DirectoryWatch;
use super::*;

fn line(text: &str) -> String {
    format!("2026-01-01T00:00:00Z stdout F {text}\n")
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

async fn all(mut reader: Reader) -> String {
    let mut text = String::new();
    while let Some(piece) = reader.next().await {
        text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
    }
    text
}

/// A followed log, and control of its container's state.
struct Scene {
    dir: tempfile::TempDir,
    directory_watch: Arc<DirectoryWatch>,
    view: watch::Sender<Option<Arc<ObservedPod>>>,
}

impl Scene {
    fn new() -> Self {
        let pod = pod("web").container("app").build();
        let running = observed(&pod).sandbox_ready().running("app", t(1)).build();
        Self {
            dir: tempfile::tempdir().unwrap(),
            directory_watch: Arc::default(),
            view: watch::Sender::new(Some(Arc::new(running))),
        }
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("0.log")
    }

    async fn follow(&self, selection: Selection) -> Reader {
        let id = self.view.borrow().as_ref().unwrap().instances[0].id.clone();
        let follow = Follow {
            changes: self.directory_watch.watch(self.dir.path()),
            liveness: Liveness::new(self.view.subscribe(), id),
        };
        Reader::open(&self.log(), selection, Some(follow)).await.unwrap()
    }

    fn end(&self) {
        let pod = pod("web").container("app").build();
        let ended = observed(&pod).sandbox_ready().exited("app", 0, t(1)).build();
        self.view.send_replace(Some(Arc::new(ended)));
    }
}

async fn piece(reader: &mut Reader) -> String {
    String::from_utf8(reader.next().await.unwrap().unwrap().to_vec()).unwrap()
}

#[tokio::test]
async fn log_is_read_to_its_end_including_an_unterminated_line() {
    let scene = Scene::new();
    append(&scene.log(), &(line("one") + "garbage\n" + &line("two")));
    append(&scene.log(), line("cut").trim_end());
    let reader = Reader::open(&scene.log(), Selection::default(), None).await.unwrap();
    assert_eq!(all(reader).await, "one\ntwo\ncut\n");
}

#[tokio::test]
async fn tail_counts_lines_of_the_file() {
    let scene = Scene::new();
    let split = |tag: &str, text: &str| format!("2026-01-01T00:00:00Z stdout {tag} {text}\n");
    append(&scene.log(), &(line("first") + &split("P", "a") + &split("P", "b") + &split("F", "c")));
    for (tail, want) in
        [(0, ""), (1, "c\n"), (3, "abc\n"), (4, "first\nabc\n"), (9, "first\nabc\n")]
    {
        let selection = Selection { tail: Some(tail), ..Default::default() };
        let reader = Reader::open(&scene.log(), selection, None).await.unwrap();
        assert_eq!(all(reader).await, want, "{tail}");
    }
}

#[tokio::test]
async fn long_log_is_returned_in_pieces_and_its_tail_found_backwards() {
    let scene = Scene::new();
    let text: String = (0..20_000).map(|n| line(&format!("{n:05}"))).collect();
    append(&scene.log(), &text);
    let want: String = (0..20_000).map(|n| format!("{n:05}\n")).collect();
    let reader = Reader::open(&scene.log(), Selection::default(), None).await.unwrap();
    assert_eq!(all(reader).await, want);
    let selection = Selection { tail: Some(10_000), ..Default::default() };
    let reader = Reader::open(&scene.log(), selection, None).await.unwrap();
    assert_eq!(all(reader).await, &want[want.len() / 2..]);
    let selection = Selection { limit_bytes: Some(100_000), ..Default::default() };
    let reader = Reader::open(&scene.log(), selection, None).await.unwrap();
    assert_eq!(all(reader).await, &want[..100_000]);
}

#[tokio::test]
async fn overlong_line_does_not_fill_memory() {
    let scene = Scene::new();
    append(&scene.log(), &"x".repeat(3 * LONGEST_LINE));
    append(&scene.log(), &("\n".to_owned() + &line("after")));
    let mut reader = Reader::open(&scene.log(), Selection::default(), None).await.unwrap();
    assert_eq!(piece(&mut reader).await, "after\n");
    assert!(reader.rest.capacity() <= 2 * LONGEST_LINE);
}

#[tokio::test]
async fn only_a_regular_file_is_read() {
    let scene = Scene::new();
    std::os::unix::fs::symlink("/etc/hostname", scene.log()).unwrap();
    assert!(Reader::open(&scene.log(), Selection::default(), None).await.is_err());
    assert!(Reader::open(scene.dir.path(), Selection::default(), None).await.is_err());
}

#[tokio::test]
async fn follower_gets_lines_as_they_come_and_ends_with_the_container() {
    let scene = Scene::new();
    append(&scene.log(), &(line("old") + &line("one")));
    let selection = Selection { tail: Some(1), stream: Some(Stream::Stdout), ..Default::default() };
    let mut reader = scene.follow(selection).await;
    assert_eq!(piece(&mut reader).await, "one\n");
    let writer = async {
        append(&scene.log(), "2026-01-01T00:00:00Z stdout F tw");
        tokio::task::yield_now().await;
        append(&scene.log(), "o\n");
    };
    let (got, ()) = tokio::join!(piece(&mut reader), writer);
    assert_eq!(got, "two\n", "no partial line before it");
    append(&scene.log(), line("last").trim_end());
    scene.end();
    assert_eq!(piece(&mut reader).await, "last\n");
    assert!(reader.next().await.is_none());
}

#[tokio::test]
async fn follower_loses_no_line_to_rotation() {
    let scene = Scene::new();
    append(&scene.log(), &line("one"));
    let mut reader = scene.follow(Selection::default()).await;
    assert_eq!(piece(&mut reader).await, "one\n");
    // Rotated twice before the follower checks again; the first file is compressed by then.
    let aside = |n: u32| scene.dir.path().join(format!("0.log.20260101-00000{n}"));
    append(&scene.log(), &line("two"));
    std::fs::rename(scene.log(), aside(1)).unwrap();
    append(&scene.log(), &line("three"));
    append(&aside(1), &line("late"));
    std::fs::rename(aside(1), aside(1).with_extension("gz")).unwrap();
    std::fs::rename(scene.log(), aside(2)).unwrap();
    append(&scene.log(), &line("four"));
    scene.end();
    assert_eq!(all(reader).await, "two\nlate\nthree\nfour\n");
}

#[tokio::test]
async fn follower_ends_when_the_pod_is_no_longer_observed() {
    let scene = Scene::new();
    append(&scene.log(), &line("one"));
    let mut reader = scene.follow(Selection::default()).await;
    assert_eq!(piece(&mut reader).await, "one\n");
    let Scene { dir: _folder, directory_watch: _folders, view } = scene;
    drop(view);
    assert!(reader.next().await.is_none());
}
