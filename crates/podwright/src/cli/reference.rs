//! What is generated from the command line: completions and man pages.

use std::io::{self, Write};
use std::path::Path;

use clap_complete::Shell;

use super::command;

/// Writes a completion script.
pub fn completion(shell: Shell, out: &mut dyn Write) -> io::Result<()> {
    // The generator panics if its writer fails, which a closed pipe must not make us do.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "podwright", &mut script);
    out.write_all(&script)
}

/// Writes `podwright.1` and a page for each command into a folder.
pub fn man_pages(folder: &Path) -> io::Result<()> {
    clap_mangen::generate_to(command().disable_help_subcommand(true), folder)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_gets_a_script_that_knows_the_kubelet_flags() {
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
    fn each_command_gets_a_page() {
        let folder = tempfile::tempdir().unwrap();
        man_pages(folder.path()).unwrap();
        for page in ["podwright.1", "podwright-kubelet.1", "podwright-up.1", "podwright-doctor.1"] {
            let text = std::fs::read_to_string(folder.path().join(page)).unwrap();
            assert!(text.contains(".SH NAME"), "{page}");
        }
    }
}
