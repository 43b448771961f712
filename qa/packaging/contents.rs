// SPDX-License-Identifier: GPL-2.0-or-later

//! Contents of packages: the place of each file on Debian, Fedora and RHEL, dependencies of the packages, and licences
//! of the crates.
//!
//! The packages are real, made by debhelper and rpmbuild, but contain the program that the other tests run. A new build
//! takes minutes (qa/packages does it).

mod crates;
mod packages;
mod release;

use crate::support::{Home, PMDANIXL, golden, project, run};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Lists every directory, link and file below a directory, with find(1).
fn listing(directory: &Path) -> String {
    let mut find = Command::new("find");
    find.current_dir(directory).args([".", "-type", "d"]);
    find.args(["-printf", "%P/\\n", "-o", "-type", "l"]);
    find.args(["-printf", "%P -> %l\\n", "-o", "-printf", "%P %m\\n"]);
    let found = run(&mut find);
    let mut lines: Vec<&str> = found.lines().collect();
    lines.sort_unstable();
    lines.join("\n") + "\n"
}

/// Directory of the pages of docs/ in an installation.
const PAGES: &str = "usr/share/doc/pmdanixl/docs/";

/// Pages of docs/ that a text names.
fn pages_in(text: &str) -> Vec<String> {
    let text = text.replace("\\-", "-");
    let parts = text.split("docs/").skip(1);
    let pages = parts.filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-')?;
        let is_page = rest[end..].starts_with(".md");
        is_page.then(|| rest[..end].to_owned() + ".md")
    });
    pages.collect()
}

/// Checks that each page that an installed file names is installed.
fn installed_texts_name_installed_pages(root: &Path) {
    let mut count = 0;
    for line in files(root).iter().filter(|line| !line.contains(" -> ")) {
        let (path, _) = line.rsplit_once(' ').expect("a mode");
        let text = fs::read(root.join(path)).expect("readable");
        // Pages of docs/ have links, which another test checks.
        if path.starts_with(PAGES) {
            continue;
        }
        for page in pages_in(&String::from_utf8_lossy(&text)) {
            assert!(root.join(PAGES).join(&page).exists(), "{path}: {page}");
            count += 1;
        }
    }
    assert!(count > 10, "{count} pages are named");
}

/// Checks that FILES of pmdanixl(1) has each installed file, or a directory above it.
fn manual_page_lists_installed_files(root: &Path, agents: &str, commands: &str) {
    let page = fs::read_to_string(project("pmdanixl.1")).expect("there");
    let (_, listed) = page.split_once(".SH FILES\n").expect("a list of files");
    let listed = listed.split(".SH ").next().unwrap_or(listed);
    let listed = listed
        .replace("\\-", "-")
        .replace("$PCP_SYSCONF_DIR", "/etc/pcp")
        .replace("$PCP_PMDASADM_DIR", agents)
        .replace("$PCP_BINADM_DIR", commands)
        .replace("$PCP_SHARE_DIR", "/usr/share/pcp");
    let names = listed.split([' ', ',', '"', '\n']);
    let names = names.filter(|name| !name.is_empty());
    // A name without a directory follows one that has it.
    let names = names.flat_map(|name| match name.strip_prefix('/') {
        Some(name) => vec![name.to_owned()],
        None => vec![format!("etc/pcp/{name}"), format!("etc/pcp/pmchart/{name}")],
    });
    let names: Vec<String> = names.collect();
    for line in files(root) {
        // Links, and manual pages, which man(1) finds.
        if line.contains(" -> ") || line.contains("/man/") {
            continue;
        }
        let (path, _) = line.rsplit_once(' ').expect("a mode");
        let mut names = names.iter();
        let is_listed = names.any(|name| Path::new(path).starts_with(name));
        assert!(is_listed, "{path}");
    }
}

/// Checks the place of each file after `make install` with these directories of PCP, and that `make uninstall` removes
/// all files.
fn layout(name: &str, agents: &str, commands: &str) {
    let home = Home::new();
    let (root, binary) = (home.path("root"), home.path("pmdanixl"));
    std::fs::write(&binary, "#!/bin/sh\n").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&binary, mode).expect("ours");
    // The modes of the files must not depend on the umask of root.
    let install = || {
        let mut install = Command::new("sh");
        install
            .args(["-c", "umask 077; exec \"$@\"", "sh"])
            .arg(project("scripts/install-files"))
            .env("DESTDIR", &root)
            .env("BINARY", &binary)
            .env("PCP_PMDASADM_DIR", agents)
            .env("PCP_BINADM_DIR", commands);
        install
    };
    run(&mut install());
    let listed = listing(&root);
    let (pages, others) = listed
        .lines()
        .partition::<Vec<_>, _>(|line| line.starts_with(PAGES));
    golden(&format!("layout.{name}"), &(others.join("\n") + "\n"));
    let installed = |line: &&str| line.ends_with(".md 644");
    assert_eq!(
        pages.into_iter().filter(installed).count(),
        listing(&project("docs")).matches(".md ").count()
    );
    installed_texts_name_installed_pages(&root);
    manual_page_lists_installed_files(&root, agents, commands);
    let mut closed = Command::new("find");
    closed.arg(&root).args(["-type", "d", "!", "-perm", "755"]);
    assert_eq!(run(&mut closed), "");
    run(install().arg("--remove"));
    let mut left = Command::new("find");
    left.arg(&root).args(["!", "-type", "d"]);
    assert_eq!(run(&mut left), "");
}

