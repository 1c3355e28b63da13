//! How the agent is, asked by those who may know.

use http::StatusCode;

use super::Server;
use super::answer::{Answer, PLAIN, whole, words};
use super::query::Query;
use super::route::Check;

/// In the order they are told.
const CHECKS: [(&str, Check); 3] =
    [("ping", Check::Ping), ("log", Check::Log), ("syncloop", Check::SyncLoop)];

impl Server {
    pub(super) fn health(&self, check: Check, query: &Query) -> Answer {
        match check {
            Check::All => self.whole_health(query),
            Check::Ping | Check::Log | Check::SyncLoop => match self.examine(check) {
                Ok(()) => whole(StatusCode::OK, PLAIN, "ok"),
                Err(problem) => {
                    let text = format!("internal server error: {problem}\n");
                    words(StatusCode::INTERNAL_SERVER_ERROR, text)
                }
            },
        }
    }

    /// What a service manager's watchdog is told.
    pub fn is_well(&self) -> bool {
        CHECKS.iter().all(|(_, check)| self.examine(*check).is_ok())
    }

    fn whole_health(&self, query: &Query) -> Answer {
        let excluded: Vec<&str> = query.all("exclude").collect();
        let (mut text, mut well) = (String::new(), true);
        for (name, check) in CHECKS {
            if excluded.contains(&name) {
                text.push_str(&format!("[+]{name} excluded: ok\n"));
            } else if let Err(problem) = self.examine(check) {
                tracing::warn!(check = name, problem, "not healthy");
                well = false;
                text.push_str(&format!("[-]{name} failed: reason withheld\n"));
            } else {
                text.push_str(&format!("[+]{name} ok\n"));
            }
        }
        match (well, query.first("verbose")) {
            (true, None) => whole(StatusCode::OK, PLAIN, "ok"),
            (true, Some(_)) => whole(StatusCode::OK, PLAIN, text + "healthz check passed\n"),
            (false, _) => words(StatusCode::INTERNAL_SERVER_ERROR, text + "healthz check failed\n"),
        }
    }

    fn examine(&self, check: Check) -> Result<(), String> {
        match check {
            // Whoever answers, lives; and the log is written line by line.
            Check::All | Check::Ping | Check::Log => Ok(()),
            Check::SyncLoop => {
                let now = self.tools.clock.now().mono;
                let Some(turned) = self.directory.last_turn() else { return Ok(()) };
                let silent = now.since(turned);
                if silent > self.settings.sync_patience {
                    return Err(format!("sync Loop took longer than expected: {silent:?}"));
                }
                Ok(())
            }
        }
    }
}
