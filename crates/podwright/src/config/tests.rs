//! Tests of `resolve`, from command line and files to settings.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod golden;
mod precedence;
mod problems;
mod warnings;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::flags::Flags;
use super::host::{CgroupVersion, Host};
use super::problem::Invalid;
use super::{KubeletSettings, Preset, resolve};

/// A directory with configuration files, and the host facts.
struct Bench {
    directory: TempDir,
    host: Host,
}

const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let host = Host {
            hostname: "Worker-1".to_owned(),
            current_dir: directory.path().to_owned(),
            cgroups: CgroupVersion::V2,
            swap: Vec::new(),
            kernel: Vec::new(),
            stays_down: None,
        };
        Self { directory, host }
    }

    /// Writes a file with apiVersion and kind.
    fn file(self, name: &str, text: &str) -> Self {
        self.raw_file(name, &format!("{HEADER}{text}"))
    }

    fn raw_file(self, name: &str, text: &str) -> Self {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn cgroup_v1(mut self) -> Self {
        self.host.cgroups = CgroupVersion::V1;
        self
    }

    fn swap(mut self, device: &str) -> Self {
        self.host.swap.push(device.to_owned());
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn resolve_as(&self, preset: &Preset, line: &str) -> Result<KubeletSettings, Invalid> {
        let flags = Flags::parse(line.split_whitespace().map(OsString::from));
        resolve(&flags, preset, &self.host)
    }

    /// The settings for a command line.
    fn settings(&self, line: &str) -> KubeletSettings {
        match self.resolve_as(&Preset::kubelet(), line) {
            Ok(settings) => settings,
            Err(error) => panic!("{line}: {error}"),
        }
    }

    /// The settings for a single file, on a joined node.
    fn settings_of(text: &str) -> KubeletSettings {
        Self::new().file("kubelet.yaml", text).settings("--kubeconfig=/k --config=kubelet.yaml")
    }

    /// The error for a command line, with the temporary directory removed from paths.
    fn refusal(&self, line: &str) -> String {
        match self.resolve_as(&Preset::kubelet(), line) {
            Ok(settings) => panic!("{line} is accepted: {settings:?}"),
            Err(error) => self.here(&error.to_string()),
        }
    }

    fn here(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.directory.path().display()), "")
    }
}

fn path(text: &str) -> &Path {
    Path::new(text)
}
