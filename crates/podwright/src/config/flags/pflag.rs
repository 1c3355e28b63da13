//! Parser of command lines in upstream's syntax.
//!
//! The rules are those of Go's pflag: `--flag=value` and `--flag value` are the same, except that a
//! boolean never takes the next word; underscores in a name are dashes; `-v 4`, `-v=4` and `-v4`
//! are `--v=4`; `--` ends the flags. Values stay text here, and errors are kept and
//! reported together with all other problems of the configuration.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::super::problem::{Problem, Source};
use super::super::suggestion::nearest;
use super::{FLAGS, Flag, Kind, find};

/// Parsed kubelet command line. No `Debug`: values may be secrets.
pub struct Flags {
    given: BTreeMap<&'static str, Vec<String>>,
    problems: Vec<Problem>,
    pub help: bool,
    /// `--version`: print the version only.
    pub version: bool,
}

impl Flags {
    /// A command line without flags.
    pub fn none() -> Self {
        Self { given: BTreeMap::new(), problems: Vec::new(), help: false, version: false }
    }

    /// Reads the arguments that follow the command's name.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Self {
        let mut flags = Self::none();
        let mut problems = Vec::new();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let parsed = text(argument).and_then(|argument| {
                flags.take(&argument, || arguments.next().map(text).transpose())
            });
            match parsed {
                Ok(Next::Flag) => {}
                Ok(Next::NoMoreFlags) => {
                    problems.extend(arguments.by_ref().map(|word| {
                        refused(format!("unexpected argument {:?}", word.to_string_lossy()))
                    }));
                }
                Err(problem) => problems.push(problem),
            }
        }
        flags.problems = problems;
        flags
    }

    fn take(
        &mut self,
        argument: &str,
        next: impl FnOnce() -> Result<Option<String>, Problem>,
    ) -> Result<Next, Problem> {
        if argument == "--" {
            return Ok(Next::NoMoreFlags);
        }
        let (name, value) = if let Some(long) = argument.strip_prefix("--") {
            match long.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (long, None),
            }
        } else if let Some(short) = argument.strip_prefix('-').filter(|rest| !rest.is_empty()) {
            let mut letters = short.chars();
            let name = letters.next().map_or(0, char::len_utf8);
            let (name, rest) = short.split_at(name);
            let value = rest.strip_prefix('=').unwrap_or(rest);
            // Only `-v` and `-h` have a letter; anything longer is a long flag missing a dash.
            if !is_letter(name) {
                return Err(unknown(argument, short.split('=').next().unwrap_or(short)));
            }
            (name, (!rest.is_empty()).then_some(value))
        } else {
            return Err(refused(format!(
                "unexpected argument {argument:?}; the kubelet takes flags only"
            )));
        };
        match name {
            "help" | "h" => self.help = switch(name, value)?,
            // Upstream reports a version given as value; that is not supported.
            "version" => self.version = value.is_none_or(|value| value != "false"),
            name => {
                let flag = find(name).ok_or_else(|| unknown(argument, name))?;
                let value = match (value, flag.kind) {
                    (Some(value), _) => value.to_owned(),
                    (None, Kind::Bool) => "true".to_owned(),
                    (None, _) => next()?.ok_or_else(|| needs_value(flag))?,
                };
                self.given.entry(flag.name).or_default().push(value);
            }
        }
        Ok(Next::Flag)
    }

    /// All errors of the command line.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The flags that were given, each with its values in order.
    pub fn given(&self) -> impl Iterator<Item = (&'static Flag, &[String])> {
        self.given.iter().filter_map(|(name, values)| Some((find(name)?, values.as_slice())))
    }
}

enum Next {
    Flag,
    NoMoreFlags,
}

fn is_letter(name: &str) -> bool {
    name == "h" || FLAGS.iter().any(|flag| flag.short.is_some_and(|s| s.to_string() == name))
}

fn switch(name: &str, value: Option<&str>) -> Result<bool, Problem> {
    match value {
        None | Some("true") => Ok(true),
        Some("false") => Ok(false),
        Some(other) => Err(refused(format!("--{name}={other} must be true or false"))),
    }
}

fn text(argument: OsString) -> Result<String, Problem> {
    argument
        .into_string()
        .map_err(|raw| refused(format!("{:?} is not UTF-8", raw.to_string_lossy())))
}

fn refused(message: String) -> Problem {
    Problem::with_source(Source::CommandLine, message)
}

fn needs_value(flag: &Flag) -> Problem {
    refused(format!("--{} needs a value", flag.name))
}

