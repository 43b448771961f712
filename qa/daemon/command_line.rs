// SPDX-License-Identifier: GPL-2.0-or-later

//! The program without pmcd: options, `--check`, libraries, and a full tmpfs.

use crate::support::pdu::Link;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{self, Home, PMDANIXL, is_alone, needs_root, run, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pmdanixl::shm;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

#[test]
fn check_lists_rings_writers_and_problems() {
    needs_root();
    let home = Home::new();
    let mut writer = RingWriter::create(&home.ring("agent"), Layout::V2, 4096).expect("a ring");
    (0..12).for_each(|_| assert!(writer.push(Kind::TxBytes, 1)));
    let me = Command::new("id").arg("-un").output().expect("id").stdout;
    let me = String::from_utf8_lossy(&me).trim().to_owned();
    let (status, output) = home.check();
    let line = format!(
        "  agent: ring v2, 4096 slots, 12 pending, written by pid {} (",
        std::process::id()
    );
    assert!(
        status == 0 && output.contains(&line) && output.contains(&format!(" user {me}\n")),
        "{status}\n{output}"
    );
    assert_eq!(writer.pending(), 12, "nothing is consumed");
    drop(writer);
    assert!(
        home.check()
            .1
            .contains("  agent: ring v2, 4096 slots, 12 pending, no writer seen\n")
    );

    home.configure("[nixl]\ntelemetry_dir = \"/none/such\"\n");
    let (status, output) = home.check();
    assert!(
        status == 1 && output.contains("problem: cannot be scanned: ENOENT"),
        "{output}"
    );
    home.configure("[nixl]\nretain = 5\n");
    let (status, output) = home.check();
    assert!(
        status == 1 && output.contains("problem: ") && output.contains("nixl.conf:2: retain = 5: "),
        "{output}"
    );
    // Two files that are not a problem: the format of the Python PMDA, and a segment that a killed UCX leaves.
    let segment = home.ring("ucx_shm_posix_2529def");
    fs::write(segment, [0; 4096]).expect("written");
    let rings = home.rings();
    home.configure(&format!(
        "[nixl]\nuser = root\ntelemetry_dir = {}\n",
        rings.display()
    ));
    let (status, output) = home.check();
    assert!(
        status == 0
            && output.contains("warning: ")
            && output.contains(&format!("telemetry_dir = {rings:?}"))
            && output.contains("  ucx_shm_posix_2529def: rejected: not a ring: "),
        "{output}"
    );
}

/// Lines of `--check` that begin with `problem:`.
fn problems(output: &str) -> Vec<&str> {
    let lines = output.lines().map(str::trim_start);
    lines.filter(|line| line.starts_with("problem: ")).collect()
}

#[test]
fn check_begins_each_line_that_needs_action_with_problem() {
    let home = Home::new();
    let rings = home.rings();
    fs::write(home.ring("notes"), "no ring").expect("written");
    for slots in [8, 16] {
        let name = home.ring(format!("of-{slots}"));
        drop(RingWriter::create(&name, Layout::V4, slots).expect("a ring"));
    }
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = [{rings:?}, \"/none/such\"]\nmax_capacity = 8\n"
    ));
    let (status, output) = home.check();
    let [large, missing] = problems(&output)[..] else {
        panic!("{output}");
    };
    assert!(
        missing.starts_with("problem: cannot be scanned: ENOENT"),
        "{output}"
    );
    assert!(
        large.starts_with(
            "problem: of-16: rejected: has 16 slots, and max_capacity is 8; raise that"
        ),
        "{output}"
    );
    assert!(status == 1 && output.contains(" 2 problems"), "{output}");
    home.set("max_capacity = 16");
    let (status, output) = home.check();
    assert!(
        status == 0 && problems(&output).is_empty() && output.contains(" 0 problems"),
        "{output}"
    );
}

