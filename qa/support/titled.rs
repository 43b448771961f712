// SPDX-License-Identifier: GPL-2.0-or-later

//! A server like vLLM's: it forks its core, and the core forks the workers. Core and workers set their titles.

use super::Home;
use super::writer::{Layout, RingWriter};
use nix::unistd::Uid;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Overwrites arguments and environment like the package setproctitle: the title, and NULs up to the end of both.
const SCRIPT: &str = "
import ctypes, mmap, os, random, select, struct, sys

def set_title(title):
    # The fields behind the name, of which the first is the third (proc_pid_stat(5)).
    stat = open('/proc/self/stat').read().rsplit(')', 1)[1].split()
    arg_start, arg_end, env_start, env_end = (int(stat[field - 3]) for field in range(48, 52))
    ctypes.memset(env_start, 0, env_end - env_start)
    ctypes.memset(arg_start, 0, arg_end - arg_start)
    ctypes.memmove(arg_start, title, len(title))

def say():
    os.write(1, b'%d\\n' % os.getpid())

# A completed transfer, into a ring of the last layout.
def push(ring):
    bytes, way = random.randrange(1 << 20, 16 << 20), random.randrange(2)
    for kind, value in ((7, 40), (6, bytes >> 12), (way, bytes), (2 + way, 1)):
        position, = struct.unpack_from('<Q', ring, 0)
        capacity, = struct.unpack_from('<Q', ring, 24)
        struct.pack_into('<IIQ', ring, 40 + 16 * position, kind, 0, value)
        struct.pack_into('<Q', ring, 0, (position + 1) % capacity)

# As vLLM has it.
prefix = os.environ.get('VLLM_PROCESS_NAME_PREFIX', 'VLLM').encode()
rings, uid = os.environ['RINGS'].split(':'), int(os.environ['WORKER_UID'])
say()
if os.fork() == 0:
    set_title(prefix + b'::EngineCore')
    say()
    for rank, ring in enumerate(rings):
        if os.fork() == 0:
            os.setuid(uid)
            set_title(prefix + b'::Worker_TP%d' % rank)
            if ring:
                with open(ring, 'r+b') as file:
                    memory = mmap.mmap(file.fileno(), 0)
            say()
            pause = float(os.environ.get('PAUSE', 0)) * (1 + rank)
            while pause and not select.select([0], [], [], pause)[0]:
                push(memory)
            break
# Until the test ends.
sys.stdin.read()
";

/// A running server. Dropping it ends its processes.
pub struct Titled {
    server: Child,
    pids: Vec<u32>,
}

impl Titled {
    /// Starts a server with this port and role and with two workers that write to new rings. `pause` is `PAUSE`.
    pub fn with_transfers(home: &Home, port: &str, role: &str, pause: &str) -> Self {
        let name = |rank| format!("4fa1c2de-0b6e-4d0e-9a53-77d0c6a1{port}{rank}");
        let rings = [0, 1].map(|rank| home.ring(name(rank)));
        for ring in &rings {
            RingWriter::create(ring, Layout::V4, 4096).expect("a ring");
        }
        let transfer = format!(r#"{{"kv_connector": "NixlConnector", "kv_role": "{role}"}}"#);
        let configuration = ["--kv-transfer-config", &transfer];
        let arguments = [&["serve", "m", "--port", port], &configuration[..]].concat();
        let (uid, variables) = (Uid::current().as_raw(), [("PAUSE", pause)]);
        Self::start(&home.path("."), &arguments, &variables, &rings, uid)
    }

    /// Starts `vllm` with these arguments and variables, and one worker for each ring. Each worker has mapped its ring
    /// when this returns; an empty path means no ring. The workers have this user id. With the variable `PAUSE`, in
    /// seconds, the worker of rank n completes a transfer every `PAUSE * (1 + n)` seconds.
    pub fn start(
        dir: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
        rings: &[PathBuf],
        uid: u32,
    ) -> Self {
        let script = dir.join("vllm");
        std::fs::write(&script, SCRIPT).expect("written");
        let paths: Vec<&str> = rings
            .iter()
            .map(|ring| ring.to_str().expect("UTF-8"))
            .collect();
        let server = Command::new("/usr/bin/python3")
            .arg(script)
            .args(arguments)
            .envs(variables.iter().copied())
            .env("RINGS", paths.join(":"))
            .env("WORKER_UID", uid.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut server = server.expect("Python starts");
        let said = BufReader::new(server.stdout.take().expect("piped"));
        let pids: Vec<u32> = said
            .lines()
            .take(2 + rings.len())
            .map(|line| line.expect("it runs").parse().expect("a pid"))
            .collect();
        assert_eq!(pids.len(), 2 + rings.len(), "Python has failed");
        Self { server, pids }
    }

    /// Pids: the server, its core, and the workers in any order.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }
}

impl Drop for Titled {
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        let _ = self.server.wait();
    }
}
