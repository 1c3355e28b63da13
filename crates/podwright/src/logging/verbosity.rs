//! Log verbosity, with upstream's `--v` and `--vmodule`.

use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

use crate::config::kubelet::VerbosityOverride;

/// Filter: Podwright's modules at the level of `--v`, dependencies at warnings, and modules of
/// `--vmodule` at their own level.
#[derive(Clone, Debug)]
pub struct Verbosity {
    ours: LevelFilter,
    overrides: Vec<(String, LevelFilter)>,
}

/// Level of dependencies.
const DEPENDENCIES: LevelFilter = LevelFilter::WARN;

impl Verbosity {
    pub fn new(verbosity: u32, modules: &[VerbosityOverride]) -> Self {
        let overrides = modules
            .iter()
            .map(|module| (module.file_pattern.clone(), level(module.verbosity)))
            .collect();
        Self { ours: level(verbosity), overrides }
    }

    /// The level of a module, such as `podwright_node::runtime::pleg`.
    pub fn of(&self, module: &str) -> LevelFilter {
        let named = self.overrides.iter().find(|(pattern, _)| names(pattern, module));
        match named {
            Some((_, level)) => *level,
            None if module.starts_with("podwright") => self.ours,
            None => DEPENDENCIES,
        }
    }

    fn allows(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.of(metadata.target())
    }
}

/// Maps upstream's verbosity numbers to levels.
fn level(verbosity: u32) -> LevelFilter {
    match verbosity {
        0..=1 => LevelFilter::INFO,
        2..=5 => LevelFilter::DEBUG,
        6.. => LevelFilter::TRACE,
    }
}

/// Whether a pattern names a module: by its last part (`pleg`, `status*`), or, if the pattern has
/// slashes, by its whole path (`podwright_node/worker/*`).
fn names(pattern: &str, module: &str) -> bool {
    if pattern.contains('/') {
        return glob(pattern, &module.replace("::", "/"));
    }
    glob(pattern, module.rsplit("::").next().unwrap_or(module))
}

/// `*` stands for any text, `?` for one character.
fn glob(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    loop {
        let rest = pattern.clone();
        match (pattern.next(), text.clone().next()) {
            (None, None) => return true,
            (None, Some(_)) => return false,
            (Some('*'), None) => {}
            (Some('*'), Some(_)) => {
                let (after, mut fewer) = (pattern.as_str(), text.clone());
                fewer.next();
                return glob(after, text.as_str()) || glob(rest.as_str(), fewer.as_str());
            }
            (Some('?'), Some(_)) => {
                text.next();
            }
            (Some(wanted), Some(found)) if wanted == found => {
                text.next();
            }
            (Some(_), _) => return false,
        }
    }
}

impl<S: Subscriber> Filter<S> for Verbosity {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.allows(metadata)
    }

    /// The result never changes, so it is cached per callsite.
    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.allows(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let levels = self.overrides.iter().map(|(_, level)| *level);
        levels.chain([self.ours, DEPENDENCIES]).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbosity_numbers_are_mapped_to_levels() {
        for (number, ours) in [
            (0, LevelFilter::INFO),
            (1, LevelFilter::INFO),
            (2, LevelFilter::DEBUG),
            (5, LevelFilter::DEBUG),
            (6, LevelFilter::TRACE),
            (10, LevelFilter::TRACE),
        ] {
            let verbosity = Verbosity::new(number, &[]);
            assert_eq!(verbosity.of("podwright_node::runtime::pleg"), ours, "--v={number}");
            assert_eq!(verbosity.of("hyper::client"), LevelFilter::WARN, "--v={number}");
        }
    }

    #[test]
    fn modules_can_have_their_own_level() {
        let over = |pattern: &str, verbosity| VerbosityOverride {
            file_pattern: pattern.to_owned(),
            verbosity,
        };
        let verbosity = Verbosity::new(
            0,
            &[over("pleg", 6), over("stat?s*", 4), over("podwright_cri/*", 4), over("hyper*", 2)],
        );
        for (module, want) in [
            ("podwright_node::runtime::pleg", LevelFilter::TRACE),
            ("podwright_node::runtime::pleg::relist", LevelFilter::INFO),
            ("podwright_node::report::status", LevelFilter::DEBUG),
            ("podwright_node::statuses", LevelFilter::DEBUG),
            ("podwright_cri::client", LevelFilter::DEBUG),
            ("podwright_node::worker", LevelFilter::INFO),
            ("hyper", LevelFilter::DEBUG),
            ("kube", LevelFilter::WARN),
        ] {
            assert_eq!(verbosity.of(module), want, "{module}");
        }
        let hint = <Verbosity as Filter<tracing_subscriber::Registry>>::max_level_hint(&verbosity);
        assert_eq!(hint, Some(LevelFilter::TRACE));
    }

    #[test]
    fn globs_match_stars_and_question_marks() {
        for (pattern, text, want) in [
            ("", "", true),
            ("*", "", true),
            ("*", "anything", true),
            ("a*c", "abbbc", true),
            ("a*c", "abbb", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b*", "xxaxxbxx", true),
            ("abc", "abcd", false),
            ("abcd", "abc", false),
        ] {
            assert_eq!(glob(pattern, text), want, "{pattern} {text}");
        }
    }
}
