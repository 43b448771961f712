//! Support for all tests: a home directory for each test, the real dbpmda, a private pmcd, real NIXL.
#![allow(dead_code)] // each test binary uses a part of it

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;
use tempfile::TempDir;

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
pub mod pmproxy;
pub mod rule;
pub mod sample;
pub mod serve;
pub mod shape;
pub mod share;
pub mod show;
pub mod stranger;
pub mod titled;

#[allow(unused_imports)] // each test binary uses a part of it
pub use kit::{memory, memory::in_memory, writer};
#[allow(unused_imports)] // as above
pub use patience::{PATIENCE, soon, wait_for};

/// Values by metric and instance name.
pub type Values = BTreeMap<String, BTreeMap<String, u64>>;

/// The program under test.
pub const PMDANIXL: &str = env!("CARGO_BIN_EXE_pmdanixl");

/// The metric that most tests look at.
pub const TX_BYTES: &str = "nixl.transfer.tx_bytes";

/// A file of the project.
pub fn project(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// The key server that is installed, under the name that the distribution has for it, and its client.
pub fn key_server() -> (PathBuf, PathBuf) {
    let found = ["redis", "valkey"].map(|name| {
        let program = |part: &str| PathBuf::from(format!("/usr/bin/{name}-{part}"));
        (program("server"), program("cli"))
    });
    let mut found = found.into_iter().filter(|(server, _)| server.exists());
    let found = found.next();
    found.expect("redis-server is installed: scripts/setup check")
}

/// Ends a test that cannot be tried here: qa/run tells it apart from one that fails, and lists it with its reason.
///
/// # Panics
/// Always.
pub fn leave_out(reason: &str) -> ! {
    panic!("left out: {}", reason.replace('\n', " "))
}

/// Ends a test that cannot be tried without the rights of root: it gives files and processes to others, or root alone may ask for it.
pub fn needs_root() {
    if !nix::unistd::geteuid().is_root() {
        leave_out("it takes root");
    }
}

/// Compares output with a checked-in file; `BLESS=1` writes it.
pub fn golden(file: &str, output: &str) {
    let path = project("qa/golden").join(file);
    if std::env::var_os("BLESS").is_some() {
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(&path, output).expect("written");
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        output == expected,
        "{}\n--- expected ---\n{expected}\n--- found ---\n{output}\nBLESS=1 cargo test takes what was found",
        path.display()
    );
}

/// Runs a command to its end; its output as text, standard error behind it. Panics if it fails.
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

/// Whether this test runs in a PID namespace of its own, where /proc shows no processes but its. If not, it is run there, and
/// there is nothing left to do here: what looks at all processes of a machine is none of those that do not belong to the test.
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
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, "1")
        .stdin(Stdio::null())
        .status()
        .expect("unshare(1) is there");
    assert!(status.success(), "{test}, in a PID namespace of its own");
    false
}

/// Whether /proc shows all processes of this machine: its first PID namespace does (PROC_PID_INIT_INO of Linux's
/// include/linux/proc_ns.h), one that was made later shows its own.
pub fn sees_all_processes() -> bool {
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link == Path::new("pid:[4026531836]"))
}

pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The process id of the agent that pmcd or dbpmda started.
pub fn agent_of(parent: u32) -> u32 {
    wait_for("pmdanixl is started", || {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
        let is_pmda = |pid: &&str| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "pmdanixl\n")
        };
        children.split_whitespace().find(is_pmda)?.parse().ok()
    })
}

/// An example, beside the program under test. qa/run has built them with the tests; cargo does not, where only one of those is
/// asked for, and what is there may be an older one then.
pub fn example(name: &str) -> PathBuf {
    let profile = Path::new(PMDANIXL).parent().expect("a directory");
    if std::env::var_os("NIXL_QA_RUN").is_none() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--locked", "--example", name]);
        build.args(profile.ends_with("release").then_some("--release"));
        run(build.current_dir(project(".")));
    }
    profile.join("examples").join(name)
}

