//! Configuration files: the `--config` file and its drop-ins.

use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use serde_json::Value;

use super::decode::{decode, known_fields};
use super::document::Document;
use super::duration::GoDuration;
use super::field::FieldPath;
use super::kubelet::{API_VERSION, KIND, ZERO_IS_UNSET};
use super::problem::{Problem, Source};
use super::suggestion::did_you_mean;

/// Fields with a path; a relative path is relative to the file that contains it.
const PATHS: [&str; 7] = [
    "authentication.x509.clientCAFile",
    "podLogsDir",
    "resolvConf",
    "staticPodPath",
    "tlsCertFile",
    "tlsPrivateKeyFile",
    "volumePluginDir",
];

/// Content of one file, without invalid values.
pub struct ConfigFile {
    pub source: Source,
    pub document: Value,
    pub problems: Vec<Problem>,
    pub warnings: Vec<String>,
}

impl ConfigFile {
    /// Reads a file. Values of the wrong type are problems; unknown and duplicate fields are only
    /// warnings, because the file may be for a newer version.
    pub fn load(path: &Path) -> Self {
        let source = Source::File(path.to_owned());
        let whole = |message: String| Self {
            source: source.clone(),
            document: Value::Object(serde_json::Map::new()),
            problems: vec![Problem::with_source(source.clone(), message)],
            warnings: Vec::new(),
        };
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => return whole(format!("cannot be read: {error}")),
        };
        if text.trim().is_empty() {
            return whole("is empty; it must contain a KubeletConfiguration".to_owned());
        }
        match Document::parse(&text) {
            Ok(document) if document.value.is_object() => {
                Self::from_document(source, path, document)
            }
            Ok(_) => whole("must contain a KubeletConfiguration, which is a mapping".to_owned()),
            Err(error) => whole(format!("is neither YAML nor JSON: {error}")),
        }
    }

    fn from_document(
        source: Source,
        path: &Path,
        Document { mut value, duplicates }: Document,
    ) -> Self {
        unset_zeroes(&mut value);
        let decoded = decode(&value);
        let mut problems = kind_problems(&value, &source);
        for invalid_value in decoded.invalid_values.iter().rev() {
            invalid_value.field.remove(&mut value);
        }
        problems.extend(
            decoded
                .invalid_values
                .into_iter()
                .map(|invalid_value| invalid_value.into_problem(&source)),
        );
        let twice = duplicates.iter().map(|field| {
            format!("{source}: {field} is written more than once; the last one counts")
        });
        let unknown = decoded.unknown.iter().map(|field| {
            let near = near_field(field);
            format!("{source}: unknown field {field} is ignored{near}")
        });
        let warnings = twice.chain(unknown).collect();
        resolve_paths(&mut value, path.parent().unwrap_or(Path::new("/")));
        Self { source, document: value, problems, warnings }
    }
}

