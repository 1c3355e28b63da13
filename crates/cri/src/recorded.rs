//! The requests with which sandboxes and containers were created, where the runtime shows them.
//!
//! containerd shows them in its verbose statuses, as JSON with the field names of the CRI; other
//! runtimes do not.

use std::collections::BTreeMap;

use podwright_core::ids::{ContainerId, SandboxId};
use podwright_proto::cri;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::client::Client;
use crate::error::Error;

impl Client {
    /// The request that created a sandbox; `None` if the runtime does not show it.
    pub async fn sandbox_request(
        &self,
        id: &SandboxId,
    ) -> Result<Option<cri::PodSandboxConfig>, Error> {
        Ok(config(&self.sandbox_info(id).await?))
    }

    /// The request that created a container; `None` if the runtime does not show it.
    pub async fn container_request(
        &self,
        id: &ContainerId,
    ) -> Result<Option<cri::ContainerConfig>, Error> {
        Ok(config(&self.container_info(id).await?))
    }
}

fn config<T: DeserializeOwned>(info: &BTreeMap<String, String>) -> Option<T> {
    let parts: BTreeMap<String, &RawValue> = serde_json::from_str(info.get("info")?).ok()?;
    serde_json::from_str(parts.get("config")?.get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(text: &str) -> BTreeMap<String, String> {
        [("info".to_owned(), text.to_owned())].into()
    }

    #[test]
    fn request_is_read_from_the_verbose_status() {
        let text = r#"{"sandboxID":"s","pid":7,"removing":false,"config":{
            "metadata":{"name":"c","attempt":2},"image":{"image":"sha256:1"},
            "command":["a"],"envs":[{"key":"K","value":"é"},{"key":"EMPTY"}],
            "mounts":[{"container_path":"/d","host_path":"/h","propagation":1,"unknown":{}}],
            "linux":{"resources":{"cpu_shares":2,"oom_score_adj":1000},
                "security_context":{"run_as_user":{},"namespace_options":{"pid":1}}}},
            "runtimeSpec":{"ociVersion":"1.1.0"}}"#;
        let got: cri::ContainerConfig = config(&info(text)).unwrap();
        assert_eq!(got.metadata, Some(cri::ContainerMetadata { name: "c".into(), attempt: 2 }));
        assert_eq!(got.envs[0].value, "é".as_bytes());
        assert_eq!(got.envs[1].value, b"");
        assert_eq!(got.mounts[0].propagation, 1);
        let linux = got.linux.unwrap();
        assert_eq!(linux.resources.unwrap().oom_score_adj, 1000);
        assert_eq!(linux.security_context.unwrap().run_as_user, Some(cri::Int64Value { value: 0 }));
    }

    #[test]
    fn runtime_that_shows_no_request_gives_none() {
        for text in ["", "{}", r#"{"config":null}"#, r#"{"config":{"envs":7}}"#, "[1]"] {
            let got = config::<cri::ContainerConfig>(&info(text));
            assert_eq!(got, None, "{text}");
        }
        assert_eq!(config::<cri::ContainerConfig>(&BTreeMap::new()), None);
    }
}
