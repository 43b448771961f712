// SPDX-License-Identifier: GPL-2.0-or-later

//! What happened: the events on the page.

use super::HOSTILE;
use super::chromium::Chromium;
use crate::support::kill::kill_for_a_minute;
use crate::support::pmproxy::Pmproxy;
use crate::support::share::text_of;
use crate::support::{Home, Pmcd, wait_for};
use crate::tools::events::play;
use pmdanixl::timeline::{Kind, Phase};
use serde_json::Value;

/// Texts of the rows, the newest first: time, kind, agent, server and what happened.
const ROWS: &str = "[...document.querySelectorAll('#events tbody tr')].map((row) =>
    [row.querySelector('time').dateTime, ...[...row.children].slice(1).map((cell) => cell.textContent)])";

/// Number of marks in the strip.
const MARKS: &str =
    "[...document.querySelectorAll('.strip .mark')].filter((one) => !one.hidden).length";

const COUNT: &str = "document.querySelector('#events-of').textContent";

/// Events of nixl.events.last, as pmproxy has it.
fn last(proxy: &Pmproxy) -> Vec<Value> {
    let context = wait_for("pmproxy connects", || {
        proxy.json("/pmapi/context", &[("polltimeout", "60")])?["context"].as_u64()
    });
    let path = format!("/pmapi/{context}/fetch");
    let answer = proxy.json(&path, &[("names", "nixl.events.last")]);
    let answer = answer.expect("an answer");
    let value = answer["values"][0]["instances"][0]["value"].as_str();
    serde_json::from_str(value.expect("a text")).expect("JSON")
}

