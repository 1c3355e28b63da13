//! Takes away what `up` made: the same things, in the opposite order.
//!
//! It goes by what is there, not by what was once intended, and whatever cannot be done keeps
//! nothing else from being done. First everything is asked to end; then whatever did not is made
//! to, and swept up. Only what is left after that is an error, and then the record stays, so that
//! it can be tried again.

use std::time::Duration;

use anyhow::{Context as _, bail};
use podwright_cri::{Client, Endpoint, Timeouts};

use super::agent::{Agent, Keeper};
use super::containerd::Containerd;
use super::pods::{self, Whose};
use super::shared::{Left, Shared};
use super::{Layout, Record, filter, sweep};

const AGENT_PATIENCE: Duration = Duration::from_secs(15);
const RUNTIME_PATIENCE: Duration = Duration::from_secs(10);
/// A call that takes longer than this does not come back.
const CALL_PATIENCE: Duration = Duration::from_secs(20);

/// Stops everything and removes it from the machine. The data stays. `say` tells progress.
pub async fn down(layout: &Layout, say: impl Fn(&str)) -> anyhow::Result<()> {
    let Some(record) = layout.record()? else {
        say("nothing to stop here");
        return Ok(());
    };
    let mut failures = Failures::default();
    if Agent::of(layout).note()?.is_some_and(|note| note.keeper == Keeper::Other) {
        say("the agent runs in the foreground: end it where it was started as well \
             (systemctl stop podwright-up), or it is started again");
    }
    if failures.unless_done(Agent::of(layout).daemon().stop(AGENT_PATIENCE)) == Some(true) {
        say("agent stopped");
    }
    if let Some(endpoint) = &record.wishes.runtime {
        failures.unless_done(end_guests(endpoint, &record, &say).await);
    }
    failures.unless_done(stop_private_runtime(layout, &record, &say).await);
    failures.unless_done(sweep::end_shims(layout));
    failures.unless_done(sweep::remove_cgroup(&record.cgroup_root).await);
    failures.unless_done(sweep::unmount(layout));
    failures.unless_done(sweep::remove_shim_sockets(layout));
    if record.wishes.runtime.is_none() {
        failures.unless_done(sweep::remove_network(layout, &record.network));
        failures.unless_done(filter::forget_network(&record.network.bridge));
        let left = Shared::here().and_then(|shared| shared.leave(layout));
        if let Some(Left::Others(nodes)) = failures.unless_done(left) {
            say(&format!(
                "net.ipv4.ip_forward and the chains for host ports stay as they are: other nodes \
                 on this machine: {nodes}"
            ));
        }
    }
    if failures.is_empty() {
        failures.unless_done(forget(layout));
    }
    failures.outcome(layout)?;
    say("everything is taken down; the data is kept");
    Ok(())
}

/// What could not be done.
#[derive(Default)]
struct Failures(Vec<anyhow::Error>);

impl Failures {
    fn unless_done<T>(&mut self, outcome: anyhow::Result<T>) -> Option<T> {
        outcome.map_err(|error| self.0.push(error)).ok()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn outcome(self, layout: &Layout) -> anyhow::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let told: Vec<String> = self.0.iter().map(|error| format!("\n  {error:#}")).collect();
        bail!(
            "not everything could be taken down:{}\nsee to it and try again: \
             podwright down --state-dir {}",
            told.concat(),
            layout.state().display()
        )
    }
}

/// Ends our pods in a runtime that was there before us, and stays.
async fn end_guests(endpoint: &str, record: &Record, say: &impl Fn(&str)) -> anyhow::Result<()> {
    let parsed: Endpoint = endpoint.parse()?;
    let client = Client::new(&parsed, Timeouts { call: CALL_PATIENCE });
    let ended = pods::end(&client, Whose::Below(&record.cgroup_root)).await;
    say(&format!("{} pods stopped in {endpoint}", ended.pods));
    let told: Vec<String> = ended.troubles.iter().map(|error| format!("{error:#}")).collect();
    match told.as_slice() {
        [] => Ok(()),
        told => bail!("pods stay in the runtime {endpoint}: {}", told.join("; ")),
    }
}

/// Stops the private containerd, if there is one, after its pods. One that died is started once
/// more: nobody else can take down what it had put up.
async fn stop_private_runtime(
    layout: &Layout,
    record: &Record,
    say: &impl Fn(&str),
) -> anyhow::Result<()> {
    let containerd = Containerd::new(layout);
    if layout.runtime_state().exists() {
        match end_private_pods(&containerd, record).await {
            Ok(ended) => {
                if ended.pods > 0 {
                    say(&format!("{} pods stopped", ended.pods));
                }
                for trouble in ended.troubles {
                    say(&format!("ended by force: {trouble:#}"));
                }
            }
            Err(error) => say(&format!("pods are ended by force: {error:#}")),
        }
    }
    if containerd.daemon().stop(RUNTIME_PATIENCE)? {
        say("containerd stopped");
    }
    Ok(())
}

async fn end_private_pods(
    containerd: &Containerd<'_>,
    record: &Record,
) -> anyhow::Result<pods::Ended> {
    containerd.start(&record.network)?;
    containerd.ready().await?;
    let client = Client::new(&containerd.endpoint()?, Timeouts { call: CALL_PATIENCE });
    Ok(pods::end(&client, Whose::All).await)
}

/// The folder of the node below `/run`, and then what says that there is something to take down.
fn forget(layout: &Layout) -> anyhow::Result<()> {
    let run = layout.run();
    sweep::absent_is_fine(std::fs::remove_dir_all(&run))
        .with_context(|| format!("cannot remove {}", run.display()))?;
    // The folder above is shared by all nodes of the machine; the last one takes it away.
    let _ = run.parent().map(std::fs::remove_dir);
    layout.forget_record()
}
