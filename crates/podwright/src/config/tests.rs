//! The rules of `resolve`, from command line and files to settings.
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

/// A folder with configuration files, and a machine to read them on.
struct Bench {
    folder: TempDir,
    host: Host,
}

const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let host = Host {
            hostname: "Worker-1".to_owned(),
            current_dir: folder.path().to_owned(),
            cgroups: CgroupVersion::V2,
            swap: Vec::new(),
            kernel: Vec::new(),
        };
        Self { folder, host }
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
        self.folder.path().join(name)
    }

    fn resolve_as(&self, preset: &Preset, line: &str) -> Result<KubeletSettings, Invalid> {
        let flags = Flags::parse(line.split_whitespace().map(OsString::from));
        resolve(&flags, preset, &self.host)
    }

    /// The settings a command line leads to.
    fn settings(&self, line: &str) -> KubeletSettings {
        match self.resolve_as(&Preset::kubelet(), line) {
            Ok(settings) => settings,
            Err(error) => panic!("{line}: {error}"),
        }
    }

    /// The settings a single file leads to, on a node of a cluster.
    fn settings_of(text: &str) -> KubeletSettings {
        Self::new().file("kubelet.yaml", text).settings("--kubeconfig=/k --config=kubelet.yaml")
    }

    /// What is wrong with a command line, without the folder the files happen to lie in.
    fn refusal(&self, line: &str) -> String {
        match self.resolve_as(&Preset::kubelet(), line) {
            Ok(settings) => panic!("{line} is accepted: {settings:?}"),
            Err(error) => self.here(&error.to_string()),
        }
    }

    fn here(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.folder.path().display()), "")
    }
}

fn path(text: &str) -> &Path {
    Path::new(text)
}
