// SPDX-License-Identifier: GPL-2.0-or-later

//! Support for all tests: a home directory for each test, the real dbpmda, a private pmcd, real NIXL.

use nix::unistd::getuid;
use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Once;
use std::time::Instant;
use tempfile::TempDir;
use writer::{Layout, RingWriter};

pub mod measure;
pub mod patience;
pub mod pdu;

pub mod drain;
pub mod endpoint;
pub mod fleet;
pub mod held;
pub mod hostile_stores;
pub mod kill;
pub mod kit;
pub mod life;
pub mod numbers;
pub mod other_user;
pub mod pmproxy;
pub mod rule;
pub mod sample;
pub mod scripted;
pub mod serve;
#[allow(dead_code)] // qa/bench uses it
pub mod shape;
pub mod share;
pub mod show;
pub mod titled;

pub use kit::{memory, memory::in_memory, writer};
pub use patience::{PATIENCE, soon, wait_for};

/// Values by metric and instance name.
pub type Values = BTreeMap<String, BTreeMap<String, u64>>;

/// The program under test.
pub const PMDANIXL: &str = env!("CARGO_BIN_EXE_pmdanixl");

/// Metric that most tests check.
pub const TX_BYTES: &str = "nixl.transfer.tx_bytes";

/// Path of a file of the project.
pub fn project(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// Installed key server, under the name that the distribution gives to it, and its client.
pub fn key_server() -> (PathBuf, PathBuf) {
    let found = ["redis", "valkey"].map(|name| {
        let program = |part: &str| PathBuf::from(format!("/usr/bin/{name}-{part}"));
        (program("server"), program("cli"))
    });
    let mut found = found.into_iter().filter(|(server, _)| server.exists());
    let found = found.next();
    found.expect("redis-server is installed: scripts/setup check")
}

/// Notes what a test cannot check here. qa/run lists it at its end.
pub fn note_left_out(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("main");
    let line = format!("{test}: {}\n", reason.replace('\n', " "));
    print!("left out: {line}");
    if let Some(path) = std::env::var_os("NIXL_QA_LEFT_OUT") {
        let file = fs::File::options().append(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("qa/run has made the file");
    }
}

/// Skips a test that cannot run here. cargo-nextest runs no other test in this process, which ends. In `cargo test`,
/// the test fails.
#[allow(clippy::exit)] // see above
pub fn leave_out(reason: &str) -> ! {
    note_left_out(reason);
    if std::env::var_os("NEXTEST").is_some() {
        std::process::exit(0);
    }
    panic!("it cannot run here: {reason}")
}

/// Skips a test that needs root: for files and processes of other users, or for requests that only root may send.
pub fn needs_root() {
    if !nix::unistd::geteuid().is_root() {
        leave_out("it takes root");
    }
}

/// Compares output with a file in qa/golden; `BLESS=1` writes it.
pub fn golden(file: &str, output: &str) {
    agrees(&format!("qa/golden/{file}"), output);
}

/// Compares text with a file of the project; `BLESS=1` writes it.
pub fn agrees(file: &str, text: &str) {
    let path = project(file);
    if std::env::var_os("BLESS").is_some() {
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(&path, text).expect("written");
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == expected,
        "{}\n--- expected ---\n{expected}\n--- found ---\n{text}\nBLESS=1 cargo test accepts what was found",
        path.display()
    );
}

/// Runs a command to its end. Returns standard output and then standard error as text. Panics if the command fails.
pub fn run(command: &mut Command) -> String {
    let output = output(command);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        text(&output)
    );
    text(&output)
}

pub fn output(command: &mut Command) -> Output {
    command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|err| panic!("{command:?}: {err}"))
}

/// True if this test runs in its own PID namespace, where /proc shows only its processes. If false, the test has run
/// there, and the caller returns. So process scans do not see processes outside the test.
pub fn is_alone() -> bool {
    const ALONE: &str = "NIXL_QA_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let thread = std::thread::current();
    let test = thread.name().expect("a thread is named after its test");
    let program = std::env::current_exe().expect("this program");
    let status = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
        .arg(program)
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(ALONE, "1")
        .stdin(Stdio::null())
        .status()
        .expect("unshare(1) is there");
    assert!(status.success(), "{test} failed in its PID namespace");
    false
}

/// True if /proc shows all processes of this machine, which only its initial PID namespace does (PROC_PID_INIT_INO in
/// include/linux/proc_ns.h of Linux).
pub fn sees_all_processes() -> bool {
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link == Path::new("pid:[4026531836]"))
}

pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Pid of the daemon that pmcd or dbpmda started.
pub fn agent_of(parent: u32) -> u32 {
    wait_for("pmdanixl is started", || child_agent(parent))
}

/// Pid of that daemon. One that has ended and is not waited for yet, in state Z, counts if no other runs.
fn child_agent(parent: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let state = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.split_once("(pmdanixl) ")?.1.chars().next()
    };
    let found = children
        .split_whitespace()
        .filter_map(|pid| Some((state(pid)? == 'Z', pid)));
    found.min()?.1.parse().ok()
}

/// Path of an example, beside the program under test. qa/run builds the examples with the tests. `cargo test --test
/// NAME` does not, so this builds all of them then, once.
pub fn example(name: &str) -> PathBuf {
    static BUILT: Once = Once::new();
    let profile = Path::new(PMDANIXL).parent().expect("a directory");
    if std::env::var_os("NIXL_QA_RUN").is_none() {
        BUILT.call_once(|| {
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "--quiet", "--locked", "--examples"]);
            build.args(profile.ends_with("release").then_some("--release"));
            run(build.current_dir(project(".")));
        });
    }
    profile.join("examples").join(name)
}

/// Path of an example of the release build, which this builds if it is not up to date: the code that runs on hosts, and
/// with fewer instructions for a tracer.
pub fn release_example(name: &str) -> PathBuf {
    let target = Path::new(PMDANIXL).ancestors().nth(2);
    let target = target.expect("target/debug/pmdanixl");
    let mut build = Command::new(env!("CARGO"));
    build.args([
        "build",
        "--quiet",
        "--locked",
        "--release",
        "--example",
        name,
    ]);
    build.arg("--target-dir").arg(target);
    run(build.current_dir(project(".")));
    target.join("release/examples").join(name)
}

/// Setting of PCP on this host.
pub fn pcp(variable: &str) -> String {
    let conf = fs::read_to_string("/etc/pcp.conf").expect("PCP is installed: scripts/setup check");
    let value = conf
        .lines()
        .find_map(|line| line.strip_prefix(variable)?.strip_prefix('='));
    value
        .unwrap_or_else(|| panic!("/etc/pcp.conf has {variable}"))
        .to_owned()
}

/// Directory for one test, with a configuration that scans its `rings`.
pub struct Home {
    dir: TempDir,
}

impl Drop for Home {
    fn drop(&mut self) {
        // A process that is ending, such as the PMDA of a pmcd that has ended, may still create a file.
        soon(|| match fs::remove_dir_all(self.dir()) {
            Err(err) if err.kind() != ErrorKind::NotFound => None,
            _ => Some(()),
        });
    }
}

impl Home {
    pub fn new() -> Self {
        // Short, since the path of a unix socket has at most 107 bytes.
        let dir = tempfile::Builder::new()
            .prefix("nixl")
            .tempdir()
            .expect("a directory");
        let home = Self { dir };
        fs::create_dir(home.rings()).expect("made");
        home.set("");
        home
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Directory that is closed to other users. Without it, Qt makes one below TMPDIR and leaves it there.
    pub fn runtime_dir(&self) -> PathBuf {
        let dir = self.path("runtime");
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir);
        made.expect("made");
        dir
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn rings(&self) -> PathBuf {
        self.path("rings")
    }

    pub fn ring(&self, name: impl AsRef<std::ffi::OsStr>) -> PathBuf {
        self.rings().join(Path::new(name.as_ref()))
    }

    /// Starts an agent with a ring of so many slots, in place if its file exists.
    pub fn new_ring(&self, name: impl AsRef<std::ffi::OsStr>, slots: u64) -> RingWriter {
        RingWriter::create(&self.ring(name), Layout::V4, slots).expect("a ring")
    }

    pub fn conf(&self) -> PathBuf {
        self.path("nixl.conf")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("nixl.log")).unwrap_or_default()
    }

    /// Writes a configuration that scans the home's rings and has these settings, one on each line.
    pub fn set(&self, settings: &str) {
        self.configure(&format!(
            "[nixl]\ntelemetry_dir = {:?}\n{settings}\n",
            self.rings()
        ));
    }

    /// Writes a configuration.
    pub fn configure(&self, text: &str) {
        fs::write(self.conf(), text).expect("written");
    }

    /// `pmdanixl --check`: exit status and output.
    pub fn check(&self) -> (i32, String) {
        let output = output(
            Command::new(PMDANIXL)
                .arg("--check")
                .arg("-c")
                .arg(self.conf()),
        );
        (output.status.code().unwrap_or(-1), text(&output))
    }

