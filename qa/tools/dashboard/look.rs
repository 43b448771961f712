// SPDX-License-Identifier: GPL-2.0-or-later

//! Appearance and use of the page: light, dark, wide, narrow, and without a mouse. `PICTURES=1` makes the pictures of
//! the documentation.

use super::chromium::Chromium;
use crate::support::pmproxy::Pmproxy;
use crate::support::sample::Sample;
use crate::support::titled::Titled;
use crate::support::{Home, Pmcd, project, wait_for};
use std::time::Duration;

/// Contrast of two colours of the style sheet, by WCAG 2.
const CONTRAST: &str = "(one, other) => {
    const light = (name) => {
        const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
        const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);
        const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
}";

#[test]
#[ignore = "takes Chromium: scripts/check-full dashboard"]
fn page_is_usable_in_each_theme_width_and_without_a_mouse() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let proxy = Pmproxy::start(&home, &pmcd);
    let _servers = [
        Titled::with_transfers(&home, "8100", "kv_producer", "0.01"),
        Titled::with_transfers(&home, "8200", "kv_consumer", "0.015"),
    ];
    let options = "--vary --rate 40 --burst 20 --capacity 64 --on-full drop --errors 9";
    let _small = Sample::start(&home, "kvbm-worker-0", options);
    let mut page = Chromium::start(1280, 1330);
    page.open(&format!("host={}", proxy.address()));
    let all = "document.querySelectorAll('td.server').length === 5 && document.querySelectorAll('#chart-bytes li').length === 6";
    page.until("all are drawn", all);
    let told_apart = "[...document.querySelectorAll('td.server, td.rank')].map((one) => one.textContent).slice(-8).join() === \
        'vllm decode:8200,TP0,vllm decode:8200,TP1,vllm prefill:8100,TP0,vllm prefill:8100,TP1'";
    page.until("servers and ranks are told apart", told_apart);

    // The pictures need some values in the charts.
    let pictures = std::env::var_os("PICTURES").is_some();
    if pictures {
        std::thread::sleep(Duration::from_secs(100));
    }
    for (scheme, width, height) in [
        ("light", 1280, 1380),
        ("dark", 1280, 1380),
        ("dark", 390, 844),
    ] {
        page.set_scheme(scheme);
        page.resize(width, height);
        let fits = "document.documentElement.scrollWidth <= innerWidth";
        page.until("no scrolling sideways", fits);
        if width > 1000 {
            let fits = "document.querySelector('#table').scrollWidth <= document.querySelector('#table').clientWidth";
            page.until("all columns are in sight", fits);
        }
        for ground in ["--ground", "--raised"] {
            for (kinds, least) in [
                ("text soft accent bad warn good", 4.5),
                ("line-1 line-2 line-3 line-4 line-5 heat", 3.0),
            ] {
                for kind in kinds.split(' ') {
                    let found = page.evaluate(&format!("({CONTRAST})('--{kind}', '{ground}')"));
                    let found = found.as_f64().expect("a number");
                    assert!(
                        found >= least || (ground == "--raised" && least < 4.0),
                        "{scheme}: {kind} on {ground}: {found}"
                    );
                }
            }
        }
        if pictures {
            // The next drawing has the new size and colours.
            std::thread::sleep(Duration::from_secs(3));
            let name = format!("docs/images/dashboard-{scheme}-{width}.webp");
            page.picture(&project(&name));
        }
    }

    // Every control has an accessible name.
    page.call("Accessibility.enable", serde_json::json!({}));
    let tree = page.call("Accessibility.getFullAXTree", serde_json::json!({}));
    let mut used = 0;
    for node in tree["nodes"].as_array().expect("nodes") {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        if [
            "button",
            "textbox",
            "searchbox",
            "combobox",
            "image",
            "table",
            "region",
        ]
        .contains(&role)
        {
            let name = node["name"]["value"].as_str().unwrap_or_default();
            assert!(!name.trim().is_empty(), "{node}");
            used += 1;
        }
    }
    assert!(used > 25, "{used}");

    // The first agent is selected with keys only.
    page.evaluate("document.querySelector('#table').focus()");
    let focus = "document.activeElement.closest('tbody') !== null";
    wait_for("an agent has the focus", || {
        for kind in ["rawKeyDown", "keyUp"] {
            let key = serde_json::json!({ "type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9 });
            page.call("Input.dispatchKeyEvent", key);
        }
        (page.evaluate(focus) == true).then_some(())
    });
    let name = page.text("document.activeElement.textContent");
    for kind in ["keyDown", "keyUp"] {
        let key = serde_json::json!({ "type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r" });
        page.call("Input.dispatchKeyEvent", key);
    }
    let scope = page.text("document.querySelector('#scope').textContent");
    assert!(scope.starts_with(&name), "{scope}");
    assert_eq!(
        page.evaluate("document.activeElement.getAttribute('aria-pressed')"),
        "true"
    );
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
#[ignore = "takes Chromium: scripts/check-full dashboard"]
fn charts_have_no_times_before_the_first_value() {
    let mut page = Chromium::start(1280, 1000);
    let record = "window.written = []; const write = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
            written.push(text);
            return write.call(this, text, ...place);
        };";
    let script = serde_json::json!({ "source": record });
    page.call("Page.addScriptToEvaluateOnNewDocument", script);
    page.open("host=http://127.0.0.1:9");
    let drawn = "written.includes('1 B/s') && !document.querySelector('#trouble').hidden";
    page.until("the charts are drawn without an answer", drawn);
    let times = page.evaluate("written.filter((text) => /^[0-9]+:[0-9]/.test(text))");
    assert_eq!(times, serde_json::json!([]));
}
