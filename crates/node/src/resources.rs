//! What pods get from the node: cgroups, user ranges, packet filter chains, volumes and the API objects in them.

pub mod cgroups;
pub mod objects;
pub mod packet_filter;
pub mod users;
pub mod volumes;

use std::sync::Arc;

use crate::pods::allocations::Allocations;
use cgroups::Cgroups;
use objects::Objects;
use users::Users;
use volumes::Volumes;

/// What pods get from the node.
#[derive(Clone)]
pub struct NodeResources {
    pub cgroups: Arc<Cgroups>,
    pub volumes: Arc<Volumes>,
    pub objects: Arc<Objects>,
    pub users: Arc<Users>,
    pub allocations: Arc<Allocations>,
}