    /// Makes help text and name space like Install, and a directory for pmdaCache, once.
    fn prepare(&self) {
        let pmda = self.path("pmda");
        if pmda.exists() {
            return;
        }
        fs::create_dir_all(self.path("var/config/pmda")).expect("made");
        fs::create_dir_all(self.path("run")).expect("made");
        fs::create_dir(&pmda).expect("made");
        for file in ["domain.h", "pmns", "root"] {
            fs::copy(project(file), pmda.join(file)).expect("copied");
        }
        let help = fs::read_to_string(project("help"))
            .expect("help")
            .replace("@ NIXL.", "@ 39.");
        fs::write(pmda.join("help.txt"), help).expect("written");
        let newhelp = Path::new(&pcp("PCP_BINADM_DIR")).join("newhelp");
        run(Command::new(newhelp)
            .args(["-n", "root", "-o", "help", "help.txt"])
            .current_dir(&pmda));
    }

    /// Starts dbpmda(1), which starts the daemon. It ends with its standard input.
    pub fn start_dbpmda(&self, program: &Path) -> Child {
        self.prepare();
        let (pmda, log) = (self.path("pmda"), self.path("nixl.log"));
        let mut dbpmda = Command::new("dbpmda")
            .args(["-n", "root", "-ie", "-q", &PATIENCE.as_secs().to_string()])
            .current_dir(&pmda)
            .env("PCP_VAR_DIR", self.path("var"))
            .env("PCP_RUN_DIR", self.path("run"))
            .env("PCP_TMP_DIR", self.dir.path())
            .env("TERM", "ansi")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("dbpmda is installed: scripts/setup check");
        // dbpmda splits a path with a space into two words.
        let link = pmda.join("pmdanixl");
        let program = if program == Path::new(PMDANIXL) {
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(program, &link).expect("made");
            &link
        } else {
            program
        };
        let open = format!(
            "open pipe {} -d 39 -c {} -l {} -h {}",
            program.display(),
            self.conf().display(),
            log.display(),
            pmda.join("help").display()
        );
        let input = dbpmda.stdin.as_mut().expect("piped");
        writeln!(input, "{open}").expect("dbpmda reads");
        dbpmda
    }

    /// Runs a dbpmda(1) script, and waits for the end of the daemon. Returns the output without the parts that differ
    /// in each run.
    pub fn dbpmda(&self, script: &str) -> String {
        let dbpmda = self.start_dbpmda(Path::new(PMDANIXL));
        let agent = agent_of(dbpmda.id());
        let output = self.finish_dbpmda(dbpmda, script);
        ends(agent);
        output
    }

    /// Runs a dbpmda(1) script with a program that starts the daemon. The daemon may not have ended yet.
    pub fn dbpmda_with(&self, program: &Path, script: &str) -> String {
        self.finish_dbpmda(self.start_dbpmda(program), script)
    }

    /// Waits for the last drain of the daemon after the end of dbpmda, so that it does not see later events of the
    /// test.
    pub fn wait_for_the_end_of_the_log(&self) {
        wait_for("pmdanixl has written its last line", || {
            self.log().contains("Log finished").then_some(())
        });
    }

    fn finish_dbpmda(&self, mut dbpmda: Child, script: &str) -> String {
        let mut input = dbpmda.stdin.take().expect("piped");
        write!(input, "{script}\nquit\n").expect("dbpmda reads");
        drop(input);
        let output = text(&dbpmda.wait_with_output().expect("dbpmda ends"));
        let home = self.dir.path().display().to_string();
        let uid = format!("uid={}", getuid());
        let mut filtered = String::new();
        for line in output
            .lines()
            .filter(|line| !line.contains("open pipe") && !line.starts_with("Start pmdanixl"))
        {
            let line = match line.split_once("Result dump from ") {
                None if line.trim_start() == uid => line.replace(&uid, "uid=UID"),
                Some((start, _)) => format!("{start}Result dump"),
                None => line.replace(&home, "HOME"),
            };
            filtered.push_str(line.trim_end());
            filtered.push('\n');
        }
        filtered
    }
}

/// Ends dbpmda and its daemon, which drains a last time.
pub fn quit(mut dbpmda: Child) {
    let agent = agent_of(dbpmda.id());
    drop(dbpmda.stdin.take());
    dbpmda.wait().expect("our child");
    ends(agent);
}

/// Waits for the end of a daemon after a kill or after the end of its dbpmda. Until then, it drains and locks its state
/// file. Its new parent may reap it late.
pub fn ends(agent: u32) {
    wait_for("pmdanixl ends", || {
        let task = format!("/proc/{agent}/task");
        // The kernel frees its memory before its files and their locks, which end with the last thread.
        let is_last = fs::read_dir(task).map_or(0, Iterator::count) < 2;
        let stat = fs::read_to_string(format!("/proc/{agent}/stat")).unwrap_or_default();
        let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
        let has_ended = state.is_empty() || state.starts_with(['Z', 'X']);
        (is_last && has_ended).then_some(())
    });
}

