//! What the tests share: a home of their own, the real dbpmda, a private pmcd, real NIXL.
#![allow(dead_code)] // each test binary uses a part of it

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

// By path, so that its own module is looked for beside it, as it is for the sample producer.
#[path = "writer.rs"]
pub mod writer;

/// The program under test.
pub const PMDANIXL: &str = env!("CARGO_BIN_EXE_pmdanixl");

/// A file of the project.
pub fn project(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// Waits for a condition; panics with what was waited for after `seconds`.
pub fn wait_for<T>(what: &str, seconds: u64, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < end, "waited {seconds} s in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
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

pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
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
            .tempdir_in("/tmp")
            .expect("a directory");
        let home = Self { dir };
        fs::create_dir(home.rings()).expect("made");
        home.configure(&format!("[nixl]\ntelemetry_dir = {:?}\n", home.rings()));
        home
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

    /// Runs a dbpmda(1) script against the agent; the output without what differs from run to run.
    pub fn dbpmda(&self, script: &str) -> String {
        self.dbpmda_with(Path::new(PMDANIXL), script)
    }

    /// The same where another program starts the agent.
    pub fn dbpmda_with(&self, program: &Path, script: &str) -> String {
        self.prepare();
        let (pmda, log) = (self.path("pmda"), self.path("nixl.log"));
        let open = format!(
            "open pipe {} -d 39 -c {} -l {} -h {}",
            program.display(),
            self.conf().display(),
            log.display(),
            pmda.join("help").display()
        );
        let mut dbpmda = Command::new("dbpmda")
            .args(["-n", "root", "-ie"])
            .current_dir(&pmda)
            .env("PCP_VAR_DIR", self.path("var"))
            .env("PCP_TMP_DIR", self.dir.path())
            .env("TERM", "ansi")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("dbpmda is installed: scripts/setup check");
        let mut input = dbpmda.stdin.take().expect("piped");
        write!(input, "{open}\n{script}\nquit\n").expect("dbpmda reads");
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

/// A pmcd with only this agent, in a directory of its own (`qa/private-pmcd`). Ends with the value.
pub struct Pmcd {
    child: Child,
    dir: PathBuf,
    env: Vec<(String, String)>,
}

impl Pmcd {
    /// Starts it with the home's configuration and waits until it answers.
    pub fn start(home: &Home) -> Self {
        Self::start_with(home, "pcp", |_| ())
    }

    /// As `start`; `name` tells several in one home apart, and `prepare` may put files into the directory.
    pub fn start_with(home: &Home, name: &str, prepare: impl FnOnce(&Path)) -> Self {
        let dir = home.path(name);
        prepare(&dir);
        let child = Command::new(project("qa/private-pmcd"))
            .arg(&dir)
            .args(["--pmda", PMDANIXL, "--conf"])
            .arg(home.conf())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("qa/private-pmcd starts");
        let mut pmcd = Self {
            child,
            dir,
            env: Vec::new(),
        };
        let file = pmcd.dir.join("env");
        let exports = wait_for("qa/private-pmcd writes env", 20, || {
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
        wait_for("pmcd and pmdanixl answer", 30, || {
            let answer = output(pmcd.tool("pminfo").args(["-f", "nixl.control.version"]));
            String::from_utf8_lossy(&answer.stdout)
                .contains("value")
                .then_some(())
        });
        pmcd
    }

    /// A PCP tool that talks to this pmcd, as the distribution's Python runs it.
    pub fn tool(&self, tool: &str) -> Command {
        let mut command = Command::new(tool);
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

    /// The agent's process id.
    pub fn pmda_pid(&self) -> u32 {
        let parent = self.child.id();
        wait_for("pmcd has started pmdanixl", 10, || {
            let children =
                fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
            let is_pmda = |pid: &&str| {
                fs::read_to_string(format!("/proc/{pid}/comm"))
                    .is_ok_and(|comm| comm == "pmdanixl\n")
            };
            children.split_whitespace().find(is_pmda)?.parse().ok()
        })
    }

    /// pmcd's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends pmcd as an init script does, and waits until the agent has ended too.
    pub fn stop(mut self) {
        self.terminate();
    }

    fn terminate(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
            return;
        }
        let pmda = self.pmda_pid();
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
        wait_for("pmdanixl ends with pmcd", 5, || {
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

    /// Runs it to its end; what it says that each agent did, and what its telemetry must add up to.
    pub fn run(&self, args: &[&str]) -> Vec<serde_json::Value> {
        let python = run(Command::new(project("qa/nixl/venv")).arg(self.version));
        let said = run(Command::new(python.trim())
            .arg(project("qa/nixl/workload.py"))
            .args(args)
            .env("NIXL_TELEMETRY_ENABLE", "y")
            .env("NIXL_TELEMETRY_DIR", &self.dir)
            .env("NIXL_TELEMETRY_BUFFER_SIZE", self.buffer_size.to_string()));
        let lines = said.lines().filter(|line| line.starts_with('{'));
        lines
            .map(|line| serde_json::from_str(line).unwrap_or_else(|err| panic!("{err}: {line}")))
            .collect()
    }
}