/// A setting of PCP's on this host.
pub fn pcp(variable: &str) -> String {
    let conf = fs::read_to_string("/etc/pcp.conf").expect("PCP is installed: scripts/setup check");
    let value = conf
        .lines()
        .find_map(|line| line.strip_prefix(variable)?.strip_prefix('='));
    value
        .unwrap_or_else(|| panic!("/etc/pcp.conf has {variable}"))
        .to_owned()
}

/// A directory for one test, with a configuration that looks for rings in its `rings`.
pub struct Home {
    dir: TempDir,
}

impl Home {
    pub fn new() -> Self {
        // Short, since a unix socket's path is.
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

    /// A directory that is closed to others, without which Qt takes one of its own below TMPDIR and leaves it there.
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

    pub fn conf(&self) -> PathBuf {
        self.path("nixl.conf")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("nixl.log")).unwrap_or_default()
    }

    /// Writes a configuration that looks for rings in the home's directory and has these settings, a line each.
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

    /// Help text and name space as Install makes them, and a directory for pmdaCache, once.
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

    /// Starts dbpmda(1), which starts the agent; it ends with its standard input.
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
        // dbpmda takes a path with a space for two words.
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

    /// Runs a dbpmda(1) script against the agent, which has ended then; the output without what differs from run to run.
    pub fn dbpmda(&self, script: &str) -> String {
        let dbpmda = self.start_dbpmda(Path::new(PMDANIXL));
        let agent = agent_of(dbpmda.id());
        let output = self.finish_dbpmda(dbpmda, script);
        ends(agent);
        output
    }

    /// The same where another program starts the agent; that may not have ended yet.
    pub fn dbpmda_with(&self, program: &Path, script: &str) -> String {
        self.finish_dbpmda(self.start_dbpmda(program), script)
    }

    /// The agent drains a last time when dbpmda has ended: what a test does next is not for that.
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
        let mut filtered = String::new();
        for line in output
            .lines()
            .filter(|line| !line.contains("open pipe") && !line.starts_with("Start pmdanixl"))
        {
            let line = match line.split_once("Result dump from ") {
                Some((start, _)) => format!("{start}Result dump"),
                None => line.replace(&home, "HOME"),
            };
            filtered.push_str(line.trim_end());
            filtered.push('\n');
        }
        filtered
    }
}

/// Ends a dbpmda that was started, and with it the agent, which drains a last time.
pub fn quit(mut dbpmda: Child) {
    let agent = agent_of(dbpmda.id());
    drop(dbpmda.stdin.take());
    dbpmda.wait().expect("our child");
    ends(agent);
}

/// Waits for the end of a daemon that was killed, or whose dbpmda has ended. Until then it drains and holds its state file. Its new
/// parent may reap it late.
pub fn ends(agent: u32) {
    wait_for("pmdanixl ends", || {
        let task = format!("/proc/{agent}/task");
        // Its memory goes before its files and their locks, which any of its threads has.
        let is_last = fs::read_dir(task).map_or(0, Iterator::count) < 2;
        let stat = fs::read_to_string(format!("/proc/{agent}/stat")).unwrap_or_default();
        let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
        let has_ended = state.is_empty() || state.starts_with(['Z', 'X']);
        (is_last && has_ended).then_some(())
    });
}

/// A command, run by another one that comes to run it, if there is such.
pub fn command_within(within: &[String], program: impl AsRef<std::ffi::OsStr>) -> Command {
    let Some((first, rest)) = within.split_first() else {
        return Command::new(program);
    };
    let mut command = Command::new(first);
    command.args(rest).arg(program);
    command
}

/// A pmcd with only this agent, in a directory of its own (`qa/private-pmcd`). Ends with the value.
pub struct Pmcd {
    child: Child,
    dir: PathBuf,
    env: Vec<(String, String)>,
    /// The command that comes to run others where this pmcd runs; empty: they are there.
    within: Vec<String>,
}

impl Pmcd {
    /// Starts it with the home's configuration and waits until it answers.
    pub fn start(home: &Home) -> Self {
        Self::start_with(home, "pcp", |_| ())
    }

    /// As `start`; `name` tells several in one home apart, and `prepare` may put files into the directory.
    pub fn start_with(home: &Home, name: &str, prepare: impl FnOnce(&Path)) -> Self {
        Self::start_within(home, name, &[], &[], prepare)
    }