/// Command with a prefix of another command that runs it. The prefix may be empty.
pub fn command_within(within: &[String], program: impl AsRef<std::ffi::OsStr>) -> Command {
    let Some((first, rest)) = within.split_first() else {
        return Command::new(program);
    };
    let mut command = Command::new(first);
    command.args(rest).arg(program);
    command
}

/// A pmcd with only this PMDA, in a separate directory (`qa/private-pmcd`). Dropping it ends pmcd.
pub struct Pmcd {
    child: Child,
    dir: PathBuf,
    env: Vec<(String, String)>,
    /// Command prefix that runs programs in the namespaces of this pmcd. May be empty.
    within: Vec<String>,
}

impl Pmcd {
    /// Starts pmcd with the configuration of a home, and waits until it answers.
    pub fn start(home: &Home) -> Self {
        Self::start_with(home, "pcp", |_| ())
    }

    /// Starts pmcd in the directory `name` of a home, after `prepare` has put files there. Waits until pmcd answers.
    pub fn start_with(home: &Home, name: &str, prepare: impl FnOnce(&Path)) -> Self {
        Self::start_within(home, name, &[], &[], prepare)
    }

    /// Starts pmcd with a command prefix, and with more options of `qa/private-pmcd`. Waits until pmcd answers.
    pub fn start_within(
        home: &Home,
        name: &str,
        within: &[String],
        options: &[&str],
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let dir = home.path(name);
        prepare(&dir);
        let program = project("qa/private-pmcd");
        let child = command_within(within, program)
            .arg(&dir)
            .args(["--pmda", PMDANIXL, "--conf"])
            .arg(home.conf())
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("qa/private-pmcd starts");
        let mut pmcd = Self {
            child,
            dir,
            env: Vec::new(),
            within: within.to_vec(),
        };
        let file = pmcd.dir.join("env");
        let exports = wait_for("qa/private-pmcd writes env", || {
            fs::read_to_string(&file).ok()
        });
        for line in exports.lines() {
            if let Some((name, value)) = line
                .strip_prefix("export ")
                .and_then(|line| line.split_once('='))
            {
                pmcd.env
                    .push((name.to_owned(), value.trim_matches('\'').to_owned()));
            }
        }
        pmcd.wait_until_it_answers();
        pmcd
    }

    pub fn wait_until_it_answers(&self) {
        wait_for("pmcd and pmdanixl answer", || {
            let answer = output(self.tool("pminfo").args(["-f", "nixl.control.version"]));
            String::from_utf8_lossy(&answer.stdout)
                .contains("value")
                .then_some(())
        });
    }

    /// PCP tool that uses this pmcd, with the distribution's Python.
    pub fn tool(&self, tool: &str) -> Command {
        let mut command = command_within(&self.within, tool);
        command
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env("PATH", "/usr/bin:/bin")
            .env("TZ", "UTC");
        command
    }

    /// PCP tool that uses this pmcd, run as another user.
    pub fn tool_as(&self, uid: u32, tool: &str) -> Command {
        let mut command = self.tool("setpriv");
        command.args([
            format!("--reuid={uid}"),
            "--clear-groups".into(),
            tool.into(),
        ]);
        command
    }

    pub fn env(&self, variable: &str) -> &str {
        let found = self.env.iter().find(|(name, _)| name == variable);
        &found
            .unwrap_or_else(|| panic!("qa/private-pmcd exports {variable}"))
            .1
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Waits until exactly these instances exist, with these bytes sent.
    pub fn becomes(&self, expected: &[(&str, u64)]) {
        let expected = expected
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect();
        let mut last = self.sent();
        let end = Instant::now() + PATIENCE;
        while last != expected {
            assert!(
                Instant::now() < end,
                "{last:?} never became {expected:?}\n{}",
                self.log()
            );
            last = self.sent();
        }
    }

    /// Changes the settings of the home's configuration, and reloads them.
    pub fn configure(&self, home: &Home, settings: &str) {
        home.set(settings);
        self.reload(home);
    }

    /// Makes the daemon reload the configuration of the home.
    pub fn reload(&self, home: &Home) {
        fs::copy(home.conf(), self.path("etc/nixl/nixl.conf")).expect("copied");
        run(self.tool("pmstore").args(["nixl.control.reload", "1"]));
    }

    /// Log of the daemon.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log/pmcd/nixl.log")).unwrap_or_default()
    }

