//! Messages in the format of the recordings: protobuf JSON with proto field names.

use podwright_proto::{FILE_DESCRIPTOR_SET, cri};
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::{Value, json};

pub(crate) trait Named: prost::Message + Clone {
    const NAME: &str;

    /// The variables, and the message without them: in JSON their values would be base64.
    fn split(&self) -> (Vec<cri::KeyValue>, Self) {
        (Vec::new(), self.clone())
    }
}

impl Named for cri::PodSandboxConfig {
    const NAME: &str = "runtime.v1.PodSandboxConfig";
}

impl Named for cri::LinuxContainerResources {
    const NAME: &str = "runtime.v1.LinuxContainerResources";
}

impl Named for cri::ContainerConfig {
    const NAME: &str = "runtime.v1.ContainerConfig";

    fn split(&self) -> (Vec<cri::KeyValue>, Self) {
        let mut rest = self.clone();
        (std::mem::take(&mut rest.envs), rest)
    }
}

pub(crate) fn of<M: Named>(message: &M) -> Value {
    let (envs, rest) = message.split();
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
    let descriptor = pool.get_message_by_name(M::NAME).unwrap();
    let bytes = rest.encode_to_vec();
    let dynamic = DynamicMessage::decode(descriptor, bytes.as_slice()).unwrap();
    let options = SerializeOptions::new().use_proto_field_name(true);
    let mut json = dynamic.serialize_with_options(serde_json::value::Serializer, &options).unwrap();
    if !envs.is_empty() {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let one = |env: cri::KeyValue| json!({"key": env.key, "value": text(env.value)});
        json["envs"] = envs.into_iter().map(one).collect();
    }
    json
}

/// Sorted by name where the order does not matter.
pub(crate) fn sorted(mut config: Value) -> Value {
    if let Some(envs) = config["envs"].as_array_mut() {
        envs.sort_by_key(|env| env["key"].to_string());
    } else if let Some(config) = config.as_object_mut() {
        config.remove("envs");
    }
    config
}

/// Differences of `left` from `right`.
pub(crate) fn differences(path: &str, left: &Value, right: &Value, out: &mut Vec<String>) {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            for (key, value) in left {
                let other = right.get(key).unwrap_or(&Value::Null);
                differences(&format!("{path}.{key}"), value, other, out);
            }
        }
        (left, right) if left == right => {}
        (left, _) => out.push(format!("{path} = {left}")),
    }
}
