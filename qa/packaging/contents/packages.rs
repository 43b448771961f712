// SPDX-License-Identifier: GPL-2.0-or-later

//! Contents, dependencies and scripts of the Debian and RPM packages, made by the real tools.

use crate::support::{Home, PMDANIXL, golden, note_left_out, output, project, run, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// Address of the repository, from Cargo.toml.
const ADDRESS: &str = env!("CARGO_PKG_REPOSITORY");

#[test]
fn package_for_another_architecture_is_rejected() {
    // This machine and another supported one, by their names in compilers; the other one also by its name in Debian.
    let (here, other, debian) = match std::env::consts::ARCH {
        "aarch64" => ("aarch64", "x86_64", "amd64"),
        here => (here, "aarch64", "arm64"),
    };
    let home = Home::new();
    let copy = sources(&home, "pmdanixl");
    // The real script. It must fail before it builds anything.
    let script = "scripts/build-package";
    fs::copy(project(script), copy.join(script)).expect("there");
    let fails = |build: &mut Command| {
        let said = output(build.current_dir(&copy));
        let text = text(&said);
        for part in [&format!("for {other}"), &format!("builds for {here}")] {
            assert!(!said.status.success() && text.contains(part), "{text}");
        }
        assert!(!copy.join("target").exists(), "{text}");
    };
    fails(Command::new(script).env("MACHINE", other));
    if has("dpkg-architecture") {
        let mut build = Command::new("dpkg-architecture");
        build.args(["--host-arch", debian, "--force", "--command"]);
        fails(build.arg("debian/rules override_dh_auto_build"));
    }
    if has("rpmspec") {
        for machine in [here, other] {
            let mut parse = Command::new("rpmspec");
            parse.args(["--target", machine, "--parse"]);
            let spec = run(parse.arg(project("rpm/pmdanixl.spec")));
            let build = format!("\nMACHINE={machine} scripts/build-package\n");
            assert!(spec.contains(&build), "{spec}");
        }
    }
}

/// Copies the files of the project, with a build that only copies our program.
fn sources(home: &Home, name: &str) -> PathBuf {
    let copy = home.path(name);
    fs::create_dir(&copy).expect("made");
    for entry in fs::read_dir(project(".")).expect("there") {
        let entry = entry.expect("there");
        let name = entry.file_name();
        if !["target", ".git", "vendor", "docs"].contains(&name.to_str().expect("UTF-8")) {
            run(Command::new("cp").arg("-a").arg(entry.path()).arg(&copy));
        }
    }
    // docs/ has many pictures and archives.
    fs::create_dir(copy.join("docs")).expect("made");
    fs::copy(project("docs/packages.md"), copy.join("docs/packages.md")).expect("there");
    let build = format!(
        "#!/bin/sh\nset -e\nmkdir -p target/package/release\ncp {PMDANIXL} target/package/release/pmdanixl\n\
         echo licences >target/package/LICENSES.crates\n"
    );
    let script = copy.join("scripts/build-package");
    fs::write(&script, build).expect("written");
    fs::set_permissions(script, PermissionsExt::from_mode(0o755)).expect("ours");
    copy
}

/// True if a command that the test needs is installed.
fn has(command: &str) -> bool {
    let found = output(Command::new("sh").args(["-c", &format!("command -v {command}")]));
    if !found.status.success() {
        note_left_out(&format!("{command} is not installed"));
    }
    found.status.success()
}

/// Parts of a package that are equal on every host that builds a version.
fn steady(text: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let lines = text.lines().filter(|line| {
        // Without the versions of the C library and the compiler, and names that depend on the bytes of the program.
        ![
            "libc.so.6",
            "libgcc_s",
            "libm.so.6",
            "ld-linux",
            ".build-id",
        ]
        .iter()
        .any(|of_host| line.contains(of_host))
    });
    let mut text: String = lines.flat_map(|line| [line, "\n"]).collect();
    for machine in ["(x86-64)", "(aarch-64)"] {
        text = text.replace(machine, "(MACHINE)");
    }
    text.replace(version, "VERSION")
}

#[test]
fn program_needs_only_libpcp_pmda_and_the_c_library() {
    let dynamic = run(Command::new("readelf").args(["-d", PMDANIXL]));
    let needed = dynamic.lines().filter_map(|line| {
        let (_, library) = line.split_once("(NEEDED)")?.1.split_once('[')?;
        library.strip_suffix(']')
    });
    let mut others: Vec<&str> = needed
        .filter(|name| !name.starts_with("ld-linux"))
        .collect();
    others.sort_unstable();
    // The unwinder is a part of the compiler, in a separate package in each distribution.
    others.retain(|name| !["libm.so.6", "libgcc_s.so.1"].contains(name));
    assert_eq!(others, ["libc.so.6", "libpcp_pmda.so.3"]);
}

#[test]
fn debian_package_has_files_scripts_and_dependencies() {
    if !has("dh") || !has("dpkg-deb") {
        return;
    }
    let home = Home::new();
    let copy = sources(&home, "pmdanixl");
    let made = output(
        Command::new("scripts/deb")
            .current_dir(&copy)
            .env("DEB_BUILD_OPTIONS", "noautodbgsym"),
    );
    let progress = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{progress}");
    assert!(progress.contains("override_dh_auto_build"), "{progress}");
    let package = String::from_utf8(made.stdout).expect("UTF-8");
    let package = copy.join(package.strip_suffix('\n').expect("a line"));
    let ask = |what: &str| run(Command::new("dpkg-deb").arg(what).arg(&package));
    let listed = ask("--contents");
    let mut contents: Vec<String> = listed
        .lines()
        .map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let mode = fields.next().expect("a mode");
            format!("{mode} {}", fields.skip(4).collect::<Vec<_>>().join(" "))
        })
        .collect();
    contents.sort_unstable_by(|a, b| a[11..].cmp(&b[11..]));
    golden("deb.contents", &(contents.join("\n") + "\n"));
    let control = ask("--info");
    let field = |name: &str| {
        let line = control
            .lines()
            .find_map(|line| line.trim().strip_prefix(name));
        line.unwrap_or_default().trim().to_owned()
    };
    let depends = field("Depends:");
    let depends: Vec<&str> = depends
        .split(", ")
        .map(|one| one.split_once(" (").map_or(one, |(name, _)| name))
        .filter(|name| !name.starts_with("libgcc"))
        .collect();
    assert_eq!(depends, ["pcp", "libc6", "libpcp-pmda3"], "{control}");
    assert_eq!(field("Package:"), "pmdanixl");
    assert_eq!(field("Homepage:"), ADDRESS);
    let unpacked = home.path("control");
    run(Command::new("dpkg-deb")
        .arg("--control")
        .arg(&package)
        .arg(&unpacked));
    let of_control = |name: &str| fs::read_to_string(unpacked.join(name)).expect(name);
    golden("deb.conffiles", &of_control("conffiles"));
    for script in ["preinst", "postinst", "prerm", "postrm"] {
        run(Command::new("sh").arg("-n").arg(unpacked.join(script)));
        assert!(!of_control(script).contains("#DEBHELPER#"), "{script}");
    }
}

