// SPDX-License-Identifier: GPL-2.0-or-later

//! The page of share/dashboard in Chromium, with a real pmproxy and with a server of invented answers. The modules of
//! the page also run alone in Node.
//!
//! Tests that need Chromium are ignored by default: `scripts/check-full dashboard` runs them.

mod answers;
mod chromium;
mod happened;
mod look;
mod made_up;
mod peers;

use crate::support::pmproxy::Pmproxy;
use crate::support::sample::Sample;
use crate::support::share::{files_in, is_metric, names_in, text_of};
use crate::support::writer::Kind;
use crate::support::{self, Home, Pmcd, example, leave_out, project, run, wait_for};
use chromium::Chromium;
use std::os::unix::process::CommandExt;
use std::process::Command;

const PAGE: &str = "share/dashboard/index.html";
const SOURCES: &str = "share/dashboard/src";

/// Agent name that is a script, if the page evaluates it.
const HOSTILE: &str = "<img src=x onerror=alert(1)>\"><script>alert(2)<\u{2044}script>";

/// Texts of the row of an agent by column, and titles of its cells as column-title. {} without a row.
fn row(name: &str) -> String {
    let name = serde_json::Value::from(name);
    format!(
        "(() => {{
            const rows = [...document.querySelectorAll('#table tbody tr')];
            const row = rows.find((one) => one.querySelector('.name button bdi').textContent === {name});
            const cells = [...(row?.children ?? [])].map((cell) => [cell.classList[0], cell]);
            return {{
                ...Object.fromEntries(cells.map(([key, cell]) => [key, cell.textContent])),
                ...Object.fromEntries(cells.map(([key, cell]) => [`${{key}}_title`, cell.title])),
            }};
        }})()"
    )
}

/// Number and unit of a text such as `4.93 MB/s`.
fn number(text: &str) -> (f64, &str) {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    (number.parse().unwrap_or(f64::NAN), unit)
}

fn about(found: f64, expected: f64, share: f64) -> bool {
    (found - expected).abs() <= expected * share
}

