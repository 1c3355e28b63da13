//! The CRI's image service.

use std::sync::Arc;

use podwright_proto::cri;
use podwright_proto::cri::image_service_server::ImageService;
use tonic::{Request, Response, Status};

use super::images::FetchOutcome;
use super::rpc::{About, Rpc};
use super::runtime_service::Served;
use super::serve::{Pace, Shared, Via};

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ImageService for Served {
    async fn pull_image(
        &self,
        request: Request<cri::PullImageRequest>,
    ) -> Reply<cri::PullImageResponse> {
        let (via, request) = (Via::of(&request), request.into_inner());
        let pod = About::config(request.sandbox_config.as_ref()).pod;
        let about = About { pod, ..About::image(request.image.as_ref()) };
        let work = |shared, pace| pull(shared, request, pace);
        self.0.serve(via, Rpc::PullImage, about, work).await
    }

    async fn image_status(
        &self,
        request: Request<cri::ImageStatusRequest>,
    ) -> Reply<cri::ImageStatusResponse> {
        let (via, spec) = (Via::of(&request), request.into_inner().image);
        let about = About::image(spec.as_ref());
        self.0
            .respond(via, Rpc::ImageStatus, about, move |runtime_state| {
                let image = runtime_state.images.find(&spec.unwrap_or_default().image).cloned();
                Ok(cri::ImageStatusResponse { image, ..Default::default() })
            })
            .await
    }

    async fn list_images(
        &self,
        request: Request<cri::ListImagesRequest>,
    ) -> Reply<cri::ListImagesResponse> {
        let via = Via::of(&request);
        self.0
            .respond(via, Rpc::ListImages, About::default(), |runtime_state| {
                let mut images = runtime_state.images.all();
                runtime_state.order.shuffle(&mut images);
                Ok(cri::ListImagesResponse { images })
            })
            .await
    }

    async fn remove_image(
        &self,
        request: Request<cri::RemoveImageRequest>,
    ) -> Reply<cri::RemoveImageResponse> {
        let (via, spec) = (Via::of(&request), request.into_inner().image);
        let about = About::image(spec.as_ref());
        self.0
            .respond(via, Rpc::RemoveImage, about, move |runtime_state| {
                runtime_state.images.remove(&spec.unwrap_or_default().image);
                runtime_state.touch();
                Ok(cri::RemoveImageResponse {})
            })
            .await
    }

    async fn image_fs_info(
        &self,
        request: Request<cri::ImageFsInfoRequest>,
    ) -> Reply<cri::ImageFsInfoResponse> {
        let via = Via::of(&request);
        self.0
            .respond(via, Rpc::ImageFsInfo, About::default(), |runtime_state| {
                Ok(runtime_state.image_fs_info())
            })
            .await
    }
}

async fn pull(
    shared: Arc<Shared>,
    request: cri::PullImageRequest,
    pace: Pace,
) -> Result<cri::PullImageResponse, Status> {
    let reference = request.image.unwrap_or_default().image;
    let fetch = shared.runtime_state.lock().images.begin_pull(&reference, request.auth.as_ref())?;
    let _under_way = UnderWay { shared: shared.clone(), seq: fetch.seq };
    pace.keep().await;
    tokio::time::sleep(fetch.takes).await;
    let image = match fetch.outcome {
        FetchOutcome::Image(image) => image,
        FetchOutcome::Failure(status) => return Err(status),
        FetchOutcome::Never => std::future::pending().await,
    };
    let mut runtime_state = shared.runtime_state.lock();
    let image = runtime_state.images.add(&image).map_err(|bad| Status::unknown(bad.to_string()))?;
    runtime_state.touch();
    Ok(cri::PullImageResponse { image_ref: image.id })
}

/// A pull that is under way until it ends or its caller goes away.
struct UnderWay {
    shared: Arc<Shared>,
    seq: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.shared.runtime_state.lock().images.settle(self.seq);
    }
}
