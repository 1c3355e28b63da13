//! How a container ended, and what to do about one that is restarted again and again.

use podwright_api::quantity::Quantity;

use crate::observed::Exit;
use crate::pod::{Container, Pod, ProbeKind, RestartPolicy};

/// Exit codes above this one are 128 + the number of a signal.
const SIGNALLED: i32 = 128;

/// What is known about the end of a container.
#[derive(Clone, Copy, Debug)]
pub struct EndedContainer<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub exit: &'a Exit,
    /// It wrote at least one line to its log.
    pub has_log: bool,
    /// The probe because of which the agent stopped it, and its last answer.
    pub failed_probe: Option<(ProbeKind, &'a str)>,
}

/// The signal of an exit code, by its name.
pub fn signal(code: i32) -> Option<&'static str> {
    Some(match code.checked_sub(SIGNALLED)? {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => return None,
    })
}

/// `exit code 137 (SIGKILL, OOMKilled)`.
pub fn text(exit: &Exit) -> String {
    // Error and Completed only repeat whether the code is zero.
    let reason = Some(exit.reason.as_str()).filter(|it| !matches!(*it, "" | "Error" | "Completed"));
    let details: Vec<&str> = signal(exit.code).into_iter().chain(reason).collect();
    match details.as_slice() {
        [] => format!("exit code {}", exit.code),
        details => format!("exit code {} ({})", exit.code, details.join(", ")),
    }
}

/// What the user can do about a container that ended and is restarted.
pub fn fix(ended: &EndedContainer<'_>) -> String {
    let EndedContainer { pod, container, exit, has_log, failed_probe } = *ended;
    let name = &container.name;
    if exit.reason == "OOMKilled" {
        return match memory_limit(container) {
            Some(limit) => format!(
                "raise resources.limits.memory of {name}, now {limit}, or make it use less: it was \
                 killed for exceeding the limit"
            ),
            None => format!(
                "set resources.requests.memory of {name} and limits for others: it was killed \
                 because the node or the pod had no memory left"
            ),
        };
    }
    if let Some((kind, answer)) = failed_probe {
        let kind = kind.as_str().to_lowercase();
        return format!(
            "make {name} pass its {kind} probe, or allow it more time (failureThreshold, \
             periodSeconds, timeoutSeconds): the agent restarted it after: {answer}"
        );
    }
    let policy = container.policy.unwrap_or(pod.restart_policy);
    match exit.code {
        0 if policy == RestartPolicy::Always => {
            return format!(
                "give {name} a command that keeps running, or set restartPolicy: OnFailure: it \
                 finished without an error"
            );
        }
        126..=128 if !has_log => {
            return format!(
                "check command and args of {name}: exit code {} means that the program cannot be \
                 executed or was not found in the image",
                exit.code
            );
        }
        _ => {}
    }
    if !has_log {
        return format!(
            "check command, args and environment of {name}: it ended without writing to its log"
        );
    }
    format!("find out why it exits: {}", logs_command(pod, name))
}

/// The command that prints the log of the instance that ended.
pub fn logs_command(pod: &Pod, container: &str) -> String {
    let (namespace, name) = (&pod.name.namespace, &pod.name.name);
    let several = pod.containers.len() > 1;
    let container = if several { format!(" -c {container}") } else { String::new() };
    format!("kubectl logs -n {namespace} {name}{container} --previous")
}

fn memory_limit(container: &Container) -> Option<String> {
    let limits = container.spec.resources.as_ref()?.limits.as_ref()?;
    let limit = Quantity::try_from(limits.get("memory")?).ok()?;
    Some(limit.to_string())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::builders::pod;

    fn exit(code: i32, reason: &str) -> Exit {
        Exit {
            code,
            reason: reason.into(),
            message: String::new(),
            started: Timestamp::UNIX_EPOCH,
            finished: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn exit_code_names_its_signal_and_a_reason_that_adds_something() {
        for (code, reason, want) in [
            (3, "Error", "exit code 3"),
            (0, "Completed", "exit code 0"),
            (137, "OOMKilled", "exit code 137 (SIGKILL, OOMKilled)"),
            (143, "Error", "exit code 143 (SIGTERM)"),
            (200, "", "exit code 200"),
            (128, "StartError", "exit code 128 (StartError)"),
            (i32::MIN, "", "exit code -2147483648"),
        ] {
            assert_eq!(text(&exit(code, reason)), want);
        }
    }

    #[test]
    fn fix_of_a_restarted_container_follows_its_end() {
        let limits = json!({"resources": {"limits": {"memory": "64Mi"}}});
        let limited = pod("web").container_with("app", limits).build();
        let plain = pod("web").container("app").build();
        let two = pod("web").container("app").container("log").build();
        let never = pod("web").restart(RestartPolicy::OnFailure).container("app").build();
        let probe = Some((ProbeKind::Liveness, "status 500: broken"));
        for (pod, exit, has_log, failed_probe, want) in [
            (&limited, exit(137, "OOMKilled"), true, None, "limits.memory of app, now 64Mi"),
            (&plain, exit(137, "OOMKilled"), true, None, "had no memory left"),
            (&plain, exit(137, "Error"), true, probe, "after: status 500: broken"),
            (&plain, exit(0, "Completed"), true, None, "restartPolicy: OnFailure"),
            (&never, exit(0, "Completed"), true, None, "find out why it exits"),
            (&plain, exit(127, "Error"), false, None, "was not found in the image"),
            (&plain, exit(127, "Error"), true, None, "kubectl logs"),
            (&plain, exit(3, "Error"), false, None, "without writing to its log"),
            (&plain, exit(3, "Error"), true, None, "kubectl logs -n default web --previous"),
            (&two, exit(3, "Error"), true, None, "kubectl logs -n default web -c app --previous"),
        ] {
            let container = &pod.containers[0];
            let ended = EndedContainer { pod, container, exit: &exit, has_log, failed_probe };
            let fix = fix(&ended);
            assert!(fix.contains(want), "{exit:?}: {fix}");
        }
    }
}
