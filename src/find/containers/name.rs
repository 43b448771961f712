//! What a directory that only a container sees is called: `container:ID/DIR`, which is kept in the state file and goes into hashes
//! of instance names, so that it must outlive the process, and where possible the container.
//!
//! | ID | of | outlives |
//! | --- | --- | --- |
//! | `UID:NAME` | a pod's container, by the name that its specification gives it | restarts of the container |
//! | `UID` | a pod, where the kubelet's mount that tells that name is missing | the same |
//! | 64 hexadecimal digits | a container of docker, podman and the like | restarts of its process, not `docker rm` |
//! | `slurm-JOB` | a Slurm job with directories of its own | the processes of the job |
//! | `UNIT.service` | a service of systemd with directories of its own (PrivateTmp) | restarts of the service |
//! | `mnt-INODE` | any other mount namespace | the processes in it |
//!
//! Two directories at once for which that gives one name are told apart by `+mnt-INODE` behind the ID of the later one, which
//! outlives only the processes in it.

use crate::producer::facts::cgroup::Cgroup;
use crate::producer::facts::kubelet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What such names begin with; paths begin with a slash.
const PREFIX: &str = "container:";
/// Where the kubelet mounts a file of each container's own, `pods/UID/containers/NAME/ID` in its directory.
const MESSAGE: &[u8] = b"/dev/termination-log";
/// The longest name of a container in a pod (a DNS label), in bytes.
const DNS_LABEL: usize = 63;
/// Digits of a container's id that tell it apart among those of a host, as docker and podman show it.
const SHORT: usize = 12;

/// Which container it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Id {
    text: String,
    /// What stands behind an agent's name where another has that, too; `None`: nothing that a person would know.
    pub label: Option<String>,
}

impl Id {
    /// From the process's control groups, its mounts (`/proc/PID/mountinfo`) and the number of its mount namespace.
    #[must_use]
    pub fn of(cgroup: &Cgroup, mountinfo: &[u8], mnt: u64) -> Self {
        let in_pod = of_pod(mountinfo, cgroup.pod_uid.as_deref());
        let uid = in_pod
            .as_ref()
            .map(|(uid, _)| uid)
            .or(cgroup.pod_uid.as_ref());
        if let Some(uid) = uid {
            let name = in_pod.as_ref().map(|(_, name)| format!(":{name}"));
            return Self {
                text: format!("{uid}{}", name.unwrap_or_default()),
                label: Some(uid.clone()),
            };
        }
        if let Some(id) = &cgroup.container_id {
            return Self {
                text: id.clone(),
                label: id.get(..SHORT).map(str::to_owned),
            };
        }
        let job = cgroup.slurm_job_id.as_ref();
        let known = job
            .map(|job| format!("slurm-{job}"))
            .or(cgroup.service.clone());
        Self {
            text: known.clone().unwrap_or_else(|| format!("mnt-{mnt}")),
            label: known,
        }
    }

    /// Names for one of its directories, the best first, without end.
    pub fn names(&self, mnt: u64, directory: &Path) -> impl Iterator<Item = PathBuf> {
        let (id, directory) = (self.text.clone(), directory.as_os_str().to_owned());
        let more = (0_u32..).map(move |number| match number {
            0 => String::new(),
            1 => format!("+mnt-{mnt}"),
            _ => format!("+mnt-{mnt}.{number}"),
        });
        more.map(move |more| {
            let mut name = OsString::from(format!("{PREFIX}{id}{more}"));
            name.push(&directory);
            PathBuf::from(name)
        })
    }
}

/// The UID of its pod and its name there, as the kubelet's mount says, which no container can make: the root of a mount is what of
/// its file system was mounted.
fn of_pod(mountinfo: &[u8], uid: Option<&str>) -> Option<(String, String)> {
    mountinfo.split(|&byte| byte == b'\n').find_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let names: Vec<&[u8]> = root.split(|&byte| byte == b'/').collect();
        let (pod, name) = names.windows(5).find_map(|names| match names {
            [b"pods", pod, b"containers", name, _] => Some((kubelet::uid(pod)?, *name)),
            _ => None,
        })?;
        let is_known = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let is_name = !name.is_empty() && name.len() <= DNS_LABEL && name.iter().all(is_known);
        let is_its = uid.map_or(point == MESSAGE, |uid| uid == pod);
        (is_name && is_its).then(|| (pod, String::from_utf8_lossy(name).into_owned()))
    })
}

/// The ID of the container that a directory is in, if it is in one.
#[must_use]
pub fn container(directory: &Path) -> Option<&str> {
    let first = directory.iter().next()?.to_str()?;
    first.strip_prefix(PREFIX)
}

