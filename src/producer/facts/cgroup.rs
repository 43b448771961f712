//! The container, the pod and the Slurm job of a process, from the names of its control groups (`/proc/PID/cgroup`, cgroups(7)).
//!
//! Each line is `ID:CONTROLLERS:PATH`: one with `0::` under cgroup v2, one per hierarchy under v1, both where they are mixed. The
//! path is seen from our own cgroup namespace, so that it may begin with `/..`. Who runs containers names their groups:
//!
//! | who | last part of the path |
//! | --- | --- |
//! | docker, podman, containerd, CRI-O with systemd | `docker-ID.scope`, `libpod-ID.scope`, `cri-containerd-ID.scope`, `crio-ID.scope` |
//! | the same without | `docker/ID`, `libpod_parent/libpod-ID`, `kubepods/QOS/podUID/ID`, `kubepods/QOS/podUID/crio-ID` |
//! | containerd, told of systemd but without it | `kubepods-QOS-podUID.slice:cri-containerd:ID` |
//!
//! A container may have groups of its own below (`libpod-ID.scope/container`, `docker-ID.scope/init.scope`).

use super::{kubelet, number};

/// Hexadecimal digits of a container's id.
const ID: usize = 64;
/// The longest name of a unit that is taken, in bytes.
const UNIT: usize = 128;
/// Slurm's job ids have 32 bits.
pub const MAX_JOB: u64 = u32::MAX as u64;

/// What the names of a process's control groups tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroup {
    /// The innermost container that it is in.
    pub container_id: Option<String>,
    /// The innermost pod that it is in.
    pub pod_uid: Option<String>,
    /// The Slurm job that it belongs to.
    pub slurm_job_id: Option<String>,
    /// The innermost of systemd's services that it is in.
    pub service: Option<String>,
}

impl Cgroup {
    /// What stands in `/proc/PID/cgroup`: each fact from the first line that has it, since some hierarchies of v1 hold all
    /// processes in their root.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        let mut found = Self::default();
        for line in text.split(|&byte| byte == b'\n') {
            let Some(path) = line.splitn(3, |&byte| byte == b':').nth(2) else {
                continue;
            };
            // A group that was removed while it had a process.
            let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
            let names: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
            let Self {
                container_id,
                pod_uid,
                slurm_job_id,
                service,
            } = &mut found;
            let inward = || names.iter().rev();
            // Below his own slice a user may call groups what he likes; containers of his own are there as well.
            let of_user = names.iter().position(is_slice_of_user);
            let of_host = &names[..of_user.unwrap_or(names.len())];
            *container_id = container_id.take().or_else(|| inward().find_map(container));
            *pod_uid = pod_uid
                .take()
                .or_else(|| of_host.iter().rev().find_map(pod));
            *slurm_job_id = slurm_job_id.take().or_else(|| slurm_job(of_host));
            *service = service.take().or_else(|| inward().find_map(unit));
        }
        found
    }
}

/// Whether it is the slice that systemd makes for a user who has logged in (`user-UID.slice`).
fn is_slice_of_user(name: &&[u8]) -> bool {
    let uid = name
        .strip_prefix(b"user-")
        .and_then(|name| name.strip_suffix(b".slice"));
    uid.is_some_and(|uid| !uid.is_empty() && uid.iter().all(u8::is_ascii_digit))
}

/// The container whose group this is: its id, alone or behind the runtime's name. The process that looks after a container
/// (`crio-conmon-ID.scope`, `libpod-conmon-ID.scope`) is not in it.
fn container(name: &&[u8]) -> Option<String> {
    let name = name.strip_suffix(b".scope").unwrap_or(name);
    let (runtime, id) = name.split_at_checked(name.len().checked_sub(ID)?)?;
    let is_id = id
        .iter()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_runtime = matches!(runtime, [] | [.., b'-' | b':']) && !runtime.ends_with(b"conmon-");
    (is_id && is_runtime).then(|| String::from_utf8_lossy(id).into_owned())
}

