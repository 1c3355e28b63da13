//! Validation of probes and lifecycle hooks.

use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, Lifecycle, LifecycleHandler, Probe,
    SleepAction, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::field::Errors;
use super::{format, port, text};
use crate::schema::Path;

/// The probes of a container.
pub(super) fn check(container: &Container, field: &Path<'_>, errors: &mut Errors) {
    if let Some(probe) = &container.liveness_probe {
        let field = field.child("livenessProbe");
        check_one(probe, &field, errors);
        one_success_is_enough(probe, &field, errors);
    }
    if let Some(probe) = &container.readiness_probe {
        let field = field.child("readinessProbe");
        check_one(probe, &field, errors);
        if let Some(seconds) = probe.termination_grace_period_seconds {
            let name = field.child("terminationGracePeriodSeconds");
            errors.invalid(&name, seconds, "must not be set for readinessProbes");
        }
    }
    if let Some(probe) = &container.startup_probe {
        let field = field.child("startupProbe");
        check_one(probe, &field, errors);
        one_success_is_enough(probe, &field, errors);
    }
}

fn check_one(probe: &Probe, field: &Path<'_>, errors: &mut Errors) {
    let handler = Handler {
        exec: probe.exec.as_ref(),
        http: probe.http_get.as_ref(),
        tcp: probe.tcp_socket.as_ref(),
        grpc: probe.grpc.as_ref(),
        sleep: None,
    };
    handler.check(None, field, errors);
    for (name, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        if let Some(value) = value.filter(|value| *value < 0) {
            errors.invalid(&field.child(name), value, "must be greater than or equal to 0");
        }
    }
    if let Some(seconds) = probe.termination_grace_period_seconds.filter(|seconds| *seconds <= 0) {
        let name = field.child("terminationGracePeriodSeconds");
        errors.invalid(&name, seconds, "must be greater than 0");
    }
}

fn one_success_is_enough(probe: &Probe, field: &Path<'_>, errors: &mut Errors) {
    let threshold = probe.success_threshold.unwrap_or(0);
    if threshold != 1 {
        errors.invalid(&field.child("successThreshold"), threshold, "must be 1");
    }
}

pub(super) fn lifecycle(
    lifecycle: &Lifecycle,
    grace: Option<i64>,
    os: Option<&str>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let check = |handler: &LifecycleHandler, field: &Path<'_>, errors: &mut Errors| {
        let handler = Handler {
            exec: handler.exec.as_ref(),
            http: handler.http_get.as_ref(),
            tcp: handler.tcp_socket.as_ref(),
            grpc: None,
            sleep: handler.sleep.as_ref(),
        };
        handler.check(grace, field, errors);
    };
    if let Some(handler) = &lifecycle.post_start {
        check(handler, &field.child("postStart"), errors);
    }
    if let Some(handler) = &lifecycle.pre_stop {
        check(handler, &field.child("preStop"), errors);
    }
    if let Some(signal) = &lifecycle.stop_signal {
        stop_signal(signal, os, &field.child("stopSignal"), errors);
    }
}

struct Handler<'a> {
    exec: Option<&'a ExecAction>,
    http: Option<&'a HTTPGetAction>,
    tcp: Option<&'a TCPSocketAction>,
    grpc: Option<&'a GRPCAction>,
    sleep: Option<&'a SleepAction>,
}

impl Handler<'_> {
    /// Exactly one handler must be set, and it must be valid.
    fn check(&self, grace: Option<i64>, field: &Path<'_>, errors: &mut Errors) {
        let mut given = 0;
        let mut is_first = |name: &str, errors: &mut Errors| {
            given += 1;
            if given > 1 {
                errors.forbidden(&field.child(name), "may not specify more than 1 handler type");
            }
            given == 1
        };
        if let Some(exec) = self.exec
            && is_first("exec", errors)
            && exec.command.as_ref().is_none_or(Vec::is_empty)
        {
            errors.required(&field.child("exec").child("command"), "");
        }
        if let Some(http) = self.http
            && is_first("httpGet", errors)
        {
            http_get(http, &field.child("httpGet"), errors);
        }
        if let Some(tcp) = self.tcp
            && is_first("tcpSocket", errors)
        {
            port::number_or_name(&tcp.port, &field.child("tcpSocket").child("port"), errors);
        }
        if let Some(grpc) = self.grpc
            && is_first("grpc", errors)
        {
            let number = IntOrString::Int(grpc.port);
            port::number_or_name(&number, &field.child("grpc").child("port"), errors);
        }
        if let Some(sleep) = self.sleep
            && is_first("sleep", errors)
            && let Some(grace) = grace
            && !(0..=grace).contains(&sleep.seconds)
        {
            let detail = format!(
                "must be non-negative and less than terminationGracePeriodSeconds ({grace})"
            );
            errors.invalid(&field.child("sleep"), sleep.seconds, &detail);
        }
        if given == 0 {
            errors.required(field, "must specify a handler type");
        }
    }
}

fn http_get(http: &HTTPGetAction, field: &Path<'_>, errors: &mut Errors) {
    if text(&http.path).is_empty() {
        errors.required(&field.child("path"), "");
    }
    port::number_or_name(&http.port, &field.child("port"), errors);
    let scheme = text(&http.scheme);
    if !["HTTP", "HTTPS"].contains(&scheme) {
        errors.not_supported(&field.child("scheme"), scheme, &["HTTP", "HTTPS"]);
    }
    for header in http.http_headers.iter().flatten() {
        let problems = format::http_header_name(&header.name);
        errors.malformed(&field.child("httpHeaders"), &header.name, &problems);
    }
}

const SIGNALS: [&str; 34] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

fn linux_signals() -> Vec<String> {
    let plain = SIGNALS.iter().map(|name| (*name).to_owned());
    let low = (1..=15).map(|n| format!("SIGRTMIN+{n}"));
    let high = (1..=14).map(|n| format!("SIGRTMAX-{n}"));
    let ends = ["SIGRTMIN".to_owned(), "SIGRTMAX".to_owned()];
    let mut all: Vec<String> = plain.chain(low).chain(high).chain(ends).collect();
    all.sort();
    all
}

fn stop_signal(signal: &str, os: Option<&str>, field: &Path<'_>, errors: &mut Errors) {
    let supported = match os {
        None => {
            let detail = "may not be set for containers with empty `spec.os.name`";
            return errors.forbidden(field, detail);
        }
        Some("windows") => vec!["SIGKILL".to_owned(), "SIGTERM".to_owned()],
        Some("linux") => linux_signals(),
        Some(_) => return,
    };
    if !supported.iter().any(|known| known == signal) {
        let names: Vec<&str> = supported.iter().map(String::as_str).collect();
        errors.not_supported(field, signal, &names);
    }
}
