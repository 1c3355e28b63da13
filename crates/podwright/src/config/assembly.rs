//! Assembly of a configuration from its sources.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::decode::{decode, remove_nulls};
use super::duration::GoDuration;
use super::field::FieldPath;
use super::files::{self, ConfigFile};
use super::flags::{self, Flag, Flags, Sets};
use super::gates::FeatureGates;
use super::host::Host;
use super::kubelet::{
    EVICTION_HARD, ImageCredentialsVerification, ImagePulls, KubeletConfiguration,
};
use super::layers::Layers;
use super::options::NodeOptions;
use super::problem::{Invalid, Problem, Source};
use super::validate::{ApiAccess, Validator};
use super::{KubeletSettings, Preset, inert, names};

/// A configuration during assembly.
#[derive(Default)]
pub(super) struct Assembly {
    layers: Layers,
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

impl Assembly {
    /// Adds the problems of the command line.
    pub(super) fn add_flag_problems(&mut self, flags: &Flags) {
        self.problems.extend(flags.problems().iter().cloned());
    }

    /// Reads the settings that exist only as flags.
    pub(super) fn options(&mut self, flags: &Flags, host: &Host) -> NodeOptions {
        let mut document = json!({});
        for (flag, given) in flags.given() {
            let Sets::Option(field) = flag.sets else { continue };
            let field = FieldPath::of(field);
            let fits = |value: &Value| {
                let alone = field.document_with(value.clone());
                serde_json::from_value::<NodeOptions>(alone).map_err(|error| error.to_string())
            };
            let value = flags::parse_value(flag.kind, given);
            match value.and_then(|value| fits(&value).map(|_| value)) {
                Ok(value) => field.put(&mut document, value),
                Err(message) => self.refuse_flag(flag.name, given, message),
            }
        }
        let mut options: NodeOptions = serde_json::from_value(document).unwrap_or_default();
        make_absolute(&mut options, &host.current_dir);
        options
    }

    pub(super) fn add_preset(&mut self, preset: &Preset) {
        self.layers.merge(&preset.values, &Source::Preset(preset.name));
    }

    /// Without an API server to authorize requests, the node listens on loopback only and accepts
    /// client certificates only.
    pub(super) fn restrict_without_api(&mut self, api: ApiAccess) {
        match api {
            ApiAccess::Available => {}
            ApiAccess::None => self.layers.merge(
                &json!({
                    "address": "127.0.0.1",
                    "authentication": {"webhook": {"enabled": false}},
                    "authorization": {"mode": "AlwaysAllow"},
                }),
                &Source::Preset("no --kubeconfig"),
            ),
        }
    }

    /// Merges the `--config` file over the defaults. Only here upstream adds the default eviction
    /// thresholds and derives the report frequency; a drop-in starts from the result.
    pub(super) fn add_file(&mut self, path: &Path) {
        let file = ConfigFile::load(path);
        self.problems.extend(file.problems);
        self.warnings.extend(file.warnings);
        // Nulls in the first document have nothing to remove.
        let mut document = file.document;
        remove_nulls(&mut document);
        self.layers.merge(&document, &file.source);
        self.default_eviction();
        self.default_report_frequency(&file.source);
    }

    /// Adds the default thresholds if the file has none. Otherwise only the thresholds of the file
    /// apply, unless it sets `mergeDefaultEvictionSettings`.
    fn default_eviction(&mut self) {
        let thresholds = FieldPath::of("evictionHard");
        let merge = self.layers.get(&FieldPath::of("mergeDefaultEvictionSettings"));
        if self.layers.get(&thresholds).is_some() && merge != Some(&Value::Bool(true)) {
            return;
        }
        for (signal, amount) in EVICTION_HARD {
            let field = thresholds.key(signal);
            if self.layers.get(&field).is_none() {
                self.layers.set(&field, Value::from(amount), &Source::Default);
            }
        }
    }