#[test]
fn check_names_a_remedy_for_each_directory_it_cannot_scan() {
    needs_root();
    let home = Home::new();
    fs::write(home.path("file"), "").expect("written");
    fs::create_dir(home.path("closed")).expect("made");
    fs::set_permissions(home.path("."), PermissionsExt::from_mode(0o755)).expect("ours");
    fs::set_permissions(home.path("closed"), PermissionsExt::from_mode(0o700)).expect("ours");
    let paths = ["none", "none/*/nixl", "file", "closed"].map(|path| home.path(path));
    home.configure(&format!("[nixl]\ntelemetry_dir = {paths:?}\n"));
    let mut check = Command::new("setpriv");
    check.args(["--reuid=65534", "--clear-groups", PMDANIXL, "--check", "-c"]);
    let output = support::text(&support::output(check.arg(home.conf())));
    let missing = "ENOENT: No such file or directory; make it, or correct the path in nixl.conf";
    for (path, why) in paths.iter().zip([
        missing,
        missing,
        "ENOTDIR: Not a directory; name a directory in nixl.conf",
        "EACCES: Permission denied; let the user that pmdanixl runs as read and search it, or, if it was made since the start of pmdanixl, run ./Install again",
    ]) {
        let path = path.display();
        let lines = format!("directory {path}\n  problem: cannot be scanned: {why}\n");
        assert!(output.contains(&lines), "{lines}\n{output}");
    }
    assert_eq!(problems(&output).len(), 4, "{output}");
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = \"{}/none-*\"\n",
        home.dir().display()
    ));
    let (status, output) = home.check();
    let none = "problem: telemetry_dir and multiproc_dir match no directory; make one, or correct the patterns in nixl.conf";
    assert!(status == 1 && problems(&output) == [none], "{output}");
}

#[test]
fn check_lists_the_nixl_lock_idle_rings_and_rejected_links() {
    needs_root();
    let home = Home::new();
    // NIXL makes this lock file beside its stores.
    fs::write(home.ring("nixl-owner.127.0.0.1:19090.lock"), "").expect("written");
    drop(home.new_ring("unused", 16));
    let mut used = home.new_ring("used", 16);
    used.push(Kind::TxBytes, 1);
    drop(used);
    let (status, output) = home.check();
    for line in [
        "  unused: ring v4, 16 slots, 0 pending, never had an event, no writer seen: not an instance before its first event\n",
        "  used: ring v4, 16 slots, 1 pending, no writer seen\n",
        "2 rings, 0 files rejected, 0 problems",
    ] {
        assert!(status == 0 && output.contains(line), "{line}\n{output}");
    }
    assert!(!output.contains("nixl-owner"), "{output}");
    // All users may write to this directory, so a link in it is rejected.
    fs::create_dir(home.path("open")).expect("made");
    let all = PermissionsExt::from_mode(0o1777);
    fs::set_permissions(home.path("open"), all).expect("ours");
    symlink(home.dir(), home.path("open/link")).expect("made");
    for path in ["open/link/rings", "open/link/*"] {
        let path = home.path(path);
        home.configure(&format!("[nixl]\ntelemetry_dir = {path:?}\n"));
        let (status, output) = home.check();
        let why = "a user other than root could change a symbolic link in the path; configure the target of the link\n";
        let is_told = |line: &str| line.starts_with("  problem: ") && line.ends_with(why);
        assert!(
            status == 1 && output.split_inclusive('\n').any(is_told),
            "{output}"
        );
    }
}

