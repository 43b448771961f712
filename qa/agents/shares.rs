// SPDX-License-Identifier: GPL-2.0-or-later

//! Limits that users share: agents, and records of exited agents. One user must not take all of them.

use crate::support::kit::Core;
use crate::support::kit::values::Values;
use crate::support::kit::writer::{Kind, Layout, RingWriter};
use crate::support::needs_root;
use std::fs;
use std::os::unix::fs::chown;
use std::time::Duration;

const GREEDY: u32 = 1001;
const VICTIM: u32 = 1000;

/// Writer of a ring, and the sum of its events.
struct Sender {
    name: String,
    ring: RingWriter,
    sent: u64,
}

impl Sender {
    fn start(core: &Core, uid: u32, name: &str) -> Self {
        let path = core.path(name);
        let ring = RingWriter::create(&path, Layout::V4, 16).expect("a ring");
        chown(&path, Some(uid), None).expect("root may");
        let name = name.to_owned();
        let mut sender = Self {
            name,
            ring,
            sent: 0,
        };
        sender.send();
        sender
    }

    /// Starts `count` senders with the names `name-00` and so on.
    fn several(core: &Core, uid: u32, name: &str, count: usize) -> Vec<Self> {
        let names = (0..count).map(|number| format!("{name}-{number:02}"));
        names.map(|name| Self::start(core, uid, &name)).collect()
    }

    /// Pushes one event if the ring has room.
    fn send(&mut self) {
        self.sent += u64::from(self.ring.push(Kind::TxBytes, 1));
    }

    /// Sum of the drained events.
    fn drained(&self) -> u64 {
        self.sent - self.ring.pending()
    }

    /// Exits and removes the file.
    fn leave(self, core: &Core) {
        fs::remove_file(core.path(&self.name)).expect("there");
    }
}

fn of(shown: &Values, prefix: &str) -> usize {
    shown.keys().filter(|name| name.starts_with(prefix)).count()
}

#[test]
fn user_below_its_share_evicts_from_the_user_with_most() {
    needs_root();
    let mut core = Core::new("max_agents = 6");
    let mut all = Sender::several(&core, GREEDY, "greedy", 9);
    core.run(5);
    assert_eq!(of(&core.sent(), "greedy"), 6);
    all.extend(Sender::several(&core, VICTIM, "victim", 5));
    for _ in 0..20 {
        all.iter_mut().for_each(Sender::send);
        core.run(1);
        let shown = core.sent();
        assert!(shown.len() <= 6, "{shown:?}");
    }
    let now = core.sent();
    assert_eq!((of(&now, "greedy"), of(&now, "victim")), (3, 3), "{now:?}");
    // An evicted agent returns with its totals when there is room.
    core.configure("max_agents = 6\nretain = \"0s\"");
    let (greedy, victims): (Vec<_>, _) = all.into_iter().partition(|sender| {
        let name = &sender.name;
        name.starts_with("greedy")
    });
    let from_victims: u64 = victims.iter().map(Sender::drained).sum();
    victims.into_iter().for_each(|sender| sender.leave(&core));
    core.run(20);
    let now = core.sent();
    assert_eq!(of(&now, "greedy"), 6, "{now:?}");
    for sender in greedy
        .iter()
        .filter(|sender| now.contains_key(&sender.name))
    {
        assert_eq!(now[&sender.name], sender.sent, "{}", sender.name);
    }
    let from_greedy: u64 = greedy.iter().map(Sender::drained).sum();
    let host = core.host_sent();
    assert_eq!(host, from_greedy + from_victims, "the sum over all agents");
}

#[test]
fn exited_agents_of_the_user_with_most_are_evicted_first() {
    needs_root();
    let mut core = Core::new("max_agents = 5\nretain = \"1000s\"");
    let mut greedy = Sender::several(&core, GREEDY, "greedy", 4);
    let gone = Sender::start(&core, VICTIM, "victim-gone");
    core.run(3);
    // Both agents have exited, and stay instances for `retain`.
    drop(gone);
    drop(greedy.remove(1));
    core.run(5);
    assert_eq!(core.sent().len(), 5);
    let _new = Sender::start(&core, VICTIM, "victim-new");
    core.run(5);
    let now: Vec<_> = core.sent().into_keys().collect();
    let expected = [
        "greedy-00",
        "greedy-02",
        "greedy-03",
        "victim-gone",
        "victim-new",
    ];
    assert_eq!(now, expected);
    // The user with the most agents can only replace its own agents.
    let _more = Sender::several(&core, GREEDY, "greedy-more", 3);
    core.run(10);
    let now: Vec<_> = core.sent().into_keys().collect();
    assert_eq!(now, expected);
    greedy.remove(0);
    core.run(10);
    let now = core.sent();
    assert!(!now.contains_key("greedy-00") && of(&now, "greedy") == 3 && of(&now, "victim") == 2);
}

#[test]
fn changing_names_never_exceed_max_agents_instances() {
    needs_root();
    let mut core = Core::new("max_agents = 4\nretain = \"1000s\"");
    let mut victim = Sender::start(&core, VICTIM, "victim");
    for number in 0..100 {
        let sender = Sender::start(&core, GREEDY, &format!("churn-{number:03}"));
        core.run(2);
        sender.leave(&core);
        victim.send();
        core.run(1);
        let now = core.sent();
        assert!(now.len() <= 4 && now["victim"] == victim.sent, "{now:?}");
    }
    let newest = core.sent().contains_key("churn-099");
    assert!(newest, "a new agent evicts the oldest");
    assert!(core.known() <= 16, "four times max_agents");
}

