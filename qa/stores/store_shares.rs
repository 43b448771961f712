// SPDX-License-Identifier: GPL-2.0-or-later

//! Live agents with stores that are evicted in favour of other users: no value is lost or counted twice, however long
//! the agents wait for room.

use crate::support::kit::Core;
use crate::support::kit::store_writer::{StoreWriter, Who};
use crate::support::kit::writer::{Kind, RingWriter};
use crate::support::needs_root;
use std::fs;
use std::os::unix::fs::chown;

const GREEDY: u32 = 1001;
const VICTIM: u32 = 1000;

fn greedy(core: &Core, identity: &Who) -> StoreWriter {
    let store = core.store(identity);
    chown(store.path(), Some(GREEDY), None).expect("root may");
    store
}

fn victim(core: &Core, name: &str) -> RingWriter {
    let mut ring = core.ring(name);
    chown(core.rings().join(name), Some(VICTIM), None).expect("root may");
    assert!(ring.push(Kind::TxBytes, 1));
    ring
}

#[test]
fn evicted_live_stores_resume_with_their_totals() {
    needs_root();
    for between in ["nothing", "restart", "reload"] {
        let settings = "max_agents = 4\nretain = \"10s\"";
        let mut core = Core::new(settings);
        let stores: Vec<_> = (0..4)
            .map(|number| greedy(&core, &Who::named(format!("greedy-{number}"))))
            .collect();
        stores.iter().for_each(|store| core.send(store, 100));
        core.run(3);
        assert_eq!(core.sent().len(), 4);
        let rings: Vec<_> = (0..2)
            .map(|number| victim(&core, &format!("victim-{number}")))
            .collect();
        core.run(5);
        let now = core.sent();
        assert_eq!(
            now.keys().filter(|name| name.starts_with("victim")).count(),
            2,
            "{now:?}"
        );
        assert_eq!(now.len(), 4, "not more than max_agents: {now:?}");
        core.assert_host_sent(4 * 100 + 2);
        // Meanwhile the evicted agents continue, and new agents start with their names.
        stores.iter().for_each(|store| core.send(store, 7));
        match between {
            "restart" => core.restart(),
            // A reload clears the rejections.
            "reload" => core.configure(settings),
            _ => {}
        }
        core.run(3);
        let shown = core.sent();
        let names = (0..4).map(|number| format!("greedy-{number}"));
        let waiting: Vec<_> = names.filter(|name| !shown.contains_key(name)).collect();
        assert_eq!(waiting.len(), 2);
        let same: Vec<_> = waiting
            .iter()
            .flat_map(|name| [1, 2, 3].map(|pid| greedy(&core, &Who::named(name).pid(pid))))
            .collect();
        same.iter().for_each(|store| core.send(store, 1 << 20));
        core.run(5);
        drop(rings);
        for number in 0..2 {
            fs::remove_file(core.rings().join(format!("victim-{number}"))).expect("there");
        }
        // Exited agents stay instances for `retain`.
        core.run_in_pieces(100);
        let now = core.sent();
        for number in 0..4 {
            let name = format!("greedy-{number}");
            assert!(now.get(&name).is_none_or(|sent| *sent == 107), "{now:?}");
        }
        assert_eq!(now.len(), 4, "{now:?}");
        let other = now.values().filter(|sent| **sent == 1 << 20).count() as u64;
        let back = now.values().filter(|sent| **sent == 107).count() as u64;
        assert_eq!(other + back, 4, "{now:?}");
        // A waiting agent was counted up to its eviction, or up to the last time that it was attached.
        let waiting = 4 - back;
        let host = core.host_sent() - 2 - other * (1 << 20) - back * 107;
        assert!(
            host == waiting * 100 || host == waiting * 107,
            "{host} of {waiting}"
        );
        drop((stores, same));
    }
}

#[test]
fn waiting_store_that_restarts_is_recognised() {
    needs_root();
    for (removes, says_more) in [(false, false), (false, true), (true, false)] {
        let mut core = Core::new("max_agents = 4\nretain = \"10s\"");
        let mut stores: Vec<_> = (0..4)
            .map(|number| Some(greedy(&core, &Who::named(format!("greedy-{number}")))))
            .collect();
        let living = stores.iter().flatten();
        living.for_each(|store| core.send(store, 100));
        core.run(3);
        let rings: Vec<_> = (0..2)
            .map(|number| victim(&core, &format!("victim-{number}")))
            .collect();
        core.run(5);
        let shown = core.sent();
        let waiting: Vec<_> = (0..4)
            .filter(|number| !shown.contains_key(&format!("greedy-{number}")))
            .collect();
        assert_eq!(waiting.len(), 2, "{shown:?}");
        let more = if says_more { 7 } else { 0 };
        for &number in &waiting {
            let name = format!("greedy-{number}");
            let store = stores[number].take().expect("alive");
            if says_more {
                core.send(&store, more);
            }
            if removes {
                fs::remove_file(store.path()).expect("there");
            }
            drop(store);
            core.run(5);
            let store = greedy(&core, &Who::named(name).pid(4242));
            core.send(&store, 1000);
            stores[number] = Some(store);
        }
        core.run(5);
        drop(rings);
        for number in 0..2 {
            fs::remove_file(core.rings().join(format!("victim-{number}"))).expect("there");
        }
        core.run_in_pieces(60);
        let now = core.sent();
        assert!(!now.keys().any(|name| name.contains('@')), "{now:?}");
        for number in &waiting {
            let name = format!("greedy-{number}");
            assert_eq!(now.get(&name), Some(&(1100 + more)), "{now:?}");
        }
        core.assert_host_sent(4 * 100 + 2 * (1000 + more) + 2);
    }
}
