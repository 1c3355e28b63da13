//! Puts a configuration together, layer by layer.

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
use super::validate::{ApiAccess, Examination};
use super::{KubeletSettings, Preset, inert, names};

/// A configuration in the making.
#[derive(Default)]
pub(super) struct Assembly {
    layers: Layers,
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

impl Assembly {
    /// Takes note of what the command line says that nobody understands.
    pub(super) fn note_not_understood(&mut self, flags: &Flags) {
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
                Err(trouble) => self.refuse_flag(flag.name, given, trouble),
            }
        }
        let mut options: NodeOptions = serde_json::from_value(document).unwrap_or_default();
        make_absolute(&mut options, &host.current_dir);
        options
    }

    pub(super) fn add_preset(&mut self, preset: &Preset) {
        self.layers.merge(&preset.values, &Source::Preset(preset.name));
    }

    /// A node with nobody to ask about callers listens to this machine only, and trusts client
    /// certificates only.
    pub(super) fn close_if_alone(&mut self, api: ApiAccess) {
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

    /// Lays the `--config` file over the defaults. Only here upstream adds the default eviction
    /// thresholds and derives the report frequency; a drop-in starts from the result.
    pub(super) fn add_file(&mut self, path: &Path) {
        let file = ConfigFile::load(path);
        self.problems.extend(file.problems);
        self.warnings.extend(file.warnings);
        // In the first document a null removes nothing: there is nothing of a user's to remove.
        let mut document = file.document;
        remove_nulls(&mut document);
        self.layers.merge(&document, &file.source);
        self.default_eviction();
        self.default_report_frequency(&file.source);
    }

    /// No thresholds in the file: the default ones. Some: exactly those, unless the file asks for
    /// the missing ones to be added.
    fn default_eviction(&mut self) {
        let thresholds = FieldPath::of("evictionHard");
        let asked = self.layers.get(&FieldPath::of("mergeDefaultEvictionSettings"));
        if self.layers.get(&thresholds).is_some() && asked != Some(&Value::Bool(true)) {
            return;
        }
        for (signal, amount) in EVICTION_HARD {
            let field = thresholds.key(signal);
            if self.layers.get(&field).is_none() {
                self.layers.set(&field, Value::from(amount), &Source::Default);
            }
        }
    }

    /// Who sets only how often the status is computed wants it reported as often.
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

    pub(super) fn add_drop_ins(&mut self, folder: &Path) {
        let paths = match files::drop_ins(folder) {
            Ok(paths) => paths,
            Err(error) => {
                let source = Source::Flag("config-dir");
                let trouble = format!("{} cannot be read: {error}", folder.display());
                self.problems.push(Problem::with_source(source, trouble));
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
                Err(trouble) => {
                    // Those of options are found where options are read.
                    if !matches!(flag.sets, Sets::Option(_)) {
                        self.refuse_flag(flag.name, given, trouble);
                    }
                    continue;
                }
            };
            let Sets::Field(name) = flag.sets else { continue };
            let field = FieldPath::of(name);
            let mut document = field.document_with(value);
            let misfits = decode(&document).misfits;
            let source = Source::Flag(flag.name);
            if !misfits.is_empty() {
                self.problems.extend(misfits.into_iter().map(|misfit| misfit.said_by(&source)));
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

    fn refuse_flag(&mut self, name: &'static str, given: &[String], trouble: String) {
        let sets_secret = flags::find(name).is_some_and(
            |flag| matches!(flag.sets, Sets::Field(field) if FieldPath::of(field).is_secret()),
        );
        let value = (!sets_secret).then(|| format!("{:?}", given.join(" ")));
        let field = FieldPath::default();
        self.problems.push(Problem { source: Source::Flag(name), field, value, trouble });
    }

    /// Gives the document its types, fills in what depends on other settings, and checks it all.
    pub(super) fn finish(
        mut self,
        flags: &Flags,
        options: NodeOptions,
        host: &Host,
        api: ApiAccess,
    ) -> Result<KubeletSettings, Invalid> {
        let decoded = decode(self.layers.document());
        for misfit in decoded.misfits {
            let source = self.layers.source_of(&misfit.field);
            self.problems.push(misfit.said_by(&source));
        }
        let mut configuration = decoded.configuration;
        let (gates, refused) = FeatureGates::from_settings(&configuration.feature_gates);
        for (name, trouble) in refused {
            let field = FieldPath::of("featureGates").key(&name);
            let source = self.layers.source_of(&field);
            let value = self.layers.get(&field);
            self.problems.push(Problem::with_field(source, field, value, trouble));
        }
        fill_in(&mut configuration, &gates);

        let examination =
            Examination::new(&configuration, &self.layers, &options, &gates, host, api);
        let (problems, warnings) = examination.conduct();
        self.problems.extend(problems);
        self.warnings.extend(warnings);
        let node_name = self.node_name(&options, host);
        if !flags.problems().is_empty() {
            // What was not understood may be the very flag that makes up for the machine.
            self.problems.retain(|problem| problem.source != Source::Machine);
        }
        Invalid::unless_empty(self.problems)?;
        if configuration.cgroup_root.is_empty() && configuration.cgroups_per_qos {
            configuration.cgroup_root = "/".to_owned();
        }
        self.warnings.extend(in_vain(flags, &configuration, &self.layers));
        self.warnings.extend(gates_in_vain(&gates));
        Ok(KubeletSettings { configuration, gates, options, node_name, warnings: self.warnings })
    }

    fn node_name(&mut self, options: &NodeOptions, host: &Host) -> String {
        let name = names::node_name(&host.hostname, &options.hostname_override);
        name.unwrap_or_else(|trouble| {
            let source = match options.hostname_override.trim() {
                "" => Source::Machine,
                _ => Source::Flag("hostname-override"),
            };
            self.problems.push(Problem::with_source(source, trouble));
            String::new()
        })
    }
}

/// Defaults that depend on other settings, which may come from anywhere and are known only now.
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
    // Every negative limit means the same.
    configuration.pod_pids_limit = configuration.pod_pids_limit.max(-1);
}

/// Paths on the command line are relative to where the command was given.
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

/// One warning for all that was asked for and changes nothing.
fn in_vain(flags: &Flags, configuration: &KubeletConfiguration, layers: &Layers) -> Option<String> {
    let is_done_anyway = |flag: &Flag| match flag.sets {
        Sets::Field(field) => inert::is_done_anyway(field, configuration),
        Sets::Option(_) | Sets::Nothing => false,
    };
    let by_flag = flags.given().filter(|(flag, _)| !flag.has_effect() && !is_done_anyway(flag));
    let mut names: Vec<String> = by_flag.map(|(flag, _)| format!("--{}", flag.name)).collect();
    for name in inert::set_in_vain(configuration) {
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

fn gates_in_vain(gates: &FeatureGates) -> Option<String> {
    let names = gates.without_effect();
    (!names.is_empty())
        .then(|| format!("feature gates accepted, but without effect: {}", names.join(", ")))
}
