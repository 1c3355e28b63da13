//! Static pod manifests: parsing, defaulting and validation of a file or URL document.
//!
//! A static pod gets what the API server would have set: defaults, a UID, a node. The UID is a
//! hash of content and location, so that the same file is the same pod after a restart, and an
//! edited file is a new pod.

mod position;

use k8s_openapi::api::core::v1;
use podwright_api::annotations::ANNOTATION_HASH;
use podwright_api::{defaults, schema, validation};
use serde_json::Value;

use super::Source;
use super::features::PodFeatures;

/// Location of a manifest.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    pub source: Source,
    /// Path or URL.
    pub location: &'a str,
    pub node: &'a str,
    pub features: PodFeatures,
}

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("{location}: this is not YAML or JSON: {problem}")]
    Syntax { location: String, problem: String, line: Option<u64> },
    #[error("{location}: {problem}")]
    Field { location: String, problem: String, line: Option<u64> },
    #[error("{location}: several YAML documents. Fix: put each into a file of its own")]
    SeveralDocuments { location: String, line: Option<u64> },
    #[error("{location}: expected a v1 {expected}, found {found}")]
    Kind { location: String, expected: &'static str, found: String },
    #[error("{location}: invalid pod: name is needed for the pod")]
    NoName { location: String },
    #[error("{location}: pod {name}: {problems}")]
    Invalid { location: String, name: String, problems: String, line: Option<u64> },
    #[error("{location}: pod {name}: static pods may not reference {resource}")]
    References { location: String, name: String, resource: &'static str },
}

impl ManifestError {
    /// The line of the text that has the problem, from 1, if it is known.
    pub fn line(&self) -> Option<u64> {
        match self {
            Self::Syntax { line, .. }
            | Self::Field { line, .. }
            | Self::SeveralDocuments { line, .. }
            | Self::Invalid { line, .. } => *line,
            Self::Kind { .. } | Self::NoName { .. } | Self::References { .. } => None,
        }
    }

    /// The text without the location.
    pub fn detail(&self) -> String {
        let (Self::Syntax { location, .. }
        | Self::Field { location, .. }
        | Self::SeveralDocuments { location, .. }
        | Self::Kind { location, .. }
        | Self::NoName { location }
        | Self::Invalid { location, .. }
        | Self::References { location, .. }) = self;
        let text = self.to_string();
        let detail = text.strip_prefix(location.as_str()).and_then(|it| it.strip_prefix(": "));
        detail.unwrap_or(&text).to_owned()
    }
}

/// A field of a manifest that a pod does not have, and that has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownField {
    pub field: String,
    pub line: Option<u64>,
}

/// One pod of a manifest file.
pub fn pod(text: &str, origin: Origin<'_>) -> Result<v1::Pod, ManifestError> {
    read(text, origin).map(|(pod, _)| pod)
}

/// One pod of a manifest file, and the fields that were ignored.
pub fn read(text: &str, origin: Origin<'_>) -> Result<(v1::Pod, Vec<UnknownField>), ManifestError> {
    let value = parse(text, origin)?;
    match kind(&value) {
        ("v1", "Pod") => {
            let unknown = schema::kind("", "Pod").and_then(|pod| schema::decode(pod, &value).ok());
            let unknown = unknown.map(|decoded| decoded.unknown).unwrap_or_default();
            let located = |field: String| {
                let line = position::line_of(text, &field);
                UnknownField { field, line }
            };
            let pod = static_pod(&value, origin, Some(text))?;
            Ok((pod, unknown.into_iter().map(located).collect()))
        }
        (version, kind) => Err(unexpected("Pod", version, kind, origin)),
    }
}