    /// Values of a metric by instance name, as `pminfo -f` shows them, with "" for a metric without instances.
    pub fn values(&self, metric: &str) -> BTreeMap<String, u64> {
        let shown = run(self.tool("pminfo").args(["-f", metric]));
        let mut values = BTreeMap::new();
        for line in shown.lines() {
            let Some((place, value)) = line
                .rsplit_once(" value ")
                .or(line.trim().strip_prefix("value ").map(|v| ("", v)))
            else {
                continue;
            };
            let name = place
                .split_once(" or \"")
                .map_or("", |(_, name)| name.trim_end_matches("\"]"));
            values.insert(name.to_owned(), value.trim().parse().expect("a number"));
        }
        values
    }

    /// Bytes sent by instance.
    pub fn sent(&self) -> BTreeMap<String, u64> {
        self.values(TX_BYTES)
    }

    /// Whole numbers of all instances, by metric and instance name.
    pub fn all_values(&self) -> Values {
        let shown = run(self.tool("pminfo").args(["-f", "nixl"]));
        let (mut values, mut metric) = (Values::new(), String::new());
        for line in shown.lines() {
            if let Some((inst, value)) = line.split_once("\"] value ") {
                let name = inst.split_once(" or \"").map_or("", |(_, name)| name);
                let values = values.entry(metric.clone()).or_default();
                // Other values are texts and quantiles.
                if let Ok(value) = value.parse() {
                    values.insert(name.to_owned(), value);
                }
            } else if line.starts_with("nixl.") {
                metric = line.split_whitespace().next().expect("a name").to_owned();
            }
        }
        values
    }

    /// Pid of the daemon.
    pub fn pmda_pid(&self) -> u32 {
        agent_of(self.child.id())
    }

    /// Pid of pmcd.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends pmcd as an init script does, and waits until the daemon has ended, too.
    pub fn stop(mut self) {
        self.terminate();
    }

    pub fn terminate(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
            return;
        }
        let pmda = child_agent(self.child.id());
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
        wait_for("pmdanixl ends with pmcd", || {
            // Also a zombie has ended: the first process of a PID namespace may reap none.
            let runs = |pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok();
            (!pmda.is_some_and(runs)).then_some(())
        });
    }
}

impl Drop for Pmcd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- nixl.log ---\n{}", self.log());
            let _ = self.child.kill();
            let _ = self.child.wait();
        } else {
            self.terminate();
        }
    }
}

/// Real NIXL: the workload of `qa/nixl` with one published version.
pub struct Nixl {
    pub version: &'static str,
    pub dir: PathBuf,
    /// Slots of a ring.
    pub buffer_size: u32,
}

impl Nixl {
    pub fn new(version: &'static str, dir: &Path) -> Self {
        Self {
            version,
            dir: dir.to_owned(),
            buffer_size: 65_536,
        }
    }

    /// Python with this version. Skips the test if the version cannot be installed.
    pub fn python(&self) -> PathBuf {
        let made = output(Command::new(project("qa/nixl/venv")).arg(self.version));
        if !made.status.success() {
            leave_out(&format!("NIXL {}: {}", self.version, text(&made).trim()));
        }
        String::from_utf8_lossy(&made.stdout).trim().into()
    }

    /// Command of the workload with these options.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.program("workload.py");
        command.args(args);
        command
    }

    /// Command of a program of qa/nixl.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.python());
        // A UCX that is killed too early leaves its segments in /dev/shm.
        let segments = self.dir.parent().expect("a directory of the test's");
        command
            .arg(project("qa/nixl").join(name))
            .env("UCX_POSIX_DIR", segments)
            .env("NIXL_TELEMETRY_ENABLE", "y")
            .env("NIXL_TELEMETRY_DIR", &self.dir)
            .env("NIXL_TELEMETRY_BUFFER_SIZE", self.buffer_size.to_string());
        command
    }

    /// Runs the workload to its end. Returns the report of each agent: the expected totals of its telemetry. Panics if
    /// NIXL itself lost events.
    pub fn run(&self, args: &[&str]) -> Vec<serde_json::Value> {
        let said = run(&mut self.command(args));
        let lines = said.lines().filter(|line| line.starts_with('{'));
        let did = lines.map(|line| {
            let did: serde_json::Value =
                serde_json::from_str(line).unwrap_or_else(|err| panic!("{err}: {line}"));
            assert_eq!(did["flushed"], true, "NIXL itself lost events: {did}");
            did
        });
        did.collect()
    }
}