/// Whether /proc/PID/maps would show a path so: that of a container as the container sees it.
#[must_use]
pub fn is_seen_as(path: &Path, seen: &str) -> bool {
    let bytes = path.as_os_str().as_bytes();
    if bytes == seen.as_bytes() {
        return true;
    }
    let below = bytes.iter().position(|&byte| byte == b'/');
    let inside = below.and_then(|at| bytes.get(at..));
    container(path).is_some() && inside == Some(seen.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "2c48913c-b29f-11e7-9350-020968147796";
    const OTHER: &str = "00000000-0000-0000-0000-000000000000";

    /// The first two names of /tmp/nixl, and the label.
    fn names(cgroup: &str, mountinfo: &str) -> (String, String, Option<String>) {
        let id = Id::of(&Cgroup::parse(cgroup.as_bytes()), mountinfo.as_bytes(), 77);
        let mut names = id.names(77, Path::new("/tmp/nixl"));
        let mut next = || names.next().expect("no end").display().to_string();
        (next(), next(), id.label.clone())
    }

    #[test]
    fn the_name_is_of_what_lasts_longest() {
        let container = "9".repeat(64);
        let in_pod = format!("0::/kubepods/burstable/pod{POD}/{container}\n");
        let mount = format!(
            "612 590 0:31 / /dev rw - tmpfs tmpfs rw\n\
             613 612 8:1 /var/lib/kubelet/pods/{POD}/containers/engine/4f0a /dev/termination-log rw - ext4 /dev/sda1 rw\n"
        );
        for (cgroup, mountinfo, id, label) in [
            (
                in_pod.as_str(),
                mount.as_str(),
                format!("{POD}:engine"),
                Some(POD),
            ),
            // The control group is hidden from us; the kubelet's file system is one of its own.
            (
                "0::/\n",
                &mount.replace("/var/lib/kubelet", ""),
                format!("{POD}:engine"),
                Some(POD),
            ),
            (&in_pod, "", POD.to_owned(), Some(POD)),
            (
                &format!("0::/docker/{container}\n"),
                "",
                container.clone(),
                Some("999999999999"),
            ),
            (
                "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n",
                "",
                "slurm-4711".into(),
                Some("slurm-4711"),
            ),
            (
                "0::/system.slice/vllm.service\n",
                "",
                "vllm.service".into(),
                Some("vllm.service"),
            ),
            ("0::/\n", "", "mnt-77".into(), None),
            ("", "", "mnt-77".into(), None),
        ] {
            let expected = (
                format!("container:{id}/tmp/nixl"),
                format!("container:{id}+mnt-77/tmp/nixl"),
                label.map(str::to_owned),
            );
            assert_eq!(names(cgroup, mountinfo), expected, "{cgroup}");
        }
    }

    #[test]
    fn a_mount_of_another_pod_or_place_names_no_container() {
        let in_pod = format!("0::/kubepods/burstable/pod{POD}\n");
        for (cgroup, root, point) in [
            (
                in_pod.as_str(),
                format!("/pods/{OTHER}/containers/a/1"),
                "/dev/termination-log",
            ),
            ("0::/\n", format!("/pods/{OTHER}/containers/a/1"), "/data"),
            (
                &in_pod,
                format!("/pods/{POD}/containers/A b/1"),
                "/dev/termination-log",
            ),
            (
                &in_pod,
                format!("/pods/{POD}/containers//1"),
                "/dev/termination-log",
            ),
            (
                &in_pod,
                format!("/pods/{POD}/containers/{}/1", "a".repeat(64)),
                "/x",
            ),
            (&in_pod, format!("/pods/{POD}/volumes/a/1"), "/x"),
        ] {
            let line = format!("613 612 8:1 {root} {point} rw - ext4 /dev/sda1 rw\n");
            let (name, ..) = names(cgroup, &line);
            let id = if cgroup == in_pod { POD } else { "mnt-77" };
            assert_eq!(name, format!("container:{id}/tmp/nixl"), "{line}");
        }
        for rubbish in ["", "\n\n", "1 2 3", "1 2 3 /pods/x/containers/a/b", "\u{0}"] {
            assert!(
                names(&in_pod, rubbish)
                    .0
                    .starts_with(&format!("container:{POD}/"))
            );
        }
    }

    #[test]
    fn a_file_is_known_by_the_path_that_its_container_sees() {
        let file = Path::new("container:mnt-77/tmp/nixl/agent");
        assert!(is_seen_as(file, "/tmp/nixl/agent") && is_seen_as(Path::new("/a/b"), "/a/b"));
        for other in [
            "/nixl/agent",
            "tmp/nixl/agent",
            "",
            "/tmp/nixl/agent (deleted)",
        ] {
            assert!(!is_seen_as(file, other), "{other}");
        }
        assert!(!is_seen_as(Path::new("/x/a/b"), "/a/b"));
        assert_eq!(container(file), Some("mnt-77"));
        for path in ["/container:x/y", "/var/tmp", ""] {
            assert_eq!(container(Path::new(path)), None);
        }
    }
}