/// The pods of a document from a URL: a Pod or a PodList. An invalid pod does not affect the
/// others.
pub fn pods(
    text: &str,
    origin: Origin<'_>,
) -> Result<Vec<Result<v1::Pod, ManifestError>>, ManifestError> {
    let mut value = parse(text, origin)?;
    match kind(&value) {
        ("v1", "Pod") => Ok(vec![static_pod(&value, origin, Some(text))]),
        ("v1", "PodList" | "List") => {
            let items = value.get_mut("items").map(Value::take).unwrap_or_default();
            let items = items.as_array().cloned().unwrap_or_default();
            Ok(items.iter().map(|item| static_pod(item, origin, None)).collect())
        }
        (version, kind) => Err(unexpected("Pod or PodList", version, kind, origin)),
    }
}

fn parse(text: &str, origin: Origin<'_>) -> Result<Value, ManifestError> {
    // Authors mean octal by `defaultMode: 0644`.
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let error = error.without_snippet();
        let line = error.location().map(|at| at.line()).filter(|line| *line > 0);
        let location = origin.location.to_owned();
        match error {
            serde_saphyr::Error::MultipleDocuments { .. } => {
                ManifestError::SeveralDocuments { location, line }
            }
            error => ManifestError::Syntax { location, problem: error.to_string(), line },
        }
    })
}

fn kind(value: &Value) -> (&str, &str) {
    let field = |name| value.get(name).and_then(Value::as_str).unwrap_or_default();
    (field("apiVersion"), field("kind"))
}

fn unexpected(
    expected: &'static str,
    version: &str,
    kind: &str,
    origin: Origin<'_>,
) -> ManifestError {
    let found = match (version, kind) {
        ("", "") => "neither apiVersion nor kind".into(),
        (version, kind) => format!("{version} {kind}"),
    };
    ManifestError::Kind { location: origin.location.into(), expected, found }
}

/// `text`: the manifest, if it is this pod alone.
fn static_pod(
    value: &Value,
    origin: Origin<'_>,
    text: Option<&str>,
) -> Result<v1::Pod, ManifestError> {
    let location = || origin.location.to_owned();
    let line = |field: &str| text.and_then(|text| position::line_of(text, field));
    let mut pod = decode(value).map_err(|error| ManifestError::Field {
        location: location(),
        line: error.field.as_deref().and_then(line),
        problem: error.problem,
    })?;
    let Some(name) = pod.metadata.name.clone().filter(|name| !name.is_empty()) else {
        return Err(ManifestError::NoName { location: location() });
    };
    pod.metadata.managed_fields = None;
    pod.metadata.deletion_timestamp = None;
    defaults::apply(&mut pod);
    if pod.metadata.uid.as_deref().unwrap_or_default().is_empty() {
        pod.metadata.uid = Some(uid(&pod, origin));
    }
    pod.metadata.name = Some(format!("{name}-{}", origin.node.to_lowercase()));
    if pod.metadata.namespace.as_deref().unwrap_or_default().is_empty() {
        pod.metadata.namespace = Some("default".into());
    }
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(ANNOTATION_HASH.into(), pod.metadata.uid.clone().unwrap_or_default());
    pod.status = Some(v1::PodStatus { phase: Some("Pending".into()), ..Default::default() });
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(origin.node.to_lowercase());
        if origin.source == Source::File {
            // A static pod must not be evicted by a taint of its own node.
            spec.tolerations.get_or_insert_default().push(v1::Toleration {
                operator: Some("Exists".into()),
                effect: Some("NoExecute".into()),
                ..Default::default()
            });
        }
    }
    let problems = validation::create(&origin.features.without_allowed(&pod));
    let first = problems.iter().find_map(|problem| line(&problem.field));
    let mut problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    problems.extend(origin.features.refusal(&pod));
    if !problems.is_empty() {
        return Err(ManifestError::Invalid {
            location: location(),
            name,
            problems: problems.join("; "),
            line: first,
        });
    }
    match api_reference(&pod, origin.features) {
        Some(resource) => Err(ManifestError::References { location: location(), name, resource }),
        None => Ok(pod),
    }
}

/// Why an object is not a pod, in words of the manifest.
struct BadField {
    field: Option<String>,
    problem: String,
}

