//! Validation of log settings: agent, containers, system log handler.

use podwright_api::quantity::Quantity;

use super::super::field::FieldPath;
use super::Validator;

/// Upstream's verbosity is a signed 32-bit number.
const MAX_VERBOSITY: u32 = i32::MAX as u32;

pub(super) fn examine(validator: &mut Validator<'_>) {
    let c = validator.configuration;
    validator.require(
        c.container_log_max_size.parse::<Quantity>().is_ok(),
        "containerLogMaxSize",
        "must be a quantity, such as 10Mi",
    );
    validator.require(
        !c.enable_system_log_query || c.enable_system_log_handler,
        "enableSystemLogQuery",
        "needs enableSystemLogHandler",
    );
    let too_much = format!("must be at most {MAX_VERBOSITY}");
    validator.require(c.logging.verbosity <= MAX_VERBOSITY, "logging.verbosity", &too_much);
    for (at, item) in c.logging.vmodule.iter().enumerate() {
        let field = FieldPath::of("logging.vmodule").index(at);
        if item.file_pattern.is_empty() || item.file_pattern.contains(['=', ',']) {
            validator.refuse(&field.key("filePattern"), "must be a pattern without '=' and ','");
        }
        if item.verbosity > MAX_VERBOSITY {
            validator.refuse(&field.key("verbosity"), &too_much);
        }
    }
    for (format, options) in [("text", &c.logging.options.text), ("json", &c.logging.options.json)]
    {
        let field = FieldPath::of("logging.options").key(format).key("infoBufferSize");
        if options.info_buffer_size.0.parse::<Quantity>().is_err() {
            validator.refuse(&field, "must be a quantity, such as 64Ki");
        }
    }
    let rate = c.tracing.as_ref().and_then(|tracing| tracing.sampling_rate_per_million);
    validator.require(
        rate.is_none_or(|rate| (0..=1_000_000).contains(&rate)),
        "tracing.samplingRatePerMillion",
        "must be from 0 to 1000000",
    );
}