#[test]
#[ignore = "takes Chromium: scripts/check-full dashboard"]
fn page_shows_the_values_of_pminfo() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let proxy = Pmproxy::start(&home, &pmcd);

    let mut known = home.new_ring("known", 256);
    for _ in 0..30 {
        known.push_transfer(false, 1 << 30, 700, 20);
    }
    for _ in 0..7 {
        known.push(Kind::Backend, 1);
    }
    let mut full = home.new_ring("full", 16);
    while full.push(Kind::EventsDropped, 3) {}
    let _hostile = home.new_ring(HOSTILE, 16);
    let mut steady = Command::new(example("producer"));
    steady.arg0("VLLM::Worker_TP7").env("LOCAL_RANK", "7");
    let options = "--rate 200 --size 50000 --read-every 2";
    let _steady = Sample::start_as(steady, &home.rings(), "steady", options);
    wait_for("all are counted", || {
        let errors = pmcd.values("nixl.errors.total").get("known") == Some(&7);
        (errors && pmcd.values("nixl.host.agents.live").get("") == Some(&4)).then_some(())
    });

    let mut page = Chromium::start(1280, 1000);
    page.open(&format!("host={}", proxy.address()));
    page.until(
        "all agents are there",
        "document.querySelector('#shown').textContent === '4 of 4 agents'",
    );
    let host = support::run(Command::new("uname").arg("-n"));
    let connection = page.text("document.querySelector('#connection').textContent");
    let version = format!("{}, pmdanixl {}, ", host.trim(), env!("CARGO_PKG_VERSION"));
    assert!(connection.starts_with(&version), "{connection}");

    // Constant values: exactly those of pminfo.
    for agent in ["known", "full"] {
        let shown = page.evaluate(&row(agent));
        let value = |metric: &str| pmcd.values(metric).get(agent).copied();
        for (column, metric) in [
            ("full", "nixl.ring.full"),
            ("dropped", "nixl.queue.dropped"),
            ("errors", "nixl.errors.total"),
        ] {
            let expected = value(metric).map_or("–".to_owned(), |value| value.to_string());
            assert_eq!(shown[column], expected, "{agent}: {metric}");
        }
        let most = value("nixl.ring.highwater").expect("a value");
        let room = value("nixl.ring.capacity").expect("a value") - 1;
        let of = format!("{most} of {room} events at most");
        assert_eq!(shown["ring_title"], of, "{agent}");
        assert_eq!(shown["ring"], format!("{} %", most * 100 / room), "{agent}");
    }
    let shown = page.evaluate(&row("full"));
    assert_eq!(shown["dropped"], "45", "15 events of 3 each");
    let times = pmcd.values("nixl.host.ring.full")[""];
    let note = format!(
        "rings found full {times} time{}",
        if times == 1 { "" } else { "s" }
    );
    let lost = ["#tile-lost", "#tile-full"];
    let lost = lost.map(|id| page.text(&format!("document.querySelector('{id}').textContent")));
    assert_eq!(lost, ["at least 45 events", &note]);
    let is_red = "document.querySelector('.bad #tile-lost') !== null";
    assert_eq!(page.evaluate(is_red), true);
    let shown = page.evaluate(&row("known"));
    assert_eq!(shown["status"], "live");
    assert_eq!(shown["max"], "700 µs");
    for quantile in ["p50", "p90", "p99"] {
        let text = shown[quantile].as_str().expect("a text");
        let (time, unit) = number(text);
        assert!(about(time, 700.0, 0.05) && unit == "µs", "{text}");
    }
    let pid = std::process::id().to_string();
    wait_for("the process is named", || {
        let shown = page.evaluate(&row("known"));
        let process = shown["name_title"].as_str()?;
        (process.split_whitespace().nth(1) == Some(&*pid)).then_some(())
    });

    // Rates: 100 transfers of 50,000 bytes in each direction and second.
    let mut last = serde_json::Value::Null;
    wait_for("the rates are those of the producer", || {
        last = page.evaluate(&row("steady"));
        let is = |column: &str, expected: f64, unit: &str| {
            let (value, found) = number(last[column].as_str().unwrap_or_default());
            about(value, expected, 0.1) && found == unit
        };
        let both = last["transfers"].as_str().unwrap_or_default();
        let both: f64 = both.trim_end_matches("/s").parse().unwrap_or(0.0);
        let rates = is("sent", 5.0, "MB/s") && is("received", 5.0, "MB/s");
        (rates && about(both, 200.0, 0.1)).then_some(())
    });
    // The writer of a ring may be found after the ring, and the page requests labels rarely.
    let place = format!(
        "(({{ server, rank }}) => [server, rank])({})",
        row("steady")
    );
    page.until(
        "engine and rank are shown",
        &format!("/^vllm.*,(TP)?7$/.test({place})"),
    );
    let tile = page.text("document.querySelector('#tile-sent').textContent");
    assert!(about(number(&tile).0, 5.0, 0.3), "{tile}");
    // The text alternatives of the charts have their last values.
    let said = page.text("document.querySelector('#chart-bytes .plot').getAttribute('aria-label')");
    assert!(said.starts_with("sent and received: "), "{said}");
    assert!(said.contains("; vllm"), "{said}");
    assert!(!said.contains("known"), "it does nothing: {said}");
    let heat = page.text("document.querySelector('.heat').getAttribute('aria-label')");
    assert!(heat.starts_with("Most transfers take "), "{heat}");
    page.evaluate("document.querySelector('#chart-bytes canvas').getContext('2d').getImageData(0, 0, 1, 1).data.length");

    // Filters by text, by engine, and by one agent.
    let set = |id: &str, value: &str, event: &str| {
        format!("(() => {{ const place = document.querySelector('{id}'); place.value = '{value}';
            place.dispatchEvent(new Event('{event}')); return document.querySelector('#shown').textContent; }})()")
    };
    assert_eq!(
        page.text(&set("#engine", "vllm", "change")),
        "1 of 4 agents"
    );
    assert_eq!(page.text(&set("#engine", "", "change")), "4 of 4 agents");
    // Several fast keys cause one drawing, a moment later.
    let shown = |text: &str| format!("document.querySelector('#shown').textContent === '{text}'");
    page.evaluate(&set("#filter", "KNO", "input"));
    page.until("the filter is taken", &shown("1 of 4 agents"));
    page.evaluate(&set("#filter", "", "input"));
    page.until("it is taken back", &shown("4 of 4 agents"));
    page.evaluate("[...document.querySelectorAll('.name button')].find((one) => one.textContent === 'known').click()");
    let quiet =
        page.text("document.querySelector('#chart-bytes .plot').getAttribute('aria-label')");
    assert_eq!(quiet, "sent: 0 B/s; received: 0 B/s");

    // A name is always text, and was not evaluated.
    let found = page.evaluate(&format!(
        "[...document.querySelectorAll('.raw')].filter((one) => one.textContent === {}).length",
        serde_json::Value::from(HOSTILE)
    ));
    assert_eq!(found, 1, "its raw name is shown");
    assert_eq!(page.evaluate("document.images.length"), 0);
    assert_eq!(page.evaluate("document.scripts.length"), 1);
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
#[ignore = "takes Chromium: scripts/check-full dashboard"]
fn page_shows_errors_and_recovers() {
    let home = Home::new();
    let mut pmcd = Pmcd::start(&home);
    let proxy = Pmproxy::start(&home, &pmcd);
    let mut agent = home.new_ring("agent", 256);
    for _ in 0..30 {
        agent.push_transfer(false, 1 << 40, 700, 20);
    }
    pmcd.becomes(&[("agent", 30 << 40)]);

    let mut page = Chromium::start(390, 800);
    page.open(&format!("host={}", proxy.address()));
    let quiet = "document.querySelector('td.sent')?.textContent === '0 B/s'";
    page.until("its rate is known", quiet);
    let wide = "document.documentElement.scrollWidth <= innerWidth";
    assert_eq!(page.evaluate(wide), true, "no scrolling sideways");
    // Records all rates that the page shows from now on.
    page.evaluate(
        "window.seen = new Set(); new MutationObserver(() => {
            document.querySelectorAll('td.sent, #tile-sent').forEach((one) => seen.add(one.textContent));
        }).observe(document.body, { subtree: true, childList: true, characterData: true }); 0",
    );
    let advice = "!document.querySelector('#trouble').hidden && document.querySelector('#trouble').innerText";
    let says = |what: &str| format!("({advice} || '').includes({what:?})");
    let well =
        "document.body.dataset.state === 'connected' && document.querySelector('#trouble').hidden";

    pmcd.kill();
    page.until(
        "the page reports the missing pmcd",
        &says("pmproxy answers, but pmcd does not"),
    );
    assert!(page.text(advice).contains("sudo systemctl start pmcd"));
    pmcd.start_anew();
    page.until("it goes on", well);
    page.until("its rate is known again", quiet);
    pmcd.becomes(&[("agent", 30 << 40)]);

    let port = proxy.port();
    drop(proxy);
    let misses = says("Nothing answers at http://127.0.0.1:");
    page.until("it misses pmproxy", &misses);
    assert!(page.text(advice).contains("sudo systemctl start pmproxy"));
    let proxy = Pmproxy::start_again(&home, &pmcd, port);
    page.until("it goes on where pmproxy is back", well);
    page.until("its rate is known then", quiet);

    drop(proxy);
    page.until("it misses pmproxy again", &misses);
    let proxy = Pmproxy::start(&home, &pmcd);
    page.evaluate(&format!("location.hash = '#host={}'", proxy.address()));
    page.until("it goes on with another address", well);
    page.until("its rate is known once more", quiet);

    let seen = page.evaluate("[...seen].sort()");
    for text in seen.as_array().expect("texts") {
        assert!(text == "–" || text == "0 B/s", "a rate of nothing: {seen}");
    }
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
#[ignore = "takes Chromium: scripts/check-full dashboard"]
fn page_with_hundreds_of_agents_plots_the_busiest() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let proxy = Pmproxy::start(&home, &pmcd);
    let options = "--agents 300 --rate 2 --capacity 256";
    let _agents = Sample::start(&home, "a", options);
    let _busy = Sample::start(&home, "busy", "--rate 100");
    wait_for("all are there", || {
        (pmcd.values("nixl.host.agents.live").get("") == Some(&301)).then_some(())
    });
    let mut page = Chromium::start(1280, 1000);
    page.open(&format!("host={}", proxy.address()));
    page.until(
        "all agents are there",
        "document.querySelectorAll('#table tbody tr').length === 301",
    );
    page.until(
        "the busiest agent is first",
        "document.querySelector('.name button bdi').textContent === 'busy'",
    );
    page.until(
        "the sum and five lines",
        "document.querySelectorAll('#chart-bytes li').length === 6",
    );
    assert_eq!(
        page.text("document.querySelectorAll('#chart-bytes li bdi')[1].textContent"),
        "producer busy"
    );
    let heat = page.text("document.querySelector('.heat').getAttribute('aria-label')");
    assert_eq!(heat, "Shown for at most 100 agents; this host has 301.");
    // Sorted by name with numeric order, and reversed.
    let names = "[...document.querySelectorAll('.name button bdi')].slice(0, 3).map((one) => one.textContent).join(' ')";
    page.evaluate("document.querySelector('thead button').click()");
    assert_eq!(page.text(names), "a-0 a-1 a-2");
    page.evaluate("document.querySelector('thead button').click()");
    assert_eq!(page.text(names), "busy a-299 a-298");
    let sort = page.text("document.querySelector('thead th').getAttribute('aria-sort')");
    assert_eq!(sort, "descending");
    assert_eq!(page.complaints(), [""; 0]);
}

