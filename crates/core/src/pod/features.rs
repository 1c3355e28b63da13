//! Feature gates that change what a pod means on this node.
//!
//! A field whose gate is off is removed from the agent's copy of a pod when its source delivers it.
//! So no decision can use it, and none needs to know the gate. The author of a manifest is told.
//! Gates without a field of their own are read where they matter.

use k8s_openapi::api::core::v1;
use serde::{Deserialize, Serialize};

/// Each field has the name of its gate. The default is that of Kubernetes v1.36.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodFeatures {
    #[serde(rename = "ChangeContainerStatusOnKubeletRestart")]
    pub change_container_status_on_kubelet_restart: bool,
    #[serde(rename = "ContainerRestartRules")]
    pub container_restart_rules: bool,
    #[serde(rename = "ContainerStopSignals")]
    pub container_stop_signals: bool,
    #[serde(rename = "EnvFiles")]
    pub env_files: bool,
    #[serde(rename = "HostnameOverride")]
    pub hostname_override: bool,
    #[serde(rename = "InPlacePodLevelResourcesVerticalScaling")]
    pub in_place_pod_level_resources_vertical_scaling: bool,
    #[serde(rename = "InPlacePodVerticalScalingInitContainers")]
    pub in_place_pod_vertical_scaling_init_containers: bool,
    #[serde(rename = "PodLevelResources")]
    pub pod_level_resources: bool,
    #[serde(rename = "PodReadyToStartContainersCondition")]
    pub pod_ready_to_start_containers_condition: bool,
    #[serde(rename = "PreventStaticPodAPIReferences")]
    pub prevent_static_pod_api_references: bool,
    #[serde(rename = "RestartAllContainersOnContainerExits")]
    pub restart_all_containers_on_container_exits: bool,
    #[serde(rename = "TaintTolerationComparisonOperators")]
    pub taint_toleration_comparison_operators: bool,
}

impl PodFeatures {
    pub const DEFAULT: Self = Self {
        change_container_status_on_kubelet_restart: false,
        container_restart_rules: true,
        container_stop_signals: false,
        env_files: true,
        hostname_override: true,
        in_place_pod_level_resources_vertical_scaling: true,
        in_place_pod_vertical_scaling_init_containers: true,
        pod_level_resources: true,
        pod_ready_to_start_containers_condition: true,
        prevent_static_pod_api_references: true,
        restart_all_containers_on_container_exits: true,
        taint_toleration_comparison_operators: false,
    };

    /// A case without the field is one with the defaults, as earlier builds wrote it.
    pub fn is_default(&self) -> bool {
        *self == Self::DEFAULT
    }

    /// From the values of gates by their names.
    pub fn of(enabled: impl Fn(&str) -> bool) -> Self {
        Self {
            change_container_status_on_kubelet_restart: enabled(
                "ChangeContainerStatusOnKubeletRestart",
            ),
            container_restart_rules: enabled("ContainerRestartRules"),
            container_stop_signals: enabled("ContainerStopSignals"),
            env_files: enabled("EnvFiles"),
            hostname_override: enabled("HostnameOverride"),
            in_place_pod_level_resources_vertical_scaling: enabled(
                "InPlacePodLevelResourcesVerticalScaling",
            ),
            in_place_pod_vertical_scaling_init_containers: enabled(
                "InPlacePodVerticalScalingInitContainers",
            ),
            pod_level_resources: enabled("PodLevelResources"),
            pod_ready_to_start_containers_condition: enabled("PodReadyToStartContainersCondition"),
            prevent_static_pod_api_references: enabled("PreventStaticPodAPIReferences"),
            restart_all_containers_on_container_exits: enabled(
                "RestartAllContainersOnContainerExits",
            ),
            taint_toleration_comparison_operators: enabled("TaintTolerationComparisonOperators"),
        }
    }