fn unknown(argument: &str, name: &str) -> Problem {
    let written = argument.split('=').next().unwrap_or(argument);
    let name = name.trim_start_matches('-').replace('_', "-");
    let known = FLAGS.iter().map(|flag| flag.name).chain(["help", "version"]);
    refused(match nearest(&name, known) {
        Some(near) => format!("unknown flag {written}; did you mean --{near}?"),
        None => format!("unknown flag {written}; `podwright kubelet --help` lists them"),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::super::super::problem::Invalid;
    use super::*;

    fn parse(line: &str) -> Result<Flags, Invalid> {
        let flags = Flags::parse(line.split_whitespace().map(OsString::from));
        Invalid::unless_empty(flags.problems.clone()).map(|()| flags)
    }

    fn values(line: &str) -> Vec<(&'static str, Vec<String>)> {
        let flags = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        flags.given().map(|(flag, values)| (flag.name, values.to_vec())).collect()
    }

    fn one(name: &'static str, values: &[&str]) -> Vec<(&'static str, Vec<String>)> {
        vec![(name, values.iter().map(|value| (*value).to_owned()).collect())]
    }

    #[test]
    fn flags_are_parsed_like_pflag() {
        for (line, want) in [
            ("--max-pods=5", one("max-pods", &["5"])),
            ("--max-pods 5", one("max-pods", &["5"])),
            ("--max_pods=5", one("max-pods", &["5"])),
            ("--maximum-dead-containers -1", one("maximum-dead-containers", &["-1"])),
            ("--fail-swap-on", one("fail-swap-on", &["true"])),
            ("--fail-swap-on=false", one("fail-swap-on", &["false"])),
            ("--kubeconfig=", one("kubeconfig", &[""])),
            (
                "--eviction-hard=a<1,b<2 --eviction-hard c<3",
                one("eviction-hard", &["a<1,b<2", "c<3"]),
            ),
            ("--node-labels=a=b", one("node-labels", &["a=b"])),
            ("--v=4", one("v", &["4"])),
            ("--v 4", one("v", &["4"])),
            ("-v 4", one("v", &["4"])),
            ("-v=4", one("v", &["4"])),
            ("-v4", one("v", &["4"])),
            ("--max-pods=5 --", one("max-pods", &["5"])),
            ("--help=false", vec![]),
            ("--version=false", vec![]),
        ] {
            assert_eq!(values(line), want, "{line}");
        }
    }

    #[test]
    fn boolean_does_not_consume_the_next_argument() {
        let error = parse("--fail-swap-on false").err().unwrap();
        assert_eq!(
            error.to_string(),
            r#"invalid configuration: command line: unexpected argument "false"; the kubelet takes flags only"#
        );
    }

    #[test]
    fn help_and_version_are_recognised_in_every_spelling() {
        for (line, help, version) in [
            ("--help", true, false),
            ("-h", true, false),
            ("--max-pods=1 --help", true, false),
            ("--version", false, true),
            ("--version=raw", false, true),
        ] {
            let flags = parse(line).unwrap();
            assert_eq!((flags.help, flags.version), (help, version), "{line}");
        }
    }

    #[test]
    fn all_errors_are_reported_together_with_suggestions() {
        let error = parse("--max-pod=5 pods --hostname-overide=x -config /x --zzzzzzzz -- rest")
            .err()
            .unwrap();
        insta::assert_snapshot!(error, @r#"
        invalid configuration, 7 problems:
          command line: unknown flag --max-pod; did you mean --max-pods?
          command line: unexpected argument "pods"; the kubelet takes flags only
          command line: unknown flag --hostname-overide; did you mean --hostname-override?
          command line: unknown flag -config; did you mean --config?
          command line: unexpected argument "/x"; the kubelet takes flags only
          command line: unknown flag --zzzzzzzz; `podwright kubelet --help` lists them
          command line: unexpected argument "rest"
        "#);
    }

    #[test]
    fn flag_without_its_value_is_an_error() {
        let error = parse("--max-pods").err().unwrap();
        assert_eq!(
            error.to_string(),
            "invalid configuration: command line: --max-pods needs a value"
        );
    }

    #[test]
    fn an_argument_that_is_not_utf8_is_an_error_and_no_panic() {
        use std::os::unix::ffi::OsStringExt;
        let flags = Flags::parse([OsString::from_vec(b"--root-dir=/\xff".to_vec())]);
        let [problem] = flags.problems() else { panic!("{:?}", flags.problems()) };
        assert!(problem.to_string().contains("is not UTF-8"), "{problem}");
    }
}
