//! Service accounts and their tokens from the API server, for credential provider plugins.

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::PostParams;
use podwright_core::credential::{ObjectId, ServiceAccountView};
use podwright_core::pod::Pod;

use super::plugins::Accounts;

/// `None`: no API server, and so no accounts.
pub struct ApiAccounts(pub Option<kube::Client>);

impl ApiAccounts {
    fn api(&self, pod: &Pod) -> Option<(Api<v1::ServiceAccount>, String)> {
        let name = pod.object.spec.as_ref()?.service_account_name.clone()?;
        let client = self.0.clone()?;
        (!name.is_empty() && !pod.is_static())
            .then(|| (Api::namespaced(client, &pod.name.namespace), name))
    }
}

impl Accounts for ApiAccounts {
    fn account<'a>(
        &'a self,
        pod: &'a Pod,
    ) -> BoxFuture<'a, Result<Option<(ObjectId, ServiceAccountView)>, String>> {
        async move {
            let Some((api, name)) = self.api(pod) else { return Ok(None) };
            let account = api.get(&name).await.map_err(|error| error.to_string())?;
            let id = ObjectId {
                uid: account.metadata.uid.unwrap_or_default(),
                namespace: pod.name.namespace.to_string(),
                name,
            };
            let annotations = account.metadata.annotations.unwrap_or_default();
            Ok(Some((id, ServiceAccountView { annotations })))
        }
        .boxed()
    }

    fn token<'a>(
        &'a self,
        pod: &'a Pod,
        audience: &'a str,
    ) -> BoxFuture<'a, Result<String, String>> {
        async move {
            let (api, name) =
                self.api(pod).ok_or_else(|| "the pod has no service account".to_owned())?;
            let bound = BoundObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Pod".into()),
                name: Some(pod.name.name.to_string()),
                uid: Some(pod.uid.to_string()),
            };
            let request = TokenRequest {
                spec: Some(TokenRequestSpec {
                    audiences: Some(vec![audience.to_owned()]),
                    bound_object_ref: Some(bound),
                    expiration_seconds: None,
                }),
                ..TokenRequest::default()
            };
            let answer = api.create_token_request(&name, &PostParams::default(), &request).await;
            let status = answer.map_err(|error| error.to_string())?.status;
            let token = status.and_then(|status| status.token);
            token.ok_or_else(|| "the API server's response holds no token".to_owned())
        }
        .boxed()
    }
}
