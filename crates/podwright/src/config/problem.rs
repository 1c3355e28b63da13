//! What is wrong with a configuration, said so that it can be fixed in one go.
//!
//! A problem names who said it (file or flag), where (the field), what (the value) and what would
//! be right. They are collected, never returned one by one: nobody should have to start a node
//! five times to find five typing errors.

use std::fmt;
use std::path::PathBuf;

use serde_json::Value;

use super::field::FieldPath;

/// Who set a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody: it is the built-in default.
    Default,
    /// A mode of Podwright that brings its own defaults, such as `podwright up`.
    Preset(&'static str),
    /// A configuration file or drop-in.
    File(PathBuf),
    /// A command-line flag, by its name without dashes.
    Flag(&'static str),
    /// The command line as a whole, where no one flag is to blame.
    CommandLine,
    /// The machine itself; the configuration and the machine do not go together.
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

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub source: Source,
    /// Empty when the whole source is at fault, as with a file that cannot be read.
    pub field: FieldPath,
    /// The offending value as one would write it; secrets are never put here.
    pub value: Option<String>,
    /// What is wrong with it and what would be right, as the predicate of a sentence about it.
    pub trouble: String,
}

impl Problem {
    /// The source as a whole is at fault.
    pub fn with_source(source: Source, trouble: impl Into<String>) -> Self {
        Self { source, field: FieldPath::default(), value: None, trouble: trouble.into() }
    }

    /// A field's value is at fault.
    pub fn with_field(
        source: Source,
        field: FieldPath,
        value: Option<&Value>,
        trouble: impl Into<String>,
    ) -> Self {
        let value = value.map(|value| if field.is_secret() { masked() } else { shown(value) });
        Self { source, field, value, trouble: trouble.into() }
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
        f.write_str(&self.trouble)
    }
}

/// All that is wrong with a configuration; never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Invalid {
    problems: Vec<Problem>,
}

impl Invalid {
    /// An error if anything was found.
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

/// A value as one would write it, shortened: a whole document in a message helps nobody.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 80;
    let text = value.to_string();
    if text.chars().count() <= LONGEST {
        return text;
    }
    text.chars().take(LONGEST).chain("...".chars()).collect()
}
