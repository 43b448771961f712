// SPDX-License-Identifier: GPL-2.0-or-later

//! Large amounts of files and events of another user, made by a program with that user's id. They must affect that user
//! only.

use crate::support::measure::timed;
use crate::support::other_user::{OtherUser, VICTIM, open_to_all, ring, shared_home, shell};
use crate::support::pdu::Link;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{self, Home, Pmcd, TX_BYTES, is_alone, output, run, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Starts the daemon without pmcd.
fn serve(home: &Home) -> Link {
    Link::open(home)
}

/// Value of a metric below `nixl.control`.
fn control(link: &mut Link, name: &str) -> u64 {
    link.values(&format!("control.{name}")).expect("an answer")[""]
}

fn becomes(link: &mut Link, name: &str, expected: u64) {
    wait_for(&format!("{name} is {expected}"), || {
        let values = link.sent();
        let shown = values.get(name).copied().unwrap_or(0);
        assert!(shown <= expected, "{name}: {shown} of {expected}");
        (shown == expected).then_some(())
    });
}

/// Pushes events of 1 byte whenever the ring has room. Then waits until each one is counted once.
fn sends(link: &mut Link, victim: &mut RingWriter, name: &str, before: u64, events: u64) {
    for _ in 0..events {
        wait_for("there is room", || {
            let sent = victim.push(Kind::TxBytes, 1);
            if !sent {
                link.fetch(&[TX_BYTES]).expect("an answer");
            }
            sent.then_some(())
        });
    }
    becomes(link, name, before + events);
}

/// The file has at most 4 KiB on disk, and its header claims 2^36 events. Reading them would fill a tmpfs.
#[test]
fn ring_with_2_to_the_36_claimed_events_is_rejected_unread() {
    let home = shared_home();
    // A valid header, except for the positions and the capacity.
    shell(
        &home,
        "{ printf '\\377\\377\\377\\377\\17\\0\\0\\0'; head -c 8 /dev/zero
           printf '\\4\\0\\0\\0\\4\\0\\0\\0'
           printf '\\0\\0\\0\\0\\20\\0\\0\\0' ; printf '\\377\\377\\377\\377\\17\\0\\0\\0'; } > sparse
         truncate -s $((40 + (1 << 36) * 16)) sparse",
    );
    let before = fs::metadata(home.ring("sparse")).expect("there").blocks();
    let _victim = ring(&home, VICTIM, "victim");
    let mut link = serve(&home);
    becomes(&mut link, "victim", 1);
    wait_for("the ring is rejected", || {
        (control(&mut link, "files.rejections") == 1).then_some(())
    });
    let log = home.log();
    assert!(
        log.contains("/sparse\": rejected: ") && log.contains("max_capacity"),
        "{log}"
    );
    let after = fs::metadata(home.ring("sparse")).expect("there").blocks();
    assert_eq!(after, before, "no block was allocated");
    assert!(link.end().success());
}

/// A moved write position is one store for the owner, and 1,024 events for the reader.
#[test]
fn full_rings_of_another_user_delay_no_event_and_no_answer() {
    let home = shared_home();
    let mut victim = ring(&home, VICTIM, "victim");
    let mut link = serve(&home);
    becomes(&mut link, "victim", 1);
    let flood = OtherUser::does(&home, &["flood", "400", "4096"]);
    wait_for("all rings are instances", || {
        let instances = link.instances().expect("an answer");
        (instances.len() == 401).then_some(())
    });
    sends(&mut link, &mut victim, "victim", 1, 5_000);
    let mut own: Vec<Duration> = (0..101)
        .map(|_| timed(&mut link, TX_BYTES).1.own())
        .collect();
    own.sort();
    // Median of the CPU time of an answer: 2 ms. It is 170 to 1,000 ms if an answer reads all events.
    assert!(own[50] < Duration::from_millis(50), "{own:?}");
    sends(&mut link, &mut victim, "victim", 5_001, 1_000);
    let least = flood.times();
    assert!(least > 0, "each ring was read");
    assert!(link.end().success());
}

