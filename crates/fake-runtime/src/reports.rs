//! Container and sandbox statuses in CRI form.

use podwright_proto::cri;

use super::containers::{Container, State};
use super::runtime_state::RuntimeState;
use super::sandboxes::selected;

impl RuntimeState {
    pub(super) fn container_status(&self, container: &Container) -> cri::ContainerStatus {
        let (image, image_ref) = self.image_of(container);
        let (exit_code, reason, message) = match &container.state {
            State::Exited(exit) => {
                let reason = match (exit.reason, exit.code) {
                    ("", 0) => "Completed",
                    ("", _) => "Error",
                    (reason, _) => reason,
                };
                (exit.code, reason, exit.message.clone())
            }
            State::Created | State::Running | State::Unknown => (0, "", String::new()),
        };
        let features = self.options.features;
        let linux = container.config.linux.as_ref();
        let resources = linux.and_then(|linux| linux.resources.clone());
        let resources = resources.filter(|_| features.status_resources);
        cri::ContainerStatus {
            id: container.id.clone(),
            metadata: container.config.metadata.clone(),
            state: container.state.on_wire().into(),
            created_at: container.created_at,
            started_at: container.started_at,
            finished_at: container.finished_at,
            exit_code,
            reason: reason.into(),
            message,
            image: Some(image),
            image_ref,
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
            mounts: container.config.mounts.clone(),
            log_path: container.log_path.clone(),
            resources: resources.map(|linux| cri::ContainerResources { linux: Some(linux) }),
            ..Default::default()
        }
    }

    /// The image as in a status: its first tag and its digest.
    fn image_of(&self, container: &Container) -> (cri::ImageSpec, String) {
        let spec = container.config.image.clone().unwrap_or_default();
        let Some(image) = self.images.find(&container.image_id) else {
            return (spec, container.image_id.clone());
        };
        let spec = match image.repo_tags.first() {
            Some(tag) => cri::ImageSpec { image: tag.clone(), ..Default::default() },
            None => spec,
        };
        (spec, image.repo_digests.first().unwrap_or(&image.id).clone())
    }

    pub(super) fn list_containers(
        &mut self,
        filter: Option<&cri::ContainerFilter>,
    ) -> Vec<cri::Container> {
        let wanted = self.containers.values().filter(|container| {
            filter.is_none_or(|filter| {
                let state = i32::from(container.state.on_wire());
                let sandbox = &filter.pod_sandbox_id;
                (filter.id.is_empty() || filter.id == container.id)
                    && (sandbox.is_empty() || *sandbox == container.sandbox)
                    && filter.state.as_ref().is_none_or(|want| want.state == state)
                    && selected(&container.config.labels, &filter.label_selector)
            })
        });
        let line = |container: &Container| cri::Container {
            id: container.id.clone(),
            pod_sandbox_id: container.sandbox.clone(),
            metadata: container.config.metadata.clone(),
            state: container.state.on_wire().into(),
            created_at: container.created_at,
            image: container.config.image.clone(),
            image_ref: container.image_id.clone(),
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
            ..Default::default()
        };
        let mut lines: Vec<_> = wanted.map(line).collect();
        self.order.shuffle(&mut lines);
        lines
    }
}
