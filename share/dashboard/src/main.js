// SPDX-License-Identifier: GPL-2.0-or-later

// The page: queries pmproxy every few seconds and shows the values.

import * as metric from "./metrics.js";
import { remark, trouble_advice } from "./advice.js";
import { agents, filtered, sorted, titles } from "./agents.js";
import { Chart } from "./chart.js";
import { byId, element, setText } from "./dom.js";
import { debounced } from "./debounced.js";
import { Events, Timeline } from "./events.js";
import { clock, count, lost_events, microseconds, writer } from "./format.js";
import { Heat } from "./heat.js";
import { History, one, sum } from "./history.js";
import { LIMIT, Matrix } from "./matrix.js";
import { matrix, pairs, Readings, resolved } from "./pairs.js";
import { address } from "./pmproxy.js";
import { MAX_DETAILED_AGENTS, Source } from "./source.js";
import { Table } from "./table.js";

const SPAN_SECONDS = 600;
// Span of the charts at first. It grows to SPAN_SECONDS.
const FIRST_SECONDS = 60;
const TOP = 5;
const KEY = "nixl-dashboard";

const history = new History(SPAN_SECONDS);
const perSecond = { bytes: writer({ units: "byte", isCounter: true }), count: writer({ units: "count", isCounter: true }) };
const charts = {
    bytes: new Chart(byId("chart-bytes"), perSecond.bytes),
    transfers: new Chart(byId("chart-transfers"), perSecond.count),
    times: new Chart(byId("chart-times"), microseconds, true),
    loss: new Chart(byId("chart-loss"), perSecond.count),
};
const heat = new Heat(byId("chart-heat"));
const readings = new Readings();
const peers = new Matrix(byId("peers"));
const timeline = new Timeline();
const events = new Events(byId("events"));
const table = new Table(byId("table"), (id) => choose(id));

let source;
let timer;
let isWaiting = false;
let round = 0;
let latest;
let answered;
let chosen;

// A page from a file may have no storage.
function remember(base) {
    try {
        localStorage.setItem(KEY, base);
    } catch {
        // The user enters the address again next time.
    }
}
function remembered() {
    try {
        return localStorage.getItem(KEY) ?? undefined;
    } catch {
        return undefined;
    }
}

/** Returns the address in the page's URL, or the saved one, or the host that served the page. */
function start_address() {
    const named = new URLSearchParams(location.hash.slice(1)).get("host");
    const own = location.protocol.startsWith("http") ? location.origin : "localhost";
    for (const typed of [named, remembered(), own]) {
        const base = typed && address(typed);
        if (base) {
            return base;
        }
    }
    return undefined;
}

function advise(place, advice) {
    place.hidden = advice === undefined;
    if (advice === undefined) {
        place.replaceChildren();
        return;
    }
    const commands = advice.commands.map((command) => element("pre", {}, command));
    if (place.textContent !== advice.text + advice.commands.join("")) {
        place.replaceChildren(element("p", {}, advice.text), ...commands);
    }
}

function connect(base) {
    source = new Source(base);
    history.clear();
    readings.clear();
    timeline.clear();
    latest = undefined;
    answered = undefined;
    chosen = undefined;
    byId("address").value = base;
    document.body.dataset.state = "connecting";
    setText(byId("connection"), `connecting to ${base}`);
    draw();
    query();
}

async function query() {
    clearTimeout(timer);
    isWaiting = false;
    round += 1;
    const own = round;
    const queried = source;
    const began = performance.now();
    try {
        const answer = await queried.next();
        if (own !== round) {
            return;
        }
        if (answer.isNew) {
            history.gap();
            readings.clear();
        }
        const row = history.add(answer, (name) => queried.isCounter(name), (name) => metric.DRAWN.includes(name));
        readings.add(answer);
        timeline.add(one_text(answer.values, metric.EVENTS));
        latest = { row, totals: answer.values };
        answered = answer.time;
        document.body.dataset.state = "connected";
        const version = one_text(answer.values, metric.VERSION);
        setText(byId("connection"), `${queried.host || "pmcd"}, pmdanixl ${version}, ${clock(answer.time)}`);
        advise(byId("trouble"), undefined);
        draw();
    } catch (trouble) {
        if (own !== round) {
            return;
        }
        if (trouble.kind === undefined) {
            console.error(trouble);
        }
        history.gap();
        document.body.dataset.state = "trouble";
        setText(byId("connection"), latest ? "no new values; those below are old" : "no values");
        advise(byId("trouble"), trouble_advice(trouble, queried.proxy.base, answered));
        // It is about the old values.
        advise(byId("remark"), undefined);
    }
    isWaiting = true;
    const interval = Number(byId("interval").value) * 1000;
    timer = setTimeout(query, Math.max(100, interval - (performance.now() - began)));
}

