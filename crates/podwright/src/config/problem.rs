//! Problems of a configuration.
//!
//! A problem names the source (file or flag), the field, the value and what is expected. All
//! problems are collected and reported together, so that they can be fixed in one pass.

use std::fmt;
use std::path::PathBuf;

use serde_json::Value;

use super::field::FieldPath;

/// Source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The built-in default.
    Default,
    /// A mode of Podwright with its own defaults, such as `podwright up`.
    Preset(&'static str),
    /// A configuration file or drop-in.
    File(PathBuf),
    /// A command-line flag, by its name without dashes.
    Flag(&'static str),
    /// The command line as a whole.
    CommandLine,
    /// The machine, which does not support the configuration.
    Machine,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Preset(name) => f.write_str(name),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Flag(name) => write!(f, "--{name}"),
            Self::CommandLine => f.write_str("command line"),
            Self::Machine => f.write_str("this machine"),
        }
    }
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub source: Source,
    /// Empty if the whole source is invalid, for example an unreadable file.
    pub field: FieldPath,
    /// The invalid value; secrets are masked.
    pub value: Option<String>,
    /// What is wrong and what is expected; the predicate of a sentence about the value.
    pub message: String,
}

impl Problem {
    /// Problem of a whole source.
    pub fn with_source(source: Source, message: impl Into<String>) -> Self {
        Self { source, field: FieldPath::default(), value: None, message: message.into() }
    }

    /// Problem of a field's value.
    pub fn with_field(
        source: Source,
        field: FieldPath,
        value: Option<&Value>,
        message: impl Into<String>,
    ) -> Self {
        let value = value.map(|value| if field.is_secret() { masked() } else { shown(value) });
        Self { source, field, value, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.source)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        if let Some(value) = &self.value {
            write!(f, "{value} ")?;
        }
        f.write_str(&self.message)
    }
}

/// All problems of a configuration; never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Invalid {
    problems: Vec<Problem>,
}

impl Invalid {
    /// An error if there are problems.
    pub fn unless_empty(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self { problems }) }
    }

    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl From<Problem> for Invalid {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [only] => write!(f, "invalid configuration: {only}"),
            several => {
                write!(f, "invalid configuration, {} problems:", several.len())?;
                several.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

fn masked() -> String {
    "<masked>".to_owned()
}

/// A value as JSON, shortened.
fn shown(value: &Value) -> String {
    const MAX_LENGTH: usize = 80;
    let text = value.to_string();
    if text.chars().count() <= MAX_LENGTH {
        return text;
    }
    text.chars().take(MAX_LENGTH).chain("...".chars()).collect()
}
