//! Soft admission: reasons to keep an admitted pod from running for now.
//!
//! Unlike a rejection a hold is not final. It is asked for at every decision, and when nobody
//! objects any more the pod starts at once.

use super::Pod;
use crate::plan::Hold;

pub const ANNOTATION_HOLD: &str = "podwright/hold";

/// Asked in order; the first objection counts.
const HANDLERS: [fn(&Pod) -> Option<Hold>; 1] = [held_by_annotation];

/// Why the pod should not run now.
pub fn objection(pod: &Pod) -> Option<Hold> {
    HANDLERS.iter().find_map(|handler| handler(pod))
}

fn held_by_annotation(pod: &Pod) -> Option<Hold> {
    let message = pod.annotation(ANNOTATION_HOLD)?;
    let message = if message.is_empty() { "held by annotation podwright/hold" } else { message };
    Some(Hold { reason: "Held".into(), message: message.into() })
}
