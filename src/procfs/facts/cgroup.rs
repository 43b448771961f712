// SPDX-License-Identifier: GPL-2.0-or-later

//! The container, the pod and the Slurm job of a process, from the names of its control groups (`/proc/PID/cgroup`,
//! cgroups(7)).
//!
//! Each line is `ID:CONTROLLERS:PATH`: one with `0::` under cgroup v2, one per hierarchy under v1, both on a mixed
//! host. The path is relative to the cgroup namespace of this process, so that it may begin with `/..`. Container
//! runtimes name the groups:
//!
//! | runtime | last part of the path |
//! | --- | --- |
//! | docker, podman, containerd, CRI-O with systemd | `docker-ID.scope`, `libpod-ID.scope`, `cri-containerd-ID.scope`, `crio-ID.scope` |
//! | docker, podman, containerd, CRI-O without systemd | `docker/ID`, `libpod_parent/libpod-ID`, `kubepods/QOS/podUID/ID`, `kubepods/QOS/podUID/crio-ID` |
//! | containerd, configured for systemd but without it | `kubepods-QOS-podUID.slice:cri-containerd:ID` |
//!
//! A container may have groups of its own below (`libpod-ID.scope/container`, `docker-ID.scope/init.scope`).

use crate::procfs::facts::kubelet;

/// Hexadecimal digits of a container id.
const CONTAINER_ID_LEN: usize = 64;

/// Facts from the names of a process's control groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroup {
    /// Innermost container of the process.
    pub container_id: Option<String>,
    /// Innermost pod of the process.
    pub pod_uid: Option<String>,
    /// Slurm job of the process.
    pub slurm_job_id: Option<String>,
}

impl Cgroup {
    /// Reads the text of `/proc/PID/cgroup`. Each fact comes from the first line that has it, since some hierarchies of
    /// v1 have all processes in their root.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for path in text.lines().filter_map(|line| line.splitn(3, ':').nth(2)) {
            // The kernel marks a group that was removed while it had a process.
            let path = path.strip_suffix(" (deleted)").unwrap_or(path);
            let names: Vec<&str> = path.split('/').collect();
            // Below the slice of a user, that user chooses the names. Only the container is read there, for rootless
            // podman.
            let mut parts = names.split(|name| is_user_slice(name));
            let of_host = parts.next().unwrap_or_default();
            let innermost = |names: &[&str], fact: fn(&str) -> Option<String>| {
                names.iter().rev().find_map(|name| fact(name))
            };
            let container_id = || innermost(&names, container);
            let pod_uid = || innermost(of_host, pod);
            found.container_id = found.container_id.or_else(container_id);
            found.pod_uid = found.pod_uid.or_else(pod_uid);
            found.slurm_job_id = found.slurm_job_id.or_else(|| slurm_job(of_host));
        }
        found
    }
}

/// True for the slice that systemd creates when a user logs in (`user-UID.slice`).
fn is_user_slice(name: &str) -> bool {
    name.starts_with("user-") && name.ends_with(".slice")
}

/// Returns the container that this group belongs to: its id, alone or behind the name of the runtime. The monitor of a
/// container (`crio-conmon-ID.scope`, `libpod-conmon-ID.scope`) is outside of it.
fn container(name: &str) -> Option<String> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let (runtime, id) = name.split_at_checked(name.len().checked_sub(CONTAINER_ID_LEN)?)?;
    let is_id = id
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_runtime =
        (runtime.is_empty() || runtime.ends_with(['-', ':'])) && !runtime.ends_with("conmon-");
    (is_id && is_runtime).then(|| id.to_owned())
}

/// Returns the pod that this group belongs to: `podUID`, or `kubepods-QOS-podUID.slice` with `_` for `-`, since `-`
/// separates levels in systemd. If the kubelet runs in a container, the name has a prefix (`kubelet-kubepods-...`).
fn pod(name: &str) -> Option<String> {
    let slice = name.split(':').next()?;
    let (before, uid) = slice
        .strip_suffix(".slice")
        .unwrap_or(slice)
        .rsplit_once("pod")?;
    let is_pod = before.is_empty() || before.ends_with('-');
    kubelet::uid(&uid.replace('_', "-")).filter(|_| is_pod)
}