#[test]
fn check_finds_the_daemon_and_lists_differences() {
    needs_root();
    let home = Home::new();
    let check = |conf: &Path, variables: &[(&str, &Path)]| {
        let mut check = Command::new(PMDANIXL);
        check.env("PCP_RUN_DIR", home.path("run"));
        check.envs(variables.iter().copied());
        support::text(&support::output(check.args(["--check", "-c"]).arg(conf)))
    };
    let state = home.path("run/nixl/state");
    let unknown = format!("daemon: not known: {} does not exist: ", state.display());
    let said = check(&home.conf(), &[]);
    assert!(said.contains(&unknown), "{said}");
    let rings = home.rings();
    let wrapper = home.path("pmdanixl");
    script(
        &wrapper,
        &format!("export NIXL_TELEMETRY_DIR={}", rings.display()),
        "",
    );
    let dbpmda = home.start_dbpmda(&wrapper);
    let pid = wait_for("the daemon is found", || {
        let said = check(&home.conf(), &[]);
        let line = said
            .lines()
            .find_map(|line| line.strip_prefix("daemon: pid "));
        line?.split_once(", ")?.0.parse::<u32>().ok()
    });
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).expect("it runs");
    assert_eq!(comm, "pmdanixl\n");
    let elsewhere = home.path("elsewhere");
    let said = check(&home.conf(), &[("NIXL_TELEMETRY_DIR", &elsewhere)]);
    let differs = format!(
        "daemon: pid {pid}, started with another configuration\n\
         warning: NIXL_TELEMETRY_DIR of the environment, which overrides the file: the daemon has {}, and this check has {}; ",
        rings.display(),
        elsewhere.display()
    );
    assert!(said.contains(&differs), "{said}");
    // An empty variable is like an unset one.
    let ours_set = [
        ("NIXL_TELEMETRY_DIR", &*rings),
        ("NIXL_TELEMETRY_MULTIPROC_DIR", Path::new("")),
    ];
    let said = check(&home.conf(), &ours_set);
    let same = format!(
        "daemon: pid {pid}, started with the same configuration file, environment and user\n"
    );
    assert!(said.contains(&same), "{said}");
    let outdated = "has changed since the daemon read it";
    assert!(!said.contains(outdated), "{said}");
    let other = home.path("other.conf");
    fs::copy(home.conf(), &other).expect("copied");
    let said = check(&other, &ours_set);
    let (its, ours) = (home.conf(), other.display());
    let its = its.display();
    let file = format!(
        "warning: configuration file (-c): the daemon has {its}, and this check has {ours}; "
    );
    assert!(said.contains(&file), "{said}");
    // An error in the file, which the daemon has not read yet.
    let right = fs::read_to_string(home.conf()).expect("there");
    home.set("retain = 5");
    let said = check(&home.conf(), &ours_set);
    let wrong = said.find("problem: ").expect("the problem");
    let found = said.find(&same).expect("the daemon");
    assert!(wrong < found && said[found..].contains(outdated), "{said}");
    home.configure(&right);
    // Without root, /proc does not show which process is the daemon.
    fs::set_permissions(home.path("."), PermissionsExt::from_mode(0o755)).expect("ours");
    let mut as_other = Command::new("setpriv");
    as_other.args(["--reuid=65534", "--clear-groups", PMDANIXL, "--check", "-c"]);
    as_other
        .arg(home.conf())
        .env("PCP_RUN_DIR", home.path("run"));
    let said = support::text(&support::output(&mut as_other));
    let hidden = said
        .lines()
        .find(|line| line.starts_with("daemon: not known: "));
    assert!(
        hidden.is_some_and(|line| line.ends_with("; run as root")),
        "{said}"
    );
    support::quit(dbpmda);
    assert!(
        check(&home.conf(), &[])
            .contains("daemon: not running, or without a valid nixl.conf since its start\n")
    );
}

/// Starts a process named pmdanixl that maps a file for writing. It ends with its standard input.
fn pretender(uid: &str, file: &Path) -> Child {
    mapper("pmdanixl", uid, file)
}

