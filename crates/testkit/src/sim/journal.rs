//! Journal of a simulation: every runtime call, API request and Event of the agent, as text.
//!
//! With `PODWRIGHT_SIM_JOURNAL=DIR` every simulation that a test creates writes one file below
//! `DIR`, named after the test, the index of the simulation in that test and its seed. Two commits
//! can be compared: `cargo xtask journals BASE`.
//!
//! Each line begins with the simulated time since the simulation began:
//!
//! ```text
//! 0.015 cri web > RunPodSandbox {"config":{…}}
//! 0.018 cri web < RunPodSandbox OK
//! 0.018 api > PATCH /api/v1/namespaces/default/pods/web/status {"status":{…}}
//! 0.018 api < PATCH /api/v1/namespaces/default/pods/web/status 200
//! 0.020 event Normal Started Pod default/web spec.containers{app}: Started container app
//! ```
//!
//! What differs between two runs of one commit is not behaviour and is left out:
//! - the directory of the simulation is written as `GROUND`;
//! - tokio wakes the receivers of one `watch` channel in random order, so the order of two pods or
//!   of two requests within one moment is random. Lines of one moment are therefore grouped by pod
//!   or request, sorted by name; within a group they keep their order. Versions of objects count
//!   writes, so they are written as `*`.
//!
//! That is not enough where the order has a consequence: which pod gets which container id or
//! address, and which of two calls is hit by a fault that strikes a number of times. Such
//! simulations may differ between two runs of one commit: 5 of 104 chaos seeds did, and simulations
//! of the fault matrix. `cargo xtask journals` runs both sides again and sets them aside. A
//! complete solution needs a seed for tokio's own random order (`Builder::rng_seed`, `--cfg
//! tokio_unstable`): `biased` in every `select!` is not enough, because receivers of a `watch`
//! channel are woken in random order.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use podwright_fake_runtime::{CallObserver, CallProgress, ObservedCall, Outcome, Rpc};
use podwright_proto::FILE_DESCRIPTOR_SET;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::Value;

use super::api::Verb;

/// Names the directory that journals are written below.
pub const DIRECTORY: &str = "PODWRIGHT_SIM_JOURNAL";
/// Stands in a journal for the directory of the simulation.
const GROUND: &str = "GROUND";

thread_local! {
    /// Journals of this thread's test; a simulation runs on one thread.
    static JOURNALS: RefCell<Option<Journals>> = const { RefCell::new(None) };
}

/// Output directories of the simulations of one test.
struct Journals {
    directory: PathBuf,
    /// Directory for the simulations' files. The same each time: UIDs of static pods depend on it.
    environment: PathBuf,
    /// How many simulations were created.
    simulations: usize,
    /// Journals of the running simulation.
    open: Vec<Arc<Writer>>,
}

impl Journals {
    fn new(directory: PathBuf, environment: PathBuf) -> Self {
        Self { directory, environment, simulations: 0, open: Vec::new() }
    }
}

/// Runs simulations that write journals below `directory`. Their files are below `environment`, which
/// must be the same for runs that are compared.
pub fn recorded<T>(directory: &Path, environment: &Path, simulate: impl FnOnce() -> T) -> T {
    let journals = Journals::new(directory.to_owned(), environment.to_owned());
    let before = JOURNALS.replace(Some(journals));
    let output = simulate();
    JOURNALS.set(before);
    output
}

/// Directory for the files of this thread's simulations, if they write journals. `default` is used
/// if journals were requested by the environment.
pub(super) fn environment(default: &Path) -> Option<PathBuf> {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        JOURNALS.with_borrow_mut(|journals| {
            journals.get_or_insert_with(|| {
                let test = test_name();
                assert_ne!(test, "main", "journals are named after tests: use two test threads");
                Journals::new(Path::new(&directory).join(test), default.to_owned())
            });
        });
    }
    JOURNALS.with_borrow(|journals| journals.as_ref().map(|journals| journals.environment.clone()))
}