#[test]
fn rings_with_changing_names_stay_within_all_limits() {
    let home = shared_home();
    home.set("max_agents = 20\nretain = \"0s\"\ndrain_interval = \"20ms\"");
    let mut victim = ring(&home, VICTIM, "victim");
    let mut link = serve(&home);
    sends(&mut link, &mut victim, "victim", 1, 6);
    let before = link.instances().expect("an answer");
    let old = before.iter().find(|(_, name)| *name == "victim");
    let old = *old.expect("an instance").0;
    drop(victim);
    fs::remove_file(home.ring("victim")).expect("there");
    // Most files are removed before a scan, and never become instances.
    let churn = OtherUser::does(&home, &["churn"]);
    wait_for("more agents have started than there are records", || {
        let instances = link.instances().expect("an answer");
        assert!(instances.len() <= 20, "{instances:?}");
        let known = link.figures(&home).agents;
        assert!(known <= 80, "{known}");
        let last = instances
            .values()
            .filter_map(|name| name.strip_prefix("churn-")?.parse().ok());
        (last.max() > Some(100)).then_some(())
    });
    assert!(churn.times() > 100);
    let _victim = ring(&home, VICTIM, "victim");
    let (new, shown) = wait_for("the victim is an instance again", || {
        let instances = link.instances().expect("an answer");
        let new = *instances.iter().find(|(_, name)| *name == "victim")?.0;
        let shown = *link.sent().get("victim")?;
        (shown == 1 || shown >= 8).then_some((new, shown))
    });
    assert_eq!((new, shown), (old, 8), "the earlier id and total");
    assert!(link.end().success());
    let sizes = |path: &Path| -> u64 {
        let files = fs::read_dir(path).expect("there");
        files
            .map(|file| file.expect("there").metadata().expect("there").len())
            .sum()
    };
    let ids = sizes(&home.path("var/config/pmda"));
    assert!(ids < 64 * 1024, "{ids} bytes of names");
}

/// Without a sticky bit, any user can remove the file of a victim and make one with its name.
#[test]
fn ring_with_the_name_of_a_victim_changes_none_of_its_values() {
    let home = shared_home();
    let mut victim = ring(&home, VICTIM, "victim");
    let mut link = serve(&home);
    sends(&mut link, &mut victim, "victim", 1, 999);
    // A value above the limit for one event is counted as unknown.
    let absurd = u64::MAX - 399;
    let taken = OtherUser::does(&home, &["take", "victim", &absurd.to_string()]);
    wait_for("the ring of the other user is drained", || {
        let values = link.values("ring.unknown").expect("an answer");
        (*values.get("victim@uid4243")? == 511).then_some(())
    });
    // The removed ring of the victim is still mapped, and still drained.
    sends(&mut link, &mut victim, "victim", 1_000, 200);
    let values = link.sent();
    assert_eq!((values["victim"], values["victim@uid4243"]), (1_200, 0));
    assert_eq!(taken.times(), 511);
    // Valid values saturate the totals of the other user only.
    let most = support::kit::layers::MAX_VALUE;
    let _taken = OtherUser::does(&home, &["take", "victim", &most.to_string()]);
    becomes(&mut link, "victim@uid4243", u64::MAX);
    becomes(&mut link, "victim", 1_200);
    assert!(link.end().success());
}

#[test]
fn agent_beside_as_many_new_rings_as_agents_are_allowed_is_served() {
    let home = shared_home();
    home.set("max_agents = 1024");
    let rings = OtherUser::does(&home, &["rings", "1024"]);
    let mut link = serve(&home);
    wait_for("all rings are instances with a value", || {
        let values = link.values("transfer.rx_bytes").expect("an answer");
        (values.len() == 1024 && values.values().all(|value| *value == 1)).then_some(())
    });
    let mut victim = ring(&home, VICTIM, "victim");
    sends(&mut link, &mut victim, "victim", 1, 500);
    let values = link.values("transfer.rx_bytes").expect("an answer");
    assert!(values.len() <= 1024, "{} agents", values.len());
    assert_eq!(rings.times(), 1024);
    assert!(link.end().success());
}