/// Returns the job in `slurm/uid_UID/job_ID/step_N/task_N` (v1) or `slurmstepd.scope/job_ID/step_N/user/task_N` (v2). A
/// node with several slurmd has its name behind `slurm_` and in front of `_slurmstepd.scope`.
fn slurm_job(names: &[&str]) -> Option<String> {
    names.windows(3).find_map(|levels| {
        let [root, above, job] = levels else {
            return None;
        };
        let job: u32 = job.strip_prefix("job_")?.parse().ok()?;
        let is_v1 = above.starts_with("uid_") && root.starts_with("slurm");
        (is_v1 || above.ends_with("slurmstepd.scope")).then(|| job.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids from samples that users of each runtime published.
    const CONTAINER: &str = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d";
    const OUTER: &str = "4f797c539e6c745de61a93ca3ff892358ecbcaccd8414d5db545c38428142970";
    const POD: &str = "2c48913c-b29f-11e7-9350-020968147796";

    /// Returns container, pod and job found in a sample. C stands for the container, O for an outer container, P for
    /// the pod, S for the pod in systemd's spelling, `-` for nothing.
    fn names_in(sample: &str) -> [String; 3] {
        let text = sample
            .replace("{C}", CONTAINER)
            .replace("{O}", OUTER)
            .replace("{P}", POD)
            .replace("{S}", &POD.replace('-', "_"));
        let found = Cgroup::parse(&text);
        [found.container_id, found.pod_uid, found.slurm_job_id].map(|fact| match fact.as_deref() {
            Some(CONTAINER) => "C".into(),
            Some(OUTER) => "O".into(),
            Some(POD) => "P".into(),
            other => other.unwrap_or("-").into(),
        })
    }

    #[test]
    fn docker_container_is_found_in_every_form() {
        let v1_systemd = "\
10:devices:/system.slice/docker-{C}.scope
9:blkio:/system.slice/docker-{C}.scope
8:memory:/system.slice/docker-{C}.scope
4:net_cls:/system.slice/docker-{C}.scope
2:cpuacct,cpu:/system.slice/docker-{C}.scope
1:name=systemd:/system.slice/docker-{C}.scope
";
        let v1_cgroupfs = "\
12:rdma:/
11:cpuset:/docker/{C}
10:net_cls,net_prio:/docker/{C}
9:cpu,cpuacct:/docker/{C}
1:name=systemd:/docker/{C}
0::/system.slice/containerd.service
";
        for sample in [
            v1_systemd,
            v1_cgroupfs,
            "0::/system.slice/docker-{C}.scope\n",
            "0::/system.slice/docker-{C}.scope/init.scope\n",
            "0::/docker/{C}\n",
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/docker-{C}.scope\n",
            // Relative to the cgroup namespace of another container.
            "0::/../{C}\n",
            "0::/../../system.slice/docker-{C}.scope (deleted)\n",
        ] {
            assert_eq!(names_in(sample), ["C", "-", "-"], "{sample}");
        }
    }

    #[test]
    fn containerd_container_and_pod_are_found_in_every_form() {
        let v1 = "\
11:memory:/kubepods/besteffort/pod{P}/{C}
10:cpu,cpuacct:/kubepods/besteffort/pod{P}/{C}
1:name=systemd:/kubepods/besteffort/pod{P}/{C}
";
        let v1_colons = "\
12:cpu,cpuacct:/system.slice/containerd.service/kubepods-besteffort-pod{S}.slice:cri-containerd:{C}
2:freezer:/kubepods-besteffort-pod{S}.slice:cri-containerd:{C}
1:name=systemd:/system.slice/containerd.service/kubepods-besteffort-pod{S}.slice:cri-containerd:{C}
0::/system.slice/containerd.service
";
        for sample in [
            v1,
            v1_colons,
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{S}.slice/cri-containerd-{C}.scope\n",
            "0::/kubepods.slice/kubepods-pod{S}.slice/cri-containerd-{C}.scope\n",
            "0::/kubepods/burstable/pod{P}/{C}\n",
            "0::/kubepods/pod{P}/{C}\n",
            "0::/../../pod{P}/{C}\n",
            "0::/../../kubepods-burstable-pod{S}.slice/cri-containerd-{C}.scope\n",
        ] {
            assert_eq!(names_in(sample), ["C", "P", "-"], "{sample}");
        }
        assert_eq!(
            names_in("0::/system.slice/nerdctl-{C}.scope\n"),
            ["C", "-", "-"]
        );
    }

    #[test]
    fn cri_o_container_is_found_and_its_monitor_is_not_in_it() {
        for sample in [
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{S}.slice/crio-{C}.scope\n",
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{S}.slice/crio-{C}.scope/container\n",
            "9:memory:/kubepods/burstable/pod{P}/crio-{C}\n1:name=systemd:/kubepods/burstable/pod{P}/crio-{C}\n",
        ] {
            assert_eq!(names_in(sample), ["C", "P", "-"], "{sample}");
        }
        for sample in [
            "0::/kubepods.slice/kubepods-pod{S}.slice/crio-conmon-{C}.scope\n",
            "8:pids:/kubepods.slice/kubepods-pod{S}.slice/crio-conmon-{C}.scope\n",
        ] {
            assert_eq!(names_in(sample), ["-", "P", "-"], "{sample}");
        }
    }

    #[test]
    fn podman_container_is_found_with_and_without_root() {
        let v1 = "\
12:pids:/machine.slice/libpod-{C}.scope
11:hugetlb:/
9:perf_event:/machine.slice/libpod-{C}.scope
1:name=systemd:/machine.slice/libpod-{C}.scope
0::/
";
        for sample in [
            v1,
            "0::/machine.slice/libpod-{C}.scope/container\n",
            "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{C}.scope/container\n",
            "0::/system.slice/engine.service/libpod-payload-{C}\n",
            "0::/libpod_parent/libpod-{C}\n",
            "0::/machine.slice/machine-libpod_pod_{O}.slice/libpod-{C}.scope\n",
        ] {
            assert_eq!(names_in(sample), ["C", "-", "-"], "{sample}");
        }
        let conmon = "0::/machine.slice/libpod-conmon-{C}.scope\n";
        assert_eq!(names_in(conmon), ["-", "-", "-"]);
    }

    #[test]
    fn innermost_of_nested_containers_counts() {
        for sample in [
            "0::/docker/{O}/docker/{C}\n",
            "0::/system.slice/docker-{O}.scope/docker/{C}\n",
        ] {
            assert_eq!(names_in(sample), ["C", "-", "-"], "{sample}");
        }
        let kind = "0::/system.slice/docker-{O}.scope/kubelet.slice/kubelet-kubepods.slice/\
                    kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{S}.slice/cri-containerd-{C}.scope\n";
        assert_eq!(names_in(kind), ["C", "P", "-"]);
        let conmon = "0::/docker/{O}/machine.slice/libpod-conmon-{C}.scope\n";
        assert_eq!(names_in(conmon), ["O", "-", "-"]);
    }

    #[test]
    fn slurm_job_is_found_with_and_without_a_container() {
        let v1 = "\
11:freezer:/slurm/uid_1000/job_4711/step_0
10:devices:/slurm/uid_1000/job_4711/step_0/task_3
8:cpuset:/slurm/uid_1000/job_4711/step_0
1:name=systemd:/system.slice/slurmd.service
";
        for sample in [
            v1,
            "4:memory:/slurm_node1/uid_1000/job_4711/step_batch\n",
            "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n",
            "0::/system.slice/node1_slurmstepd.scope/job_4711/step_extern/user\n",
        ] {
            assert_eq!(names_in(sample), ["-", "-", "4711"], "{sample}");
        }
        let both = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0/libpod-{C}\n";
        assert_eq!(names_in(both), ["C", "-", "4711"]);
    }

    #[test]
    fn group_below_a_user_slice_has_no_pod_and_no_job() {
        let own = "0::/user.slice/user-4243.slice/user@4243.service";
        for (sample, expected) in [
            (
                "/kubepods-burstable-pod{S}.slice/cri-containerd-{C}.scope",
                ["C", "-", "-"],
            ),
            ("/slurm/uid_4243/job_7/step_0", ["-", "-", "-"]),
            ("/slurmstepd.scope/job_7/step_0", ["-", "-", "-"]),
            // Podman without root.
            ("/user.slice/libpod-{C}.scope/container", ["C", "-", "-"]),
        ] {
            assert_eq!(names_in(&format!("{own}{sample}\n")), expected, "{sample}");
        }
        let hosts = "0::/kubepods.slice/kubepods-user-x.slice/kubepods-burstable-pod{S}.slice/cri-containerd-{C}.scope\n";
        assert_eq!(names_in(hosts), ["C", "P", "-"]);
    }

    #[test]
    fn other_group_has_no_facts() {
        for sample in [
            "",
            "0::/\n",
            "0::/init.scope\n",
            "0::/user.slice/user-1000.slice/session-3.scope\n",
            "0::/system.slice/docker.service\n",
            "0::/system.slice/slurmstepd.scope/system\n",
            // Too short, too long, not hexadecimal, not behind a runtime's name.
            "0::/docker/9ec39b91f3d7\n",
            "0::/docker/0{C}\n",
            "0::/docker/g{C}\n",
            "0::/docker/x{C}.scope\n",
            // Other job systems, and ids that are not numbers.
            "0::/job_1\n",
            "0::/jobs/job_1\n",
            "0::/jobs/uid_1/job_1\n",
            "0::/slurm/uid_1/job_\n",
            "0::/slurm/uid_1/job_-1\n",
            "0::/slurm/uid_1/job_99999999999\n",
            "0::/kubepods/burstable/pod\n",
            "0::/kubepods/burstable/podnone\n",
            "0::/kubepods/burstable/tripod{P}\n",
            // Not lines of the kernel.
            "{C}",
            "docker:{C}",
        ] {
            assert_eq!(names_in(sample), ["-", "-", "-"], "{sample}");
        }
        assert_eq!(Cgroup::parse("::\n\n:::\n"), Cgroup::default());
    }
}
