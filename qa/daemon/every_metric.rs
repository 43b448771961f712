//! Coverage of the metric table: every metric is set here by agents and a daemon in all kinds of trouble, or by another test
//! that is named here.

use crate::support::show::Shown;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{
    self, Home, Pmcd, needs_root, output, project, run, sees_all_processes, wait_for,
};
use pmdanixl::metrics::METRICS;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// What is set elsewhere: the metric, the test's file, and what stands in it.
const ELSEWHERE: [(&str, &str, &str); 4] = [
    // Where /proc may not be asked.
    (
        "agents.unknown",
        "processes/states.rs",
        "false => (UNKNOWN, \"unknown\")",
    ),
    // Nothing but 0 is ever shown of it.
    ("control.reload", "daemon/pmstore.rs", "nixl.control.reload"),
    // How fast a machine is decides whether it happens: in long tests.
    (
        "control.cut.drains",
        "security/hostile_directory/backlog.rs",
        "\"control.cut.drains\"",
    ),
    // After a kill between two steps of a drain.
    (
        "control.doubtful_batches",
        "ring/decisions.rs",
        "effort().doubtful",
    ),
];

/// A process that has a NIXL backend loaded and writes nothing.
struct Silent(Child);

impl Silent {
    fn start(directory: &Path) -> Self {
        let script = "import mmap, sys\n\
                      files = [open(name, 'r+b') for name in sys.argv[1:]]\n\
                      mapped = [mmap.mmap(file.fileno(), 0) for file in files]\n\
                      print('ready', flush=True)\n\
                      sys.stdin.read()\n";
        let libraries = ["libnixl.so", "libplugin_UCX.so"].map(|name| directory.join(name));
        for library in &libraries {
            fs::write(library, [0; 4096]).expect("written");
        }
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", script]).args(&libraries);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("Python starts");
        let mut said = BufReader::new(child.stdout.take().expect("piped"));
        said.read_line(&mut String::new()).expect("it is ready");
        Self(child)
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn ring(home: &Home, name: &str) -> RingWriter {
    RingWriter::create(&home.ring(name), Layout::V4, 64).expect("a ring")
}

/// The metrics, without `nixl.`, that have a value which says something: no zero, and not nothing.
fn set(shown: &Shown) -> BTreeSet<String> {
    let says = |value: &String| value.parse() != Ok(0.0) && !value.is_empty();
    let set = shown.iter().filter(|(_, values)| values.values().any(says));
    set.map(|(metric, _)| metric.trim_start_matches("nixl.").to_owned())
        .collect()
}

/// All that an agent can say, and once more what only full rings, other readers and restarts make of it.
fn trouble(home: &Home, agent: &mut RingWriter, taken: &mut RingWriter) {
    for kind in Kind::ALL {
        agent.push(kind, 7);
    }
    agent.push(Kind::MemoryRegistered, 4096);
    agent.push_raw(99, 1);
    for read in [false, true] {
        agent.push_transfer(read, 4096, 100, 10);
    }
    // A time without its transfer.
    agent.push(Kind::XferTime, 5);
    agent.push(Kind::RxRequests, 1);
    // All that there is room for.
    let mut full = ring(home, "full");
    // In one group with the first agent, so that there is a median of peers.
    full.push_transfer(false, 4096, 100, 10);
    while full.push(Kind::TxBytes, 1) {}
    // Some that another reader takes.
    for _ in 0..8 {
        taken.push(Kind::TxBytes, 1);
    }
    taken.forget();
}

#[test]
fn every_metric_is_set_by_a_scene_and_read_by_a_test() {
    needs_root();
    let home = Home::new();
    let more = home.path("more");
    for name in 0..4 {
        fs::create_dir_all(more.join(name.to_string())).expect("made");
    }
    let configuration = format!(
        "[nixl]\ntelemetry_dir = [{:?}, \"{}/*\", {:?}]\nmax_directories = 2\nmax_agents = 6\n\
         drain_interval = \"1s\"\nidle_after = \"1s\"\n",
        home.rings(),
        more.display(),
        home.path("absent")
    );
    home.configure(&configuration);
    let mut agent = ring(&home, "agent");
    // A time to come, and a header that is none.
    let future = home.ring("future");
    let _future = ring(&home, "future");
    let file = fs::OpenOptions::new().write(true).open(&future);
    let versions = [5_u32.to_le_bytes(), 5_u32.to_le_bytes()].concat();
    std::os::unix::fs::FileExt::write_all_at(&file.expect("there"), &versions, 16)
        .expect("written");
    fs::write(home.ring("rubbish"), [7; 4096]).expect("written");
    ring(&home, "exited").push(Kind::TxBytes, 1);
    let _silent = Silent::start(home.dir());
    let pmcd = Pmcd::start(&home);
    wait_for("pmdanixl serves", || {
        (pmcd.count("nixl.control.version") == 1).then_some(())
    });
    run(pmcd.tool("pmstore").args(["nixl.control.debug", "1"]));
    let conf = pmcd.path("etc/nixl/nixl.conf");
    fs::write(conf, "[nixl]\nmax_agents = \"none\"\n").expect("written");
    // It is refused, and that is said.
    output(pmcd.tool("pmstore").args(["nixl.control.reload", "1"]));

    let mut left: BTreeSet<String> = METRICS
        .iter()
        .map(|metric| metric.name.to_owned())
        .collect();
    for (metric, file, text) in ELSEWHERE {
        assert!(left.remove(metric), "{metric} is no metric any more");
        let test = fs::read_to_string(project("qa").join(file)).expect("a test");
        assert!(test.contains(text), "{file} has no {text:?} for {metric}");
    }
    if !sees_all_processes() {
        println!("left out: who uses NIXL without telemetry, where not all processes are seen");
        left.remove("agents.silent");
    }
    let (mut taken, mut others) = (ring(&home, "taken"), Vec::new());
    let mut look = || {
        trouble(&home, &mut agent, &mut taken);
        // More agents than there may be: the one that has exited goes.
        if others.len() < 8 && !left.contains("agents.exited") {
            others.push(ring(&home, &format!("other-{}", others.len())));
        }
        for metric in set(&pmcd.shown(&["nixl"])) {
            left.remove(&metric);
        }
        left.is_empty().then_some(())
    };
    let end = Instant::now() + support::PATIENCE;
    while look().is_none() {
        assert!(Instant::now() < end, "nothing sets {left:?}");
    }
}