function one_text(totals, name) {
    return String(totals.get(name)?.get(null) ?? "");
}

function choose(id) {
    chosen = chosen === id ? undefined : id;
    draw();
}

function draw_tiles(row, totals, all) {
    const counts = Object.fromEntries(Object.entries(metric.COUNTS).map(([key, name]) => [key, one(totals, name, null)]));
    for (const state of ["live", "idle", "exited"]) {
        setText(byId(`tile-${state}`), count(counts[state]));
    }
    const of_host = (name, how) => writer(source.about?.get(name) ?? { units: how, isCounter: true })(one(row, name, null));
    setText(byId("tile-sent"), of_host(metric.HOST.sent, "byte"));
    setText(byId("tile-received"), of_host(metric.HOST.received, "byte"));
    setText(byId("tile-transfers"), perSecond.count(sum(row, [metric.HOST.writes, metric.HOST.reads], [null])));
    const [dropped, full] = [metric.HOST.dropped, metric.HOST.full].map((name) => one(totals, name, null));
    const loss = lost_events(dropped, full);
    setText(byId("tile-lost"), loss.text);
    setText(byId("tile-full"), loss.note);
    byId("tile-full").hidden = loss.note === "";
    byId("tile-lost").parentElement.classList.toggle("bad", dropped > 0 || full > 0);
    advise(byId("remark"), latest && remark(counts, one_text(totals, metric.CONFIG_ERROR), all));
}

/** Fills the list of engines with those of the agents. */
function offer_engines(all) {
    const select = byId("engine");
    const engines = [...new Set(all.map((agent) => agent.engine).filter((engine) => engine !== ""))].sort();
    if (select.value !== "" && !engines.includes(select.value)) {
        engines.push(select.value);
    }
    const offered = [...select.options].slice(1).map((option) => option.value);
    if (offered.join("\n") !== engines.join("\n")) {
        const before = select.value;
        select.replaceChildren(select.options[0], ...engines.map((engine) => element("option", { value: engine }, engine)));
        select.value = before;
    }
}

/** Returns the span of the charts in seconds. */
function span() {
    const { times } = history;
    return Math.min(SPAN_SECONDS, Math.max(FIRST_SECONDS, times[times.length - 1] - times[0] || 0));
}

/** Draws the sum over the agents `some` (undefined: the host's, which has agents that came or went, too), and a line for each of
 *  the busiest agents of `ids`. For a chosen agent it draws a line for each metric. */
function draw_rates(chart, names, of_host, labels, ids, some, titles) {
    let lines;
    if (chosen === undefined) {
        lines = [{ label: labels.join(" and "), values: history.sums(some === undefined ? of_host : names, some) }];
        for (const id of ids.length > 1 ? history.top(names, ids, TOP) : []) {
            lines.push({ label: titles.get(id), values: history.sums(names, [id]) });
        }
    } else {
        lines = names.map((name, i) => ({ label: labels[i], values: history.sums([name], ids) }));
    }
    chart.draw(span(), history.times, lines, chosen === undefined);
}