    /// Removes the fields whose gates are off.
    pub fn drop_disabled(&self, pod: &mut v1::Pod) {
        let Some(spec) = &mut pod.spec else { return };
        if !self.hostname_override {
            spec.hostname_override = None;
        }
        if !self.pod_level_resources {
            spec.resources = None;
        }
        if !self.taint_toleration_comparison_operators
            && let Some(tolerations) = &mut spec.tolerations
        {
            tolerations.retain(|toleration| !compares(toleration));
        }
        if !self.container_restart_rules {
            drop_restart_rules(spec);
        }
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            self.drop_from_container(container);
        }
    }

    fn drop_from_container(&self, container: &mut v1::Container) {
        if !self.restart_all_containers_on_container_exits
            && let Some(rules) = &mut container.restart_policy_rules
        {
            rules.retain(|rule| rule.action != RESTART_ALL);
        }
        if !self.container_stop_signals
            && let Some(lifecycle) = &mut container.lifecycle
        {
            lifecycle.stop_signal = None;
        }
        if !self.env_files {
            for source in container.env.iter_mut().flatten().filter_map(|v| v.value_from.as_mut()) {
                source.file_key_ref = None;
            }
        }
    }

    /// Why a manifest is refused: it uses a restart rule that has no effect. Other fields whose gates
    /// are off are ignored, as upstream does.
    pub fn refusal(&self, pod: &v1::Pod) -> Option<String> {
        let spec = pod.spec.as_ref()?;
        let init = spec.init_containers.iter().flatten().enumerate();
        let init = init.map(|(index, container)| ("initContainers", index, container));
        let regular = spec.containers.iter().enumerate();
        let regular = regular.map(|(index, container)| ("containers", index, container));
        for (list, index, container) in init.chain(regular) {
            let field = format!("spec.{list}[{index}]");
            let is_init = list == "initContainers";
            let policy = container.restart_policy.as_deref();
            let is_sidecar = is_init && policy == Some("Always");
            if !self.container_restart_rules && policy.is_some() && !is_sidecar {
                let text = "may not be set while the feature gate ContainerRestartRules is off";
                return Some(format!("{field}.restartPolicy: Forbidden: {text}"));
            }
            let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
            if !self.restart_all_containers_on_container_exits
                && rules.iter().any(|rule| rule.action == RESTART_ALL)
            {
                let text =
                    format!("Unsupported value: {RESTART_ALL:?}: supported values: \"Restart\"");
                return Some(format!("{field}.restartPolicyRules.action: {text}"));
            }
        }
        None
    }

    /// The pod without what only an alpha gate allows. Validation refuses these fields, because the
    /// API server of the same release does by default.
    pub fn without_allowed(&self, pod: &v1::Pod) -> v1::Pod {
        let mut pod = pod.clone();
        if self.taint_toleration_comparison_operators
            && let Some(tolerations) = pod.spec.as_mut().and_then(|spec| spec.tolerations.as_mut())
        {
            tolerations.retain(|toleration| !compares(toleration) || !is_number(toleration));
        }
        pod
    }
}