/// Starts a process with this name and user that maps a file for writing. It ends with its standard input. One of the
/// name `forks` has a child without a living parent, with the same mapping.
fn mapper(name: &str, uid: &str, file: &Path) -> Child {
    let script = "import ctypes, mmap, os, sys\n\
                  file = open(sys.argv[1], 'r+b')\n\
                  mapped = mmap.mmap(file.fileno(), 0)\n\
                  ctypes.CDLL(None).prctl(15, sys.argv[2].encode(), 0, 0, 0)\n\
                  if sys.argv[2] == 'forks' and os.fork() == 0:\n\
                  \x20   os.fork() and os._exit(0)\n\
                  \x20   sys.stdin.read()\n\
                  \x20   os._exit(0)\n\
                  if sys.argv[2] == 'forks':\n\
                  \x20   os.wait()\n\
                  print('ready', flush=True)\n\
                  sys.stdin.read()\n";
    let mut child = Command::new("setpriv")
        .args(["--reuid", uid, "--clear-groups", "/usr/bin/python3", "-c"])
        .args([script.as_ref(), file.as_os_str(), name.as_ref()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let said = child.stdout.as_mut().expect("piped");
    BufReader::new(said).read_line(&mut line).expect("text");
    assert_eq!(line, "ready\n");
    child
}

#[test]
fn process_of_another_user_is_not_taken_for_the_daemon() {
    needs_root();
    let home = Home::new();
    let state = home.path("run/nixl/state");
    fs::create_dir_all(home.path("run/nixl")).expect("made");
    fs::set_permissions(home.path("."), PermissionsExt::from_mode(0o755)).expect("ours");
    fs::write(&state, [0; 4096]).expect("written");
    drop(home.new_ring("agent", 16));
    let users = [
        (
            "65534",
            "daemon: not running, or without a valid nixl.conf since its start\n",
            "written by",
        ),
        ("0", "daemon: pid", "drained by"),
    ];
    for (uid, daemon, does) in users {
        let mut children = [&state, &home.ring("agent")].map(|file| {
            fs::set_permissions(file, PermissionsExt::from_mode(0o666)).expect("ours");
            pretender(uid, file)
        });
        let mut check = Command::new(PMDANIXL);
        check.args(["--check", "-c"]).arg(home.conf());
        check.env("PCP_RUN_DIR", home.path("run"));
        let said = support::text(&support::output(&mut check));
        assert!(said.contains(daemon), "{uid}: {said}");
        let line = format!("{does} pid {}", children[1].id());
        assert!(said.contains(&line), "{uid}: {line} in {said}");
        for child in &mut children {
            drop(child.stdin.take());
            child.wait().expect("our child");
        }
    }
}

#[test]
fn unprivileged_check_trusts_the_lock_not_a_process_name() {
    needs_root();
    let home = Home::new();
    let (state, ring) = (home.path("run/nixl/state"), home.ring("agent"));
    fs::create_dir_all(home.path("run/nixl")).expect("made");
    fs::set_permissions(home.path("."), PermissionsExt::from_mode(0o755)).expect("ours");
    fs::write(&state, [0; 4096]).expect("written");
    drop(RingWriter::create(&ring, Layout::V4, 16).expect("a ring"));
    let mut children = [&state, &ring].map(|file| {
        fs::set_permissions(file, PermissionsExt::from_mode(0o666)).expect("ours");
        let child = pretender("65534", file);
        fs::set_permissions(file, PermissionsExt::from_mode(0o644)).expect("ours");
        child
    });
    let check = || {
        let mut check = Command::new("setpriv");
        check.args(["--reuid=65534", "--clear-groups", PMDANIXL, "--check", "-c"]);
        check.arg(home.conf()).env("PCP_RUN_DIR", home.path("run"));
        support::text(&support::output(&mut check))
    };
    let said = check();
    assert!(
        said.contains("daemon: not running, or without a valid nixl.conf since its start\n"),
        "{said}"
    );
    let observed =
        "may not be written to (EACCES: Permission denied), so it is not drained or counted";
    assert!(
        said.contains(observed) && said.contains(" 1 problem"),
        "{said}"
    );
    // The daemon locks each ring that it drains.
    let file = File::options().read(true).write(true).open(&ring);
    let file = file.expect("there");
    assert!(shm::lock(&file).expect("there are locks"));
    let said = check();
    let drained = ", drained by the process that has it locked\n";
    assert!(
        said.contains(drained) && said.contains(" 0 problems"),
        "{said}"
    );
    assert!(!said.contains("drained by pid"), "{said}");
    for child in &mut children {
        drop(child.stdin.take());
        child.wait().expect("our child");
    }
}

#[test]
fn two_unrelated_writers_of_one_ring_are_reported() {
    needs_root();
    let home = Home::new();
    let path = home.ring("agent");
    drop(RingWriter::create(&path, Layout::V4, 16).expect("a ring"));
    let mut forks = mapper("forks", "0", &path);
    let (status, said) = home.check();
    let problem = "2 processes can write this ring: pid ";
    assert!(status == 0 && !said.contains(problem), "{said}");
    assert_eq!(said.matches("written by pid").count(), 2, "{said}");
    drop(forks.stdin.take());
    forks.wait().expect("our child");
    let mut children = vec![mapper("worker", "0", &path)];
    children.push(mapper("worker", "0", &path));
    let (status, said) = home.check();
    let line = said.lines().find(|line| line.contains(problem));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    for child in &mut children {
        let pid = format!("written by pid {} (worker)", child.id());
        assert!(line.contains(&pid), "{said}");
        drop(child.stdin.take());
        child.wait().expect("our child");
    }
    assert!(status == 1 && said.contains(" 1 problem"), "{said}");
    // With `observe`, another process may drain the ring.
    home.set("observe = true");
    let mut children = [(); 2].map(|()| mapper("worker", "0", &path));
    let (status, said) = home.check();
    for child in &mut children {
        drop(child.stdin.take());
        child.wait().expect("our child");
    }
    assert!(status == 0 && !said.contains(problem), "{said}");
}

#[test]
fn directory_that_moves_away_and_comes_back_is_logged_each_time() {
    let home = Home::new();
    let dbpmda = home.start_dbpmda(Path::new(PMDANIXL));
    let count = |what: &str| home.log().matches(what).count();
    let rings = home.rings().display().to_string();
    let gone = format!("{rings}: cannot be scanned: ENOENT");
    let back = format!("{rings}: can be scanned again");
    wait_for("the daemon runs", || {
        home.log().contains("version ").then_some(())
    });
    for round in 1..=2 {
        fs::rename(home.rings(), home.path("away")).expect("moved");
        wait_for("the move is logged", || {
            (count(&gone) == round).then_some(())
        });
        fs::rename(home.path("away"), home.rings()).expect("moved");
        wait_for("the return is logged", || {
            (count(&back) == round).then_some(())
        });
    }
    support::quit(dbpmda);
}

#[test]
fn pattern_behind_a_rejected_link_is_logged_with_the_reason() {
    needs_root();
    let home = Home::new();
    let open = home.path("open");
    fs::create_dir(&open).expect("made");
    // All users may change a link in this directory.
    fs::set_permissions(&open, PermissionsExt::from_mode(0o1777)).expect("ours");
    symlink(home.dir(), open.join("link")).expect("made");
    let pattern = open.join("link/*").display().to_string();
    home.configure(&format!("[nixl]\ntelemetry_dir = {pattern:?}\n"));
    let dbpmda = home.start_dbpmda(Path::new(PMDANIXL));
    let why = format!(
        "{pattern}: cannot be scanned: a user other than root could change a symbolic link in the path; configure the target of the link"
    );
    let count = || home.log().matches(&why).count();
    wait_for("the reason is logged", || (count() == 1).then_some(()));
    // Each return of the pattern is logged once.
    fs::rename(&open, home.path("away")).expect("moved");
    let gone = format!("{pattern}: cannot be scanned: ENOENT");
    wait_for("the move is logged", || {
        home.log().contains(&gone).then_some(())
    });
    fs::rename(home.path("away"), &open).expect("moved");
    wait_for("the reason is logged again", || {
        (count() == 2).then_some(())
    });
    support::quit(dbpmda);
    assert_eq!(count(), 2);
}

#[test]
fn check_as_another_user_lists_rings_it_can_only_follow() {
    needs_root();
    let home = Home::new();
    fs::set_permissions(home.path("."), PermissionsExt::from_mode(0o755)).expect("ours");
    let _ring = home.new_ring("roots", 16);
    home.set("user = \"nobody\"");
    let (status, output) = home.check();
    assert!(
        status == 0
            && output.contains(
                "as user: nobody with CAP_DAC_OVERRIDE, CAP_LEASE, locked in by Landlock\n"
            ),
        "{output}"
    );
    // Without root there are no capabilities.
    let mut check = Command::new("setpriv");
    check.args(["--reuid=65534", "--clear-groups", PMDANIXL, "--check", "-c"]);
    let output = support::output(check.arg(home.conf()));
    let said = support::text(&output);
    assert!(
        !output.status.success()
            && said.contains("as user: nobody with no capabilities, locked in by Landlock\n"),
        "{said}"
    );
    let line = "may not be written to (EACCES: Permission denied), so it is not drained or counted; run as root or as the user of";
    assert!(said.contains(line), "{said}");
}

#[test]
fn wrong_option_prints_the_usage() {
    let output = Command::new(PMDANIXL)
        .arg(OsString::from("--chek"))
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success()
            && said.contains("invalid option '--chek'")
            && said.contains("Usage: pmdanixl")
    );
    assert!(run(Command::new(PMDANIXL).arg("--version")).starts_with("pmdanixl "));
    assert!(run(Command::new(PMDANIXL).arg("--help")).contains("--check"));
}

/// The write end of a pipe without a reader: writes fail with EPIPE.
fn gone() -> OwnedFd {
    let (stream, _) = UnixStream::pair().expect("a pair");
    stream.shutdown(Shutdown::Both).expect("open");
    stream.into()
}

#[test]
fn output_without_a_reader_ends_quietly() {
    let home = Home::new();
    let conf = home.conf();
    let check = ["--check", "-c", conf.to_str().expect("UTF-8")];
    for args in [&check[..], &["--help"], &["--version"]] {
        let mut command = Command::new(PMDANIXL);
        let output = command.args(args).stdout(gone()).stderr(Stdio::piped());
        let output = output.spawn().and_then(Child::wait_with_output);
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*said), (Some(141), ""), "{args:?}");
    }
    // A closed standard error does not cause a panic either. The status of a panic is 101.
    let mut command = Command::new(PMDANIXL);
    let status = command.arg("--chek").stderr(gone()).status();
    assert_eq!(status.expect("it runs").code(), Some(1));
}

