//! Validation of eviction thresholds.

use podwright_api::quantity::Quantity;

use super::super::duration::GoDuration;
use super::super::field::FieldPath;
use super::super::suggestion::did_you_mean;
use super::Validator;

/// Eviction signals.
const SIGNALS: [&str; 9] = [
    "allocatableMemory.available",
    "containerfs.available",
    "containerfs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "pid.available",
];

/// Whether zero is a valid amount.
#[derive(Clone, Copy, PartialEq)]
enum Zero {
    Valid,
    Invalid,
}

pub(super) fn examine(validator: &mut Validator<'_>) {
    let c = validator.configuration;
    for (field, thresholds, zero) in [
        ("evictionHard", &c.eviction_hard, Zero::Invalid),
        ("evictionSoft", &c.eviction_soft, Zero::Invalid),
        ("evictionMinimumReclaim", &c.eviction_minimum_reclaim, Zero::Valid),
    ] {
        for (signal, amount) in thresholds {
            let field = FieldPath::of(field).key(signal);
            known_signal(validator, &field, signal);
            if let Some(message) = amount_trouble(amount, zero) {
                validator.refuse(&field, message);
            }
        }
    }
    for (signal, period) in &c.eviction_soft_grace_period {
        let field = FieldPath::of("evictionSoftGracePeriod").key(signal);
        known_signal(validator, &field, signal);
        match period.parse::<GoDuration>() {
            Ok(period) if period.is_negative() => validator.refuse(&field, "must not be negative"),
            Ok(_) => {}
            Err(error) => validator.refuse(&field, error.to_string()),
        }
    }
    for signal in c.eviction_soft.keys() {
        if !c.eviction_soft_grace_period.contains_key(signal) {
            let field = FieldPath::of("evictionSoft").key(signal);
            validator.refuse(&field, format!("needs evictionSoftGracePeriod[{signal:?}]"));
        }
    }
}

fn known_signal(validator: &mut Validator<'_>, field: &FieldPath, signal: &str) {
    if !SIGNALS.contains(&signal) {
        let near = did_you_mean(signal, SIGNALS);
        validator.refuse(
            field,
            format!("is for an unknown signal{near}; known are {}", SIGNALS.join(", ")),
        );
    }
}

/// Validates an amount, which is a quantity or a percentage; returns the error.
fn amount_trouble(amount: &str, zero: Zero) -> Option<&'static str> {
    if let Some(share) = amount.strip_suffix('%') {
        let share: Option<f32> = share.parse().ok();
        return (!share.is_some_and(|share| (0.0..=100.0).contains(&share)))
            .then_some("must be from 0% to 100%");
    }
    match amount.parse::<Quantity>() {
        Err(_) => Some("must be a quantity such as 100Mi, or a share such as 10%"),
        Ok(amount) if amount.is_negative() => Some("must not be negative"),
        Ok(amount) if amount.is_zero() && zero == Zero::Invalid => Some("must be more than 0"),
        Ok(_) => None,
    }
}
