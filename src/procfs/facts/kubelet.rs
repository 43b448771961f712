// SPDX-License-Identifier: GPL-2.0-or-later

//! Pod that a directory belongs to, from the paths of the kubelet's volumes.
//!
//! The kubelet (`pkg/kubelet/kubelet_getters.go`) has `pods/UID/volumes/PLUGIN/NAME` and
//! `pods/UID/volume-subpaths/NAME/CONTAINER/N` below its root directory, `/var/lib/kubelet` by default. Some
//! distributions have another one (`/var/snap/microk8s/common/var/lib/kubelet`, `/var/lib/k0s/kubelet`), and a
//! container that monitors the host has it below a mount. So only the last name of the root directory counts.

use std::ffi::OsStr;
use std::path::Path;

/// Positions of the dashes in a UUID.
const DASHES: [usize; 4] = [8, 13, 18, 23];

/// Returns the UID of the pod that has a directory as a volume, or in a volume. The outermost pod counts, because a
/// container chooses the names below its volume.
#[must_use]
pub fn pod_uid(directory: &Path) -> Option<String> {
    let names: Vec<&str> = directory.iter().filter_map(OsStr::to_str).collect();
    names.windows(4).find_map(|names| match names {
        ["kubelet", "pods", uid, "volumes" | "volume-subpaths"] => self::uid(uid),
        _ => None,
    })
}

/// Returns the text if it has the form of a pod's UID: a UUID, or the 32 hexadecimal digits of a static pod, which
/// comes from a file on the node.
#[must_use]
pub fn uid(text: &str) -> Option<String> {
    let is_dash = |at| text.len() == 36 && DASHES.contains(&at);
    let mut bytes = text.bytes().enumerate();
    let is_uid = bytes.all(|(at, byte)| match byte {
        b'-' => is_dash(at),
        b'0'..=b'9' | b'a'..=b'f' => !is_dash(at),
        _ => false,
    });
    (is_uid && matches!(text.len(), 32 | 36)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";

    #[test]
    fn directory_of_a_volume_gives_its_pod() {
        for directory in [
            "/var/lib/kubelet/pods/UID/volumes/kubernetes.io~empty-dir/nixl-telemetry",
            "/var/lib/kubelet/pods/UID/volumes/kubernetes.io~empty-dir/shm/nixl/a",
            "/var/lib/kubelet/pods/UID/volume-subpaths/shm/engine/0",
            "/var/snap/microk8s/common/var/lib/kubelet/pods/UID/volumes/kubernetes.io~empty-dir/t",
            "/host/var/lib/k0s/kubelet/pods/UID/volumes/kubernetes.io~empty-dir/t",
        ] {
            let directory = directory.replace("UID", UID);
            assert_eq!(pod_uid(Path::new(&directory)).as_deref(), Some(UID));
        }
        let from_a_file = "/var/lib/kubelet/pods/0123456789abcdef0123456789abcdef/volumes/x/y";
        assert_eq!(
            pod_uid(Path::new(from_a_file)).as_deref(),
            Some("0123456789abcdef0123456789abcdef")
        );
    }

    #[test]
    fn directory_inside_a_volume_does_not_change_the_pod() {
        let other = "00000000-0000-0000-0000-000000000000";
        let directory =
            format!("/var/lib/kubelet/pods/{UID}/volumes/x/y/kubelet/pods/{other}/volumes/x");
        assert_eq!(pod_uid(Path::new(&directory)).as_deref(), Some(UID));
    }

    #[test]
    fn other_directory_has_no_pod() {
        for directory in [
            "/var/tmp".to_owned(),
            String::new(),
            "/".to_owned(),
            format!("/var/lib/kubelet/pods/{UID}"),
            format!("/var/lib/kubelet/pods/{UID}/plugins/x"),
            format!("/srv/pods/{UID}/volumes/x"),
            "/var/lib/kubelet/pods/*/volumes/x".to_owned(),
            format!("/var/lib/kubelet/pods/{UID}0/volumes/x"),
            format!("/var/lib/kubelet/pods/{}/volumes/x", UID.replace('-', "_")),
            format!("/var/lib/kubelet/pods/{}/volumes/x", UID.replace('c', "g")),
        ] {
            assert_eq!(pod_uid(Path::new(&directory)), None, "{directory}");
        }
    }
}