#[test]
fn binary_needs_libpcp_pmda_but_not_libpcp() {
    let shown = run(Command::new("readelf").args(["-d", PMDANIXL]));
    let needed: Vec<&str> = shown
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split_once('[')?.1.strip_suffix(']'))
        .collect();
    assert!(needed.contains(&"libpcp_pmda.so.3"), "{needed:?}");
    let allowed = [
        "libpcp_pmda.so.3",
        "libc.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
    ];
    for library in needed {
        assert!(
            allowed.contains(&library) || library.starts_with("ld-linux"),
            "{library} is needed"
        );
    }
}

#[test]
fn daemon_that_waits_for_pmcd_ends_at_sigterm() {
    let home = Home::new();
    let socket = home.path("socket");
    let mut child = Command::new(PMDANIXL)
        .arg("-u")
        .arg(&socket)
        .arg("-c")
        .arg(home.conf())
        .arg("-l")
        .arg(home.path("nixl.log"))
        .stdin(Stdio::null())
        .spawn()
        .expect("it starts");
    wait_for("the daemon waits for a connection", || {
        socket.exists().then_some(())
    });
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    kill(pid, Signal::SIGTERM).expect("it runs");
    let status = wait_for("the daemon has ended", || {
        child.try_wait().expect("our child")
    });
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));
}