    /// The report frequency defaults to the update frequency if the file sets only the latter.
    fn default_report_frequency(&mut self, source: &Source) {
        let report = FieldPath::of("nodeStatusReportFrequency");
        if self.layers.get(&report).is_some() {
            return;
        }
        if let Some(update) = self.layers.get(&FieldPath::of("nodeStatusUpdateFrequency")).cloned()
        {
            self.layers.set(&report, update, source);
        }
    }

    pub(super) fn add_drop_ins(&mut self, directory: &Path) {
        let paths = match files::drop_ins(directory) {
            Ok(paths) => paths,
            Err(error) => {
                let source = Source::Flag("config-dir");
                let message = format!("{} cannot be read: {error}", directory.display());
                self.problems.push(Problem::with_source(source, message));
                return;
            }
        };
        for path in paths {
            let file = ConfigFile::load(&path);
            self.problems.extend(file.problems);
            self.warnings.extend(file.warnings);
            self.layers.merge(&file.document, &file.source);
        }
    }

    pub(super) fn add_flags(&mut self, flags: &Flags, host: &Host) {
        for (flag, given) in flags.given() {
            let value = match flags::parse_value(flag.kind, given) {
                Ok(value) => value,
                Err(message) => {
                    // Problems of options are reported by `options`.
                    if !matches!(flag.sets, Sets::Option(_)) {
                        self.refuse_flag(flag.name, given, message);
                    }
                    continue;
                }
            };
            let Sets::Field(name) = flag.sets else { continue };
            let field = FieldPath::of(name);
            let mut document = field.document_with(value);
            let invalid_values = decode(&document).invalid_values;
            let source = Source::Flag(flag.name);
            if !invalid_values.is_empty() {
                self.problems.extend(
                    invalid_values
                        .into_iter()
                        .map(|invalid_value| invalid_value.into_problem(&source)),
                );
                continue;
            }
            files::resolve_paths(&mut document, &host.current_dir);
            match (name, field.find(&document)) {
                ("featureGates", _) => self.layers.merge(&document, &source),
                (_, Some(value)) => self.layers.set(&field, value.clone(), &source),
                (_, None) => {}
            }
        }
    }

    fn refuse_flag(&mut self, name: &'static str, given: &[String], message: String) {
        let sets_secret = flags::find(name).is_some_and(
            |flag| matches!(flag.sets, Sets::Field(field) if FieldPath::of(field).is_secret()),
        );
        let value = (!sets_secret).then(|| format!("{:?}", given.join(" ")));
        let field = FieldPath::default();
        self.problems.push(Problem { source: Source::Flag(name), field, value, message });
    }

    /// Decodes the document, fills in defaults that depend on other settings, and validates it.
    pub(super) fn finish(
        mut self,
        flags: &Flags,
        options: NodeOptions,
        host: &Host,
        api: ApiAccess,
    ) -> Result<KubeletSettings, Invalid> {
        let decoded = decode(self.layers.document());
        for invalid_value in decoded.invalid_values {
            let source = self.layers.source_of(&invalid_value.field);
            self.problems.push(invalid_value.into_problem(&source));
        }
        let mut configuration = decoded.configuration;
        let (gates, refused) = FeatureGates::from_settings(&configuration.feature_gates);
        for (name, message) in refused {
            let field = FieldPath::of("featureGates").key(&name);
            let source = self.layers.source_of(&field);
            let value = self.layers.get(&field);
            self.problems.push(Problem::with_field(source, field, value, message));
        }
        fill_in(&mut configuration, &gates);

        let validator = Validator::new(&configuration, &self.layers, &options, &gates, host, api);
        let (problems, warnings) = validator.run();
        self.problems.extend(problems);
        self.warnings.extend(warnings);
        let node_name = self.node_name(&options, host);
        if !flags.problems().is_empty() {
            // An unknown flag may be a misspelt flag that resolves the problem.
            self.problems.retain(|problem| problem.source != Source::Machine);
        }
        Invalid::unless_empty(self.problems)?;
        if configuration.cgroup_root.is_empty() && configuration.cgroups_per_qos {
            configuration.cgroup_root = "/".to_owned();
        }
        self.warnings.extend(without_effect(flags, &configuration, &self.layers));
        self.warnings.extend(gates_without_effect(&gates));
        Ok(KubeletSettings { configuration, gates, options, node_name, warnings: self.warnings })
    }

