//! Validation of numbers, durations and text formats.

use std::path::Path;

use super::super::duration::GoDuration;
use super::super::field::FieldPath;
use super::super::files::normalized;
use super::Validator;

const ANY: i64 = i64::MAX;

pub(super) fn examine(validator: &mut Validator<'_>) {
    numbers(validator);
    times(validator);
    texts(validator);
}

fn numbers(validator: &mut Validator<'_>) {
    let c = validator.configuration;
    for (field, value, least, most) in [
        ("containerLogMaxFiles", c.container_log_max_files, 2, ANY),
        ("containerLogMaxWorkers", c.container_log_max_workers, 1, ANY),
        ("eventBurst", c.event_burst, 0, ANY),
        ("eventRecordQPS", c.event_record_qps, 0, ANY),
        ("healthzPort", c.healthz_port, 0, 65535),
        ("imageGCHighThresholdPercent", c.image_gc_high_threshold_percent, 0, 100),
        ("imageGCLowThresholdPercent", c.image_gc_low_threshold_percent, 0, 100),
        ("iptablesDropBit", c.iptables_drop_bit, 0, 31),
        ("iptablesMasqueradeBit", c.iptables_masquerade_bit, 0, 31),
        ("kubeAPIBurst", c.kube_api_burst, 0, ANY),
        ("kubeAPIQPS", c.kube_api_qps, 0, ANY),
        ("maxPods", c.max_pods, 0, ANY),
        ("nodeLeaseDurationSeconds", c.node_lease_duration_seconds, 1, ANY),
        ("nodeStatusMaxImages", c.node_status_max_images, -1, ANY),
        ("oomScoreAdj", c.oom_score_adj, -1000, 1000),
        ("podsPerCore", c.pods_per_core, 0, ANY),
        ("port", c.port, 1, 65535),
        ("readOnlyPort", c.read_only_port, 0, 65535),
        ("registryBurst", c.registry_burst, 0, ANY),
        ("registryPullQPS", c.registry_pull_qps, 0, ANY),
    ] {
        let value = i64::from(value);
        validator.require((least..=most).contains(&value), field, bounds(least, most));
    }
    validator.require(c.max_open_files >= 0, "maxOpenFiles", bounds(0, ANY));
    let factor = c.memory_throttling_factor;
    validator.require(
        factor > 0.0 && factor <= 1.0,
        "memoryThrottlingFactor",
        "must be greater than 0 and at most 1",
    );
    let (low, high) = (c.image_gc_low_threshold_percent, c.image_gc_high_threshold_percent);
    validator.require(
        low < high,
        "imageGCLowThresholdPercent",
        format!("must be less than imageGCHighThresholdPercent, which is {high}"),
    );
}

fn bounds(least: i64, most: i64) -> String {
    if most == ANY {
        format!("must be {least} or more")
    } else {
        format!("must be from {least} to {most}")
    }
}

fn times(validator: &mut Validator<'_>) {
    let c = validator.configuration;
    // A loop without a period would be busy.
    for (field, period) in [
        ("fileCheckFrequency", c.file_check_frequency),
        ("httpCheckFrequency", c.http_check_frequency),
        ("logging.flushFrequency", c.logging.flush_frequency),
        ("nodeStatusReportFrequency", c.node_status_report_frequency),
        ("nodeStatusUpdateFrequency", c.node_status_update_frequency),
        ("runtimeRequestTimeout", c.runtime_request_timeout),
        ("syncFrequency", c.sync_frequency),
    ] {
        validator.require(period > GoDuration::ZERO, field, "must be longer than 0s");
    }
    for (field, age) in [
        ("imageMinimumGCAge", c.image_minimum_gc_age),
        ("imageMaximumGCAge", c.image_maximum_gc_age),
    ] {
        validator.require(!age.is_negative(), field, "must not be negative");
    }
    let (minimum, maximum) = (c.image_minimum_gc_age, c.image_maximum_gc_age);
    validator.require(
        maximum <= GoDuration::ZERO || maximum > minimum,
        "imageMaximumGCAge",
        format!("must be longer than imageMinimumGCAge, which is {minimum}, or 0s for never"),
    );
    validator.require(
        c.container_log_monitor_interval >= GoDuration::from_secs(3),
        "containerLogMonitorInterval",
        "must be 3s or longer",
    );
    cfs_period(validator);
    crash_back_off(validator);
}

fn cfs_period(validator: &mut Validator<'_>) {
    let period = validator.configuration.cpu_cfs_quota_period;
    if !validator.gates.enabled("CustomCPUCFSQuotaPeriod") {
        validator.require(
            period == GoDuration::from_millis(100),
            "cpuCFSQuotaPeriod",
            "must be 100ms unless the feature gate CustomCPUCFSQuotaPeriod is on",
        );
        return;
    }
    let allowed = GoDuration::from_millis(1)..=GoDuration::from_secs(1);
    validator.require(allowed.contains(&period), "cpuCFSQuotaPeriod", "must be from 1ms to 1s");
}

fn crash_back_off(validator: &mut Validator<'_>) {
    const FIELD: &str = "crashLoopBackOff.maxContainerRestartPeriod";
    let Some(longest) = validator.configuration.crash_loop_back_off.max_container_restart_period
    else {
        return;
    };
    if !validator.gates.enabled("KubeletCrashLoopBackOffMax") {
        validator.require(false, FIELD, "must not be set while KubeletCrashLoopBackOffMax is off");
        return;
    }
    let allowed = GoDuration::from_secs(1)..=GoDuration::from_secs(300);
    validator.require(allowed.contains(&longest), FIELD, "must be from 1s to 5m0s");
}

fn texts(validator: &mut Validator<'_>) {
    let c = validator.configuration;
    validator.require(
        !c.run_once,
        "runOnce",
        "must be false: running pods once and exiting no longer exists",
    );
    endpoint(validator, "containerRuntimeEndpoint", &c.container_runtime_endpoint);
    if !c.image_service_endpoint.is_empty() {
        endpoint(validator, "imageServiceEndpoint", &c.image_service_endpoint);
    }
    let url = &c.static_pod_url;
    validator.require(
        url.is_empty() || url.starts_with("http://") || url.starts_with("https://"),
        "staticPodURL",
        "must begin with http:// or https://",
    );
    let logs = Path::new(&c.pod_logs_dir);
    validator.require(
        logs.is_absolute()
            && normalized(logs).as_os_str() == logs.as_os_str()
            && c.pod_logs_dir.is_ascii(),
        "podLogsDir",
        "must be an absolute path in ASCII, without '.', '..' and doubled or final slashes",
    );
    for (at, server) in c.cluster_dns.iter().enumerate() {
        if server.parse::<std::net::IpAddr>().is_err() {
            let field = FieldPath::of("clusterDNS").index(at);
            validator.warn(&field, format!("is ignored: {server:?} is not an IP address"));
        }
    }
}

fn endpoint(validator: &mut Validator<'_>, field: &str, endpoint: &str) {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    validator.require(
        Path::new(path).is_absolute(),
        field,
        "must be a Unix socket, such as unix:///run/containerd/containerd.sock",
    );
}
