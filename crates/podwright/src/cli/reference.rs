//! Completions and man pages, generated from the command line definition.

use std::io::{self, Write};
use std::path::Path;

use clap_complete::Shell;

use super::command;

/// Writes a completion script.
pub fn completion(shell: Shell, out: &mut dyn Write) -> io::Result<()> {
    // Buffered, because the generator panics if its writer fails, for example on a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "podwright", &mut script);
    out.write_all(&script)
}

/// Writes `podwright.1` and a page for each command into a directory.
pub fn man_pages(directory: &Path) -> io::Result<()> {
    clap_mangen::generate_to(command().disable_help_subcommand(true), directory)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn completion_scripts_contain_the_kubelet_flags() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            completion(shell, &mut script).unwrap();
            let script = String::from_utf8(script).unwrap();
            for word in ["kubelet", "doctor", "container-runtime-endpoint"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn every_command_has_a_man_page() {
        let directory = tempfile::tempdir().unwrap();
        man_pages(directory.path()).unwrap();
        for page in ["podwright.1", "podwright-kubelet.1", "podwright-up.1", "podwright-doctor.1"] {
            let text = std::fs::read_to_string(directory.path().join(page)).unwrap();
            assert!(text.contains(".SH NAME"), "{page}");
        }
    }
}
