//! Tests of container validation.

use serde_json::json;

use super::{check, of_container, of_spec};

#[test]
fn names_and_images_of_containers() {
    check(
        &[
            (json!({"containers": [{"image": "a"}]}), &["spec.containers[0].name: Required value"]),
            (
                json!({"containers": [{"name": "a", "image": "a"}, {"name": "a", "image": "b"}]}),
                &["spec.containers[1].name: Duplicate value: \"a\""],
            ),
            (
                json!({"containers": [{"name": "a", "image": " a"}]}),
                &[
                    "spec.containers[0].image: Invalid value: \" a\": must not have leading or trailing whitespace",
                ],
            ),
            (
                json!({"initContainers": [{"name": "c", "image": "a"}]}),
                &["spec.initContainers[0].name: Duplicate value: \"c\""],
            ),
            (
                json!({"containers": [{"name": "a", "image": "a", "imagePullPolicy": "Often"}]}),
                &[
                    "spec.containers[0].imagePullPolicy: Unsupported value: \"Often\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
                ],
            ),
            (
                json!({"containers": [{"name": "a", "image": "a", "terminationMessagePolicy": "x"}]}),
                &[
                    "spec.containers[0].terminationMessagePolicy: Unsupported value: \"x\": supported values: \"File\", \"FallbackToLogsOnError\"",
                ],
            ),
        ],
        of_spec,
    );
}

#[test]
fn ports() {
    check(
        &[
            (
                json!({"ports": [{"containerPort": 80, "name": "web"}, {"containerPort": 80, "protocol": "UDP"}]}),
                &[],
            ),
            (
                json!({"ports": [{}]}),
                &["spec.containers[0].ports[0].containerPort: Required value"],
            ),
            (
                json!({"ports": [{"containerPort": 1, "name": "Web"}]}),
                &[
                    "spec.containers[0].ports[0].name: Invalid value: \"Web\": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
                ],
            ),
            (
                json!({"ports": [{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]}),
                &["spec.containers[0].ports[1].name: Duplicate value: \"a\""],
            ),
            (
                json!({"ports": [{"containerPort": 1, "hostPort": -1, "protocol": "ICMP"}]}),
                &[
                    "spec.containers[0].ports[0].hostPort: Invalid value: -1: must be between 1 and 65535, inclusive",
                    "spec.containers[0].ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
                ],
            ),
            (
                json!({"ports": [{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9}]}),
                &["spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//9\""],
            ),
        ],
        of_container,
    );
    let on_host = json!({"hostNetwork": true, "containers": [{"name": "c", "image": "a", "ports": [{"containerPort": 1, "hostPort": 2}]}]});
    assert_eq!(
        of_spec(&on_host),
        [
            "spec.containers[0].ports[0].hostPort: Invalid value: 2: must match `containerPort` when `hostNetwork` is true"
        ]
    );
}

#[test]
fn environment() {
    let field = |path: &str| json!({"env": [{"name": "a", "valueFrom": {"fieldRef": {"fieldPath": path}}}]});
    check(
        &[
            (
                json!({"env": [{"name": "", "value": "x"}]}),
                &["spec.containers[0].env[0].name: Required value"],
            ),
            (field("metadata.labels['a.b/c']"), &[]),
            (field("status.podIPs"), &[]),
            (
                field("metadata.labels"),
                &[
                    "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: \"metadata.labels\": supported values: \"metadata.name\", \"metadata.namespace\", \"metadata.uid\", \"spec.nodeName\", \"spec.serviceAccountName\", \"status.hostIP\", \"status.hostIPs\", \"status.podIP\", \"status.podIPs\"",
                ],
            ),
            (
                field("spec.x['a']"),
                &[
                    "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.x['a']\": error converting fieldPath: field label does not support subscript: spec.x['a']",
                ],
            ),
            (
                json!({"env": [{"name": "a", "value": "x", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
                &[
                    "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
                ],
            ),
            (
                json!({"env": [{"name": "a", "valueFrom": {}}]}),
                &[
                    "spec.containers[0].env[0].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
                ],
            ),
            (
                json!({"env": [{"name": "a", "valueFrom": {"configMapKeyRef": {"name": "m"}}}]}),
                &["spec.containers[0].env[0].valueFrom.configMapKeyRef.key: Required value"],
            ),
            (
                json!({"env": [{"name": "a", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}}}]}),
                &[
                    "spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor: Invalid value: \"limits.cpu\": only divisor's values 1m and 1 are supported with the cpu resource",
                ],
            ),
            (
                json!({"env": [{"name": "a", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "../x", "key": "k"}}}]}),
                &[
                    "spec.containers[0].env[0].valueFrom.fileKeyRef.path: Invalid value: \"../x\": must not contain '..'",
                    "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Not found: \"v\"",
                ],
            ),
            (json!({"envFrom": [{"prefix": "P_", "secretRef": {"name": "s"}}]}), &[]),
            (
                json!({"envFrom": [{}]}),
                &[
                    "spec.containers[0].envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`",
                ],
            ),
            (
                json!({"envFrom": [{"configMapRef": {}}]}),
                &["spec.containers[0].envFrom[0].configMapRef.name: Required value"],
            ),
        ],
        of_container,
    );
}

#[test]
fn probes_and_hooks() {
    check(
        &[
            (
                json!({"livenessProbe": {}}),
                &["spec.containers[0].livenessProbe: Required value: must specify a handler type"],
            ),
            (
                json!({"livenessProbe": {"exec": {}, "successThreshold": 2, "periodSeconds": -1}}),
                &[
                    "spec.containers[0].livenessProbe.exec.command: Required value",
                    "spec.containers[0].livenessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
                    "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
                ],
            ),
            (
                json!({"readinessProbe": {"tcpSocket": {"port": "x"}, "terminationGracePeriodSeconds": 5, "successThreshold": 2}}),
                &[
                    "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 5: must not be set for readinessProbes",
                ],
            ),
            (
                json!({"startupProbe": {"httpGet": {"port": 0, "scheme": "FTP", "httpHeaders": [{"name": "a b", "value": ""}]}}}),
                &[
                    "spec.containers[0].startupProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive",
                    "spec.containers[0].startupProbe.httpGet.scheme: Unsupported value: \"FTP\": supported values: \"HTTP\", \"HTTPS\"",
                    "spec.containers[0].startupProbe.httpGet.httpHeaders: Invalid value: \"a b\": a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')",
                ],
            ),
            (
                json!({"livenessProbe": {"grpc": {"port": 70000}, "terminationGracePeriodSeconds": 0}}),
                &[
                    "spec.containers[0].livenessProbe.grpc.port: Invalid value: 70000: must be between 1 and 65535, inclusive",
                    "spec.containers[0].livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0",
                ],
            ),
            (
                json!({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}, "postStart": {}, "stopSignal": "SIGTERM"}}),
                &[
                    "spec.containers[0].lifecycle.postStart: Required value: must specify a handler type",
                    "spec.containers[0].lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)",
                    "spec.containers[0].lifecycle.stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`",
                ],
            ),
        ],
        of_container,
    );
}