    /// The same in the namespaces that a command comes to run it in, with more options of `qa/private-pmcd`.
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

    /// A PCP tool that talks to this pmcd, as the distribution's Python runs it.
    pub fn tool(&self, tool: &str) -> Command {
        let mut command = command_within(&self.within, tool);
        command
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env("PATH", "/usr/bin:/bin")
            .env("TZ", "UTC");
        command
    }

    /// The same as another user.
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

    /// Waits until the bytes sent of all instances are these.
    pub fn becomes(&self, expected: &[(&str, u64)]) {
        let expected = expected
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect();
        let mut last = self.values(TX_BYTES);
        let end = Instant::now() + PATIENCE;
        while last != expected {
            assert!(
                Instant::now() < end,
                "{last:?} never became {expected:?}\n{}",
                self.log()
            );
            last = self.values(TX_BYTES);
        }
    }

    /// Has the agent take the home's configuration with other settings.
    pub fn configure(&self, home: &Home, settings: &str) {
        home.set(settings);
        self.reload(home);
    }

    /// Makes the daemon reload the configuration of the home.
    pub fn reload(&self, home: &Home) {
        fs::copy(home.conf(), self.path("etc/nixl/nixl.conf")).expect("copied");
        run(self.tool("pmstore").args(["nixl.control.reload", "1"]));
    }

    /// The agent's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log/pmcd/nixl.log")).unwrap_or_default()
    }

    /// The values of a metric by instance name, as `pminfo -f` shows them; under "" where it has no instances.
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

    /// All whole numbers that instances have, by metric and instance name.
    pub fn all_values(&self) -> Values {
        let shown = run(self.tool("pminfo").args(["-f", "nixl"]));
        let (mut values, mut metric) = (Values::new(), String::new());
        for line in shown.lines() {
            if let Some((inst, value)) = line.split_once("\"] value ") {
                let name = inst.split_once(" or \"").map_or("", |(_, name)| name);
                let values = values.entry(metric.clone()).or_default();
                // Others are texts and quantiles.
                if let Ok(value) = value.parse() {
                    values.insert(name.to_owned(), value);
                }
            } else if line.starts_with("nixl.") {
                metric = line.split_whitespace().next().expect("a name").to_owned();
            }
        }
        values
    }

    /// The agent's process id.
    pub fn pmda_pid(&self) -> u32 {
        agent_of(self.child.id())
    }

    /// pmcd's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends pmcd as an init script does, and waits until the agent has ended too.
    pub fn stop(mut self) {
        self.terminate();
    }

    pub fn terminate(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
            return;
        }
        let pmda = self.pmda_pid();
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
        wait_for("pmdanixl ends with pmcd", || {
            (!Path::new(&format!("/proc/{pmda}")).exists()).then_some(())
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

/// Real NIXL: the workload of `qa/nixl` under one published version.
pub struct Nixl {
    pub version: &'static str,
    pub dir: PathBuf,
    /// Events that a ring holds.
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

    /// The Python that has it. Leaves the test out where it cannot be had.
    pub fn python(&self) -> PathBuf {
        let made = output(Command::new(project("qa/nixl/venv")).arg(self.version));
        if !made.status.success() {
            leave_out(&format!("NIXL {}: {}", self.version, text(&made).trim()));
        }
        String::from_utf8_lossy(&made.stdout).trim().into()
    }

    /// The workload with these options.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.program("workload.py");
        command.args(args);
        command
    }

    /// A program of qa/nixl.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.python());
        // UCX makes segments in /dev/shm, which stay there if it is killed before it has unlinked them.
        let segments = self.dir.parent().expect("a directory of the test's");
        command
            .arg(project("qa/nixl").join(name))
            .env("UCX_POSIX_DIR", segments)
            .env("NIXL_TELEMETRY_ENABLE", "y")
            .env("NIXL_TELEMETRY_DIR", &self.dir)
            .env("NIXL_TELEMETRY_BUFFER_SIZE", self.buffer_size.to_string());
        command
    }

    /// Runs it to its end; what it says that each agent did, and what its telemetry must add up to. Panics if NIXL itself lost
    /// any of that.
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