    fn node_name(&mut self, options: &NodeOptions, host: &Host) -> String {
        let name = names::node_name(&host.hostname, &options.hostname_override);
        name.unwrap_or_else(|message| {
            let source = match options.hostname_override.trim() {
                "" => Source::Machine,
                _ => Source::Flag("hostname-override"),
            };
            self.problems.push(Problem::with_source(source, message));
            String::new()
        })
    }
}

/// Fills in defaults that depend on other settings.
fn fill_in(configuration: &mut KubeletConfiguration, gates: &FeatureGates) {
    let pulls = configuration.image_pulls();
    if configuration.serialize_image_pulls.is_none() {
        configuration.serialize_image_pulls = Some(pulls == ImagePulls::OneAtATime);
    }
    if let ImagePulls::Parallel { at_most } = pulls {
        configuration
            .max_parallel_image_pulls
            .get_or_insert(i32::try_from(at_most).unwrap_or(i32::MAX));
    }
    if gates.enabled("KubeletCrashLoopBackOffMax") {
        let longest = &mut configuration.crash_loop_back_off.max_container_restart_period;
        longest.get_or_insert(GoDuration::from_secs(300));
    }
    if gates.enabled("KubeletEnsureSecretPulledImages") {
        let policy = &mut configuration.image_pull_credentials_verification_policy;
        policy.get_or_insert_with(ImageCredentialsVerification::default);
    }
    // All negative limits are equivalent.
    configuration.pod_pids_limit = configuration.pod_pids_limit.max(-1);
}

/// Paths on the command line are relative to the current directory.
fn make_absolute(options: &mut NodeOptions, current_dir: &Path) {
    let absolute = |path: &mut PathBuf| *path = files::normalized(&current_dir.join(&*path));
    absolute(&mut options.cert_dir);
    absolute(&mut options.root_dir);
    for path in [
        &mut options.config,
        &mut options.config_dir,
        &mut options.kubeconfig,
        &mut options.bootstrap_kubeconfig,
        &mut options.lock_file,
        &mut options.image_credential_provider_config,
        &mut options.image_credential_provider_bin_dir,
    ] {
        path.iter_mut().for_each(absolute);
    }
}

/// One warning for all settings without effect.
fn without_effect(
    flags: &Flags,
    configuration: &KubeletConfiguration,
    layers: &Layers,
) -> Option<String> {
    let matches_behaviour = |flag: &Flag| match flag.sets {
        Sets::Field(field) => inert::matches_behaviour(field, configuration),
        Sets::Option(_) | Sets::Nothing => false,
    };
    let by_flag = flags.given().filter(|(flag, _)| !flag.has_effect() && !matches_behaviour(flag));
    let mut names: Vec<String> = by_flag.map(|(flag, _)| format!("--{}", flag.name)).collect();
    for name in inert::fields_without_effect(configuration) {
        match layers.source_of(&FieldPath::of(name)) {
            Source::Flag(_) => {}
            Source::Default
            | Source::Preset(_)
            | Source::File(_)
            | Source::CommandLine
            | Source::Machine => names.push(name.to_owned()),
        }
    }
    (!names.is_empty()).then(|| format!("accepted, but without effect: {}", names.join(", ")))
}

fn gates_without_effect(gates: &FeatureGates) -> Option<String> {
    let names = gates.without_effect();
    (!names.is_empty())
        .then(|| format!("feature gates accepted, but without effect: {}", names.join(", ")))
}
