// SPDX-License-Identifier: GPL-2.0-or-later

//! Real NIXL with `prometheus_mp` stores, and NIXL's own endpoint, which publishes them.

use super::numbers::{Numbers, numbers};
use super::serve::Server;
use super::{Home, Nixl, PATIENCE};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;

/// Directory of stores, and port of the endpoint that publishes them.
pub struct Stores {
    dir: PathBuf,
    port: u16,
}

impl Stores {
    /// Configures a home with these settings and with this directory only. Starts no agent.
    pub fn new(home: &Home, settings: &str) -> Self {
        let dir = home.path("stores");
        fs::create_dir(&dir).expect("made");
        home.configure(&format!(
            "[nixl]\ntelemetry_dir = []\nmultiproc_dir = {dir:?}\n{settings}\n"
        ));
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.expect("a port").port();
        Self { dir, port }
    }

    /// Starts a process without agents, with additional environment variables.
    pub fn process(&self, environment: &[(&str, &str)]) -> Server {
        let mut command = Nixl::new("1.5.1", &self.dir).command(&["--serve"]);
        command
            .env_remove("NIXL_TELEMETRY_DIR")
            .env_remove("NIXL_TELEMETRY_HISTOGRAM_BUCKETS_US")
            .env_remove("LOCAL_RANK")
            .env("NIXL_TELEMETRY_EXPORTER", "prometheus_mp")
            .env("NIXL_TELEMETRY_MULTIPROC_DIR", &self.dir)
            .env("NIXL_TELEMETRY_PROMETHEUS_LOCAL", "y")
            .env("NIXL_TELEMETRY_PROMETHEUS_PORT", self.port.to_string())
            .envs(environment.iter().copied());
        Server::of(command)
    }

    /// Text of NIXL's endpoint, or `None` if no agent serves it.
    pub fn get(&self) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let patience = Some(PATIENCE);
        stream.set_read_timeout(patience).expect("a time");
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.parse::<usize>().expect("a length"))
        });
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(length, Some(body.len()), "the whole answer: {head}");
        Some(body.to_owned())
    }

    /// Text of NIXL's endpoint about agents. The series of the endpoint itself change with each scrape, and are
    /// omitted.
    pub fn text(&self) -> String {
        let text = self.get().expect("an agent serves the endpoint");
        let lines = text.split_inclusive('\n');
        lines.filter(|line| !line.contains("exposer_")).collect()
    }

    /// Numbers in the text of NIXL's endpoint.
    pub fn numbers(&self) -> Numbers {
        numbers(&self.text())
    }

    /// Sorted file names of the stores.
    pub fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.dir).expect("a directory").flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<_> = names.filter(|name| name.ends_with(".mmap")).collect();
        names.sort_unstable();
        names
    }
}