#[test]
fn each_source_file_and_script_names_its_licence() {
    let mut find = Command::new("find");
    find.current_dir(project("."));
    // Without the data of tests, and what tests and builds leave behind.
    let others = "target .git vendor golden corpus node_modules";
    find.args(
        others
            .split(' ')
            .flat_map(|name| ["-name", name, "-prune", "-o"]),
    );
    for path in run(find.args(["-type", "f", "-print"])).lines() {
        let Ok(text) = fs::read_to_string(project(path)) else {
            continue;
        };
        let is_source = [".rs", ".js", ".c", ".h", ".py"]
            .iter()
            .any(|end| path.ends_with(end));
        let mut first = text.lines().take(2);
        assert!(
            !(is_source || text.starts_with("#!") || text.starts_with("# Sourced"))
                || first.any(|line| line.contains("SPDX-License-Identifier: GPL-2.0-or-later")),
            "{path} has no SPDX-License-Identifier in its first two lines"
        );
    }
}

/// Runs a shell script in a root directory.
fn in_root(root: &Path, script: &str) {
    run(Command::new("sh")
        .args(["-euc", &format!("cd \"$1\"\n{script}"), "sh"])
        .arg(root));
}

/// Files of the Python PMDA in PCP's package, with the link to its configuration or, like PCP 7.2, without it.
fn bring_python(root: &Path, link: bool) {
    in_root(
        root,
        r#"
        real=usr/lib/pcp/pmdas/nixl links=var/lib/pcp/pmdas/nixl
        mkdir -p $real $links etc/pcp/nixl usr/share/man/man1
        for file in Install Remove pmdanixl.python; do
            rm -f $real/$file
            echo python >$real/$file
            ln -sfn /$real/$file $links/$file
        done
        echo man >usr/share/man/man1/pmdanixl.1.gz
        echo "[pmda]" >etc/pcp/nixl/nixl.conf
        "#,
    );
    if link {
        in_root(
            root,
            "ln -s /etc/pcp/nixl/nixl.conf var/lib/pcp/pmdas/nixl/",
        );
    }
}

/// Files in a root directory.
fn files(root: &Path) -> Vec<String> {
    let lines = listing(root);
    let files = lines.lines().filter(|line| !line.ends_with('/'));
    files.map(str::to_owned).collect()
}

fn install_files(root: &Path, arguments: &[&str]) {
    run(Command::new(project("scripts/install-files"))
        .args(arguments)
        .env("DESTDIR", root)
        .env("BINARY", PMDANIXL)
        .env("PCP_PMDASADM_DIR", "/usr/lib/pcp/pmdas"));
}

#[test]
fn uninstall_restores_the_python_pmda() {
    let home = Home::new();
    for link in [true, false] {
        let root = home.path(&format!("root-{link}"));
        fs::create_dir(&root).expect("made");
        bring_python(&root, link);
        let before = files(&root);
        for arguments in [&[][..], &[], &["--remove"]] {
            install_files(&root, arguments);
        }
        assert_eq!(files(&root), before, "with a link: {link}");
    }
}

#[test]
fn uninstall_keeps_a_later_python_pmda_and_leaves_no_link() {
    let home = Home::new();
    for again in [true, false] {
        let [root, alone] = ["root", "alone"].map(|name| home.path(&format!("{name}-{again}")));
        for root in [&root, &alone] {
            fs::create_dir(root).expect("made");
        }
        bring_python(&alone, false);
        install_files(&root, &[]);
        // Like an upgrade of PCP. Which of two files is the configuration is not checked here.
        bring_python(&root, false);
        if again {
            install_files(&root, &[]);
        }
        install_files(&root, &["--remove"]);
        let of_python = |root: &Path| {
            let mut files = files(root);
            files.retain(|file| !file.starts_with("etc/pcp/nixl/"));
            files
        };
        assert_eq!(
            of_python(&root),
            of_python(&alone),
            "installed again: {again}"
        );
    }
}

#[test]
fn installation_over_an_earlier_one_removes_rules_that_are_gone() {
    let home = Home::new();
    let root = home.path("root");
    fs::create_dir(&root).expect("made");
    in_root(
        &root,
        r#"
        mkdir -p etc/pcp/pmieconf/nixl var/lib/pcp/config/pmieconf/nixl
        for rule in pmieconf/nixl/remote_disconnect pmieconf/nixl/tcp_fallback_roce; do
            echo rule >etc/pcp/$rule
            ln -s /etc/pcp/$rule var/lib/pcp/config/$rule
        done
        "#,
    );
    install_files(&root, &[]);
    let files = files(&root);
    assert!(files.iter().any(|file| file.contains("pmieconf/nixl/")));
    for rule in ["remote_disconnect", "tcp_fallback_roce"] {
        assert!(!files.iter().any(|file| file.contains(rule)), "{rule}");
    }
}

#[test]
fn make_install_uses_the_debian_layout() {
    layout("debian", "/usr/lib/pcp/pmdas", "/usr/lib/pcp/bin");
}

#[test]
fn make_install_uses_the_fedora_and_rhel_layout() {
    layout("rpm", "/usr/libexec/pcp/pmdas", "/usr/libexec/pcp/bin");
}
