//! Writes the descriptions of fields for `kubectl explain`.
//!
//! They are in the JSON schemas of k8s-openapi, a feature that only this program is built with: the
//! schemas themselves would add megabytes. The served kinds' texts are written as lines and
//! compressed; `src/openapi/descriptions.rs` reads them.

// Cargo reads its instructions from standard output.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::{env, fs};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use k8s_openapi::api::{coordination, core, events, node, rbac, scheduling};
use k8s_openapi::schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let mut schemas = Schemas::default();
    schemas.add::<core::v1::ConfigMap>();
    schemas.add::<core::v1::Event>();
    schemas.add::<core::v1::Namespace>();
    schemas.add::<core::v1::Node>();
    schemas.add::<core::v1::PersistentVolumeClaim>();
    schemas.add::<core::v1::PersistentVolume>();
    schemas.add::<core::v1::Pod>();
    schemas.add::<core::v1::Secret>();
    schemas.add::<core::v1::ServiceAccount>();
    schemas.add::<core::v1::Service>();
    schemas.add::<events::v1::Event>();
    schemas.add::<coordination::v1::Lease>();
    schemas.add::<node::v1::RuntimeClass>();
    schemas.add::<scheduling::v1::PriorityClass>();
    schemas.add::<rbac::v1::ClusterRole>();
    schemas.add::<rbac::v1::ClusterRoleBinding>();
    schemas.add::<rbac::v1::Role>();
    schemas.add::<rbac::v1::RoleBinding>();
    let text = schemas.descriptions();
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text.as_bytes())?;
    let target = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?;
    fs::write(Path::new(&target).join("descriptions.zlib"), encoder.finish()?)?;
    Ok(())
}

/// The schemas of kinds and of all types in them.
#[derive(Default)]
struct Schemas(SchemaGenerator);

impl Schemas {
    fn add<T: JsonSchema>(&mut self) {
        self.0.subschema_for::<T>();
    }

    /// A line for each type, followed by one for each of its fields.
    fn descriptions(&self) -> String {
        let mut text = String::new();
        let sorted: BTreeMap<&String, &Value> = self.0.definitions().iter().collect();
        for (name, schema) in sorted {
            line(&mut text, "=", name, schema);
            let properties = schema.get("properties").and_then(Value::as_object);
            for (field, schema) in properties.into_iter().flatten() {
                line(&mut text, "", field, schema);
            }
        }
        text
    }
}

fn line(text: &mut String, prefix: &str, name: &str, schema: &Value) {
    let described = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    let escaped = described.replace('\\', "\\\\").replace('\n', "\\n");
    text.push_str(&format!("{prefix}{name}\t{escaped}\n"));
}
