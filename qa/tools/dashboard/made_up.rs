// SPDX-License-Identifier: GPL-2.0-or-later

//! The page with invented answers, which pmproxy rarely or never gives.

use super::answers::Answers;
use super::chromium::Chromium;

/// Server with invented answers and one agent. No real pmproxy sends such units and names.
fn pmproxy() -> Answers {
    let answers = Answers::start();
    answers.to(
        "/context",
        &[r#"{"context":7,"labels":{"hostname":"<b>host</b>"}}"#],
    );
    let metric = |name: &str, sem: &str, units: &str| {
        format!(r#"{{"name":"nixl.{name}","sem":"{sem}","units":"{units}","text-oneline":"x"}}"#)
    };
    let metrics = [
        metric("control.version", "discrete", "none"),
        metric("agent.status", "instant", "none"),
        metric("transfer.tx_bytes", "counter", "byte"),
        metric("host.transfer.tx_bytes", "counter", "constructor"),
    ];
    let metrics = format!(r#"{{"context":7,"metrics":[{}]}}"#, metrics.join(","));
    answers.to("/metric?", &[&metrics]);
    answers.to(
        "/indom",
        &[r#"{"context":7,"instances":[{"instance":3,"name":"__proto__"}]}"#],
    );
    answers.to(
        "/metrics?",
        &["nixl_agent_state{nixl_agent=\"a\\\\\\\",engine=\\\\\\\"b\",instid=\"3\"} 1\n"],
    );
    answers
}

/// Answer to a fetch with a time in the format of pmproxy.
fn fetched(context: u32, time: &str, bytes: &str) -> String {
    let metrics = [
        ("control.version", "null", "\"9\""),
        ("agent.status", "3", "\"live\""),
        ("transfer.tx_bytes", "3", bytes),
        ("host.transfer.tx_bytes", "null", bytes),
    ];
    let metrics = metrics.map(|(name, instance, value)| {
        format!(
            r#"{{"name":"nixl.{name}","instances":[{{"instance":{instance},"value":{value}}}]}}"#
        )
    });
    let metrics = metrics.join(",");
    format!(r#"{{"context":{context},"timestamp":{time},"values":[{metrics}]}}"#)
}

#[test]
#[ignore = "takes Chromium: scripts/check-full dashboard"]
fn rates_use_the_times_of_pmproxy_only() {
    let answers = pmproxy();
    // The nanoseconds after the point have no leading zeros: 1.15 s between the first two.
    let course = [
        ("100.900000000", "1000"),
        ("102.50000000", "2150"),
        // The counter has decreased, as after a restart without a state file.
        ("103.50000000", "150"),
        ("104.50000000", "650"),
        // The clock was stepped back.
        ("50.50000000", "9650"),
        ("51.50000000", "9900"),
        // Not a number.
        ("52.50000000", "\"12\""),
        ("53.50000000", "20000"),
        ("55.50000000", "30000"),
    ];
    let course = course.map(|(time, bytes)| fetched(7, time, bytes));
    answers.to("/fetch", &course.each_ref().map(String::as_str));
    let mut page = Chromium::start(1280, 900);
    page.open(&format!("host={}", answers.address()));
    page.evaluate(
        "window.shown = ['–']; new MutationObserver(() => {
            const text = document.querySelector('td.sent')?.textContent;
            if (text !== shown[shown.length - 1]) shown.push(text);
        }).observe(document.body, { subtree: true, childList: true, characterData: true });
        document.querySelector('#interval').value = '1';
        document.querySelector('#interval').dispatchEvent(new Event('change'));",
    );
    page.until("all was asked for", "shown.includes('5.00 kB/s')");
    let shown = page.evaluate("shown.join(', ')");
    let expected = "–, 1.00 kB/s, –, 500 B/s, –, 250 B/s, –, 5.00 kB/s";
    assert_eq!(shown, expected);
    assert_eq!(
        page.text("document.querySelector('.name button bdi').textContent"),
        "__proto__"
    );
    let raw = page.text("document.querySelector('.raw').textContent");
    assert_eq!(raw, "a\",engine=\"b", "a value is not a label");
    let connection = page.text("document.querySelector('#connection').textContent");
    assert!(
        connection.starts_with("<b>host</b>, pmdanixl 9, "),
        "{connection}"
    );
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
#[ignore = "takes Chromium: scripts/check-full dashboard"]
fn html_and_scripts_in_answers_are_shown_as_text() {
    let hostile = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>&lt;b&gt;";
    let text = serde_json::Value::from(hostile).to_string();
    let answers = pmproxy();
    let context = format!(r#"{{"context":7,"labels":{{"hostname":{text}}}}}"#);
    answers.to("/context", &[&context]);
    let names = [
        "control.version",
        "agent.status",
        "agent.user",
        "agent.mode",
        "agent.server",
        "agent.rank",
    ];
    let more = ["control.config_error", "transfer.tx_bytes", "events.last"];
    let names = [&names[..], &more].concat();
    let sem = |name: &str| {
        if name.ends_with("bytes") {
            "counter"
        } else {
            "instant"
        }
    };
    let about = |name: &str, value: &str| match value {
        "" => format!(
            r#"{{"name":"nixl.{name}","sem":"{}","units":{text}}}"#,
            sem(name)
        ),
        _ => {
            let is_of_host = name.starts_with("control") || name.starts_with("events");
            let instance = if is_of_host { "null" } else { "3" };
            format!(
                r#"{{"name":"nixl.{name}","instances":[{{"instance":{instance},"value":{value}}}]}}"#
            )
        }
    };
    let all = |value: &dyn Fn(&str) -> String| {
        let all: Vec<_> = names.iter().map(|name| about(name, &value(name))).collect();
        all.join(",")
    };
    let metrics = all(&|_| String::new());
    let metrics = format!(r#"{{"context":7,"metrics":[{metrics}]}}"#);
    answers.to("/metric?", &[&metrics]);
    let instances = format!(r#"{{"instances":[{{"instance":3,"name":{text}}}]}}"#);
    answers.to("/indom", &[&instances]);
    let label = hostile.replace('"', "\\\\\\\"");
    let labels =
        format!("nixl_agent_state{{nixl_agent=\"raw {label}\",pod=\"{label}\",instid=\"3\"}} 1\n");
    answers.to("/metrics?", &[&labels]);
    let event = format!(
        r#"[{{"number":0,"time":99.5,"kind":{text},"agent":{text},"server":{text},"text":{text}}}]"#
    );
    let fetched = |second: u32| {
        let values = all(&|name| match name {
            "transfer.tx_bytes" => (1000 * second).to_string(),
            "events.last" => serde_json::Value::from(&*event).to_string(),
            _ => text.clone(),
        });
        format!(r#"{{"timestamp":{second}.5,"values":[{values}]}}"#)
    };
    let fetched: Vec<_> = (100..1000).map(fetched).collect();
    let fetched: Vec<_> = fetched.iter().map(String::as_str).collect();
    answers.to("/fetch", &fetched);

    let mut page = Chromium::start(1280, 900);
    page.open(&format!("host={}", answers.address()));
    page.until(
        "it has a rate",
        "document.querySelector('td.sent')?.textContent === '1.00 kB/s'",
    );
    let raw = format!("raw {hostile}");
    for (place, expected) in [
        (".name button bdi", hostile),
        (".raw", &raw),
        ("td.status", hostile),
        ("td.server", hostile),
        ("td.rank", hostile),
        ("td.user", hostile),
        ("#engine option:last-child", hostile),
        ("#events .event-kind", hostile),
        ("#events .event-agent", hostile),
        ("#events .event-server", hostile),
        ("#events .event-what", hostile),
    ] {
        let shown = page.text(&format!("document.querySelector('{place}').textContent"));
        assert_eq!(shown, expected, "{place}");
    }
    let has =
        |place: &str| format!("document.querySelector('{place}').textContent.includes({text})");
    for place in ["#connection", "#remark"] {
        assert_eq!(page.evaluate(&has(place)), true, "{place}");
    }
    page.evaluate("document.querySelector('.name button').click()");
    page.until("its name is above the charts", &has("#scope"));
    let rejected = format!(r#"{{"message":{text},"success":false}}"#);
    answers.to("/context", &[&rejected]);
    answers.to("/fetch", &[&rejected]);
    page.until("the error is shown", &has("#trouble"));
    assert_eq!(page.evaluate("document.images.length"), 0);
    assert_eq!(page.evaluate("document.scripts.length"), 1);
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
#[ignore = "takes Chromium: scripts/check-full dashboard"]
fn address_is_checked_saved_and_rejected_if_not_pmproxy() {
    let answers = pmproxy();
    answers.to("/fetch", &[&fetched(7, "100.5", "1")]);
    let mut page = Chromium::start(1280, 900);
    let address = "document.querySelector('#address').value";
    page.open("host=javascript:alert(1)");
    assert_eq!(page.text(address), "http://localhost:44322", "the default");
    let submit = |typed: &str| {
        format!(
            "(() => {{ const place = document.querySelector('#address'); place.value = '{typed}';
            place.dispatchEvent(new Event('input')); document.querySelector('#connect button').click(); }})()"
        )
    };
    page.evaluate(&submit("ftp://127.0.0.1"));
    assert_eq!(
        page.evaluate("document.querySelector('#address').checkValidity()"),
        false
    );
    let typed = answers.address();
    page.evaluate(&submit(&typed));
    page.until("it is asked", "document.body.dataset.state === 'connected'");
    page.open("");
    assert_eq!(page.text(address), typed, "the address is saved");
    page.until(
        "the saved address is used",
        "document.body.dataset.state === 'connected'",
    );

    let foreign = "document.querySelector('#trouble').innerText.includes('not as pmproxy does')";
    for nonsense in ["<html>", "null", "[]", "{}", r#"{"context":"7"}"#, "7"] {
        answers.to("/context", &[nonsense]);
        answers.to(
            "/fetch",
            &[r#"{"context":7,"message":"unknown context identifier: 7","success":false}"#],
        );
        page.open(&format!("host={typed}"));
        page.until(nonsense, foreign);
    }
    // pmcd without pmdanixl, or while pmdanixl starts.
    let about =
        "document.querySelector('#trouble').innerText.includes('pmcd has no values of NIXL')";
    answers.to("/context", &[r#"{"context":7}"#]);
    answers.to(
        "/fetch",
        &[r#"{"context":7,"timestamp":100.5,"values":[]}"#],
    );
    page.open(&format!("host={typed}"));
    page.until("there are no values", about);
    answers.to(
        "/metric?",
        &[r#"{"context":7,"metrics":[{"name":"nixl.control.version","message":"Unknown metric name","success":false}]}"#],
    );
    page.open(&format!("host={typed}"));
    page.until("there are no metrics", about);
    let advice = page.text("document.querySelector('#trouble').innerText");
    assert!(advice.contains("sudo ./Install"), "{advice}");
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
#[ignore = "takes Chromium: scripts/check-full dashboard"]
fn page_says_since_when_pmdanixl_has_not_answered() {
    let answers = pmproxy();
    answers.to("/fetch", &[&fetched(7, "100.5", "1")]);
    let mut page = Chromium::start(1280, 900);
    page.open(&format!("host={}", answers.address()));
    page.until(
        "it has values",
        "document.body.dataset.state === 'connected'",
    );
    answers.to(
        "/fetch",
        &[r#"{"context":7,"timestamp":102.5,"values":[]}"#],
    );
    page.until(
        "the time of the last answer is shown",
        r"/^pmdanixl has not answered since \d\d:\d\d:\d\d: /.test(document.querySelector('#trouble').innerText)",
    );
    answers.to("/fetch", &[&fetched(7, "104.5", "1")]);
    page.until(
        "the advice is hidden",
        "document.querySelector('#trouble').hidden",
    );
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
#[ignore = "takes Chromium: scripts/check-full dashboard"]
fn servers_and_ranks_distinguish_agents_with_uuid_names() {
    let agents = [
        (1, "prefill", 8100, "TP1"),
        (2, "decode", 8200, "TP0"),
        (3, "prefill", 8100, "TP0"),
        (4, "decode", 8200, "TP1"),
    ];
    let uuid = |id: u32| format!("{id}fa1c2de-0b6e-4d0e-9a53-77d0c6a1f00{id}");
    let every = |one: &dyn Fn(u32) -> String, between: &str| -> String {
        let all = agents.map(|(id, ..)| one(id));
        all.join(between)
    };
    let answers = pmproxy();
    let names = [
        ("control.version", "discrete", "none"),
        ("agent.status", "instant", "none"),
        ("agent.server", "discrete", "none"),
        ("agent.rank", "discrete", "none"),
        ("transfer.tx_bytes", "counter", "byte"),
        ("transfer.tx_requests", "counter", "count"),
        ("agent.tcp_share", "instant", "none"),
        ("latency.xfer_time.peer_ratio", "instant", "none"),
    ];
    let metrics = names.map(|(name, sem, units)| {
        format!(r#"{{"name":"nixl.{name}","sem":"{sem}","units":"{units}"}}"#)
    });
    answers.to(
        "/metric?",
        &[&format!(r#"{{"metrics":[{}]}}"#, metrics.join(","))],
    );
    let instances = every(
        &|id| format!(r#"{{"instance":{id},"name":"{}"}}"#, uuid(id)),
        ",",
    );
    answers.to("/indom", &[&format!(r#"{{"instances":[{instances}]}}"#)]);
    answers.to("/metrics?", &[""]);
    let shares = [0.5, 0.51, 0.004, 1.0];
    let ratios = [1.0, 3.001, 3.0, 12.3];
    let fetched = |second: u32| {
        let metric = |name: &str, value: &dyn Fn(u32) -> String| {
            let values = every(
                &|id| format!(r#"{{"instance":{id},"value":{}}}"#, value(id)),
                ",",
            );
            format!(r#"{{"name":"nixl.{name}","instances":[{values}]}}"#)
        };
        let version =
            r#"{"name":"nixl.control.version","instances":[{"instance":null,"value":"9"}]}"#;
        let values = [
            version.to_owned(),
            metric("agent.status", &|_| "\"live\"".into()),
            metric("agent.server", &|id| {
                let (_, role, port, _) = agents[id as usize - 1];
                format!("\"vllm {role}:{port}\"")
            }),
            metric("agent.rank", &|id| {
                format!("\"{}\"", agents[id as usize - 1].3)
            }),
            metric("transfer.tx_bytes", &|id| (second * id * 1000).to_string()),
            metric("transfer.tx_requests", &|id| (second * id).to_string()),
            metric("agent.tcp_share", &|id| shares[id as usize - 1].to_string()),
            metric("latency.xfer_time.peer_ratio", &|id| {
                ratios[id as usize - 1].to_string()
            }),
        ];
        format!(
            r#"{{"timestamp":{second}.5,"values":[{}]}}"#,
            values.join(",")
        )
    };
    let fetched: Vec<_> = (100..1000).map(fetched).collect();
    let fetched: Vec<_> = fetched.iter().map(String::as_str).collect();
    answers.to("/fetch", &fetched);

    let mut page = Chromium::start(1280, 1000);
    page.open(&format!("host={}", answers.address()));
    page.until(
        "the chart has lines",
        "document.querySelectorAll('#chart-bytes li').length === 5",
    );
    let texts = |place: &str| {
        format!("[...document.querySelectorAll('{place}')].map((one) => one.textContent).join()")
    };
    assert_eq!(
        page.text(&texts("td.server, td.rank")),
        "vllm decode:8200,TP0,vllm decode:8200,TP1,vllm prefill:8100,TP0,vllm prefill:8100,TP1"
    );
    assert_eq!(page.text(&texts("td.tcp")), "51 %,100 %,0 %,50 %");
    assert_eq!(page.text(&texts("td.tcp.bad")), "51 %,100 %");
    assert_eq!(page.text(&texts("td.p50.bad")), "–,–");
    let slow = "td.p50[title^=\"transfers take 12.30 times as long \"]";
    assert_eq!(page.text(&texts(slow)), "–");
    // The busiest agent is first.
    assert_eq!(
        page.text(&texts("#chart-bytes li bdi")),
        "sent and received,vllm decode:8200 TP1,vllm prefill:8100 TP0,vllm decode:8200 TP0,vllm prefill:8100 TP1"
    );
    for width in [1280, 390] {
        page.resize(width, 1000);
        let is_cut = "[...document.querySelectorAll('td.server')].some((one) => one.scrollWidth > one.clientWidth)";
        page.until("servers are whole", &format!("!{is_cut}"));
        page.until(
            "nothing scrolls sideways",
            "document.documentElement.scrollWidth <= innerWidth",
        );
    }
    assert_eq!(page.complaints(), [""; 0]);
}
