//! Which GPUs a process has: those that it was given, or else those whose device files it has open.

use nix::dir::Dir;
use nix::fcntl::{OFlag, readlinkat};
use nix::sys::stat::Mode;
use std::os::unix::ffi::OsStrExt;

/// The longest list that is taken, in bytes: eight GPUs by their UUIDs.
pub const MAX_LIST: usize = 8 * 41;
/// So many descriptors are looked at: who has more of them open has its devices among the first.
const MAX_FILES: usize = 1 << 14;
/// Device files of GPUs, `/dev/nvidia0` and so on; others begin so and go on with a letter or a hyphen.
const DEVICE: &[u8] = b"/dev/nvidia";
/// A higher number is none that the driver gives.
const MAX_DEVICE: u32 = 255;

/// A value of CUDA_VISIBLE_DEVICES: numbers, or UUIDs of GPUs (`GPU-...`) or of parts of them (`MIG-...`), or their beginnings.
/// Where one of them is none, CUDA sees it and those behind it as absent: such a list is not taken.
#[must_use]
pub fn of_list(value: &[u8]) -> Option<String> {
    let is_number = |part: &str| {
        part.parse().is_ok_and(|number: u32| number <= MAX_DEVICE)
            && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_uuid = |part: &str| {
        let rest = part.strip_prefix("GPU-").or(part.strip_prefix("MIG-"));
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'/');
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(is_part))
    };
    let list = std::str::from_utf8(value)
        .ok()
        .filter(|list| list.len() <= MAX_LIST)?;
    let mut parts = list.split(',');
    parts
        .all(|part| is_number(part) || is_uuid(part))
        .then(|| list.to_owned())
}

/// The GPUs whose device files a process has open, in rising order; `None`: it has none, or that may not be looked at.
#[must_use]
pub fn of_open_files(shown_at: &str) -> Option<String> {
    // Not std's, which panics where a directory cannot be closed.
    let list = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let path = format!("{shown_at}/fd");
    let place = nix::fcntl::open(path.as_str(), list, Mode::empty()).ok()?;
    let mut devices: Vec<u32> = Vec::new();
    let mut files = Dir::openat(&place, ".", list, Mode::empty()).ok()?;
    for file in files.iter().take(MAX_FILES).flatten() {
        // `.` and `..` are no links.
        let link = readlinkat(&place, file.file_name());
        devices.extend(link.ok().and_then(|link| device(link.as_bytes())));
    }
    devices.sort_unstable();
    devices.dedup();
    let devices = devices.iter().map(u32::to_string).collect::<Vec<_>>();
    of_list(devices.join(",").as_bytes())
}

/// The number of a GPU whose device file has this name.
fn device(path: &[u8]) -> Option<u32> {
    let number = super::number(path.strip_prefix(DEVICE)?, MAX_DEVICE.into())?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_numbers_and_uuids_are_taken_as_they_are() {
        let uuids = ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"; 8].join(",");
        for list in [
            "0",
            "3,0",
            "0,1,2,3,4,5,6,7",
            "GPU-8932f937",
            "MIG-GPU-8932f937-d72c/1/0",
            "MIG-1b2c",
            &uuids,
        ] {
            assert_eq!(of_list(list.as_bytes()).as_deref(), Some(list));
        }
    }

    #[test]
    fn what_is_no_list_of_gpus_is_not_taken() {
        let long = ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"; 9].join(",");
        for list in [
            "",
            "-1",
            "0,-1",
            "0,",
            ",0",
            "0, 1",
            "256",
            "+1",
            "NoDevFiles",
            "GPU-",
            "gpu-1",
            "0,1\n",
            "GPU-a\"b",
            &long,
        ] {
            assert_eq!(of_list(list.as_bytes()), None, "{list:?}");
        }
        assert_eq!(of_list(b"0,\xff"), None);
    }

    #[test]
    fn device_files_of_gpus_are_told_from_others_of_the_driver() {
        assert_eq!(device(b"/dev/nvidia0"), Some(0));
        assert_eq!(device(b"/dev/nvidia13"), Some(13));
        for other in [
            "/dev/nvidia",
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia-caps/nvidia-cap1",
            "/dev/nvidia0 (deleted)",
            "/dev/nvidia256",
            "/srv/dev/nvidia0",
            "/dev/null",
        ] {
            assert_eq!(device(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn who_has_no_device_of_a_gpu_open_has_none() {
        assert_eq!(of_open_files("/proc/self"), None);
        assert_eq!(of_open_files("/proc/nobody"), None);
    }
}
