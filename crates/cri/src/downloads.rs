//! Image downloads of containerd: how far the pulls that are under way have come.

use futures::TryStreamExt as _;
use jiff::Timestamp;
use podwright_core::image::download::{self, Blob, ImageDownload, Ingest, MAX_MANIFEST};
use podwright_proto::containerd_content as content;
use podwright_proto::containerd_content::content_client::ContentClient;
use tonic::metadata::MetadataValue;
use tonic::{Request, Status};

use crate::client::Client;
use crate::error::Error;

/// containerd serves several clients; the CRI's images are in this namespace.
const NAMESPACE: &str = "k8s.io";

impl Client {
    /// The images that are being pulled. Other runtimes than containerd do not implement it.
    pub async fn downloads(&self) -> Result<Vec<ImageDownload>, Error> {
        let ingests = self.ingests().await?;
        if ingests.is_empty() {
            return Ok(Vec::new());
        }
        let blobs = self.blobs().await?;
        let mut read = Vec::new();
        for manifest in download::manifests(&ingests, &blobs) {
            read.push((manifest, self.blob(&manifest.digest).await?));
        }
        Ok(download::downloads(&ingests, &blobs, &read, Timestamp::now()))
    }

    async fn ingests(&self) -> Result<Vec<Ingest>, Error> {
        let request = of_pods(content::ListStatusesRequest::default());
        let reply = self.content().list_statuses(request).await;
        let reply = reply.map_err(failed("Content/ListStatuses", ""))?.into_inner();
        let ingest = |status: content::Status| Ingest {
            name: status.r#ref,
            offset: u64::try_from(status.offset).unwrap_or(0),
            started: status.started_at.and_then(|at| Timestamp::new(at.seconds, at.nanos).ok()),
        };
        Ok(reply.statuses.into_iter().map(ingest).collect())
    }

    async fn blobs(&self) -> Result<Vec<Blob>, Error> {
        const CALL: &str = "Content/List";
        let request = of_pods(content::ListContentRequest::default());
        let reply = self.content().list(request).await.map_err(failed(CALL, ""))?;
        let mut stream = reply.into_inner();
        let mut blobs = Vec::new();
        while let Some(part) = stream.try_next().await.map_err(failed(CALL, ""))? {
            blobs.extend(part.info.into_iter().map(|info| Blob {
                digest: info.digest,
                size: u64::try_from(info.size).unwrap_or(0),
                labels: info.labels,
            }));
        }
        Ok(blobs)
    }

    async fn blob(&self, digest: &str) -> Result<Vec<u8>, Error> {
        const CALL: &str = "Content/Read";
        let most = usize::try_from(MAX_MANIFEST).unwrap_or(usize::MAX);
        let request = content::ReadContentRequest { digest: digest.to_owned(), offset: 0, size: 0 };
        let reply = self.content().read(of_pods(request)).await.map_err(failed(CALL, digest))?;
        let mut stream = reply.into_inner();
        let mut bytes = Vec::new();
        while let Some(part) = stream.try_next().await.map_err(failed(CALL, digest))? {
            if bytes.len() + part.data.len() > most {
                return Err(Error::bad_reply(CALL, digest, "larger than its size"));
            }
            bytes.extend(part.data);
        }
        Ok(bytes)
    }

    fn content(&self) -> ContentClient<tonic::transport::Channel> {
        ContentClient::new(self.channel.clone())
    }
}

fn of_pods<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
    request
}

fn failed<'a>(call: &'static str, object: &'a str) -> impl Fn(Status) -> Error + 'a {
    move |status| Error::from_status(call, object, &status)
}
