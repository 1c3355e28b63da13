//! `/healthz`: health checks of the agent.

use http::StatusCode;

use super::Server;
use super::query::Query;
use super::response::{HttpResponse, PLAIN, full_body, plain_text};
use super::route::Check;

/// In the order of the output.
const CHECKS: [(&str, Check); 3] =
    [("ping", Check::Ping), ("log", Check::Log), ("syncloop", Check::SyncLoop)];

impl Server {
    pub(super) fn health(&self, check: Check, query: &Query) -> HttpResponse {
        match check {
            Check::All => self.all_checks(query),
            Check::Ping | Check::Log | Check::SyncLoop => match self.run_check(check) {
                Ok(()) => full_body(StatusCode::OK, PLAIN, "ok"),
                Err(problem) => {
                    let text = format!("internal server error: {problem}\n");
                    plain_text(StatusCode::INTERNAL_SERVER_ERROR, text)
                }
            },
        }
    }

    /// The health reported to the watchdog of the service manager.
    pub fn is_healthy(&self) -> bool {
        CHECKS.iter().all(|(_, check)| self.run_check(*check).is_ok())
    }

    fn all_checks(&self, query: &Query) -> HttpResponse {
        let excluded: Vec<&str> = query.all("exclude").collect();
        let (mut text, mut healthy) = (String::new(), true);
        for (name, check) in CHECKS {
            if excluded.contains(&name) {
                text.push_str(&format!("[+]{name} excluded: ok\n"));
            } else if let Err(problem) = self.run_check(check) {
                tracing::warn!(check = name, problem, "health check failed");
                healthy = false;
                text.push_str(&format!("[-]{name} failed: reason withheld\n"));
            } else {
                text.push_str(&format!("[+]{name} ok\n"));
            }
        }
        match (healthy, query.first("verbose")) {
            (true, None) => full_body(StatusCode::OK, PLAIN, "ok"),
            (true, Some(_)) => full_body(StatusCode::OK, PLAIN, text + "healthz check passed\n"),
            (false, _) => {
                plain_text(StatusCode::INTERNAL_SERVER_ERROR, text + "healthz check failed\n")
            }
        }
    }

    fn run_check(&self, check: Check) -> Result<(), String> {
        match check {
            // A response proves liveness; and the log is written line by line.
            Check::All | Check::Ping | Check::Log => Ok(()),
            Check::SyncLoop => {
                let now = self.dependencies.clock.now().mono;
                let Some(turned) = self.pod_index.last_loop() else { return Ok(()) };
                let elapsed = now.since(turned);
                if elapsed > self.settings.sync_timeout {
                    return Err(format!("sync Loop took longer than expected: {elapsed:?}"));
                }
                Ok(())
            }
        }
    }
}
