//! Table of the images, and its JSON.

use std::collections::BTreeSet;
use std::io::Write as _;

use jiff::Timestamp;
use podwright_cri::{Client, Image};
use serde::{Deserialize, Serialize};

use crate::cli::Output;
use crate::printable::printable;
use crate::standalone::{Layout, loaded_images};

#[derive(Debug, Serialize)]
struct ImageLine {
    #[serde(rename = "names")]
    names: Vec<String>,
    #[serde(rename = "digests")]
    digests: Vec<String>,
    #[serde(rename = "id")]
    id: String,
    #[serde(rename = "bytes")]
    size: u64,
    /// When the image was built; its author may have left it out.
    #[serde(rename = "created")]
    created: Option<Timestamp>,
    /// Loaded or imported by hand: `prune` keeps it.
    #[serde(rename = "loaded")]
    loaded: bool,
    #[serde(rename = "inUse")]
    in_use: bool,
}

pub(super) async fn print(layout: &Layout, client: &Client, output: Output) -> anyhow::Result<()> {
    let loaded = loaded_images::read(layout)?;
    let containers = client.list_containers(None).await?;
    let used: BTreeSet<&str> =
        containers.iter().map(|container| container.image_ref.as_str()).collect();
    let mut lines = Vec::new();
    for image in client.list_images().await? {
        let info = client.image_info(&image.id).await?.unwrap_or_default();
        let created = info.get("info").and_then(|text| created_in(text));
        lines.push(line(image, created, &loaded, &used));
    }
    lines.sort_by(|one, other| (&one.names, &one.id).cmp(&(&other.names, &other.id)));
    let mut out = std::io::stdout();
    match output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&lines)?)?,
        Output::Text => write!(out, "{}", table(&lines, Timestamp::now()))?,
    }
    Ok(())
}

fn line(
    image: Image,
    created: Option<Timestamp>,
    loaded: &BTreeSet<String>,
    used: &BTreeSet<&str>,
) -> ImageLine {
    ImageLine {
        loaded: image.tags.iter().any(|tag| loaded.contains(tag)),
        in_use: used.contains(image.id.as_str())
            || image.tags.iter().any(|tag| tag == podwright_pause::IMAGE),
        names: image.tags,
        digests: image.digests,
        id: image.id,
        size: image.size,
        created,
    }
}

/// The time of the build in the runtime's verbose image info.
fn created_in(text: &str) -> Option<Timestamp> {
    #[derive(Deserialize)]
    struct Info {
        #[serde(rename = "imageSpec")]
        spec: Option<Spec>,
    }
    #[derive(Deserialize)]
    struct Spec {
        #[serde(rename = "created")]
        created: Option<String>,
    }
    let info: Info = serde_json::from_str(text).ok()?;
    let created: Timestamp = info.spec?.created?.parse().ok()?;
    // Reproducible builds set it to the epoch or the year 1.
    (created.as_second() > 0).then_some(created)
}

fn table(lines: &[ImageLine], now: Timestamp) -> String {
    let mut rows = vec![["IMAGE", "ID", "AGE", "SIZE", "NOTE"].map(str::to_owned)];
    for line in lines {
        let short: String = line.id.trim_start_matches("sha256:").chars().take(12).collect();
        let age = line.created.map_or_else(|| "-".to_owned(), |created| age(created, now));
        let note = match (line.in_use, line.loaded) {
            (true, true) => "in use, loaded",
            (true, false) => "in use",
            (false, true) => "loaded",
            (false, false) => "",
        };
        let unnamed = || line.digests.first().map_or("<none>", String::as_str).to_owned();
        let names = if line.names.is_empty() { vec![unnamed()] } else { line.names.clone() };
        for name in names {
            let name = printable(&name).into_owned();
            rows.push([name, short.clone(), age.clone(), bytes(line.size), note.to_owned()]);
        }
    }
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|it| it.chars().count()).max()
    };
    let widths: Vec<usize> = (0..5).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// `5m`, `3h`, `12d`, `2y`.
fn age(since: Timestamp, now: Timestamp) -> String {
    match now.duration_since(since).as_secs().max(0) {
        s if s < 120 => format!("{s}s"),
        s if s < 2 * 3600 => format!("{}m", s / 60),
        s if s < 2 * 86_400 => format!("{}h", s / 3600),
        s if s < 2 * 365 * 86_400 => format!("{}d", s / 86_400),
        s => format!("{}y", s / (365 * 86_400)),
    }
}

/// A size in decimal units, as registries and `docker images` show it.
pub(in crate::commands) fn bytes(size: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000)];
    let Some((unit, one)) = UNITS.into_iter().find(|(_, one)| size >= *one) else {
        return format!("{size} B");
    };
    let tenths = size / (one / 10);
    if tenths >= 1000 {
        return format!("{} {unit}", tenths / 10);
    }
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn image(id: &str, tags: &[&str], size: u64) -> Image {
        Image {
            id: id.to_owned(),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            digests: vec!["r.io/x@sha256:0a".to_owned()],
            size,
            uid: None,
            username: String::new(),
            pinned: false,
        }
    }

    #[test]
    fn table_has_a_line_for_each_name() {
        let loaded = BTreeSet::from(["localhost/app:1".to_owned()]);
        let used = BTreeSet::from(["sha256:cafe"]);
        let t = |seconds| Timestamp::from_second(seconds).unwrap();
        let lines = [
            line(image("sha256:cafe", &["a:1", "a:2"], 1_234_567), Some(t(0)), &loaded, &used),
            line(image("sha256:0123456789abcdef", &["localhost/app:1"], 999), None, &loaded, &used),
            line(
                image("sha256:beef", &[], 66_000_000_000),
                Some(t(864_000 - 7200)),
                &loaded,
                &used,
            ),
        ];
        assert_eq!(
            table(&lines, t(864_000)),
            "IMAGE             ID            AGE  SIZE     NOTE\n\
             a:1               cafe          10d  1.2 MB   in use\n\
             a:2               cafe          10d  1.2 MB   in use\n\
             localhost/app:1   0123456789ab  -    999 B    loaded\n\
             r.io/x@sha256:0a  beef          2h   66.0 GB\n"
        );
    }

    #[test]
    fn time_of_the_build_is_read_from_the_verbose_info() {
        for (text, want) in [
            (r#"{"imageSpec":{"created":"2026-01-02T03:04:05Z"}}"#, true),
            (r#"{"imageSpec":{"created":"0001-01-01T00:00:00Z"}}"#, false),
            (r#"{"imageSpec":{"created":"1970-01-01T00:00:00Z"}}"#, false),
            (r#"{"imageSpec":{"created":"yesterday"}}"#, false),
            (r#"{"imageSpec":{}}"#, false),
            ("", false),
        ] {
            assert_eq!(created_in(text).is_some(), want, "{text}");
        }
    }

    #[test]
    fn sizes_have_decimal_units() {
        for (size, want) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (99_999, "99.9 kB"),
            (123_456, "123 kB"),
            (67_100_000, "67.1 MB"),
            (12_345_678_900, "12.3 GB"),
            (u64::MAX, "18446744073 GB"),
        ] {
            assert_eq!(bytes(size), want);
        }
    }
}
