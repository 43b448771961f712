//! Processes in mount namespaces and control groups of their own, as those of containers are.

use super::{example, output, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A producer in a mount namespace of its own. Ends with the value.
pub struct Container {
    pub child: Child,
}

impl Container {
    /// `prepare` is run by a shell in the new namespace; then the producer, told that telemetry goes to `dir`, with `args`.
    pub fn start(dir: &str, prepare: &str, args: &str) -> Self {
        let script = format!(
            "set -e; {prepare}; exec $IN \"{}\" {args}",
            example("producer").display()
        );
        let child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .env("NIXL_TELEMETRY_DIR", dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Self {
            child: child.expect("unshare(1) is there"),
        }
    }

    /// With a file system in memory on `dir`, in which an agent of that name has sent so many bytes.
    pub fn with_tmpfs(dir: &Path, name: &str, bytes: u64) -> Self {
        Self::with(dir, "", name, bytes)
    }

    pub fn with(dir: &Path, more: &str, name: &str, bytes: u64) -> Self {
        let shown = dir.to_str().expect("UTF-8");
        let prepare = format!("mount -t tmpfs nixl {shown}; {more} :");
        Self::start(shown, &prepare, &sends(dir, name, bytes))
    }

    /// Another producer in the same mount namespace, with a name of its own.
    pub fn start_beside(&self, dir: &str, args: &str) -> Self {
        let script = format!("exec \"{}\" {args}", example("producer").display());
        let child = Command::new("nsenter")
            .args([
                "-m",
                "-r",
                "-t",
                &self.pid().to_string(),
                "sh",
                "-c",
                &script,
            ])
            .env("NIXL_TELEMETRY_DIR", dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Self {
            child: child.expect("nsenter(1) is there"),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs a command in its mount namespace.
    pub fn run(&self, command: &str) -> (bool, String) {
        let pid = self.pid().to_string();
        let output =
            output(Command::new("nsenter").args(["-m", "-r", "-t", &pid, "sh", "-c", command]));
        (output.status.success(), text(&output))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What tells the producer to send so many bytes in one transfer, and to live on.
pub fn sends(dir: &Path, name: &str, bytes: u64) -> String {
    let dir = dir.display();
    format!("--dir {dir} --name {name} --transfers 1 --read-every 0 --size {bytes} --linger 600")
}

/// A control group below the mount of version 2; removed with the value, when it is empty.
pub struct Group(PathBuf);

impl Group {
    /// `None`: none can be made here.
    pub fn make(names: &[&str]) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/mounts").ok()?;
        let mut mounts = mounts.lines().map(|line| line.split(' '));
        let mount = mounts.find_map(|mut fields| {
            let (path, kind) = (fields.nth(1)?, fields.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(path))
        })?;
        let unique = format!("nixl-qa-{}", std::process::id());
        let path = names
            .iter()
            .fold(mount.join(unique), |path, name| path.join(name));
        fs::create_dir_all(&path).ok()?;
        Some(Self(path))
    }

    /// What a shell does to be in it.
    pub fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs;", self.0.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for path in self.0.ancestors().take(3) {
            let _ = fs::remove_dir(path);
        }
    }
}
