// SPDX-License-Identifier: GPL-2.0-or-later

//! pmproxy(1), and the servers that it works with: Prometheus and a key server.

use super::{Home, Pmcd, pcp};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A server of this test on a free port. Dropping it ends the server.
pub struct Local {
    child: Child,
    /// Port on the loopback interface.
    pub port: u16,
}

impl Local {
    /// Starts the server with the command that `command` makes for a port.
    fn start(package: &str, command: impl FnOnce(u16) -> Command) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        Self::start_at(free.expect("a port").port(), package, command)
    }

    fn start_at(port: u16, package: &str, command: impl FnOnce(u16) -> Command) -> Self {
        let child = command(port)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|err| panic!("{package} is not installed: scripts/setup check: {err}"));
        Self { child, port }
    }

    /// A key server for the time series of pmproxy, without persistence.
    pub fn key_server(home: &Home) -> Self {
        let (program, _) = super::key_server();
        Self::start("redis-server", |port| {
            let mut server = Command::new(program);
            server.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
            server.args(["--save", "", "--appendonly", "no", "--dir"]);
            server.arg(home.path(""));
            server
        })
    }

    /// Number of keys of a key server that match a pattern, or `None` without an answer yet.
    pub fn count(&self, pattern: &str) -> Option<u64> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(super::PATIENCE)).ok()?;
        stream
            .write_all(format!("KEYS {pattern}\r\n").as_bytes())
            .ok()?;
        // The answer is an array, which begins with its length.
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        line.trim_end().strip_prefix('*')?.parse().ok()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Prometheus with the alerts of share/prometheus, which scrapes a pmproxy each second.
    pub fn prometheus(home: &Home, proxy: &Pmproxy) -> Self {
        let config = home.path("prometheus.yml");
        let port = proxy.server.port;
        let text = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{}]\nscrape_configs:\n- job_name: pcp\n  \
             metrics_path: /metrics\n  params: {{names: [nixl]}}\n  static_configs:\n  - targets: ['127.0.0.1:{port}']\n",
            super::project("share/prometheus/nixl.rules.yml").display()
        );
        fs::write(&config, text).expect("written");
        Self::start("prometheus", |port| {
            let mut server = Command::new("prometheus");
            server
                .arg(format!("--web.listen-address=127.0.0.1:{port}"))
                .arg(format!("--config.file={}", config.display()))
                .arg(format!(
                    "--storage.tsdb.path={}",
                    home.path("prometheus").display()
                ));
            server
        })
    }

    /// Body of an answer, or `None` without an answer yet.
    pub fn get(&self, path: &str) -> Option<String> {
        let (code, body) = self.answer(path)?;
        (code == "200").then_some(body)
    }

    /// Body of an answer with any status, as JSON. Quotes the parameters.
    pub fn json(&self, path: &str, parameters: &[(&str, &str)]) -> Option<Value> {
        let mut url = path.to_owned();
        for (at, (name, value)) in parameters.iter().enumerate() {
            url.push(if at == 0 { '?' } else { '&' });
            url.push_str(name);
            url.push('=');
            for byte in value.bytes() {
                write!(url, "%{byte:02X}").expect("a string");
            }
        }
        let (_, body) = self.answer(&url)?;
        serde_json::from_str(&body).ok()
    }

    /// Status and body of an answer. The request keeps the connection open: if pmproxy 6.0.3 closes it, the end of a
    /// long answer is missing.
    fn answer(&self, path: &str) -> Option<(String, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(super::PATIENCE)).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let (mut answer, mut part) = (Vec::new(), [0; 65536]);
        loop {
            let length = stream.read(&mut part).ok()?;
            answer.extend_from_slice(&part[..length]);
            let text = String::from_utf8_lossy(&answer);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                if let Some(body) = whole(head, body) {
                    let code = head.split(' ').nth(1)?;
                    return Some((code.to_owned(), body));
                }
            }
            if length == 0 {
                return None;
            }
        }
    }
}

/// Body of an answer, or `None` if it is not complete yet.
fn whole(head: &str, body: &str) -> Option<String> {
    let head = head.to_ascii_lowercase();
    let field = |name: &str| {
        let mut lines = head.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    };
    if field("transfer-encoding") == Some("chunked") {
        return joined(body);
    }
    let length: usize = field("content-length")?.trim().parse().ok()?;
    body.get(..length).map(str::to_owned)
}

/// Body of chunks, each after its length, or `None` without the last chunk.
fn joined(mut chunks: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (length, rest) = chunks.split_once("\r\n")?;
        let length = usize::from_str_radix(length.trim(), 16).ok()?;
        if length == 0 {
            return Some(body);
        }
        body.push_str(rest.get(..length)?);
        chunks = rest.get(length..)?.strip_prefix("\r\n")?;
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// pmproxy(1) for one pmcd.
pub struct Pmproxy {
    server: Local,
}

impl Pmproxy {
    /// Starts pmproxy without a key server.
    pub fn start(home: &Home, pmcd: &Pmcd) -> Self {
        Self::start_with(home, pmcd, &["-t"])
    }

    /// Starts pmproxy with a key server, to which it copies the archives of this pmcd's host as they grow.
    pub fn start_with_keys(home: &Home, pmcd: &Pmcd, keys: &Local) -> Self {
        let config = home.path("pmproxy.conf");
        let text = format!(
            "[pmproxy]\npcp.enabled = true\nhttp.enabled = true\nredis.enabled = true\n\
             [redis]\nenabled = true\nservers = 127.0.0.1:{}\n\
             [discover]\nenabled = true\n[pmseries]\nenabled = true\n",
            keys.port
        );
        fs::write(&config, text).expect("written");
        Self::start_with(home, pmcd, &["-t", "-c", config.to_str().expect("UTF-8")])
    }

    fn start_with(home: &Home, pmcd: &Pmcd, options: &[&str]) -> Self {
        let server = Local::start("pcp", |port| Self::command(home, pmcd, options, port));
        Self { server }
    }

    /// Starts pmproxy again on the port of one that has ended.
    pub fn start_again(home: &Home, pmcd: &Pmcd, port: u16) -> Self {
        let command = |port| Self::command(home, pmcd, &["-t"], port);
        let server = Local::start_at(port, "pcp", command);
        Self { server }
    }

    fn command(home: &Home, pmcd: &Pmcd, options: &[&str], port: u16) -> Command {
        let program = Path::new(&pcp("PCP_BINADM_DIR")).join("pmproxy");
        let (socket, log) = (home.path("pmproxy.socket"), home.path("pmproxy.log"));
        let mut command = pmcd.tool(program.to_str().expect("UTF-8"));
        command.args(options);
        command.args(["-f", "-p", &port.to_string(), "-s"]);
        command.arg(socket).arg("-l").arg(log);
        command
    }

    pub fn port(&self) -> u16 {
        self.server.port
    }

    /// URL for a browser.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.server.port)
    }

    /// Body of an answer, or `None` without an answer yet.
    pub fn get(&self, path: &str) -> Option<String> {
        self.server.get(path)
    }

    /// Body of an answer with any status, as JSON, or `None` without an answer yet. Quotes the parameters.
    pub fn json(&self, path: &str, parameters: &[(&str, &str)]) -> Option<Value> {
        self.server.json(path, parameters)
    }
}