#[test]
fn rpm_packages_have_files_scripts_and_dependencies() {
    if !["rpmbuild", "checkmodule", "semodule_package", "bzip2"]
        .iter()
        .all(|one| has(one))
    {
        return;
    }
    let home = Home::new();
    let spec = fs::read_to_string(project("rpm/pmdanixl.spec")).expect("there");
    let version = spec.lines().find_map(|line| line.strip_prefix("Version:"));
    let name = format!("pmdanixl-{}", version.expect("a version").trim());
    sources(&home, &name);
    let tarball = home.path(&format!("{name}.tar.xz"));
    run(Command::new("tar")
        .args(["-C".as_ref(), home.path(".").as_os_str()])
        .args(["-I", "xz -0", "-cf"])
        .arg(&tarball)
        .arg(&name));
    let top = home.path("rpmbuild");
    run(Command::new("rpmbuild")
        .args(["-bb", "--with", "selinux", "--define"])
        .arg(format!("_topdir {}", top.display()))
        .arg("--define")
        .arg(format!("_sourcedir {}", home.path(".").display()))
        .args(["--define", "_licensedir %{_datadir}/licenses"])
        .args(["--define", "_docdir %{_datadir}/doc"])
        .args(["--define", &format!("repository {ADDRESS}")])
        .arg(project("rpm/pmdanixl.spec")));
    let machine = std::env::consts::ARCH;
    let packages = [
        ("rpm", format!("{machine}/{name}-1.{machine}.rpm")),
        (
            "rpm-selinux",
            format!("noarch/{name}-1.noarch.rpm").replacen("pmdanixl-", "pmdanixl-selinux-", 1),
        ),
    ];
    for (short, file) in packages {
        let file = top.join("RPMS").join(file);
        let ask = |what: &[&str]| run(Command::new("rpm").arg("-qp").args(what).arg(&file));
        let contents = ask(&[
            "--qf",
            "[%{FILEMODES:perms} %{FILEFLAGS:fflags} %{FILENAMES}\n]",
        ]);
        golden(&format!("{short}.contents"), &steady(&contents));
        assert_eq!(ask(&["--qf", "%{URL}"]), ADDRESS);
        let wants = ["--requires", "--recommends", "--provides", "--obsoletes"]
            .map(|what| format!("{what}\n{}", steady(&ask(&[what]))));
        golden(&format!("{short}.wants"), &wants.concat());
        let scripts = ask(&[
            "--qf",
            "%{PREIN}\n%{POSTIN}\n%{PREUN}\n%{POSTUN}\n%{POSTTRANS}\n",
        ]);
        let script = home.path(short);
        fs::write(&script, scripts.replace("(none)", "")).expect("written");
        run(Command::new("sh").arg("-n").arg(script));
    }
}

#[test]
fn spec_is_valid_for_each_distribution() {
    if !has("rpmspec") {
        return;
    }
    for (distribution, version, has_module) in [
        ("fedora", "42", true),
        ("rhel", "9", true),
        ("rhel", "10", true),
        ("suse_version", "1600", false),
    ] {
        let ask = |what: &[&str]| {
            run(Command::new("rpmspec")
                .arg("-q")
                .args(what)
                .args(["--define", &format!("{distribution} {version}")])
                .arg(project("rpm/pmdanixl.spec")))
        };
        let packages = ask(&["--qf", "%{NAME}\n"]);
        assert_eq!(
            packages.contains("pmdanixl-selinux"),
            has_module,
            "{packages}"
        );
        let needs = ask(&["--buildrequires"]);
        let library = if distribution == "suse_version" {
            "libpcp-devel"
        } else {
            "pcp-libs-devel"
        };
        for need in ["cargo >= 1.85", "clang-devel", library] {
            assert!(
                needs.lines().any(|line| line == need),
                "{distribution}: {needs}"
            );
        }
        assert_eq!(needs.contains("checkmodule"), has_module, "{needs}");
    }
}