#[test]
fn names_of_another_user_do_not_expire_an_exited_agent() {
    needs_root();
    let mut core = Core::new("max_agents = 4\nretain = \"0s\"");
    let mut victim = Sender::start(&core, VICTIM, "victim");
    (0..6).for_each(|_| victim.send());
    core.run(3);
    victim.leave(&core);
    core.run(3);
    for number in 0..100 {
        let sender = Sender::start(&core, GREEDY, &format!("churn-{number:03}"));
        core.run(3);
        sender.leave(&core);
        core.run(2);
    }
    assert!(core.forgotten.len() > 80, "{:?}", core.forgotten);
    assert!(!core.forgotten.contains(&"victim".to_owned()));
    let _victim = Sender::start(&core, VICTIM, "victim");
    core.run(3);
    assert_eq!(core.sent()["victim"], 7 + 1);
}

#[test]
fn unlinked_held_rings_take_no_room_of_other_users() {
    needs_root();
    let mut core = Core::new("max_agents = 6");
    let mut held = Vec::new();
    for _ in 0..12 {
        let sender = Sender::start(&core, GREEDY, "greedy");
        core.run(2);
        held.push(sender);
        fs::remove_file(core.path("greedy")).expect("there");
        core.run(1);
    }
    assert!(core.attached() <= 6);
    let _new = Sender::several(&core, VICTIM, "victim", 3);
    for _ in 0..5 {
        held.iter_mut().for_each(Sender::send);
        core.run(1);
    }
    let now = core.sent();
    assert_eq!(of(&now, "victim"), 3, "{now:?}");
    assert!(core.attached() <= 6);
}

/// The files belong to agents that exited long ago, and a reader has all of them open.
#[test]
fn unwritten_files_do_not_keep_active_agents_out() {
    needs_root();
    let mut core = Core::new("max_agents = 80");
    let old: Vec<_> = (0..70).map(|number| format!("old-{number:02}")).collect();
    for name in &old {
        let path = core.path(name);
        drop(RingWriter::create(&path, Layout::V4, 16).expect("a ring"));
        chown(&path, Some(GREEDY), None).expect("root may");
    }
    core.run(5);
    let mut greedy = Sender::several(&core, GREEDY, "greedy", 10);
    core.run(5);
    let held: Vec<_> = old
        .iter()
        .map(|name| fs::File::open(core.path(name)).expect("there"))
        .collect();
    // An agent without events, listed before one with events.
    let idle = core.ring("a-idle");
    chown(core.path("a-idle"), Some(VICTIM), None).expect("root may");
    let _victim = Sender::start(&core, VICTIM, "victim");
    for _ in 0..10 {
        greedy.iter_mut().for_each(Sender::send);
        core.run(2);
    }
    let now = core.sent();
    assert!(
        now.contains_key("a-idle") && now.contains_key("victim"),
        "{now:?}"
    );
    drop((held, idle));
}

#[test]
fn silent_agent_does_not_keep_out_another_of_its_user() {
    needs_root();
    let mut core = Core::new("max_agents = 2\nretain = \"1s\"");
    let old = Sender::several(&core, VICTIM, "old", 2);
    core.run(3);
    drop(old);
    core.run(5);
    let names = ["old-00", "old-01"];
    let held = names.map(|name| fs::File::open(core.path(name)).expect("there"));
    let idle = core.ring("a-idle");
    chown(core.path("a-idle"), Some(VICTIM), None).expect("root may");
    core.run(2);
    let _new = Sender::start(&core, VICTIM, "new");
    core.run(10);
    let now = core.sent();
    assert!(now.contains_key("new"), "{now:?}");
    drop((held, idle));
}

/// One user has more events than a drain has time for. The ring of another user comes after them in the order of names.
#[test]
fn events_of_one_user_do_not_delay_those_of_another() {
    needs_root();
    let mut core = Core::new("");
    let mut greedy: Vec<_> = (0..300)
        .map(|number| {
            let path = core.path(&format!("greedy-{number:03}"));
            let ring = RingWriter::create(&path, Layout::V1, 1 << 13).expect("a ring");
            chown(&path, Some(GREEDY), None).expect("root may");
            ring
        })
        .collect();
    core.run(3);
    let mut victim = Sender::start(&core, VICTIM, "victim");
    core.run(3);
    for ring in &mut greedy {
        while ring.push(Kind::RxBytes, 1) {}
    }
    victim.send();
    let mut ticks = 0;
    while victim.drained() < 2 {
        core.tick(1, Duration::from_millis(50), Duration::from_millis(4));
        ticks += 1;
        assert!(ticks < 1000);
    }
    // The victim is drained before all rings of the other user were. Without shares, all 300 come first.
    let served = greedy.iter().filter(|ring| ring.pending() < (1 << 13) - 1);
    let served = served.count();
    assert!(
        served < 290,
        "{served} of 300 were drained before the victim"
    );
}
