//! JSON log format with the keys of upstream's components.
//!
//! `{"ts":…,"caller":"node/pleg.rs:42","msg":"…","v":0,"pod":"…"}`, and for errors `err` instead of
//! `v`. Log collectors already have parsers for it. The fields of the
//! spans around an event are in its line, so that every line names its pod.

use std::error::Error;
use std::fmt;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

/// Reserved keys, not available to fields.
const RESERVED: [&str; 4] = ["ts", "caller", "msg", "v"];

/// Writes each event as one line.
pub struct KlogJson<W> {
    writer: W,
    clock: fn() -> SystemTime,
}

impl<W: for<'w> MakeWriter<'w>> KlogJson<W> {
    pub fn new(writer: W) -> Self {
        Self { writer, clock: SystemTime::now }
    }

    fn line(&self, metadata: &Metadata<'_>, fields: Map<String, Value>) -> String {
        let mut fields = fields;
        let message = fields.remove("message").unwrap_or_else(|| json!(""));
        let mut head = vec![("ts", json!(milliseconds((self.clock)())))];
        if let Some(caller) = caller(metadata) {
            head.push(("caller", Value::from(caller)));
        }
        head.push(("msg", message));
        if let Some(verbosity) = verbosity(*metadata.level()) {
            head.push(("v", Value::from(verbosity)));
        }
        // Written manually to keep the order of keys, for readers of the raw lines.
        let mut line = String::from("{");
        let head = head.into_iter().map(|(key, value)| (key.to_owned(), value));
        for (key, value) in head.chain(fields.into_iter().map(unreserved)) {
            let separator = if line.len() == 1 { "" } else { "," };
            line.push_str(&format!("{separator}{}:{value}", Value::from(key)));
        }
        line.push_str("}\n");
        line
    }
}

fn unreserved((key, value): (String, Value)) -> (String, Value) {
    if RESERVED.contains(&key.as_str()) { (format!("{key}_"), value) } else { (key, value) }
}

/// Milliseconds since 1970 with a fraction, as upstream writes them.
fn milliseconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_nanos() as f64 / 1e6)
}

/// Source location: directory, file and line.
fn caller(metadata: &Metadata<'_>) -> Option<String> {
    let (file, line) = (metadata.file()?, metadata.line()?);
    let mut parts: Vec<&str> = file.rsplit('/').filter(|part| *part != "src").take(2).collect();
    parts.reverse();
    Some(format!("{}:{line}", parts.join("/")))
}

/// The lowest `--v` at which a level is logged; errors are always logged and have none.
fn verbosity(level: Level) -> Option<u32> {
    match level {
        Level::ERROR => None,
        Level::WARN | Level::INFO => Some(0),
        Level::DEBUG => Some(2),
        Level::TRACE => Some(6),
    }
}

/// The fields of a span, kept with it.
struct SpanFields(Map<String, Value>);

impl<S, W> Layer<S> for KlogJson<W>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    W: for<'w> MakeWriter<'w> + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().replace(SpanFields(fields.0));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        values.record(&mut fields);
        if let Some(known) = span.extensions_mut().get_mut::<SpanFields>() {
            known.0.extend(fields.0);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut all = Map::new();
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(fields) = span.extensions().get::<SpanFields>() {
                all.extend(fields.0.clone());
            }
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        all.extend(fields.0);
        let line = self.line(event.metadata(), all);
        // A failure to write the log cannot be reported.
        let _ = self.writer.make_writer_for(event.metadata()).write_all(line.as_bytes());
    }
}

/// Collects the fields of a span or an event.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        // Upstream's key for errors.
        let key = if field.name() == "error" { "err" } else { field.name() };
        self.0.insert(key.to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, Value::from(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, Value::from(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, Value::from(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, Value::from(value));
    }

    /// An error with its causes.
    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        let mut text = value.to_string();
        let mut cause = value.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        self.put(field, Value::from(text));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, Value::from(format!("{value:?}")));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// A shared buffer.
    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines logged while `act` runs, as text and as JSON.
    fn logged(act: impl FnOnce()) -> (Vec<String>, Vec<Value>) {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let layer = KlogJson {
            writer: move || writer.clone(),
            clock: || UNIX_EPOCH + Duration::from_micros(1_500_250),
        };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), act);
        let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let values = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        (lines, values)
    }

    #[test]
    fn line_starts_with_time_caller_message_and_verbosity() {
        let (lines, values) = logged(|| tracing::info!(count = 3, "pulled \"it\""));
        let want = r#"{"ts":1500.25,"caller":"logging/klog.rs:"#;
        assert!(lines[0].starts_with(want), "{}", lines[0]);
        assert!(lines[0].ends_with(r#""msg":"pulled \"it\"","v":0,"count":3}"#), "{}", lines[0]);
        assert_eq!(values.len(), 1);
    }

    #[test]
    fn levels_are_mapped_to_verbosity() {
        let (_, values) = logged(|| {
            tracing::error!("e");
            tracing::warn!("w");
            tracing::info!("i");
            tracing::debug!("d");
            tracing::trace!("t");
        });
        let shown: Vec<_> = values.iter().map(|line| line.get("v").cloned()).collect();
        assert_eq!(shown, [None, Some(json!(0)), Some(json!(0)), Some(json!(2)), Some(json!(6))]);
    }

    #[test]
    fn error_has_the_key_err_and_includes_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot start the pod")]
        struct Outer(#[source] io::Error);
        let error = Outer(io::Error::other("no such image"));
        let (_, values) = logged(|| {
            tracing::error!(error = &error as &(dyn Error + 'static), "sync failed");
        });
        assert_eq!(values[0]["err"], json!("cannot start the pod: no such image"));
    }

    #[test]
    fn line_includes_the_fields_of_its_spans() {
        let (_, values) = logged(|| {
            let outer = tracing::info_span!("worker", pod = "ns/web", uid = tracing::field::Empty);
            outer.record("uid", "u-1");
            let _outer = outer.enter();
            let _inner = tracing::info_span!("pull", image = "busybox").entered();
            tracing::info!(image = "other", "done");
        });
        let line = &values[0];
        assert_eq!((&line["pod"], &line["uid"]), (&json!("ns/web"), &json!("u-1")));
        assert_eq!(line["image"], json!("other"), "the event's own field wins");
    }

    #[test]
    fn fields_cannot_override_reserved_keys() {
        let (_, values) = logged(|| tracing::info!(ts = 0, v = 9, "x"));
        assert_eq!(values[0]["ts"], json!(1500.25));
        assert_eq!(values[0]["ts_"], json!(0));
        assert_eq!((&values[0]["v"], &values[0]["v_"]), (&json!(0), &json!(9)));
    }
}
