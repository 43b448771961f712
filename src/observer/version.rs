// SPDX-License-Identifier: GPL-2.0-or-later

//! Version of NIXL that a process has loaded: that of the Python package with its libnixl.

use crate::base::file::LIST_FLAGS;
use crate::procfs::process_dir::ProcessDir;
use nix::dir::Dir;
use nix::fcntl::{OpenHow, ResolveFlag, openat2};
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

/// Limit of names that are read from a directory of Python packages. Thousands are usual.
const MAX_NAMES: usize = 1 << 14;
/// Limit of a version, in bytes.
const MAX_VERSION_LEN: usize = 32;

/// Returns the version of the package that has a library of a process. `None`: no package beside it has one, several
/// versions are beside it, or the files of the process cannot be read.
///
/// A wheel has libnixl in `site-packages/.nixl_cu12.mesonpy.libs` or `site-packages/nixl_cu12.libs`. Its version is in
/// the name `site-packages/nixl_cu12-1.5.1.dist-info`. `pip install --target` has any directory in place of
/// `site-packages`.
#[must_use]
pub fn of_library(process: &ProcessDir, library: &Path) -> Option<String> {
    let is_plain = |part: &Component| matches!(part, Component::RootDir | Component::Normal(_));
    library
        .components()
        .all(|part| is_plain(&part))
        .then_some(())?;
    below(process.root().ok()?, library)
}

/// Returns the version of the package that has a library below a root directory.
fn below(root: OwnedFd, library: &Path) -> Option<String> {
    let (packages, package) = package(library)?;
    let start = format!("{package}-");
    // The path of a mapped file has no links. A link that the process has put there since could lead anywhere.
    let how = OpenHow::new()
        .flags(LIST_FLAGS)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    let packages = openat2(root, packages.strip_prefix("/").ok()?, how).ok()?;
    let mut directory = Dir::from_fd(packages).ok()?;
    let mut found = None;
    for entry in directory.iter().take(MAX_NAMES).flatten() {
        let name = entry.file_name().to_str().unwrap_or_default();
        let version = name.strip_prefix(&start);
        let version = version.and_then(|rest| rest.strip_suffix(".dist-info"));
        let Some(version) = version.filter(|version| is_version(version)) else {
            continue;
        };
        // `pip install --target` leaves the version before in place.
        if found.as_ref().is_some_and(|other| other != version) {
            return None;
        }
        found = Some(version.to_owned());
    }
    found
}

/// Returns the directory of Python packages that a library is in, and the name of its package.
fn package(library: &Path) -> Option<(&Path, &str)> {
    let directories = library.parent()?.ancestors();
    let directories =
        directories.filter_map(|path| Some((path.file_name()?.to_str()?, path.parent()?)));
    let directories = Vec::from_iter(directories);
    let is_packages =
        |path: &Path| path.ends_with("site-packages") || path.ends_with("dist-packages");
    let is_named = |name: &str| name.trim_start_matches('.').starts_with("nixl");
    // The nearest one first: a directory above may have the name of NIXL as well.
    let find = |is_right: &dyn Fn(&str, &Path) -> bool| {
        let mut all = directories.iter();
        all.find(|(name, above)| is_right(name, above))
    };
    let (name, packages) = find(&|_, above| is_packages(above))
        .or_else(|| find(&|name, _| is_named(name) && name.ends_with(".libs")))
        .or_else(|| find(&|name, _| is_named(name)))?;
    let package = name.trim_start_matches('.').split('.').next()?;
    Some((packages, package))
}

/// True if a text is a version of a Python package, such as `1.5.1`, `1.6.0rc1` or `0.10.1+cu13`.
fn is_version(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+');
    text.len() <= MAX_VERSION_LEN
        && text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn version_is_in_the_name_of_the_python_package() {
        let dir = tempfile::tempdir().expect("a directory");
        let packages = dir.path().join("lib/python3.12/site-packages");
        for name in [
            "nixl_cu12-1.5.1.dist-info",
            "nixl_cu13-1.3.2rc1.dist-info",
            "nixl_cu14-x.dist-info",
            "nixl-0.10.1.dist-info",
        ] {
            fs::create_dir_all(packages.join(name)).expect("made");
        }
        let root = || File::open(dir.path()).expect("made").into();
        let own = ProcessDir::open(std::process::id()).expect("it runs");
        for (library, expected) in [
            (".nixl_cu12.mesonpy.libs/libnixl.so", Some("1.5.1")),
            ("nixl_cu12.libs/libnixl-4f1c.so", Some("1.5.1")),
            (".nixl_cu13.mesonpy.libs/libnixl.so", Some("1.3.2rc1")),
            (".nixl_cu14.mesonpy.libs/libnixl.so", None),
            (".nixl_cu1.mesonpy.libs/libnixl.so", None),
        ] {
            let library = Path::new("/lib/python3.12/site-packages").join(library);
            assert_eq!(below(root(), &library).as_deref(), expected, "{library:?}");
        }
        for library in ["/lib/libnixl.so", "/none/site-packages/nixl/libnixl.so"] {
            assert_eq!(below(root(), Path::new(library)), None, "{library}");
        }
        assert_eq!(
            of_library(&own, Path::new("/a/../site-packages/nixl/libnixl.so")),
            None
        );
    }

    #[test]
    fn version_outside_of_site_packages_is_found() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in [
            "srv/nixl/nixl_cu12-1.5.1.dist-info",
            "srv/nixl-9.9.dist-info",
            "two/nixl_cu12-1.4.1.dist-info",
            "two/nixl_cu12-1.5.1.dist-info",
            "own/nixl-1.6.0rc1.dist-info",
            "opt/other-1.0.dist-info",
            "odd/nixl_cu12-$(id).dist-info",
        ] {
            fs::create_dir_all(dir.path().join(name)).expect("made");
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("srv/nixl", link).expect("made");
        for (library, expected) in [
            (
                "/srv/nixl/.nixl_cu12.mesonpy.libs/libnixl.so",
                Some("1.5.1"),
            ),
            ("/srv/nixl/nixl_cu12.libs/nixl/libnixl.so", Some("1.5.1")),
            (
                "/own/.nixl.mesonpy.libs/libnixl.so (deleted)",
                Some("1.6.0rc1"),
            ),
            ("/own/nixl/libnixl.so", Some("1.6.0rc1")),
            ("/two/.nixl_cu12.mesonpy.libs/libnixl.so", None),
            ("/link/.nixl_cu12.mesonpy.libs/libnixl.so", None),
            ("/odd/.nixl_cu12.mesonpy.libs/libnixl.so", None),
            ("/opt/other/libnixl.so", None),
            ("/nixl/libnixl.so", None),
            ("/libnixl.so", None),
        ] {
            let root = File::open(dir.path()).expect("made").into();
            let found = below(root, Path::new(library));
            assert_eq!(found.as_deref(), expected, "{library}");
        }
    }
}