/// Major version of the installed Node.
fn node() -> Option<u32> {
    // v20.19.2
    let said = Command::new("node").arg("--version").output().ok()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    said.trim()
        .strip_prefix('v')?
        .split('.')
        .next()?
        .parse()
        .ok()
}

#[test]
fn page_modules_pass_their_unit_tests() {
    if node().is_none_or(|version| version < 18) {
        leave_out("there is no Node 18 or later");
    }
    let mut tests = Command::new("node");
    tests.arg("--test");
    tests.args(
        ["units", "events", "pairs"].map(|of| project(&format!("qa/tools/dashboard/{of}.mjs"))),
    );
    // The page shows local times.
    run(tests.env("TZ", "UTC").env("LC_ALL", "C.UTF-8"));
}

#[test]
fn metrics_of_the_page_exist() {
    let mut asked = 0;
    for file in files_in(SOURCES) {
        let text = text_of(&format!("{SOURCES}/{file}"));
        for name in names_in(&text)
            .iter()
            .filter(|name| !name.ends_with(".conf") && !name.ends_with(".log"))
        {
            assert!(is_metric(name), "{file}: {name}");
            asked += 1;
        }
    }
    assert!(asked > 20, "{asked}");
}

#[test]
fn page_is_one_file_that_loads_nothing() {
    let page = text_of(PAGE);
    assert!(page.contains("The MIT License (MIT)"), "uPlot's licence");
    for element in ["<script>", "<style>"] {
        assert_eq!(page.matches(element).count(), 1, "{element}");
    }
    for from_elsewhere in [
        "<script src",
        "<link rel=\"stylesheet",
        "@import",
        "url(",
        "unsafe-",
    ] {
        assert!(!page.contains(from_elsewhere), "{from_elsewhere}");
    }
    // No code turns text into markup.
    for file in files_in(SOURCES)
        .iter()
        .filter(|file| file.ends_with(".js"))
    {
        let text = text_of(&format!("{SOURCES}/{file}"));
        for way in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ] {
            assert!(!text.contains(way), "{file}: {way}");
        }
    }
    assert!(project("share/dashboard/package-lock.json").exists());
}