#[test]
fn daemon_without_pmcd_drains_nothing_and_logs_it() {
    let home = Home::new();
    let mut ring = home.new_ring("agent", 16);
    ring.push(Kind::TxBytes, 1);
    let output = Command::new(PMDANIXL)
        .args(["-l", "-", "-c"])
        .arg(home.conf())
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let said = support::text(&output);
    assert!(
        !output.status.success() && said.contains("cannot connect to pmcd"),
        "{said}"
    );
    assert_eq!(ring.pending(), 1);
}

#[test]
fn live_agent_is_found_among_dead_rings_with_few_descriptors() {
    let home = Home::new();
    // Without process scans, the first answer has the agent.
    home.set("proc_facts = false");
    for number in 0..60 {
        let path = home.ring(format!("dead-{number}"));
        drop(RingWriter::create(&path, Layout::V4, 16).expect("a ring"));
    }
    let mut ring = home.new_ring("live", 16);
    ring.push(Kind::TxBytes, 77);
    let wrapper = home.path("pmdanixl");
    script(&wrapper, "ulimit -n 90", "");
    let answer = home.dbpmda_with(&wrapper, "fetch nixl.transfer.tx_bytes");
    assert!(answer.contains("value 77"), "{answer}\n{}", home.log());
    assert!(
        home.log()
            .contains("max_agents is 4096, but only 90 files may be open"),
        "{}",
        home.log()
    );
}