function draw() {
    const row = latest?.row ?? new Map();
    const totals = latest?.totals ?? new Map();
    const all = agents(row, totals, source.names, source.labels, source.processes);
    if (chosen !== undefined && !all.some((agent) => agent.id === chosen)) {
        chosen = undefined;
    }
    draw_tiles(row, totals, all);
    offer_engines(all);
    const shown = filtered(all, byId("filter").value, byId("engine").value);
    table.draw(all, shown, chosen);
    setText(byId("shown"), `${shown.length} of ${all.length} agents`);

    const drawn = chosen === undefined ? shown : all.filter((agent) => agent.id === chosen);
    const ids = drawn.map((agent) => agent.id);
    // undefined: the history has cached the sums over all agents.
    const some = chosen === undefined && shown.length === all.length ? undefined : ids;
    const whole = some === undefined ? "all agents" : `${shown.length} agents`;
    const words = ({ name, server, rank }) => [name, server, rank].filter((word) => word !== "").join(" ");
    setText(byId("scope"), chosen === undefined ? whole : words(drawn[0]));
    byId("all").hidden = chosen === undefined;

    const titled = titles(all);
    const { HOST } = metric;
    draw_rates(charts.bytes, [metric.SENT, metric.RECEIVED], [HOST.sent, HOST.received], ["sent", "received"], ids, some, titled);
    draw_rates(charts.transfers, [metric.WRITES, metric.READS], [HOST.writes, HOST.reads], ["WRITE", "READ"], ids, some, titled);
    const quantiles = metric.QUANTILES.map((name) => ({
        label: name,
        // A logarithmic scale has no 0.
        values: history.greatest(`${metric.TIME}.${name}`, some).map((value) => value || null),
    }));
    charts.times.draw(span(), history.times, quantiles, false);
    setText(byId("times-of"), ids.length > 1 ? "maximum over the agents" : "");
    const losses = some === undefined ? [HOST.dropped, HOST.full] : [metric.DROPPED, metric.FULL];
    const lost = losses.map((name, i) => ({ label: ["dropped events", "rings found full"][i], values: history.sums([name], some) }));
    charts.loss.draw(span(), history.times, lost, false);
    const drawn_names = new Set(drawn.map((agent) => agent.name));
    if (all.length > MAX_DETAILED_AGENTS) {
        const text = `Shown for at most ${MAX_DETAILED_AGENTS} agents; this host has ${all.length}.`;
        heat.show_text(text);
        peers.show_text(text);
    } else {
        heat.draw(span(), history, source.buckets, drawn_names);
        draw_peers(all, drawn_names, titled);
    }
    draw_events(some && drawn_names);
}

/** Draws the peers of the agents `names`. */
function draw_peers(all, names, titled) {
    if (latest === undefined) {
        peers.show_text("No values yet.");
        return;
    }
    const found = resolved(pairs(source.peers, latest.totals, readings), source.addresses);
    const order = sorted(all, "server", false).map(({ name }) => name);
    const shown = found.filter(({ agent }) => names.has(agent));
    peers.draw(matrix(shown, order, LIMIT), new Map(all.map(({ id, name }) => [name, titled.get(id)])));
}

/** Draws the events of the host and of the agents `names` (undefined: all). */
function draw_events(names) {
    const all = timeline.events;
    const shown = all.filter(({ agent }) => names === undefined || agent === "" || names.has(agent));
    events.draw(span(), answered, shown);
    const [some, every] = [shown, all].map((entries) => entries.filter(({ from }) => from === undefined).length);
    const text = `${some === every ? "" : `${some} of `}${every} event${every === 1 ? "" : "s"}`;
    setText(byId("events-of"), timeline.isKnown ? text : latest ? "nixl.events.last cannot be read" : "");
}

byId("connect").addEventListener("submit", (event) => {
    event.preventDefault();
    const base = address(byId("address").value);
    byId("address").setCustomValidity(base ? "" : "An address such as http://localhost:44322");
    if (!byId("connect").reportValidity()) {
        return;
    }
    remember(base);
    window.history.replaceState(null, "", `#host=${base}`);
    connect(base);
});
byId("address").addEventListener("input", () => byId("address").setCustomValidity(""));
byId("filter").addEventListener("input", debounced(draw));
byId("engine").addEventListener("change", draw);
byId("interval").addEventListener("change", () => {
    if (isWaiting) {
        query();
    }
});
byId("all").addEventListener("click", () => choose(chosen));
window.addEventListener("hashchange", () => connect(start_address()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    Object.values(charts).forEach((chart) => chart.reset());
    draw();
});

connect(start_address());