/// Closes the journals of this thread's simulation: what its tasks do when they are dropped has no
/// simulated time.
pub(super) fn close() {
    let open = JOURNALS.with_borrow_mut(|journals| {
        journals.as_mut().map(|journals| std::mem::take(&mut journals.open))
    });
    for writer in open.into_iter().flatten() {
        if let Some(mut pages) = writer.pages.lock().take() {
            pages.turn();
            pages.file.flush().expect("a journal");
        }
    }
}

/// The test that runs on this thread, as a file name.
pub(super) fn test_name() -> String {
    let thread = std::thread::current();
    thread.name().unwrap_or("nameless").replace("::", "-")
}

/// Cheap to clone; all clones write the same file. Without one nothing is written.
#[derive(Clone)]
pub struct Journal(Option<Arc<Writer>>);

struct Writer {
    /// None: it is closed.
    pages: Mutex<Option<Pages>>,
    environment: String,
}

/// Written lines and lines still to be written.
struct Pages {
    file: BufWriter<File>,
    /// The lines of one moment, each with the group it belongs to.
    moment: (u128, Vec<(String, String)>),
    /// Owners of the calls under way.
    calls: BTreeMap<u64, String>,
}

impl Pages {
    fn line(&mut self, at: Duration, group: &str, line: String) {
        if self.moment.0 != at.as_millis() {
            self.turn();
            self.moment.0 = at.as_millis();
        }
        self.moment.1.push((group.to_owned(), line));
    }

    /// Writes the lines of one moment.
    fn turn(&mut self) {
        let (at, mut lines) = (self.moment.0, std::mem::take(&mut self.moment.1));
        lines.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (_, line) in lines {
            writeln!(self.file, "{}.{:03} {line}", at / 1000, at % 1000).expect("a journal");
        }
    }
}

impl Journal {
    /// The journal of the next simulation of this thread's test, whose files are in `environment`.
    pub(super) fn of_next_simulation(seed: u64, environment: &Path) -> Self {
        let path = JOURNALS.with_borrow_mut(|journals| {
            let journals = journals.as_mut()?;
            journals.simulations += 1;
            let name = format!("{:04}-seed-{seed}.journal", journals.simulations);
            Some(journals.directory.join(name))
        });
        let Some(path) = path else { return Self(None) };
        let directory = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory).expect("a directory for journals");
        let file = BufWriter::new(File::create(&path).expect("a journal"));
        let writer = Arc::new(Writer {
            pages: Mutex::new(Some(Pages {
                file,
                moment: (0, Vec::new()),
                calls: BTreeMap::new(),
            })),
            environment: environment.to_string_lossy().into_owned(),
        });
        JOURNALS.with_borrow_mut(|journals| {
            let journals = journals.as_mut().expect("it was there before");
            journals.open.push(writer.clone());
        });
        Self(Some(writer))
    }

    /// Observer that writes runtime calls; `None` if no journal is written.
    pub(super) fn of_calls(&self) -> Option<CallObserver> {
        self.0.as_ref()?;
        let this = self.clone();
        Some(Arc::new(move |call| this.call(call)))
    }

    fn call(&self, call: &ObservedCall<'_>) {
        let ObservedCall { seq, rpc, at, progress } = call;
        match progress {
            CallProgress::Arrived { about, request, fault } => {
                let pod = about.pod.as_ref();
                let owner = pod.map_or("-".to_owned(), |pod| pod.name.name.to_string());
                let request = json(*rpc, request);
                let fault = FaultSuffix(fault.map(|fault| format!("{fault:?}")));
                let line = format!("cri {owner} > {rpc} {request}{fault}");
                self.write(|pages| pages.calls.insert(*seq, owner.clone()));
                self.line(*at, &format!("cri {owner}"), &line);
            }
            CallProgress::Ended(outcome) => {
                let outcome = match outcome {
                    Outcome::Done => "OK".to_owned(),
                    Outcome::Failed(code) => format!("{code:?}"),
                    Outcome::Abandoned => "abandoned".to_owned(),
                };
                let owner = self.write(|pages| pages.calls.remove(seq)).flatten();
                let owner = owner.unwrap_or_default();
                let line = format!("cri {owner} < {rpc} {outcome}");
                self.line(*at, &format!("cri {owner}"), &line);
            }
        }
    }

    /// Writes an API request, and the Event that it carries, if any. Returns the handle that writes
    /// its response.
    pub(super) fn request(&self, at: Duration, request: &RequestEntry<'_>) -> String {
        if self.0.is_none() {
            return String::new();
        }
        let RequestEntry { method, target, verb, resource, body, fault } = request;
        let mut body: Value = serde_json::from_slice(body).unwrap_or_default();
        mask_versions(&mut body);
        let content = if body.is_null() { String::new() } else { format!(" {}", sorted(&body)) };
        let fault = FaultSuffix(fault.clone());
        let request_line = format!("{method} {}", masked_target(target));
        self.line(at, &request_line, &format!("api > {request_line}{content}{fault}"));
        if *resource == "events" && *verb == Verb::Create {
            self.line(at, &request_line, &format!("event {}", event(&body)));
        }
        request_line
    }

    pub(super) fn answer(&self, request_line: &str, at: Duration, code: u16) {
        self.line(at, request_line, &format!("api < {request_line} {code}"));
    }

    fn line(&self, at: Duration, group: &str, text: &str) {
        let Some(writer) = &self.0 else { return };
        let text = text.replace(&writer.environment, GROUND);
        self.write(|pages| pages.line(at, group, text));
    }

    fn write<T>(&self, act: impl FnOnce(&mut Pages) -> T) -> Option<T> {
        self.0.as_ref().and_then(|writer| writer.pages.lock().as_mut().map(act))
    }
}

