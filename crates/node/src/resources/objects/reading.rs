//! Objects that are read on demand.

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::PostParams;
use podwright_core::pod::Pod;
use podwright_core::volume::affinity::NodeView;
use podwright_core::volume::token;

use super::{Objects, api_message};

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("there is no API server")]
    NoApiServer,
    #[error("{}", api_message(.0))]
    Api(#[source] kube::Error),
}

impl ReadError {
    /// The API server reported that the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 404)
    }
}

impl Objects {
    fn api(&self) -> Result<kube::Client, ReadError> {
        self.client.clone().ok_or(ReadError::NoApiServer)
    }

    pub async fn claim(
        &self,
        pod: &Pod,
        name: &str,
    ) -> Result<v1::PersistentVolumeClaim, ReadError> {
        let api: Api<v1::PersistentVolumeClaim> = Api::namespaced(self.api()?, &pod.name.namespace);
        api.get(name).await.map_err(ReadError::Api)
    }

    pub async fn persistent_volume(&self, name: &str) -> Result<v1::PersistentVolume, ReadError> {
        let api: Api<v1::PersistentVolume> = Api::all(self.api()?);
        api.get(name).await.map_err(ReadError::Api)
    }

    /// This node, for node selectors.
    pub async fn node(&self) -> Result<NodeView, ReadError> {
        let api: Api<v1::Node> = Api::all(self.api()?);
        let node = api.get_metadata(&self.node_name).await.map_err(ReadError::Api)?;
        Ok(NodeView {
            name: self.node_name.to_string(),
            labels: node.metadata.labels.unwrap_or_default(),
        })
    }

    /// A new token for the pod.
    pub async fn token(
        &self,
        pod: &Pod,
        wanted: &token::TokenSpec,
    ) -> Result<TokenRequest, ReadError> {
        let api: Api<v1::ServiceAccount> = Api::namespaced(self.api()?, &pod.name.namespace);
        let request = wanted.request(pod);
        let params = PostParams::default();
        api.create_token_request(&wanted.service_account, &params, &request)
            .await
            .map_err(ReadError::Api)
    }

    /// The current runtime handler of a class. Without an API server the class name is used as the
    /// handler: the default handler could give a pod less isolation than it requires.
    pub async fn runtime_handler(&self, class: &str) -> Result<String, ReadError> {
        let Ok(client) = self.api() else { return Ok(class.to_owned()) };
        let api: Api<RuntimeClass> = Api::all(client);
        let found = match api.get(class).await.map_err(ReadError::Api) {
            Ok(found) => found,
            Err(error) => {
                let mut handlers = self.handlers.lock();
                if error.is_not_found() {
                    handlers.remove(class);
                }
                // A class cannot be given another handler, so the one it had is still right.
                return handlers.get(class).cloned().ok_or(error);
            }
        };
        self.handlers.lock().insert(class.to_owned(), found.handler.clone());
        Ok(found.handler)
    }

    /// The handler that the pod's sandbox was created with: the handler of a class is immutable.
    pub async fn known_runtime_handler(&self, class: &str) -> Result<String, ReadError> {
        let known = self.handlers.lock().get(class).cloned();
        match known {
            Some(handler) => Ok(handler),
            None => self.runtime_handler(class).await,
        }
    }
}