/// Writes a shell script that runs the command `before` and then pmdanixl with the arguments and redirections `after`.
fn script(path: &Path, before: &str, after: &str) {
    let text = format!("#!/bin/sh\n{before}\nexec \"{PMDANIXL}\" \"$@\" {after}\n");
    fs::write(path, text).expect("written");
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("ours");
}

#[test]
fn unwritable_log_loses_only_its_lines() {
    let home = Home::new();
    // Without process scans, the first answer has the agent.
    home.set("proc_facts = false");
    let mut ring = home.new_ring("agent", 16);
    ring.push(Kind::TxBytes, 77);
    // /dev/full is like a full disk: each write fails with ENOSPC.
    let wrapper = home.path("pmdanixl");
    script(&wrapper, "", "-l - 2>/dev/full");
    let answer = home.dbpmda_with(&wrapper, "fetch nixl.transfer.tx_bytes\nstore nixl.control.version \"1\"\nfetch nixl.transfer.tx_bytes");
    assert_eq!(answer.matches("value 77").count(), 2, "{answer}");
}

/// A tmpfs, in a mount namespace that only this test has (`is_alone`).
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(path: &Path, size: &str) -> Self {
        let options = format!("size={size},mode=1777");
        let options = ["-t", "tmpfs", "-o", &options, "nixl"];
        run(Command::new("mount").args(options).arg(path));
        Self(path.to_owned())
    }

    /// Writes a file of so many blocks of 64 KiB, a whole number of pages on any machine. `None` fills the file system.
    fn fill(&self, chunks: Option<usize>) -> PathBuf {
        let path = self.0.join("fill");
        let mut file = fs::File::create(&path).expect("made");
        for _ in 0..chunks.unwrap_or(usize::MAX) {
            match file.write_all(&[1; 1 << 16]) {
                Err(err) if err.kind() == ErrorKind::StorageFull && chunks.is_none() => break,
                written => written.expect("room"),
            }
        }
        path
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        run(Command::new("umount").arg("--lazy").arg(&self.0));
    }
}

