//! Soft admission: holds that keep an admitted pod from running.
//!
//! Unlike a rejection, a hold is not final. It is evaluated at every decision, and the pod starts
//! as soon as no hold is left.

use super::Pod;
use crate::plan::Hold;

pub const ANNOTATION_HOLD: &str = "podwright/hold";

/// Evaluated in order; the first hold counts.
const HANDLERS: [fn(&Pod) -> Option<Hold>; 1] = [held_by_annotation];

/// The hold that currently keeps the pod from running.
pub fn current_hold(pod: &Pod) -> Option<Hold> {
    HANDLERS.iter().find_map(|handler| handler(pod))
}

fn held_by_annotation(pod: &Pod) -> Option<Hold> {
    let message = pod.annotation(ANNOTATION_HOLD)?;
    let message = if message.is_empty() { "held by annotation podwright/hold" } else { message };
    Some(Hold { reason: "Held".into(), message: message.into() })
}