/// The pod whose group this is: `podUID`, or `kubepods-QOS-podUID.slice` with `_` for `-`, since systemd makes levels of those.
/// Where the kubelet itself runs in a container, more stands in front (`kubelet-kubepods-...`).
fn pod(name: &&[u8]) -> Option<String> {
    let slice = name.split(|&byte| byte == b':').next()?;
    let name = slice.strip_suffix(b".slice").unwrap_or(slice);
    // A UID is 32 hexadecimal digits, with dashes or without.
    [36, 32].into_iter().find_map(|len| {
        let (before, uid) = name.split_at_checked(name.len().checked_sub(len)?)?;
        let before = before.strip_suffix(b"pod")?;
        let uid: Vec<u8> = uid
            .iter()
            .map(|&byte| if byte == b'_' { b'-' } else { byte })
            .collect();
        matches!(before, [] | [.., b'-'])
            .then(|| kubelet::uid(&uid))
            .flatten()
    })
}

/// The service whose group this is, by its unit's name (systemd.unit(5)).
fn unit(name: &&[u8]) -> Option<String> {
    let is_known = |byte: &u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(byte);
    let is_unit = name.ends_with(b".service") && name.len() <= UNIT && name.iter().all(is_known);
    is_unit.then(|| String::from_utf8_lossy(name).into_owned())
}