/// Decodes the object as leniently as the API server: `cpu: 1` may be a number, for example.
fn decode(value: &Value) -> Result<v1::Pod, BadField> {
    let value = match schema::kind("", "Pod") {
        Some(pod) => schema::decode(pod, value).map_err(bad_field)?.value,
        None => value.clone(),
    };
    schema::typed(&value).map_err(|error| {
        let problem = error.to_string();
        // The error position refers to the converted value, not to the user's text.
        let problem = problem.rsplit_once(" at line ").map_or(problem.as_str(), |(what, _)| what);
        BadField { field: None, problem: problem.to_owned() }
    })
}

/// The API server's text names types of its program; a manifest has fields.
fn bad_field(error: schema::DecodeError) -> BadField {
    match error {
        schema::DecodeError::Field { found, path, expected, .. } => {
            let problem = format!("{path}: expected {}, found {found}", plain_type(&expected));
            BadField { field: Some(path), problem }
        }
        other => BadField { field: None, problem: other.to_string() },
    }
}

fn plain_type(name: &str) -> &str {
    match name {
        "string" => "a string",
        "bool" => "true or false",
        "int32" | "int64" => "a whole number",
        list if list.starts_with("[]") => "a list",
        map if map.starts_with("map[") || map.contains('.') => "a mapping",
        other => other,
    }
}

/// 32 hex digits that depend only on content, node and location.
fn uid(pod: &v1::Pod, origin: Origin<'_>) -> String {
    let content = serde_json::to_string(pod).unwrap_or_default();
    let location = match origin.source {
        Source::File | Source::Api => format!("host:{}file:{}", origin.node, origin.location),
        Source::Http => format!("url:{}", origin.location),
    };
    format!("{:032x}", fnv1a_128(content.bytes().chain(location.bytes())))
}

fn fnv1a_128(bytes: impl Iterator<Item = u8>) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

/// A static pod runs without the API server, so it must not reference API objects.
fn api_reference(pod: &v1::Pod, features: PodFeatures) -> Option<&'static str> {
    let spec = pod.spec.as_ref()?;
    if !features.prevent_static_pod_api_references {
        return unavailable_reference(spec);
    }
    if spec.service_account_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return Some("serviceaccounts");
    }
    if spec.resource_claims.iter().flatten().next().is_some() {
        return Some("resourceclaims");
    }
    let init = spec.init_containers.iter().flatten();
    if let Some(found) = spec.containers.iter().chain(init).find_map(container_reference) {
        return Some(found);
    }
    if spec.image_pull_secrets.iter().flatten().next().is_some() {
        return Some("secrets");
    }
    spec.volumes.iter().flatten().find_map(volume_reference)
}

/// What no static pod can use, even if references are allowed.
fn unavailable_reference(spec: &v1::PodSpec) -> Option<&'static str> {
    let projected = spec.volumes.iter().flatten().filter_map(|volume| volume.projected.as_ref());
    let mut sources = projected.flat_map(|projected| projected.sources.iter().flatten());
    if sources.any(|source| source.cluster_trust_bundle.is_some()) {
        return Some("clustertrustbundles");
    }
    spec.resource_claims.iter().flatten().next().map(|_| "resourceclaims")
}

fn container_reference(container: &v1::Container) -> Option<&'static str> {
    for source in container.env_from.iter().flatten() {
        if source.config_map_ref.is_some() {
            return Some("configmaps");
        }
        if source.secret_ref.is_some() {
            return Some("secrets");
        }
    }
    for from in container.env.iter().flatten().filter_map(|env| env.value_from.as_ref()) {
        if from.config_map_key_ref.is_some() {
            return Some("configmaps");
        }
        if from.secret_key_ref.is_some() {
            return Some("secrets");
        }
    }
    None
}

