//! What pods get from the node: cgroups, user ranges, volumes and the API objects in them.

pub mod cgroups;
pub mod objects;
pub mod users;
pub mod volumes;