#[test]
fn check_warns_once_of_a_tmpfs_that_is_over_90_percent_full() {
    needs_root();
    if !is_alone() {
        return;
    }
    let home = Home::new();
    let tmpfs = Tmpfs::mount(&home.rings(), "6400k");
    let dirs = ["a", "b"].map(|name| home.ring(name));
    dirs.iter()
        .for_each(|dir| fs::create_dir(dir).expect("made"));
    home.configure(&format!("[nixl]\ntelemetry_dir = {dirs:?}\n"));
    let warning = format!(
        "warning: the tmpfs {0} is more than 90 % full: 589824 of 6553600 bytes are free. SIGBUS kills an application \
         that finds no room for its ring or store; remove files there, or enlarge it: mount -o remount,size=SIZE {0}\n",
        home.rings().display()
    );
    for (chunks, warnings) in [(90, 0), (91, 1)] {
        tmpfs.fill(Some(chunks));
        let (status, output) = home.check();
        assert_eq!(
            (
                status,
                output.matches("warning: ").count(),
                output.contains(&warning)
            ),
            (0, warnings, warnings > 0),
            "{output}"
        );
    }
    drop(tmpfs);
    let unlimited = Tmpfs::mount(&home.rings(), "0");
    home.set("");
    unlimited.fill(Some(1));
    assert!(!home.check().1.contains("warning: "), "{}", home.check().1);
}

#[test]
fn empty_header_on_a_full_tmpfs_has_its_space_as_a_cause() {
    needs_root();
    if !is_alone() {
        return;
    }
    let home = Home::new();
    let tmpfs = Tmpfs::mount(&home.rings(), "256k");
    // The file that NIXL leaves if there is no room for its header.
    let ring = fs::File::create(home.ring("agent")).expect("made");
    ring.set_len(40 + 4096 * 16).expect("a hole");
    let fill = tmpfs.fill(None);
    let full = "or SIGBUS killed it because its tmpfs has no room for it (0 of 262144 bytes are free): remove files there, or enlarge it";
    let output = home.check().1;
    assert!(
        output.contains("agent: rejected: header is not written: ") && output.contains(full),
        "{output}"
    );
    let mut link = Link::open(&home);
    wait_for("the daemon logs the cause", || {
        link.fetch(&["control.version"]).expect("an answer");
        home.log().contains(full).then_some(())
    });
    fs::remove_file(fill).expect("there");
    let output = home.check().1;
    let other = "header is not written: its producer has not finished the ring, or it is a file of another kind; set \
                 NIXL_TELEMETRY_BUFFER_SIZE to a power of two and start the agent again, or remove the file";
    assert!(
        output.contains(&format!("  problem: agent: rejected: {other}\n")),
        "{output}"
    );
    let young = format!("  young: rejected: {other}; while its agent starts, look again in 10 s\n");
    wait_for("a young file is no problem", || {
        let ring = File::create(home.ring("young")).expect("made");
        ring.set_len(40 + 64 * 16).expect("room");
        home.check().1.contains(&young).then_some(())
    });
    assert!(link.end().success());
}

#[test]
fn sparse_ring_on_a_full_tmpfs_is_drained_up_to_its_hole() {
    needs_root();
    if !is_alone() {
        return;
    }
    let home = Home::new();
    // Without process scans, the first answer has the agent.
    home.set("proc_facts = false");
    let tmpfs = Tmpfs::mount(&home.rings(), "512k");
    let mut ring = home.new_ring("agent", 4096);
    assert!(ring.push(Kind::TxBytes, 1));
    let fill = tmpfs.fill(None);
    let mut link = Link::open(&home);
    let mut is_counted = |count| {
        wait_for("all events are counted", || {
            let values = link.sent();
            (values.get("agent") == Some(&count)).then_some(())
        });
    };
    is_counted(1);
    // The first page has the header of 40 bytes and 253 events of 16 bytes. The next event lies in the hole.
    (2..=253).for_each(|_| assert!(ring.push(Kind::TxBytes, 1)));
    is_counted(253);
    fs::remove_file(fill).expect("there");
    (254..=4200).for_each(|count| {
        assert!(ring.push(Kind::TxBytes, 1));
        if count % 1000 == 0 {
            is_counted(count);
        }
    });
    is_counted(4200);
    let log = home.log();
    assert!(
        !log.contains("truncated") && !log.contains("rejected"),
        "{log}"
    );
    assert!(link.end().success());
}