impl Default for PodFeatures {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const RESTART_ALL: &str = "RestartAllContainers";

fn drop_restart_rules(spec: &mut v1::PodSpec) {
    for container in spec.init_containers.iter_mut().flatten() {
        container.restart_policy_rules = None;
        // One with `Always` is a sidecar.
        if container.restart_policy.as_deref() != Some("Always") {
            container.restart_policy = None;
        }
    }
    for container in &mut spec.containers {
        container.restart_policy_rules = None;
        container.restart_policy = None;
    }
}

fn compares(toleration: &v1::Toleration) -> bool {
    matches!(toleration.operator.as_deref(), Some("Lt" | "Gt"))
}

fn is_number(toleration: &v1::Toleration) -> bool {
    toleration.value.as_deref().unwrap_or_default().parse::<i64>().is_ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod() -> v1::Pod {
        let rules = json!([
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}},
            {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [2]}}]);
        let container = |name: &str| {
            json!({"name": name, "image": "i", "restartPolicy": "Never", "restartPolicyRules": rules,
                "lifecycle": {"stopSignal": "SIGINT"},
                "env": [{"name": "A", "valueFrom": {"fileKeyRef":
                    {"volumeName": "v", "path": "p", "key": "k"}}}]})
        };
        let sidecar = json!({"name": "s", "image": "i", "restartPolicy": "Always"});
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {
            "hostnameOverride": "other", "resources": {"limits": {"cpu": "1"}},
            "tolerations": [{"key": "n", "operator": "Lt", "value": "5"},
                {"key": "n", "operator": "Gt", "value": "5"}, {"key": "n", "operator": "Exists"}],
            "initContainers": [sidecar, container("i")], "containers": [container("c")]}}))
        .unwrap()
    }

    fn with(change: impl Fn(&mut PodFeatures)) -> PodFeatures {
        // Everything is on, so that one gate shows.
        let mut features = PodFeatures::of(|_| true);
        change(&mut features);
        features
    }

    #[test]
    fn nothing_is_dropped_while_every_gate_is_on() {
        let mut kept = pod();
        with(|_| {}).drop_disabled(&mut kept);
        assert_eq!(kept, pod());
        assert_eq!(with(|_| {}).refusal(&pod()), None);
    }

    #[test]
    fn field_is_dropped_while_its_gate_is_off() {
        type Change = fn(&mut PodFeatures);
        let cases: [(&str, Change, &str, Value); 8] = [
            (
                "HostnameOverride",
                |f| f.hostname_override = false,
                "/spec/hostnameOverride",
                json!(null),
            ),
            (
                "PodLevelResources",
                |f| f.pod_level_resources = false,
                "/spec/resources",
                json!(null),
            ),
            (
                "TaintTolerationComparisonOperators",
                |f| f.taint_toleration_comparison_operators = false,
                "/spec/tolerations",
                json!([{"key": "n", "operator": "Exists"}]),
            ),
            (
                "ContainerRestartRules",
                |f| f.container_restart_rules = false,
                "/spec/containers/0/restartPolicyRules",
                json!(null),
            ),
            (
                "ContainerRestartRules",
                |f| f.container_restart_rules = false,
                "/spec/containers/0/restartPolicy",
                json!(null),
            ),
            (
                "RestartAllContainersOnContainerExits",
                |f| f.restart_all_containers_on_container_exits = false,
                "/spec/containers/0/restartPolicyRules/1",
                json!(null),
            ),
            (
                "ContainerStopSignals",
                |f| f.container_stop_signals = false,
                "/spec/initContainers/1/lifecycle/stopSignal",
                json!(null),
            ),
            (
                "EnvFiles",
                |f| f.env_files = false,
                "/spec/containers/0/env/0/valueFrom/fileKeyRef",
                json!(null),
            ),
        ];
        for (gate, change, path, want) in cases {
            let whole = serde_json::to_value(pod()).unwrap();
            assert_ne!(whole.pointer(path).unwrap_or(&Value::Null), &want, "{gate}: {path}");
            let mut dropped = pod();
            with(change).drop_disabled(&mut dropped);
            let dropped = serde_json::to_value(dropped).unwrap();
            assert_eq!(dropped.pointer(path).unwrap_or(&Value::Null), &want, "{gate}: {path}");
            assert_eq!(dropped["spec"]["initContainers"][0]["restartPolicy"], "Always", "{gate}");
        }
    }

    #[test]
    fn manifest_with_restart_rules_is_refused_while_their_gates_are_off() {
        for (features, want) in [
            (with(|f| f.container_restart_rules = false), "spec.initContainers[1].restartPolicy"),
            (
                with(|f| f.restart_all_containers_on_container_exits = false),
                "spec.initContainers[1].restartPolicyRules.action",
            ),
        ] {
            let found = features.refusal(&pod()).unwrap();
            assert!(found.starts_with(want), "{found}");
        }
    }

    #[test]
    fn comparing_toleration_is_validated_only_for_its_number_while_its_gate_is_on() {
        let operators = |pod: &v1::Pod| {
            let tolerations = pod.spec.as_ref().unwrap().tolerations.clone().unwrap();
            tolerations.into_iter().map(|t| t.operator.unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(operators(&with(|_| {}).without_allowed(&pod())), ["Exists"]);
        let off = with(|f| f.taint_toleration_comparison_operators = false);
        assert_eq!(operators(&off.without_allowed(&pod())), ["Lt", "Gt", "Exists"]);
        let mut words = pod();
        words.spec.as_mut().unwrap().tolerations.as_mut().unwrap()[0].value = Some("five".into());
        assert_eq!(operators(&with(|_| {}).without_allowed(&words)), ["Lt", "Exists"]);
    }
}
