//! Cgroups of system daemons, reported in the summary beside the pods.

use std::collections::BTreeMap;

/// A daemon, under upstream's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Daemon {
    Kubelet,
    Runtime,
    Misc,
}

impl Daemon {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kubelet => "kubelet",
            Self::Runtime => "runtime",
            Self::Misc => "misc",
        }
    }
}

/// Cgroup paths of the daemons; a daemon without one is not reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonGroups(BTreeMap<Daemon, String>);

impl DaemonGroups {
    /// From the settings, where an empty path means unset. Without a configured cgroup, the agent
    /// is reported in its current one: `own`, the content of its `/proc/<pid>/cgroup`.
    pub fn new(kubelet: &str, runtime: &str, misc: &str, own: &str) -> Self {
        let configured = |path: &str| Some(path.to_owned()).filter(|path| !path.is_empty());
        let groups = [
            (Daemon::Kubelet, configured(kubelet).or_else(|| accounted_in(own))),
            (Daemon::Runtime, configured(runtime)),
            (Daemon::Misc, configured(misc)),
        ];
        let groups = groups.into_iter().filter_map(|(daemon, path)| Some((daemon, path?)));
        Self(groups.collect())
    }

    pub fn iter(&self) -> impl Iterator<Item = (Daemon, &str)> {
        self.0.iter().map(|(daemon, path)| (*daemon, path.as_str()))
    }
}

/// The cgroup in which a process is accounted. In v1 there is none if memory and CPU are accounted
/// in different cgroups.
fn accounted_in(text: &str) -> Option<String> {
    let mut groups = BTreeMap::new();
    for line in text.lines() {
        // `4:cpu,cpuacct:/system.slice`, `0::/system.slice`
        let mut fields = line.splitn(3, ':').skip(1);
        if let (Some(controllers), Some(path)) = (fields.next(), fields.next()) {
            groups.extend(controllers.split(',').map(|controller| (controller, path)));
        }
    }
    let own = match (groups.get("cpu"), groups.get("memory")) {
        (Some(cpu), Some(memory)) if cpu == memory => groups.get("name=systemd").or(Some(cpu)),
        (Some(_), _) | (_, Some(_)) => None,
        (None, None) => groups.get(""),
    };
    own.filter(|path| path.starts_with('/')).map(|path| (*path).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_is_reported_in_its_configured_cgroup_or_its_current_one() {
        let v1 = |cpu: &str, memory: &str, systemd: &str| {
            format!("4:memory:{memory}\n3:cpu,cpuacct:{cpu}\n1:name=systemd:{systemd}\n0::/\n")
        };
        for (case, configured, own, want) in [
            ("configured", "/kubelet.slice", v1("/a", "/a", "/a"), Some("/kubelet.slice")),
            ("v2", "", "0::/system.slice/x.service\n".into(), Some("/system.slice/x.service")),
            ("systemd hierarchy first", "", v1("/", "/", "/user.slice"), Some("/user.slice")),
            ("two hierarchies that disagree", "", v1("/", "/sandbox", "/"), None),
            ("no systemd", "", "2:memory:/a\n1:cpu:/a\n".into(), Some("/a")),
            ("half of v1", "", "2:memory:/a\n0::/b\n".into(), None),
            ("nothing", "", String::new(), None),
            ("nonsense", "", "::\n:\n\n4".into(), None),
        ] {
            let groups = DaemonGroups::new(configured, "", "", &own);
            let want: Vec<_> = want.into_iter().map(|path| (Daemon::Kubelet, path)).collect();
            assert_eq!(groups.iter().collect::<Vec<_>>(), want, "{case}");
        }
        let all = DaemonGroups::new("/k", "/r", "/m", "");
        let names: Vec<_> = all.iter().map(|(daemon, path)| (daemon.as_str(), path)).collect();
        assert_eq!(names, [("kubelet", "/k"), ("runtime", "/r"), ("misc", "/m")]);
    }
}
