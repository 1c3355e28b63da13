//! Settings of garbage collection and log rotation.

use std::str::FromStr;

use anyhow::Context;
use podwright_api::quantity::Quantity;
use podwright_core::gc::{ContainerPolicy, ImagePolicy};
use podwright_core::log::RotationPolicy;
use podwright_node::runtime::gc;

use crate::config::KubeletSettings;
use crate::config::kubelet::KubeletConfiguration;

pub(super) fn settings(settings: &KubeletSettings) -> gc::GcSettings {
    let (configuration, options) = (&settings.configuration, &settings.options);
    let percent = |value: i32| u8::try_from(value).unwrap_or(100);
    let at_most = |value: i32| usize::try_from(value).ok();
    let max_age = configuration.image_maximum_gc_age.to_std();
    gc::GcSettings {
        containers: ContainerPolicy {
            min_age: options.minimum_container_ttl.to_std(),
            per_container: at_most(options.maximum_dead_containers_per_container),
            in_total: at_most(options.maximum_dead_containers),
        },
        images: ImagePolicy {
            high: percent(configuration.image_gc_high_threshold_percent),
            low: percent(configuration.image_gc_low_threshold_percent),
            min_age: configuration.image_minimum_gc_age.to_std(),
            max_age: Some(max_age).filter(|age| !age.is_zero()),
        },
        kept_images: vec![podwright_pause::IMAGE.to_owned()],
        disk: gc::real_disk,
    }
}

pub(super) fn log_rotation(configuration: &KubeletConfiguration) -> anyhow::Result<RotationPolicy> {
    let size =
        Quantity::from_str(&configuration.container_log_max_size).context("containerLogMaxSize")?;
    Ok(RotationPolicy {
        // As upstream: a negative size disables rotation.
        max_size: u64::try_from(size.value()).ok(),
        max_files: usize::try_from(configuration.container_log_max_files).unwrap_or(2),
        workers: usize::try_from(configuration.container_log_max_workers).unwrap_or(1),
        every: configuration.container_log_monitor_interval.to_std(),
    })
}
