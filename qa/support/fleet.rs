// SPDX-License-Identifier: GPL-2.0-or-later

//! Hosts on one network: namespaces, each with a host name, an address and a machine-id. Nothing is made in /run.

use super::sample::Sample;
use super::share::Logger;
use super::{Home, Pmcd, command_within, example, key_server, output, pcp, run, text, wait_for};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Names of the hosts. The first has the address 10.77.0.1, and so on.
pub const HOSTS: [&str; 3] = ["a", "b", "c"];

/// True if the test runs in its own PID namespace, where it can have a fleet. If false, the test has run there. The
/// test is skipped if no fleet is possible.
pub fn is_possible() -> bool {
    let mut probe = Command::new("unshare");
    probe.args(["--net", "--uts", "--mount", "--pid", "--fork", "true"]);
    if !output(&mut probe).status.success() {
        super::leave_out("there are no rights to make namespaces");
    }
    super::is_alone()
}

/// Idle process that keeps namespaces alive. Dropping it ends the process and the namespaces.
pub struct Holder(Child);

impl Holder {
    /// Makes namespaces. A shell in them runs a script, and then the file `done` exists.
    pub fn start(namespaces: &[&str], script: &str, done: &Path) -> Self {
        let script = format!("{script}\n: >{}\nexec sleep infinity", done.display());
        let child = Command::new("unshare")
            .args(namespaces)
            .args(["sh", "-euc", &script])
            .stdin(Stdio::null())
            .spawn();
        let mut holder = Self(child.expect("unshare(1) is there"));
        wait_for("the namespaces are made", || {
            let ended = holder.0.try_wait().expect("our child");
            assert_eq!(ended, None, "the namespaces cannot be made");
            done.exists().then_some(())
        });
        holder
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Command prefix that runs a program in the namespaces.
    pub fn enter(&self, namespaces: &[&str]) -> Vec<String> {
        let pid = self.0.id().to_string();
        let mut words = vec!["nsenter", "--target", &pid];
        words.extend(namespaces);
        words.push("--");
        words.into_iter().map(str::to_owned).collect()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Network of the hosts: a bridge in a namespace.
pub struct Network {
    switch: Holder,
    /// Keeps the directory.
    _home: Home,
}

impl Network {
    pub fn start() -> Self {
        let home = Home::new();
        let script = "ip link add switch type bridge; ip link set switch up";
        let switch = Holder::start(&["--net"], script, &home.path("done"));
        Self {
            switch,
            _home: home,
        }
    }

    fn ip(&self, arguments: &str) {
        let mut command = command_within(&self.switch.enter(&["--net"]), "ip");
        run(command.args(arguments.split_whitespace()));
    }

    /// Disconnects a host from the network, or connects it.
    pub fn connect(&self, host: &Host, is_connected: bool) {
        let state = if is_connected { "up" } else { "down" };
        self.ip(&format!("link set to-{} {state}", host.name));
    }

    /// Starts a host with that name, with pmcd and pmdanixl.
    pub fn host(&self, name: &'static str) -> Host {
        let place = HOSTS.iter().position(|host| *host == name);
        let number = place.expect("one of HOSTS") + 1;
        let hosts = HOSTS.iter().zip(1..);
        let names: String = hosts.fold("127.0.0.1 localhost\n".into(), |names, (host, number)| {
            names + &format!("10.77.0.{number} {host}\n")
        });
        let home = Home::new();
        // The files of this machine, except for those with its identity.
        let etc = home.path("etc");
        fs::create_dir(&etc).expect("made");
        let script = format!(
            "mount -t tmpfs {name} {etc}
            mkdir {etc}/upper {etc}/work
            printf '%032x\\n' {number} >{etc}/upper/machine-id
            echo {name} >{etc}/upper/hostname
            printf '{names}' >{etc}/upper/hosts
            mount -t overlay -o lowerdir=/etc,upperdir={etc}/upper,workdir={etc}/work {name} /etc
            hostname {name}
            ip link set lo up",
            etc = etc.display()
        );
        let spaces = ["--net", "--uts", "--mount", "--propagation", "private"];
        let holder = Holder::start(&spaces, &script, &home.path("done"));
        let pid = holder.pid();
        self.ip(&format!(
            "link add to-{name} type veth peer name eth0 netns {pid}"
        ));
        self.ip(&format!("link set to-{name} master switch up"));
        // The root is a separate option: in a chroot, the root of the namespace is another one.
        let within = holder.enter(&["--net", "--uts", "--mount", "--root", "--wd"]);
        for arguments in [
            format!("address add 10.77.0.{number}/24 dev eth0"),
            "link set eth0 up".into(),
        ] {
            run(command_within(&within, "ip").args(arguments.split_whitespace()));
        }
        let pmcd = Pmcd::start_within(&home, "pcp", &within, &["--remote"], |dir| {
            // PCP's own labels, and a label with the place of the host.
            let etc = dir.join("etc");
            fs::create_dir_all(etc.join("labels")).expect("made");
            fs::copy("/etc/pcp/labels.conf", etc.join("labels.conf")).expect("PCP has one");
            let rack = format!("{{\"rack\":\"rack-{}\"}}", number.div_ceil(2));
            fs::write(etc.join("labels/place"), rack).expect("written");
            for host in HOSTS {
                fs::create_dir_all(dir.join("log/pmlogger").join(host)).expect("made");
            }
        });
        Host {
            name,
            pmcd,
            home,
            within,
            _holder: holder,
        }
    }
}

/// A running host. Dropping it ends all its processes.
pub struct Host {
    pub name: &'static str,
    pub pmcd: Pmcd,
    pub home: Home,
    within: Vec<String>,
    _holder: Holder,
}

impl Host {
    /// Starts an agent that sends so many bytes in so many transfers, and then lives on.
    pub fn agent(&self, name: &str, transfers: u32, size: u64) -> Sample {
        let program = command_within(&self.within, example("producer"));
        let options =
            format!("--transfers {transfers} --size {size} --read-every 0 --rate 5 --linger 600");
        Sample::start_as(program, &self.home.rings(), name, &options)
    }

    /// Path of the archive that this host writes of another. Makes the directory.
    pub fn archive(&self, of: &str) -> PathBuf {
        self.pmcd
            .path("log/pmlogger")
            .join(of)
            .join(format!("by-{}", self.name))
    }

    /// Starts a pmlogger for the values of this host.
    pub fn logger(&self) -> Logger {
        Logger::start(&self.pmcd, &self.archive(self.name))
    }

    /// Starts a pmlogger for the values of another host, like one of a pmlogger farm, with short timeouts.
    pub fn farm_logger(&self, of: &Host) -> Logger {
        let mut pmlogger = self.pmcd.tool("pmlogger");
        pmlogger
            .args(["-h", of.name])
            .env("PMCD_CONNECT_TIMEOUT", "2")
            .env("PMCD_REQUEST_TIMEOUT", "2")
            .env("PMCD_RECONNECT_TIMEOUT", "1");
        Logger::start_as(pmlogger, &self.archive(of.name))
    }

    /// Log of the pmlogger for another host.
    pub fn logger_log(&self, of: &str) -> String {
        fs::read_to_string(self.archive(of).with_extension("log")).unwrap_or_default()
    }

    /// Starts a key server for this host, and for others if `bind` allows it.
    pub fn redis(&self, bind: &str) -> Daemon {
        let (program, _) = key_server();
        let mut redis = self.pmcd.tool(program.to_str().expect("UTF-8"));
        redis.args(["--bind", bind, "--protected-mode", "no", "--save", ""]);
        let daemon = Daemon::start(redis.arg("--dir").arg(self.home.path(".")));
        wait_for("the key server answers", || {
            (self.redis_says("ping") == "PONG\n").then_some(())
        });
        daemon
    }

    pub fn redis_says(&self, command: &str) -> String {
        let (_, client) = key_server();
        let mut client = self.pmcd.tool(client.to_str().expect("UTF-8"));
        text(&output(client.args(command.split_whitespace())))
    }

    /// Starts a pmproxy that copies new values of the archives here to a key server. Each archive must have a sample
    /// already: pmproxy of PCP 6.0.3 may miss an archive that begins during its scan.
    pub fn pmproxy(&self, servers: &str) -> Daemon {
        let etc = self.pmcd.path("etc/pmproxy");
        fs::create_dir_all(&etc).expect("made");
        let parts =
            ["redis", "discover", "pmseries"].map(|part| format!("[{part}]\nenabled = true\n"));
        let text = parts
            .concat()
            .replacen('\n', &format!("\nservers = {servers}\n"), 1);
        fs::write(etc.join("pmproxy.conf"), text).expect("written");
        let program = Path::new(&pcp("PCP_BINADM_DIR")).join("pmproxy");
        let log = self.home.path("pmproxy.log");
        let mut pmproxy = self.pmcd.tool(program.to_str().expect("UTF-8"));
        pmproxy.args(["-t", "-f", "-s"]);
        let daemon = Daemon::start(
            pmproxy
                .arg(self.home.path("pmproxy.socket"))
                .arg("-l")
                .arg(&log),
        );
        wait_for("pmproxy has a key server", || {
            let said = fs::read_to_string(&log).ok()?;
            said.contains("schema version setup").then_some(())
        });
        daemon
    }

    /// Output of pmseries for a query. pmseries of PCP 6.0.3 may wait forever while pmproxy sends the first value of a
    /// series.
    pub fn pmseries(&self, arguments: &[&str]) -> String {
        wait_for("pmseries answers", || {
            let mut timeout = self.pmcd.tool("timeout");
            let said = output(timeout.args(["5", "pmseries"]).args(arguments));
            said.status.success().then(|| text(&said))
        })
    }

    /// Values that a query finds, for each series or instance: time and value, newest first.
    pub fn series(&self, query: &str) -> BTreeMap<String, Vec<(String, u64)>> {
        let (mut found, mut series) = (BTreeMap::<_, Vec<_>>::new(), String::new());
        for line in self.pmseries(&[query]).lines() {
            let Some((stamp, rest)) = line.trim().split_once("] ") else {
                series = line.trim().to_owned();
                continue;
            };
            // [Sat Nov 21 18:07:30.582019000 2026] 3000 SERIES
            let time = stamp.split_whitespace().nth(3).expect("a time");
            let mut rest = rest.split_whitespace();
            let value = rest.next().expect("a value").parse::<f64>();
            let name = rest.next().unwrap_or(&series).to_owned();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            // totals that this test has chosen
            let value = value.expect("a number") as u64;
            // An archive has microseconds.
            found
                .entry(name)
                .or_default()
                .push((time[..15].to_owned(), value));
        }
        found
    }

    /// Newest value of each instance, or of each metric without instances, in the series that a query finds.
    pub fn newest(&self, query: &str) -> Vec<(String, u64)> {
        let mut names = BTreeMap::new();
        for series in self.pmseries(&[query]).split_whitespace() {
            for line in self.pmseries(&["-i", series]).lines() {
                // inst [0 or "worker"] series ID
                if let Some((inst, id)) = line.split_once("] series ") {
                    let name = inst.split('"').nth(1).expect("a name");
                    names.insert(id.trim().to_owned(), name.to_owned());
                }
            }
        }
        let found = self.series(&format!("{query}[samples:1]"));
        let mut found: Vec<_> = found
            .into_iter()
            .map(|(id, values)| (names.remove(&id).unwrap_or_default(), values[0].1))
            .collect();
        found.sort_unstable();
        found
    }

    /// Runs commands of the documentation, in a shell.
    pub fn shell(&self, commands: &str, variables: &[(&str, &str)]) -> String {
        let mut shell = self.pmcd.tool("sh");
        let limited = "pmseries() { timeout 20 pmseries \"$@\"; }\n".to_owned();
        run(shell
            .args(["-euc", &(limited + commands)])
            .envs(variables.iter().copied()))
    }
}

/// A background process. Dropping it ends the process.
pub struct Daemon(Child);

impl Daemon {
    fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        Self(
            command
                .spawn()
                .unwrap_or_else(|err| panic!("{command:?}: {err}")),
        )
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Values of a metric without instances in an archive, with their times.
pub fn logged(archive: &Path, metric: &str) -> Vec<(String, u64)> {
    let dumped = run(super::share::tool("pmdumplog").arg(archive).arg(metric));
    let (mut values, mut time) = (Vec::new(), "");
    for line in dumped.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or("");
        if first.len() == 15 && first.as_bytes()[2] == b':' {
            time = first;
        }
        if let Some((_, value)) = line.split_once("): value ").or(line.split_once(" value ")) {
            values.push((time.to_owned(), value.trim().parse().expect("a number")));
        }
    }
    values
}
