//! Pull of an image with its progress.

use std::io::{IsTerminal as _, Write as _};
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use podwright_core::image::download::ImageDownload;
use podwright_cri::Client;
use podwright_proto::cri::ImageSpec;

use super::list::bytes;
use crate::printable::printable;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// A slower reply is left out: the progress is information only.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Pulls an image by its full name, without credentials.
pub(super) async fn pull(client: &Client, image: &str) -> anyhow::Result<()> {
    let began = Instant::now();
    let spec = ImageSpec { image: image.to_owned(), ..ImageSpec::default() };
    let mut pulling = pin!(client.pull_image(spec, None, None));
    let mut progress = Progress::new(std::io::stderr().is_terminal());
    let outcome = loop {
        let sample = async {
            tokio::time::sleep(SAMPLE_INTERVAL).await;
            tokio::time::timeout(SAMPLE_TIMEOUT, client.downloads()).await
        };
        tokio::select! { biased;
            outcome = &mut pulling => break outcome,
            // A read, so it may be dropped. Another runtime than containerd has none.
            sample = sample => {
                let downloads = sample.ok().and_then(Result::ok).unwrap_or_default();
                let of_image = downloads.into_iter().find(|it| is_of(image, it));
                if let Some(text) = progress.next(image, of_image.as_ref()) {
                    write!(std::io::stderr(), "{text}")?;
                }
            }
        }
    };
    if let Some(text) = progress.end() {
        write!(std::io::stderr(), "{text}")?;
    }
    outcome.with_context(|| format!("cannot pull {image}"))?;
    let size = client.image_status(image).await?.map(|found| format!(" ({})", bytes(found.size)));
    let (image, size) = (printable(image), size.unwrap_or_default());
    let seconds = began.elapsed().as_secs_f64();
    writeln!(std::io::stdout(), "pulled {image}{size} in {seconds:.1} s")?;
    Ok(())
}

/// Whether the download is of this image: its name without tag and digest is the repository.
fn is_of(image: &str, download: &ImageDownload) -> bool {
    let rest = image.strip_prefix(download.image.as_str());
    rest.is_some_and(|rest| rest.starts_with([':', '@']))
}

/// What is printed of a download.
struct Progress {
    /// The line is replaced; otherwise each tenth is a line.
    terminal: bool,
    printed: Option<String>,
}

impl Progress {
    fn new(terminal: bool) -> Self {
        Self { terminal, printed: None }
    }

    /// The text for a sample; none if there is nothing new.
    fn next(&mut self, image: &str, download: Option<&ImageDownload>) -> Option<String> {
        let image = printable(image);
        let (mark, text) = match download {
            Some(it) => {
                let (done, total, rate) = (bytes(it.done), bytes(it.total), bytes(it.rate));
                let percent = it.percent();
                let mark = format!("{}", percent / 10);
                (mark, format!("pulling {image}: {percent}% of {total}, {done} at {rate}/s"))
            }
            // Before the manifest is there, and while layers are unpacked.
            None => match &self.printed {
                None => ("begin".to_owned(), format!("pulling {image}")),
                Some(mark) if mark == "begin" => return None,
                Some(_) => ("unpack".to_owned(), format!("pulling {image}: unpacking")),
            },
        };
        if self.terminal {
            self.printed = Some(mark);
            return Some(format!("\r{text}\x1b[K"));
        }
        let is_new = self.printed.as_ref() != Some(&mark);
        self.printed = Some(mark);
        is_new.then(|| format!("{text}\n"))
    }

    /// Removes the line.
    fn end(&self) -> Option<String> {
        (self.terminal && self.printed.is_some()).then(|| "\r\x1b[K".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(done: u64) -> ImageDownload {
        ImageDownload { image: "r.io/app".into(), done, total: 2_000_000, rate: 1000 }
    }

    #[test]
    fn progress_is_a_line_for_each_tenth_or_one_line_of_a_terminal() {
        let mut pipe = Progress::new(false);
        let samples = [None, None, Some(100), Some(150_000), Some(240_000), Some(1_900_000), None];
        let printed: Vec<Option<String>> =
            samples.iter().map(|done| pipe.next("r.io/app:1", done.map(at).as_ref())).collect();
        let line = |text: &str| Some(format!("pulling r.io/app:1{text}\n"));
        assert_eq!(
            printed,
            [
                line(""),
                None,
                line(": 0% of 2.0 MB, 100 B at 1.0 kB/s"),
                None,
                line(": 12% of 2.0 MB, 240 kB at 1.0 kB/s"),
                line(": 95% of 2.0 MB, 1.9 MB at 1.0 kB/s"),
                line(": unpacking"),
            ]
        );
        assert_eq!(pipe.end(), None);
        let mut terminal = Progress::new(true);
        assert_eq!(terminal.end(), None);
        for _ in 0..2 {
            let text = terminal.next("r.io/app:1", Some(&at(1_000_000)));
            let want = "\rpulling r.io/app:1: 50% of 2.0 MB, 1.0 MB at 1.0 kB/s\x1b[K";
            assert_eq!(text.as_deref(), Some(want));
        }
        assert_eq!(terminal.end().as_deref(), Some("\r\x1b[K"));
    }

    #[test]
    fn download_belongs_to_the_image_of_its_repository() {
        let download = at(0);
        for (image, want) in [
            ("r.io/app:1", true),
            ("r.io/app@sha256:12", true),
            ("r.io/app2:1", false),
            ("r.io/team/app:1", false),
        ] {
            assert_eq!(is_of(image, &download), want, "{image}");
        }
    }
}