/// There are more stores than max_agents allows. All are written continuously, and the daemon is killed once.
#[test]
fn live_stores_leave_room_for_others_and_count_once() {
    let home = shared_home();
    home.set(&format!(
        "multiproc_dir = {:?}\nmax_agents = 8\nretain = \"0s\"",
        home.rings()
    ));
    let stores = OtherUser::does(&home, &["stores", "30"]);
    let mut link = serve(&home);
    wait_for("max_agents is reached", || {
        (control(&mut link, "places.taken") == 8).then_some(())
    });
    let mut victims: Vec<RingWriter> = (0..4)
        .map(|number| ring(&home, VICTIM, &format!("victim-{number}")))
        .collect();
    for (number, victim) in victims.iter_mut().enumerate() {
        sends(&mut link, victim, &format!("victim-{number}"), 1, 100);
    }
    let pid = i32::try_from(link.pid()).expect("a pid");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("ours");
    drop(link);
    let mut link = serve(&home);
    for (number, victim) in victims.iter_mut().enumerate() {
        sends(&mut link, victim, &format!("victim-{number}"), 101, 100);
    }
    // Stores of the other user replace the victims, and continue with their totals.
    drop(victims);
    for number in 0..4 {
        fs::remove_file(home.ring(format!("victim-{number}"))).expect("there");
    }
    wait_for("the victims are withdrawn", || {
        let values = link.sent();
        let stores = values.keys().filter(|name| name.starts_with("store-"));
        assert!(values.len() <= 8, "{values:?}");
        (stores.count() == 8).then_some(())
    });
    let each = stores.times();
    wait_for("all instances have their last values", || {
        let values = link.sent();
        let known = link.figures(&home).agents;
        let host = link.values("host.transfer.tx_bytes").expect("an answer")[""];
        // Each store is one agent, however often it was evicted.
        assert!(
            known <= 34 && !values.keys().any(|name| name.contains('@')),
            "{values:?}"
        );
        assert!(
            host <= 4 * 201 + (known - 4) * each,
            "{host} of {known} times {each}"
        );
        values.values().all(|value| *value == each).then_some(())
    });
    assert!(link.end().success());
}

#[test]
fn rewritten_unrelated_files_do_not_hide_a_new_agent() {
    let home = shared_home();
    let rewritten = OtherUser::does(&home, &["rewrite", "5000"]);
    let mut link = serve(&home);
    for number in 0..2 {
        let name = format!("victim-{number}");
        let mut victim = ring(&home, VICTIM, &name);
        sends(&mut link, &mut victim, &name, 1, 200);
    }
    wait_for("the files are recorded as rejected", || {
        (link.figures(&home).rejected >= 5_000).then_some(())
    });
    let mut own: Vec<Duration> = (0..101)
        .map(|_| timed(&mut link, TX_BYTES).1.own())
        .collect();
    own.sort();
    // Median of the CPU time of an answer. It is 500 to 4,200 ms if an answer checks 100,000 files.
    assert!(own[50] < Duration::from_millis(50), "{own:?}");
    assert!(rewritten.times() > 1);
    assert!(link.end().success());
}