fn volume_reference(volume: &v1::Volume) -> Option<&'static str> {
    if volume.secret.is_some() {
        return Some("secrets");
    }
    if volume.config_map.is_some() {
        return Some("configmaps");
    }
    if volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some() {
        return Some("persistentvolumeclaims");
    }
    if volume.csi.is_some() {
        return Some("csi volumes");
    }
    if volume.glusterfs.is_some() {
        return Some("endpoints");
    }
    if volume.azure_file.is_some() {
        return Some("secrets");
    }
    let sources = volume.projected.as_ref().and_then(|p| p.sources.as_ref());
    sources.into_iter().flatten().find_map(|source| {
        if source.secret.is_some() {
            Some("secrets")
        } else if source.config_map.is_some() {
            Some("configmaps")
        } else if source.service_account_token.is_some() {
            Some("serviceaccounts")
        } else if source.cluster_trust_bundle.is_some() {
            Some("clustertrustbundles")
        } else if source.pod_certificate.is_some() {
            Some("podcertificates")
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(location: &str) -> Origin<'_> {
        origin_with(location, PodFeatures::DEFAULT)
    }

    fn origin_with(location: &str, features: PodFeatures) -> Origin<'_> {
        Origin { source: Source::File, location, node: "Node-A", features }
    }

    const WEB: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n\
                       spec: {containers: [{name: c, image: i, resources: {limits: {cpu: 1}}}]}\n";

    #[test]
    fn manifest_becomes_a_static_pod_of_this_node() {
        let pod = pod(WEB, origin("/m/web.yaml")).unwrap();
        let meta = &pod.metadata;
        assert_eq!(meta.name.as_deref(), Some("web-node-a"));
        assert_eq!(meta.namespace.as_deref(), Some("default"));
        let uid = meta.uid.as_deref().unwrap();
        assert_eq!(uid.len(), 32);
        assert_eq!(meta.annotations.as_ref().unwrap()[ANNOTATION_HASH], uid);
        let spec = pod.spec.unwrap();
        assert_eq!(spec.node_name.as_deref(), Some("node-a"));
        let toleration = &spec.tolerations.unwrap()[0];
        assert_eq!(toleration.effect.as_deref(), Some("NoExecute"));
        assert_eq!(toleration.operator.as_deref(), Some("Exists"));
    }

    #[test]
    fn uid_depends_on_content_and_location() {
        let uid = |location| pod(WEB, origin(location)).unwrap().metadata.uid;
        assert_eq!(uid("/m/a.yaml"), uid("/m/a.yaml"));
        assert_ne!(uid("/m/a.yaml"), uid("/m/b.yaml"));
        let edited = WEB.replace("image: i", "image: j");
        assert_ne!(pod(&edited, origin("/m/a.yaml")).unwrap().metadata.uid, uid("/m/a.yaml"));
    }

    #[test]
    fn uid_in_the_manifest_is_kept() {
        let named = WEB.replace("{name: web}", "{name: web, uid: mine}");
        assert_eq!(pod(&named, origin("/m")).unwrap().metadata.uid.as_deref(), Some("mine"));
    }

    #[test]
    fn references_to_api_objects_are_refused() {
        let with = |extra: &str| WEB.replace("spec: {", &format!("spec: {{{extra}, "));
        for (extra, resource) in [
            ("volumes: [{name: v, secret: {secretName: s}}]", "secrets"),
            ("volumes: [{name: v, configMap: {name: m}}]", "configmaps"),
            (
                "volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]",
                "persistentvolumeclaims",
            ),
            ("serviceAccountName: robot", "serviceaccounts"),
            ("imagePullSecrets: [{name: s}]", "secrets"),
        ] {
            let error = pod(&with(extra), origin("/m/x.yaml")).unwrap_err().to_string();
            assert!(
                error.contains(&format!("static pods may not reference {resource}")),
                "{error}"
            );
            assert!(error.starts_with("/m/x.yaml: "), "{error}");
        }
    }

    #[test]
    fn reference_to_an_api_object_is_allowed_while_its_gate_is_off() {
        let features =
            PodFeatures { prevent_static_pod_api_references: false, ..PodFeatures::DEFAULT };
        let with = |extra: &str| WEB.replace("spec: {", &format!("spec: {{{extra}, "));
        let secret = with("volumes: [{name: v, secret: {secretName: s}}]");
        assert!(pod(&secret, origin_with("/m/x.yaml", features)).is_ok());
        let claim = with("resourceClaims: [{name: c, resourceClaimName: r}]");
        let error = pod(&claim, origin_with("/m/x.yaml", features)).unwrap_err().to_string();
        assert!(error.contains("static pods may not reference resourceclaims"), "{error}");
    }

    #[test]
    fn comparing_tolerations_and_restart_rules_follow_their_gates() {
        let with = |extra: &str| WEB.replace("spec: {", &format!("spec: {{{extra}, "));
        let compares = with("tolerations: [{key: load, operator: Lt, value: '5'}]");
        let error = pod(&compares, origin("/m/x.yaml")).unwrap_err().to_string();
        assert!(error.contains("operator: Unsupported value: \"Lt\""), "{error}");
        let on =
            PodFeatures { taint_toleration_comparison_operators: true, ..PodFeatures::DEFAULT };
        assert!(pod(&compares, origin_with("/m/x.yaml", on)).is_ok());
        let rules = WEB.replace("image: i,", "image: i, restartPolicy: Never,");
        assert!(pod(&rules, origin("/m/x.yaml")).is_ok());
        let off = PodFeatures { container_restart_rules: false, ..PodFeatures::DEFAULT };
        let error = pod(&rules, origin_with("/m/x.yaml", off)).unwrap_err().to_string();
        assert!(error.contains("spec.containers[0].restartPolicy: Forbidden"), "{error}");
    }

    #[test]
    fn invalid_manifests_are_refused_with_their_location() {
        for (text, want) in [
            ("{", "this is not YAML or JSON"),
            ("a: 1", "expected a v1 Pod, found neither apiVersion nor kind"),
            ("apiVersion: v1\nkind: Service", "expected a v1 Pod, found v1 Service"),
            ("apiVersion: v1\nkind: Pod\nspec: {}", "name is needed for the pod"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: 5}", "containers"),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: []}",
                "spec.containers",
            ),
        ] {
            let error = pod(text, origin("/m/x.yaml")).unwrap_err().to_string();
            assert!(error.contains(want), "{text:?}: {error}");
        }
    }

    #[test]
    fn error_names_the_line_and_repeats_no_location() {
        let head = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n";
        for (text, line, want) in [
            ("a: [1".to_owned(), true, "this is not YAML or JSON: "),
            (format!("{head}spec:\n  containers: 5\n"), true, "spec.containers: expected a list,"),
            (
                format!("{head}spec:\n  containers:\n  - name: C\n"),
                true,
                "pod x: spec.containers[0]",
            ),
            (format!("{head}---\n{head}"), true, "several YAML documents. Fix: "),
            ("kind: Service\napiVersion: v1".to_owned(), false, "expected a v1 Pod, found v1 Ser"),
        ] {
            let error = pod(&text, origin("/m/x.yaml")).unwrap_err();
            assert!(error.detail().starts_with(want), "{text:?}: {}", error.detail());
            assert_eq!(error.line().is_some(), line, "{text:?}: {error}");
        }
        let text = format!("{head}spec:\n  containers: 5\n");
        assert_eq!(pod(&text, origin("/m")).unwrap_err().line(), Some(5));
    }

    #[test]
    fn misspelt_field_is_reported_with_its_line() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  containers:\n  \
                    - name: c\n    image: i\n    comand: [x]\n";
        let (_, unknown) = read(text, origin("/m")).unwrap();
        let field = "spec.containers[0].comand".to_owned();
        assert_eq!(unknown, [UnknownField { field, line: Some(8) }]);
    }

    #[test]
    fn pod_list_gives_valid_pods_and_errors_for_the_others() {
        let list = "{apiVersion: v1, kind: PodList, items: [\
            {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}, {metadata: {}}]}";
        let source = Source::Http;
        let origin = Origin { source, ..origin("http://x/") };
        let pods = pods(list, origin).unwrap();
        assert_eq!(pods.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false]);
    }
}