/// The drop-ins of a directory and its subdirectories, in the order in which they apply.
pub fn drop_ins(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            found.extend(drop_ins(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "conf") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Replaces zero values that mean "not set" by null.
fn unset_zeroes(document: &mut Value) {
    for field in ZERO_IS_UNSET.map(FieldPath::of) {
        if field.find(document).is_some_and(is_zero) {
            field.put(document, Value::Null);
        }
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || text.parse() == Ok(GoDuration::ZERO),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    }
}

fn kind_problems(document: &Value, source: &Source) -> Vec<Problem> {
    [("apiVersion", API_VERSION), ("kind", KIND)]
        .into_iter()
        .filter(|(field, want)| document.get(field).and_then(Value::as_str) != Some(want))
        .map(|(field, want)| {
            let message = match document.get(field) {
                Some(_) => format!("must be {want}"),
                None => format!("is missing; it must be {want}"),
            };
            Problem::with_field(source.clone(), FieldPath::of(field), document.get(field), message)
        })
        .collect()
}

/// A suggestion for an unknown field, among the fields of the same object.
fn near_field(field: &FieldPath) -> String {
    let parent = field.parent().unwrap_or_default();
    let neighbours = known_fields(&parent);
    let name = field.last_key().unwrap_or_default();
    did_you_mean(name, neighbours.iter().map(String::as_str))
}

pub(super) fn resolve_paths(document: &mut Value, directory: &Path) {
    for field in PATHS.map(FieldPath::of) {
        let Some(Value::String(path)) = field.find(document) else { continue };
        if path.is_empty() || Path::new(path).is_absolute() {
            continue;
        }
        let resolved = normalized(&directory.join(path));
        field.put(document, Value::from(resolved.to_string_lossy()));
    }
}

/// A path without `.`, `..` and double slashes, without file system access.
pub fn normalized(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => {
                clean.push(component);
            }
        }
    }
    clean
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;

    const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    fn load(text: &str) -> ConfigFile {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubelet.yaml");
        fs::write(&path, text).unwrap();
        ConfigFile::load(&path)
    }

    /// Messages about a file, without its path.
    fn messages(lines: impl IntoIterator<Item = impl ToString>) -> Vec<String> {
        let tail = |line: String| match line.split_once("kubelet.yaml: ") {
            Some((_, tail)) => tail.to_owned(),
            None => line,
        };
        lines.into_iter().map(|line| tail(line.to_string())).collect()
    }

    #[test]
    fn file_without_a_configuration_is_refused() {
        for (text, want) in [
            ("", "is empty; it must contain a KubeletConfiguration"),
            (" \n\n", "is empty; it must contain a KubeletConfiguration"),
            ("- a\n- b\n", "must contain a KubeletConfiguration, which is a mapping"),
            ("# nothing\n", "must contain a KubeletConfiguration, which is a mapping"),
        ] {
            assert_eq!(messages(&load(text).problems), [want], "{text:?}");
        }
        let broken = messages(&load("a: [").problems);
        assert!(broken[0].starts_with("is neither YAML nor JSON: "), "{broken:?}");
        let missing = ConfigFile::load(Path::new("/nonexistent/kubelet.yaml"));
        assert!(messages(&missing.problems)[0].starts_with("cannot be read: "));
    }

    #[test]
    fn file_must_have_api_version_and_kind() {
        assert_eq!(
            messages(&load("apiVersion: v1\nmaxPods: 5\n").problems),
            [
                r#"apiVersion: "v1" must be kubelet.config.k8s.io/v1beta1"#,
                "kind: is missing; it must be KubeletConfiguration",
            ]
        );
    }

    #[test]
    fn unknown_and_duplicate_fields_are_warnings_and_wrong_types_are_errors() {
        let file = load(&format!("{HEADER}maxPod: 5\nmaxPods: 6\nmaxPods: 7\nport: http\n"));
        assert_eq!(
            messages(&file.warnings),
            [
                "maxPods is written more than once; the last one counts",
                r#"unknown field maxPod is ignored (did you mean "maxPods"?)"#,
            ]
        );
        assert_eq!(
            messages(&file.problems),
            [r#"port: "http" must be a whole number of at most 32 bits"#]
        );
        assert_eq!(file.document["maxPods"], json!(7));
        assert_eq!(file.document.get("port"), None);
    }

    #[test]
    fn relative_paths_are_relative_to_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubelet.yaml");
        fs::write(
            &path,
            format!(
                "{HEADER}staticPodPath: manifests\nresolvConf: ''\npodLogsDir: /var/log/pods\n\
                 authentication: {{x509: {{clientCAFile: ./pki/../ca.crt}}}}\n"
            ),
        )
        .unwrap();
        let document = ConfigFile::load(&path).document;
        let beside = |name: &str| json!(directory.path().join(name).to_str().unwrap());
        assert_eq!(document["staticPodPath"], beside("manifests"));
        assert_eq!(document["authentication"]["x509"]["clientCAFile"], beside("ca.crt"));
        assert_eq!(document["podLogsDir"], json!("/var/log/pods"));
        assert_eq!(document["resolvConf"], json!(""));
    }

    #[test]
    fn drop_ins_are_the_conf_files_below_a_directory_in_lexical_order() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("15-sub")).unwrap();
        for name in ["20-b.conf", "10-a.conf", "15-sub/x.conf", "30-c.yaml", "conf"] {
            fs::write(root.join(name), "").unwrap();
        }
        let names: Vec<_> = drop_ins(root)
            .unwrap()
            .iter()
            .map(|path| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["10-a.conf", "15-sub/x.conf", "20-b.conf"]);
        assert!(drop_ins(&root.join("missing")).is_err());
    }
}