/// The job in `slurm/uid_UID/job_ID/step_N/task_N` (v1) or `slurmstepd.scope/job_ID/step_N/user/task_N` (v2). A node that stands
/// for several has its name behind `slurm_` and in front of `_slurmstepd.scope`.
fn slurm_job(names: &[&[u8]]) -> Option<String> {
    names.iter().enumerate().find_map(|(at, name)| {
        let job = number(name.strip_prefix(b"job_")?, MAX_JOB)?;
        let above = |levels| at.checked_sub(levels).and_then(|at| names.get(at));
        let v2 = above(1)?.ends_with(b"slurmstepd.scope");
        let v1 = above(1)?.starts_with(b"uid_")
            && above(2).is_some_and(|root| root.starts_with(b"slurm"));
        (v1 || v2).then_some(job)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids as in samples that users of each runtime published.
    const CONTAINER: &str = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d";
    const OUTER: &str = "4f797c539e6c745de61a93ca3ff892358ecbcaccd8414d5db545c38428142970";
    const POD: &str = "2c48913c-b29f-11e7-9350-020968147796";

    /// What a file tells in which C stands for the container, O for one around it, P for the pod and S for the pod as systemd
    /// has it; then as found, `-` for nothing.
    fn told(sample: &str) -> [String; 3] {
        let text = sample
            .replace("{C}", CONTAINER)
            .replace("{O}", OUTER)
            .replace("{P}", POD)
            .replace("{S}", &POD.replace('-', "_"));
        let found = Cgroup::parse(text.as_bytes());
        [found.container_id, found.pod_uid, found.slurm_job_id].map(|fact| match fact.as_deref() {
            Some(CONTAINER) => "C".into(),
            Some(OUTER) => "O".into(),
            Some(POD) => "P".into(),
            other => other.unwrap_or("-").into(),
        })
    }

    #[test]
    fn docker_is_known_under_both_cgroup_versions_with_systemd_and_without() {
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
            // Seen from another container.
            "0::/../{C}\n",
            "0::/../../system.slice/docker-{C}.scope (deleted)\n",
        ] {
            assert_eq!(told(sample), ["C", "-", "-"], "{sample}");
        }
    }

    #[test]
    fn containerd_and_its_pod_are_known_in_all_three_forms() {
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
            assert_eq!(told(sample), ["C", "P", "-"], "{sample}");
        }
        assert_eq!(
            told("0::/system.slice/nerdctl-{C}.scope\n"),
            ["C", "-", "-"]
        );
    }

    #[test]
    fn cri_o_is_known_and_what_looks_after_a_container_is_not_in_it() {
        for sample in [
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{S}.slice/crio-{C}.scope\n",
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{S}.slice/crio-{C}.scope/container\n",
            "9:memory:/kubepods/burstable/pod{P}/crio-{C}\n1:name=systemd:/kubepods/burstable/pod{P}/crio-{C}\n",
        ] {
            assert_eq!(told(sample), ["C", "P", "-"], "{sample}");
        }
        for sample in [
            "0::/kubepods.slice/kubepods-pod{S}.slice/crio-conmon-{C}.scope\n",
            "8:pids:/kubepods.slice/kubepods-pod{S}.slice/crio-conmon-{C}.scope\n",
        ] {
            assert_eq!(told(sample), ["-", "P", "-"], "{sample}");
        }
    }

    #[test]
    fn podman_is_known_with_root_and_without() {
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
            assert_eq!(told(sample), ["C", "-", "-"], "{sample}");
        }
        let conmon = "0::/machine.slice/libpod-conmon-{C}.scope\n";
        assert_eq!(told(conmon), ["-", "-", "-"]);
    }

    #[test]
    fn of_a_container_in_a_container_it_is_the_inner_one() {
        for sample in [
            "0::/docker/{O}/docker/{C}\n",
            "0::/system.slice/docker-{O}.scope/docker/{C}\n",
        ] {
            assert_eq!(told(sample), ["C", "-", "-"], "{sample}");
        }
        let kind = "0::/system.slice/docker-{O}.scope/kubelet.slice/kubelet-kubepods.slice/\
                    kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{S}.slice/cri-containerd-{C}.scope\n";
        assert_eq!(told(kind), ["C", "P", "-"]);
        let conmon = "0::/docker/{O}/machine.slice/libpod-conmon-{C}.scope\n";
        assert_eq!(told(conmon), ["O", "-", "-"]);
    }

    #[test]
    fn a_slurm_job_is_known_with_and_without_a_container() {
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
            assert_eq!(told(sample), ["-", "-", "4711"], "{sample}");
        }
        let both = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0/libpod-{C}\n";
        assert_eq!(told(both), ["C", "-", "4711"]);
    }

    #[test]
    fn below_his_own_slice_a_user_names_neither_a_pod_nor_a_job() {
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
            assert_eq!(told(&format!("{own}{sample}\n")), expected, "{sample}");
        }
        let hosts = "0::/kubepods.slice/kubepods-user-x.slice/kubepods-burstable-pod{S}.slice/cri-containerd-{C}.scope\n";
        assert_eq!(told(hosts), ["C", "P", "-"]);
    }

    #[test]
    fn a_service_is_known_by_its_unit() {
        for (sample, service) in [
            ("0::/system.slice/vllm@0.service\n", Some("vllm@0.service")),
            (
                "0::/user.slice/user-1000.slice/user@1000.service/app.slice/a.service/x\n",
                Some("a.service"),
            ),
            ("0::/user.slice/user-1000.slice/session-3.scope\n", None),
            ("0::/system.slice/a b.service\n", None),
        ] {
            let found = Cgroup::parse(sample.as_bytes()).service;
            assert_eq!(found.as_deref(), service, "{sample}");
        }
    }

    #[test]
    fn what_names_nothing_is_nothing() {
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
            // Jobs of others, and what is no number.
            "0::/job_1\n",
            "0::/jobs/job_1\n",
            "0::/jobs/uid_1/job_1\n",
            "0::/slurm/uid_1/job_\n",
            "0::/slurm/uid_1/job_-1\n",
            "0::/slurm/uid_1/job_99999999999\n",
            "0::/kubepods/burstable/pod\n",
            "0::/kubepods/burstable/podnone\n",
            "0::/kubepods/burstable/tripod{P}\n",
            // No lines of the kernel's.
            "{C}",
            "docker:{C}",
        ] {
            assert_eq!(told(sample), ["-", "-", "-"], "{sample}");
        }
        let not_utf8 = b"0::/\xff\xfe/\x80\n::\n\n:::\n";
        assert_eq!(Cgroup::parse(not_utf8), Cgroup::default());
    }
}
