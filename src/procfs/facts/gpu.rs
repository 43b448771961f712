// SPDX-License-Identifier: GPL-2.0-or-later

//! GPUs of a process: from CUDA_VISIBLE_DEVICES, or else from its open device files.

use crate::procfs::process_dir::ProcessDir;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;

/// Limit of a list, in bytes: eight GPUs by UUID.
pub const MAX_LIST: usize = 8 * 41;
/// Limit of descriptors that are read. A process opens its GPUs early, so they are among the first.
const MAX_DESCRIPTORS: usize = 1 << 14;
/// Prefix of the device files of GPUs, such as `/dev/nvidia0`. Other device files continue with a letter or a hyphen.
const DEVICE: &str = "/dev/nvidia";

/// Returns a value of CUDA_VISIBLE_DEVICES, if all its parts are valid: numbers, or UUIDs of GPUs (`GPU-...`) or of
/// parts of them (`MIG-...`), or prefixes of UUIDs. CUDA ignores an invalid part and all parts behind it.
#[must_use]
pub fn of_list(list: &str) -> Option<String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'/');
    let is_gpu = |part: &str| {
        let uuid = part.strip_prefix("GPU-").or(part.strip_prefix("MIG-"));
        let is_uuid = uuid.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(is_part));
        is_uuid || number(part).is_some()
    };
    (list.len() <= MAX_LIST && list.split(',').all(is_gpu)).then(|| list.to_owned())
}

/// Returns the labels of a valid list: `gpu` and `uuid` of a single GPU as PCP's PMDA nvidia has them, else `gpus` and
/// `uuids` with commas. The number of a GPU that was given by UUID is not known.
#[must_use]
pub fn labels(list: &str) -> Vec<(&'static str, Value)> {
    let (uuids, numbers): (Vec<_>, Vec<_>) = list.split(',').partition(|gpu| number(gpu).is_none());
    match (&*numbers, &*uuids) {
        ([], [uuid]) => vec![("uuid", (*uuid).into())],
        ([gpu], []) => vec![("gpu", number(gpu).into())],
        _ => [("gpus", numbers), ("uuids", uuids)]
            .into_iter()
            .filter(|(_, gpus)| !gpus.is_empty())
            .map(|(name, gpus)| (name, gpus.join(",").into()))
            .collect(),
    }
}

/// Returns the number of a GPU, if it is given by number.
fn number(gpu: &str) -> Option<u8> {
    gpu.parse().ok()
}

/// Returns the GPUs that a process has open, in rising order; `None` if it has none or its descriptors may not be read.
#[must_use]
pub fn of_open_files(process: &ProcessDir) -> Option<String> {
    let files = process.descriptors(MAX_DESCRIPTORS).ok()?;
    let targets = files.targets().flatten();
    let numbers: BTreeSet<u8> = targets.filter_map(|(_, file)| device(&file)).collect();
    let numbers = Vec::from_iter(numbers.iter().map(u8::to_string));
    of_list(&numbers.join(","))
}

/// Returns the number of the GPU that has this device file.
fn device(path: &OsStr) -> Option<u8> {
    path.to_str()?.strip_prefix(DEVICE)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn gpu_list_of_numbers_or_uuids_is_unchanged() {
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
            assert_eq!(of_list(list).as_deref(), Some(list));
        }
    }

    #[test]
    fn invalid_gpu_list_is_ignored() {
        let long = ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"; 9].join(",");
        for list in [
            "",
            "-1",
            "0,-1",
            "0,",
            ",0",
            "0, 1",
            "256",
            "NoDevFiles",
            "GPU-",
            "gpu-1",
            "0,1\n",
            "GPU-a\"b",
            &long,
        ] {
            assert_eq!(of_list(list), None, "{list:?}");
        }
    }

    #[test]
    fn single_gpu_is_a_number_and_several_are_a_list() {
        for (list, expected) in [
            ("0", json!({ "gpu": 0 })),
            ("13", json!({ "gpu": 13 })),
            ("3,0", json!({ "gpus": "3,0" })),
            ("GPU-8932f937", json!({ "uuid": "GPU-8932f937" })),
            ("MIG-1b2c", json!({ "uuid": "MIG-1b2c" })),
            ("GPU-8,GPU-9", json!({ "uuids": "GPU-8,GPU-9" })),
            (
                "1,GPU-8,0,GPU-9",
                json!({ "gpus": "1,0", "uuids": "GPU-8,GPU-9" }),
            ),
            ("1,GPU-8", json!({ "gpus": "1", "uuids": "GPU-8" })),
        ] {
            assert_eq!(of_list(list).as_deref(), Some(list));
            let named = labels(list).into_iter();
            let made: Value = named.map(|(name, gpu)| (name.to_owned(), gpu)).collect();
            assert_eq!(made, expected, "{list}");
        }
    }

    #[test]
    fn device_file_of_a_gpu_gives_its_number() {
        assert_eq!(device(OsStr::new("/dev/nvidia0")), Some(0));
        assert_eq!(device(OsStr::new("/dev/nvidia13")), Some(13));
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
            assert_eq!(device(OsStr::new(other)), None, "{other}");
        }
    }

    #[test]
    fn process_without_open_gpu_device_has_none() {
        let own = ProcessDir::open(std::process::id()).expect("it runs");
        assert_eq!(of_open_files(&own), None);
    }
}