#[test]
fn resources() {
    check(
        &[
            (
                json!({"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1000m", "example.com/gpu": "1"}}}),
                &[],
            ),
            (
                json!({"resources": {"limits": {"cpu": "-1"}}}),
                &[
                    "spec.containers[0].resources.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
                    "spec.containers[0].resources.requests[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
                ],
            ),
            (
                json!({"resources": {"requests": {"example.com/gpu": "1"}}}),
                &[
                    "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
                ],
            ),
            (
                json!({"resources": {"limits": {"example.com/gpu": "500m"}}}),
                &[
                    "spec.containers[0].resources.limits[example.com/gpu]: Invalid value: \"500m\": must be an integer",
                    "spec.containers[0].resources.requests[example.com/gpu]: Invalid value: \"500m\": must be an integer",
                ],
            ),
            (
                json!({"resources": {"limits": {"hugepages-2Mi": "3Mi"}}}),
                &[
                    "spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi",
                    "spec.containers[0].resources.requests[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi",
                    "spec.containers[0].resources: Forbidden: HugePages require cpu or memory",
                ],
            ),
            (
                json!({"resources": {"claims": [{"name": "x"}]}}),
                &[
                    "spec.containers[0].resources.claims[0]: Not found: \"x\": must be one of the names in pod.spec.resourceClaims which is empty",
                ],
            ),
            (
                json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "x"}, {"resourceName": "cpu", "restartPolicy": "NotRequired"}]}),
                &[
                    "spec.containers[0].resizePolicy: Unsupported value: \"x\": supported values: \"NotRequired\", \"RestartContainer\"",
                    "spec.containers[0].resizePolicy[1]: Duplicate value: \"cpu\"",
                ],
            ),
        ],
        of_container,
    );
    check(
        &[
            (
                json!({"resources": {"limits": {"cpu": "1"}}, "containers": [{"name": "c", "image": "a", "resources": {"limits": {"cpu": "2"}}}]}),
                &[
                    "spec.resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
                    "spec.resources.containers[0][cpu].limits: Invalid value: \"2\": must be less than or equal to pod limits of 1",
                ],
            ),
            (
                json!({"resources": {"requests": {"cpu": "1", "ephemeral-storage": "1"}}, "containers": [{"name": "c", "image": "a", "resources": {"requests": {"cpu": "2"}}}]}),
                &[
                    "spec.resources.requests[ephemeral-storage]: Unsupported value: \"ephemeral-storage\": supported values: \"cpu\", \"hugepages-\", \"memory\"",
                    "spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to aggregate container requests of 2",
                ],
            ),
            (
                json!({"resourceClaims": [{"name": "a"}, {"name": "a", "resourceClaimName": "x"}]}),
                &[
                    "spec.resourceClaims[0]: Invalid value: {\"Name\":\"a\",\"ResourceClaimName\":null,\"ResourceClaimTemplateName\":null}: must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
                    "spec.resourceClaims[1].name: Duplicate value: \"a\"",
                ],
            ),
        ],
        of_spec,
    );
}

#[test]
fn init_containers_and_sidecars() {
    let probe = json!({"exec": {"command": ["x"]}});
    check(
        &[
            (
                json!({"initContainers": [{"name": "s", "image": "a", "restartPolicy": "Always", "livenessProbe": probe}]}),
                &[],
            ),
            (
                json!({"initContainers": [{"name": "i", "image": "a", "livenessProbe": probe}]}),
                &[
                    "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
                ],
            ),
            (
                json!({"initContainers": [{"name": "i", "image": "a", "restartPolicy": "Sometimes"}]}),
                &[
                    "spec.initContainers[0].restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"Never\", \"OnFailure\"",
                ],
            ),
            (
                json!({"containers": [{"name": "c", "image": "a", "restartPolicyRules": [{"action": "Wait", "exitCodes": {"operator": "Is"}}]}]}),
                &[
                    "spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used",
                    "spec.containers[0].restartPolicyRules[0].action: Unsupported value: \"Wait\": supported values: \"Restart\", \"RestartAllContainers\"",
                    "spec.containers[0].restartPolicyRules[0].exitCodes.operator: Unsupported value: \"Is\": supported values: \"In\", \"NotIn\"",
                ],
            ),
        ],
        of_spec,
    );
}