/// Log, state file and instance ids are on a file system that another user fills completely.
#[test]
fn disk_filled_by_another_user_loses_no_value() {
    if !is_alone() {
        return;
    }
    let home = shared_home();
    let disk = home.path("disk");
    fs::create_dir(&disk).expect("made");
    let tmpfs = ["-t", "tmpfs", "-o", "size=8m,mode=1777", "other_user"];
    run(Command::new("mount").args(tmpfs).arg(&disk));
    let mut victim = ring(&home, VICTIM, "victim");
    let pmcd = Pmcd::start_with(&home, "disk/pcp", |_| ());
    pmcd.becomes(&[("victim", 1)]);
    shell(
        &home,
        "cat /dev/zero > ../disk/fill 2> /dev/null || true; test -s ../disk/fill",
    );
    let log = pmcd.log();
    // New agents, log lines and larger totals, without space for any of them.
    let mut others = Vec::new();
    for number in 0..20 {
        others.push(ring(&home, VICTIM, &format!("other-{number:02}")));
        pmcd.configure(&home, "retain = \"2h\"");
        assert!(victim.push(Kind::TxBytes, 1));
    }
    wait_for("all values are published", || {
        let values = pmcd.sent();
        (values.len() == 21 && values["victim"] == 21).then_some(())
    });
    let pmda = pmcd.pmda_pid();
    assert!(
        pmcd.log().len() < log.len() + 8192,
        "the file system is full"
    );
    shell(&home, "rm ../disk/fill");
    // With space, the log and the state file are written again.
    pmcd.configure(&home, "retain = \"2h\"");
    wait_for("the log grows", || {
        (pmcd.log().len() > log.len()).then_some(())
    });
    assert!(victim.push(Kind::TxBytes, 1));
    wait_for("the last event is counted", || {
        let values = pmcd.sent();
        (values["victim"] == 22).then_some(())
    });
    assert_eq!(pmcd.pmda_pid(), pmda);
    drop(others);
    pmcd.stop();
    let old = home.path("disk/pcp");
    let pmcd = Pmcd::start_with(&home, "disk/again", |dir| {
        fs::create_dir_all(dir.join("run")).expect("made");
        fs::rename(old.join("run/nixl"), dir.join("run/nixl")).expect("there");
    });
    wait_for("the totals are recovered", || {
        let values = pmcd.sent();
        (values.get("victim") == Some(&22)).then_some(())
    });
    pmcd.stop();
    // What looks at other processes has the log open, and ends soon after the daemon.
    wait_for("nothing has the disk open", || {
        let unmounted = output(Command::new("umount").arg(&disk));
        unmounted.status.success().then_some(())
    });
}

/// Another user may write to the parent directory, and replaces the telemetry directory or a parent of it with a link.
#[test]
fn link_of_another_user_does_not_lead_to_foreign_rings() {
    let home = shared_home();
    let (shared, private) = (home.path("shared"), home.path("private"));
    for directory in [&shared, &private, &private.join("nixl")] {
        fs::create_dir(directory).expect("made");
    }
    open_to_all(&shared, 0o777);
    let ring = |path: &Path| {
        let mut ring = RingWriter::create(path, Layout::V4, 64).expect("a ring");
        assert!(ring.push(Kind::TxBytes, 5));
        ring
    };
    let rings = [
        ring(&private.join("agent")),
        ring(&private.join("nixl/agent")),
    ];
    let why = "cannot be scanned: a user other than root could change a symbolic link in the path";
    shell(
        &home,
        "cd .. && ln -s ../private shared/nixl && ln -s ../private shared/way",
    );
    for link in ["shared/nixl", "shared/way/nixl"] {
        let path = home.path(link);
        home.configure(&format!(
            "[nixl]\nproc_facts = false\ntelemetry_dir = {path:?}\n"
        ));
        let shown = home.dbpmda("fetch nixl.transfer.tx_bytes");
        assert!(shown.contains("No values returned!"), "{link}: {shown}");
        assert!(home.log().contains(why), "{link}: {}", home.log());
        let (status, said) = home.check();
        assert!(status == 1 && said.contains(why), "{link}: {said}");
        let pending: Vec<u64> = rings.iter().map(RingWriter::pending).collect();
        assert_eq!(pending, [1, 1], "{link}: nothing was drained");
    }
    // A link of root that no other user can change is followed.
    open_to_all(&shared, 0o755);
    for link in ["nixl", "way"] {
        std::os::unix::fs::lchown(shared.join(link), Some(0), Some(0)).expect("root may");
    }
    let shown = home.dbpmda("fetch nixl.transfer.tx_bytes");
    assert!(shown.contains("value 5"), "{shown}");
}
