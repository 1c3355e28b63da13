//! What pods get from the node: cgroups, user ranges, packet filter chains, volumes and the API objects in them.

pub mod cgroups;
pub mod objects;
pub mod packet_filter;
pub mod users;
pub mod volumes;
