//! Release of NIXL that a process has loaded. It is the release of the Python package with its libnixl.

use std::fs;
use std::path::Path;

/// Names that are read from a directory of Python packages. Thousands are usual.
const MAX_NAMES: usize = 1 << 16;

/// Returns major and minor number of the release that a libnixl belongs to. `None`: no package beside it has a release.
///
/// A wheel has libnixl in `site-packages/.nixl_cu12.mesonpy.libs` or `site-packages/nixl_cu12.libs`. Its release is in
/// the name `site-packages/nixl_cu12-1.5.1.dist-info`.
#[must_use]
pub fn of_library(library: &Path) -> Option<(u32, u32)> {
    let mut above = library.ancestors();
    let packages =
        above.find(|dir| dir.ends_with("site-packages") || dir.ends_with("dist-packages"))?;
    let directory = library.strip_prefix(packages).ok()?.iter().next()?;
    let package = directory
        .to_str()?
        .trim_start_matches('.')
        .split('.')
        .next()?;
    let start = format!("{package}-");
    let mut names = fs::read_dir(packages).ok()?.take(MAX_NAMES).flatten();
    names.find_map(|entry| {
        let name = entry.file_name();
        let version = name.to_str()?.strip_prefix(&start)?;
        let mut numbers = version.strip_suffix(".dist-info")?.split('.');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_is_read_from_the_python_package() {
        let dir = tempfile::tempdir().expect("a directory");
        let packages = dir.path().join("lib/python3.12/site-packages");
        for name in [
            "nixl_cu12-1.5.1.dist-info",
            "nixl_cu13-1.3.2.dist-info",
            "nixl_cu14-2.dist-info",
            "nixl-0.10.1.dist-info",
        ] {
            fs::create_dir_all(packages.join(name)).expect("made");
        }
        for (library, expected) in [
            (".nixl_cu12.mesonpy.libs/libnixl.so", Some((1, 5))),
            ("nixl_cu12.libs/libnixl-4f1c.so", Some((1, 5))),
            (".nixl_cu13.mesonpy.libs/libnixl.so", Some((1, 3))),
            (".nixl_cu14.mesonpy.libs/libnixl.so", None),
            (".nixl_cu1.mesonpy.libs/libnixl.so", None),
        ] {
            assert_eq!(of_library(&packages.join(library)), expected, "{library}");
        }
        for library in ["lib/libnixl.so", "none/site-packages/nixl/libnixl.so"] {
            assert_eq!(of_library(&dir.path().join(library)), None, "{library}");
        }
    }
}