/// Path and query, without the resource version that a watch begins at.
fn masked_target(target: &str) -> String {
    const VERSION: &str = "resourceVersion=";
    let part = |part: &str| match part.strip_prefix(VERSION) {
        Some("0" | "") | None => part.to_owned(),
        Some(_) => format!("{VERSION}*"),
    };
    target.split('&').map(part).collect::<Vec<_>>().join("&")
}

/// Resource versions count the writes of all clients.
fn mask_versions(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                match (name.as_str(), &value) {
                    ("resourceVersion", Value::String(_)) => *value = Value::from("*"),
                    _ => mask_versions(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask_versions),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// An API request of the agent.
pub(super) struct RequestEntry<'a> {
    pub method: &'a http::Method,
    /// Path and query.
    pub target: &'a str,
    pub verb: Verb,
    pub resource: &'a str,
    pub body: &'a [u8],
    pub fault: Option<String>,
}

/// Injected fault, appended to the line.
struct FaultSuffix(Option<String>);

impl fmt::Display for FaultSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(fault) => write!(f, " [{fault}]"),
            None => Ok(()),
        }
    }
}

fn event(body: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &body["involvedObject"];
    let mut line = format!("{} {}", text(&body["type"]), text(&body["reason"]));
    let _ = write!(line, " {} ", text(&object["kind"]));
    for part in ["namespace", "name"] {
        if let Some(part) = object[part].as_str() {
            let _ = write!(line, "{part}/");
        }
    }
    line.pop();
    if let Some(field) = object["fieldPath"].as_str() {
        let _ = write!(line, " {field}");
    }
    let _ = write!(line, ": {:?}", text(&body["message"]));
    line
}

/// A request as JSON, fields by name.
fn json(rpc: Rpc, request: &[u8]) -> String {
    static MESSAGES: LazyLock<BTreeMap<String, MessageDescriptor>> = LazyLock::new(|| {
        let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("our own descriptors");
        let services: Vec<_> = pool.services().collect();
        let methods = services.iter().flat_map(|service| service.methods().collect::<Vec<_>>());
        methods.map(|method| (method.name().to_owned(), method.input())).collect()
    });
    let message = MESSAGES.get(&rpc.to_string()).expect("a method of ours").clone();
    let message = DynamicMessage::decode(message, request).expect("a request of ours");
    let options = SerializeOptions::new().use_proto_field_name(true);
    let value = message.serialize_with_options(serde_json::value::Serializer, &options);
    sorted(&value.expect("a request as JSON")).to_string()
}

/// With the members of every object sorted by name.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let members: BTreeMap<&String, &Value> = members.iter().collect();
            members.into_iter().map(|(name, value)| (name.clone(), sorted(value))).collect()
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}