#[test]
#[ignore = "takes Chromium: scripts/check-full dashboard"]
fn page_lists_and_marks_what_happened() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let proxy = Pmproxy::start(&home, &pmcd);
    let expected = play(&home, &pmcd);
    let mut page = Chromium::start(1280, 1600);
    page.open(&format!("host={}", proxy.address()));
    page.until("all events are listed", &format!("{COUNT} === '20 events'"));
    let rows = page.evaluate(ROWS);
    let rows = Vec::from_iter(rows.as_array().expect("rows").iter().rev());
    let last = last(&proxy);
    assert_eq!((rows.len(), last.len()), (expected.len(), expected.len()));
    for ((row, (kind, agent, value)), event) in rows.into_iter().zip(&expected).zip(&last) {
        assert_eq!(row[1], kind.as_str(), "{row}");
        let shown = if agent.is_empty() {
            "–"
        } else {
            agent.as_str()
        };
        assert_eq!(row[2], shown, "{row}");
        assert_eq!(
            (&event["kind"], &event["value"]),
            (&row[1], &Value::from(*value))
        );
        let text = event["text"].as_str().expect("a text");
        let prefix = if agent.is_empty() {
            String::new()
        } else {
            format!("{agent}: ")
        };
        assert_eq!(
            text,
            format!("{prefix}{}", row[4].as_str().expect("a text"))
        );
        // Milliseconds of the host's time, rounded down.
        let millis = page.evaluate(&format!("Date.parse({})", row[0]));
        let time = event["time"].as_f64().expect("a time") * 1000.0;
        assert!(
            (time - millis.as_f64().expect("a time")).abs() <= 1.0,
            "{row}: {time}"
        );
    }
    // Both of one drawing.
    let strip = page.evaluate(&format!(
        "[{MARKS}, document.querySelector('.strip').getAttribute('aria-label')]"
    ));
    let said = strip[1].as_str().expect("a text");
    assert!(
        said.starts_with("Events in the time of the charts: "),
        "{said}"
    );
    let words = said.split(|c: char| !c.is_ascii_digit());
    let numbers = words.filter_map(|word| word.parse::<u64>().ok());
    assert_eq!(strip[0], numbers.sum::<u64>(), "{said}");

    // One more, while the page is open, of an agent with a name that is a script.
    let _hostile = home.new_ring(HOSTILE, 16);
    page.until("it is listed", &format!("{COUNT} === '21 events'"));
    let raw = serde_json::Value::from(HOSTILE);
    let row = format!(
        "[...document.querySelectorAll('th.name')].find((one) => one.querySelector('.raw').textContent === {raw})"
    );
    page.until("its raw name is shown", &format!("{row} !== undefined"));
    let name = page.text(&format!("{row}.querySelector('bdi').textContent"));
    let rows = page.evaluate(ROWS);
    assert_eq!(
        (&rows[0][1], &rows[0][2]),
        (&Value::from("appeared"), &Value::from(name))
    );
    assert_eq!(page.evaluate("document.images.length"), 0);
    assert_eq!(page.evaluate("document.scripts.length"), 1);
    page.until(
        "marks are in the order of their times",
        "(() => { const marks = [...document.querySelectorAll('.strip .mark')].filter((one) => !one.hidden);
            const lefts = marks.map((one) => parseFloat(one.style.left));
            return lefts.length > 0 && lefts.at(-1) <= 100 && lefts.every((left, i) => left >= (lefts[i - 1] ?? 0)); })()",
    );
    for width in [1280, 390] {
        page.resize(width, 1600);
        page.until(
            "nothing scrolls sideways",
            "document.documentElement.scrollWidth <= innerWidth",
        );
        let cut = "document.querySelector('#events .scroll').scrollWidth <= document.querySelector('#events .scroll').clientWidth";
        page.until("the list fits", cut);
    }

    // A chosen agent has its events and those of the host.
    page.evaluate("document.querySelector('.name button').click()");
    let name = page.text("document.querySelector('tr.chosen .name bdi').textContent");
    page.until(
        "the others are left out",
        &format!("/^[0-9]+ of 21 events$/.test({COUNT})"),
    );
    let agents = page.evaluate(&format!(
        "[...new Set(({ROWS}).map((row) => row[2]))].sort()"
    ));
    let mut both = ["–".to_owned(), name];
    both.sort();
    assert_eq!(agents, serde_json::json!(both));
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
#[ignore = "takes Chromium: scripts/check-full dashboard"]
fn events_of_an_ended_pmdanixl_are_shown_as_old() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let proxy = Pmproxy::start(&home, &pmcd);
    let mut page = Chromium::start(1280, 1600);
    page.open(&format!("host={}", proxy.address()));
    page.until("its start is listed", &format!("{COUNT} === '1 event'"));
    assert_eq!(page.evaluate(ROWS)[0][1], "configuration");
    // No agent is there, whose missing values would tell.
    kill_for_a_minute(&pmcd);
    page.until(
        "the page says that values are old",
        "document.body.dataset.state === 'trouble' && document.querySelector('#connection').textContent.includes('old')",
    );
    page.until(
        "events of the next one follow",
        &format!("document.body.dataset.state === 'connected' && /^[23] events$/.test({COUNT})"),
    );
    let rows = page.evaluate(ROWS);
    assert_eq!(
        (&rows[0][1], &rows[1][1]),
        (&Value::from("configuration"), &Value::from("missed"))
    );
    assert!(
        rows[1][4]
            .as_str()
            .is_some_and(|what| what.starts_with("pmdanixl began again")),
        "{rows}"
    );
    page.until(
        "where some may be missing is marked",
        "document.querySelector('.strip .missing:not([hidden])') !== null",
    );
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
fn page_knows_the_kinds_of_trouble() {
    let text = text_of("share/dashboard/src/events.js");
    let (_, bad) = text.split_once("const BAD = new Set([").expect("there");
    let (bad, _) = bad.split_once("]);").expect("its end");
    let bad = Vec::from_iter(bad.split('"').skip(1).step_by(2));
    for name in &bad {
        assert!(Kind::ALL.iter().any(|kind| kind.name() == *name), "{name}");
    }
    for kind in Kind::ALL {
        let is_bad = bad.contains(&kind.name());
        assert!(is_bad || kind.phase() != Phase::Begin, "{kind:?}");
        assert!(!is_bad || kind.phase() != Phase::End, "{kind:?}");
    }
}
