// Unit tests of the page's modules without a browser. qa/tools/dashboard.rs runs node --test qa/tools/dashboard/units.mjs.

import assert from "node:assert/strict";
import { test } from "node:test";
import { remark, trouble_advice } from "../../../share/dashboard/src/advice.js";
import { agents, filtered, sorted, titles } from "../../../share/dashboard/src/agents.js";
import { debounced } from "../../../share/dashboard/src/debounced.js";
import * as format from "../../../share/dashboard/src/format.js";
import { buckets } from "../../../share/dashboard/src/heat.js";
import { History, one, rates, sum } from "../../../share/dashboard/src/history.js";
import * as metric from "../../../share/dashboard/src/metrics.js";
import { address, labelsIn, timeOf } from "../../../share/dashboard/src/pmproxy.js";
import { Source } from "../../../share/dashboard/src/source.js";

const always = () => true;
const never = () => false;

/** A history of a metric that is not a counter: values by instance, one per second. */
function history_of(rows, span = 600) {
    const history = new History(span);
    rows.forEach((row, i) => history.add({ time: i + 1, values: new Map([["m", new Map(row)]]) }, never, always));
    return history;
}

test("a rate needs two values, the later not lower, and a time between them", () => {
    const before = new Map([[1, 100], [2, 100], [3, 100], [4, "100"], [5, 100]]);
    const now = new Map([[1, 300], [2, 100], [3, 99], [4, 300], [5, "300"], [6, 300]]);
    assert.deepEqual([...rates(before, now, 2)], [[1, 100], [2, 0]]);
    for (const seconds of [0, -1, NaN, undefined]) {
        assert.equal(rates(before, now, seconds).size, 0);
    }
    assert.equal(rates(undefined, now, 1).size, 0);
    assert.equal(rates(before, undefined, 1).size, 0);
});

test("a timestamp with nanoseconds without leading zeros is parsed", () => {
    assert.equal(timeOf('{"context":7,"timestamp":5.42,"values":[]}'), 5.000000042);
    assert.equal(timeOf('{"timestamp": 5.500000000}'), 5.5);
    assert.equal(timeOf('\n {"timestamp":5}'), 5);
    for (const none of ["", "{}", '{"values":[{"timestamp":5.5}]}', '{"timestamp":"5.5"}', '"timestamp":5']) {
        assert.equal(timeOf(none), undefined, none);
    }
});

test("labels are read from lines of the metric, never from values", () => {
    const text = [
        "# HELP m about m",
        'm{a="1",instid="7",nixl_agent="plain"} 1',
        'm{nixl_agent="x\\",instid=\\"9",instid="8"} 1',
        'm{nixl_agent="tab\\\\tand \\\\xc3\\\\xa9",instid="3"} 1',
        'm_more{instid="4"} 1',
        'm{instid="no number"} 1',
        'm{nixl_agent="no instance"} 1',
    ];
    const found = labelsIn(text.join("\n"), "m");
    assert.deepEqual([...found.keys()], [7, 8, 3]);
    assert.equal(found.get(7).get("nixl_agent"), "plain");
    assert.equal(found.get(8).get("nixl_agent"), 'x",instid="9');
    assert.equal(found.get(3).size, 2);
});

test("numbers are shown in the units of their metrics", () => {
    const { brief, bytes, count, duration, microseconds, writer } = format;
    assert.deepEqual([0, 9999, 10_000, 1.5, 999_960, undefined].map(count), ["0", "9999", "10.0 k", "1.50", "1.00 M", "–"]);
    assert.deepEqual([0, 999, 1000, 123_456_789, "1"].map(bytes), ["0 B", "999 B", "1.00 kB", "123 MB", "–"]);
    assert.deepEqual([5, 12_340, 5e9].map(microseconds), ["5.00 µs", "12.3 ms", "5000 s"]);
    assert.deepEqual([0, 119_000, 120_000, 7_200_000, 172_800_000].map(duration), ["now", "119 s", "2 min", "2 h", "2 days"]);
    assert.deepEqual(["5.00 µs", "12.50 ms", "100 B"].map(brief), ["5 µs", "12.5 ms", "100 B"]);
    assert.equal(writer({ units: "byte", isCounter: true })(2000), "2.00 kB/s");
    assert.equal(writer({ units: "byte", isCounter: true })(undefined), "–");
    assert.equal(writer({ units: "microsec", isCounter: false })(2000), "2.00 ms");
    assert.equal(writer({ units: "constructor", isCounter: false })(3), "3 constructor");
    assert.equal(format.clock(3_661), "01:01:01");
    assert.equal(format.moment(3_661, 86_399), "01:01:01");
    assert.match(format.moment(3_661, 86_400), /1970.*, 01:01:01$/);
});

test("lost telemetry is a number only if no ring was full", () => {
    const { lost_events } = format;
    assert.deepEqual(lost_events(0, 0), { text: "0", note: "" });
    assert.deepEqual(lost_events(1, 0), { text: "1 event", note: "" });
    assert.deepEqual(lost_events(45_000, undefined), { text: "45.0 k events", note: "" });
    assert.deepEqual(lost_events(0, 1), { text: "unknown number", note: "rings found full 1 time" });
    assert.deepEqual(lost_events(undefined, 7), { text: "unknown number", note: "rings found full 7 times" });
    assert.deepEqual(lost_events(45, 7), { text: "at least 45 events", note: "rings found full 7 times" });
    assert.deepEqual(lost_events(undefined, undefined), { text: "–", note: "" });
});

test("advice says since when pmdanixl has not answered", () => {
    const advice = (answered) => trouble_advice({ kind: "nixl" }, "http://node1:44322", answered).text;
    assert.match(advice(3_661), /^pmdanixl has not answered since 01:01:01: /);
    assert.match(advice(undefined), /^pmcd has no values of NIXL: pmdanixl is not installed, /);
});

test("agents are sorted in natural order, those without a value last", () => {
    const agents = ["a-10", "a-9", "b", "c"].map((name, i) => ({ name, sent: [5, 5, undefined, 7][i], rank: ["10", "9", "", "x"][i] }));
    const names = (key, isDescending) => sorted(agents, key, isDescending).map(({ name }) => name).join(" ");
    assert.equal(names("name", false), "a-9 a-10 b c");
    assert.equal(names("name", true), "c b a-10 a-9");
    assert.equal(names("sent", true), "c a-9 a-10 b");
    assert.equal(names("sent", false), "a-9 a-10 c b");
    assert.equal(names("rank", false), "a-9 a-10 c b");
    assert.equal(agents[0].name, "a-10", "the argument is not changed");
});

test("agents that have exited come last, unless sorted by state", () => {
    const states = ["exited", "live", "exited", "idle"];
    const agents = states.map((status, i) => ({ name: `a${i}`, status, sent: [9, 2, undefined, undefined][i] }));
    const names = (key, isDescending) => sorted(agents, key, isDescending).map(({ name }) => name).join(" ");
    assert.equal(names("name", false), "a1 a3 a0 a2");
    assert.equal(names("name", true), "a3 a1 a2 a0");
    assert.equal(names("sent", true), "a1 a3 a0 a2");
    assert.equal(names("status", false), "a0 a2 a3 a1");
    assert.equal(names("status", true), "a1 a3 a0 a2");
});

/** The rows of made-up agents; each has an id, a name, and may have a server, a rank, a command and a rate of its transfers. */
function rows(...made) {
    const by = (value) => new Map(made.map((one) => [one.id, value(one)]).filter(([, value]) => value !== undefined));
    const totals = new Map([
        [metric.STATUS, by(() => "live")],
        [metric.SERVER, by(({ server }) => server)],
        [metric.RANK, by(({ rank }) => rank)],
        [metric.COMMAND, by(({ command }) => command)],
    ]);
    const labels = by(() => new Map([["engine", "other"], ["pod", "pod-1"], ["rank", "other"]]));
    return agents(new Map([[metric.WRITES, by(({ rate }) => rate)]]), totals, by(({ name }) => name), labels, new Map());
}

test("ranks of one server are adjacent, agents without a server last", () => {
    const all = rows(
        { id: 1, name: "u1", rate: 1 },
        { id: 2, name: "u2", rate: 9, server: "vllm prefill:8100", rank: "TP10" },
        { id: 3, name: "u3", rate: 1, server: "vllm decode:8200", rank: "TP1" },
        { id: 4, name: "u4", rate: 2, server: "vllm prefill:8100", rank: "TP2" },
        { id: 5, name: "u5", rate: 8 },
        { id: 6, name: "u6", rate: 1, server: "vllm decode:8200", rank: "TP0" },
        { id: 7, name: "u7", rate: 7, server: "sglang", rank: "rank 3" },
    );
    const ids = (isDescending) => sorted(all, "server", isDescending).map(({ id }) => id);
    assert.deepEqual(ids(false), [7, 6, 3, 4, 2, 5, 1]);
    assert.deepEqual(ids(true), [2, 4, 3, 6, 7, 5, 1]);
    assert.deepEqual(all.map(({ server }) => server).slice(0, 3), ["", "vllm prefill:8100", "vllm decode:8200"]);
    assert.deepEqual([all[6].rank, all[6].pod], ["rank 3", "pod-1"]);
    const parts = (server) => rows({ id: 1, name: "a", server }).map(({ engine, role, port }) => [engine, role, port])[0];
    assert.deepEqual(parts("vllm decode:8200"), ["vllm", "decode", "8200"]);
    assert.deepEqual(parts("vllm:8200"), ["vllm", "", "8200"]);
    assert.deepEqual(parts("both"), ["", "both", ""]);
    assert.deepEqual(parts(":80"), ["", "", "80"]);
    assert.deepEqual(parts(undefined), ["", "", ""]);
});

test("a share is in percent, also above 100, of the agent or else of its process", () => {
    assert.deepEqual([0, 0.004, 0.505, 1, 1.25, 123.4, undefined].map(format.percent), ["0 %", "0 %", "51 %", "100 %", "125 %", "12.3 k %", "–"]);
    const totals = new Map([
        [metric.STATUS, new Map([[3, "live"], [4, "live"], [5, "live"]])],
        [metric.TCP_SHARE, new Map([[4, 0.98]])],
        ["nixl.agent.pid", new Map([[3, 40], [4, 41], [5, 41]])],
        [metric.PROCESS_SHARE, new Map([[7, 0.9], [8, 0.5]])],
    ]);
    const processes = new Map([[7, "41 python3"], [8, "4 python3"]]);
    const found = agents(new Map(), totals, new Map(), new Map(), processes);
    assert.deepEqual(found.map(({ tcp }) => tcp), [undefined, 0.98, 0.9]);
});

test("an agent with stalled transfers says so, with its peer", () => {
    const stalls = (state) => new Map(state.map((value, id) => [id, value]).filter(([, value]) => value !== undefined));
    const totals = new Map([
        [metric.STATUS, stalls(["live", "live", "idle", "idle", "idle"])],
        [metric.STALL.state, stalls([undefined, 0, 1, 2, 2])],
        [metric.STALL.age, stalls([undefined, undefined, 40_000, 130_000, 150_000])],
        [metric.STALL.peer, stalls([undefined, undefined, "10.0.0.2", "10.0.0.3", "10.0.0.4, process 7 python3"])],
        [metric.STALL.reason, stalls([undefined, undefined, "5 bytes not read", "6 bytes not read", "stopped"])],
    ]);
    const names = new Map(["a", "b", "c", "d", "e"].map((name, id) => [id, name]));
    const found = agents(new Map(), totals, names, new Map(), new Map());
    assert.deepEqual(found.map(({ stall }) => stall), ["", "", "suspect", "stalled", "stalled"]);
    assert.deepEqual(filtered(found, "stall", "").map(({ name }) => name), ["d", "e"]);
    const said = remark({}, "", found);
    assert.equal(said.text, "Transfers of e (and of 1 more) have stalled, with 10.0.0.4, process 7 python3: stopped.");
    assert.equal(remark({}, "", found.slice(0, 3)), undefined);
    assert.match(remark({}, "", []).text, /^No agents: /);
});

test("a legend has server and rank, else the command, and the name if that is not unique", () => {
    const server = "vllm decode:8200";
    const all = rows(
        { id: 1, name: "u1", server, rank: "TP0" },
        { id: 2, name: "u2", server, rank: "TP1" },
        { id: 3, name: "u3", server, rank: "TP1" },
        { id: 4, name: "u4" },
        { id: 5, name: "u5", server: "kvbm", command: "python3" },
        { id: 6, name: "u6", command: "bench" },
        { id: 7, name: "u7", rank: "rank 3", command: "bench" },
    );
    const expected = ["vllm decode:8200 TP0", "vllm decode:8200 TP1 u2", "vllm decode:8200 TP1 u3", "u4", "kvbm", "bench", "rank 3"];
    assert.deepEqual([...titles(all).values()], expected);
});

test("agents are found by server, rank and command", () => {
    const server = { server: "vllm decode:8200", rank: "TP0" };
    const all = rows({ id: 1, name: "uuid", command: "VLLM::Worker_TP0", ...server }, { id: 2, name: "other" });
    for (const text of ["decode", ":8200", "8200 tp0", "vllm::worker"]) {
        assert.deepEqual(filtered(all, text, "").map(({ id }) => id), [1], text);
    }
    assert.equal(filtered(all, "prefill", "").length, 0);
});

test("agents are found by name, user, state and pid, and by engine", () => {
    const agent = {
        name: "Worker-1", raw: "uuid", user: "ann", status: "live", stall: "", engine: "vllm", server: "vllm", rank: "", command: "", pid: 77,
    };
    const has = (text, engine) => filtered([agent], text, engine).length === 1;
    for (const text of ["", " worker ", "UUID", "ann", "live", "vllm", "pid 77"]) {
        assert.ok(has(text, ""), text);
    }
    assert.ok(has("", "vllm") && !has("", "sglang") && !has("worker-2", ""));
});

test("buckets are sorted and limited to the requested agents", () => {
    const names = new Map([[1, "a::100-inf"], [2, "a::0-5"], [3, "b::0-5"], [4, "x::y::0-5"], [5, "a::5-100"], [6, "a"]]);
    const found = buckets(names, new Set(["a", "x::y"]));
    assert.deepEqual(found.map(({ low, high, ids }) => [low, high, ids]), [[0, 5, [2, 4]], [5, 100, [5]], [100, Infinity, [1]]]);
});

test("an address is completed and must be that of a web server", () => {
    assert.equal(address(" node1 "), "http://node1:44322");
    assert.equal(address("http://node1:80/"), "http://node1");
    assert.equal(address("https://node1/page#x"), "https://node1");
    for (const none of ["javascript:alert(1)", "ftp://node1", "http://", ""]) {
        assert.equal(address(none), undefined, none);
    }
});

test("a sum covers all or some instances, and of no value is not 0", () => {
    const history = history_of([[[1, 1], [2, 2]], [[2, 4], [9, 8]], [], [[1, "text"], [3, 0]]]);
    assert.deepEqual(history.sums(["m"]), [3, 12, null, 0]);
    assert.deepEqual(history.sums(["m"], [9, 2]), [2, 12, null, null]);
    assert.deepEqual(history.sums(["m", "m"], [1]), [2, null, null, null]);
    assert.deepEqual(history.sums(["other", "m"]), [3, 12, null, 0]);
    assert.deepEqual(history.sums(["other"]), [null, null, null, null]);
    assert.deepEqual(history.greatest("m"), [2, 8, null, 0]);
    assert.deepEqual(history.greatest("m", [1, 2]), [2, 4, null, null]);
    assert.deepEqual(history.sums(["m"], []), [null, null, null, null]);
    assert.deepEqual(history_of([[[null, 5]], [], [[null, 7]]]).sums(["m"]), [5, null, 7], "a metric without instances");
});

test("the history of a counter has rates, interrupted by gaps and clock steps", () => {
    const history = new History(600);
    const take = (time, value) => history.add({ time, values: new Map([["c", new Map([[1, value]])]]) }, always, always);
    take(1, 100);
    assert.equal(one(take(3, 300), "c", 1), 100);
    history.gap();
    history.gap();
    take(4, 900);
    take(5, 950);
    assert.deepEqual(history.times, [1, 3, 3.001, 4, 5]);
    assert.deepEqual(history.sums(["c"]), [null, 100, null, null, 50]);
    take(2, 1000);
    assert.deepEqual(history.times, [2]);
    assert.deepEqual(history.top(["c"], [1], 5), [], "earlier totals are removed");
});

test("the busiest agents are those of the shown history only", () => {
    const history = history_of([[[1, 100], [2, 1]], [[2, 60]], [[2, 60], [3, 30]], [[2, 0.1], [3, 30]]], 2);
    assert.equal(history.rows.length, 3);
    assert.deepEqual(history.top(["m"], [1, 2, 3], 5), [2, 3], "the row with instance 1 is removed");
    assert.deepEqual(history.top(["m"], [1, 3], 5), [3], "limited to the requested ids");
    assert.deepEqual(history.top(["m", "m"], [1, 2, 3], 1), [2]);
    assert.deepEqual([...history.totals.get("m").keys()].sort(), [2, 3], "its total is removed");
});

const AGENTS = 1000;
const SAMPLES = 600;
const NAMES = ["sent", "received", "p99"];

/** A history of 1,000 agents over eleven minutes, a sample each second. The rate of agent i is i per second. */
function filled() {
    const history = new History(SAMPLES);
    for (let time = 1; time <= SAMPLES + 60; time += 1) {
        const values = new Map(NAMES.map((name) => [name, new Map()]));
        for (let id = 0; id < AGENTS; id += 1) {
            NAMES.forEach((name) => values.get(name).set(id, name === "p99" ? id : id * time));
        }
        history.add({ time, values: values.set("other", new Map([[0, 1]])) }, (name) => name !== "p99", (name) => NAMES.includes(name));
    }
    return history;
}

test("a history of 1,000 agents has ten minutes at four bytes a value", () => {
    const history = filled();
    assert.equal(history.times.length, SAMPLES + 1);
    assert.equal(history.rows.length, SAMPLES + 1);
    const columns = history.rows.flatMap((row) => [...row.values()]);
    const size = (arrays) => [...new Set(arrays.map(({ buffer }) => buffer))].reduce((bytes, buffer) => bytes + buffer.byteLength, 0);
    assert.equal(size(columns.map(({ values }) => values)), 4 * NAMES.length * AGENTS * (SAMPLES + 1));
    assert.equal(size(columns.map(({ ids }) => ids)), 4 * AGENTS, "the ids are stored once");
    assert.deepEqual([...history.totals].map(([, totals]) => totals.size), NAMES.map(() => AGENTS - 1), "a rate of 0 has no total");
});

test("the sum over 1,000 agents is cached between drawings", () => {
    const history = filled();
    // Counts the reads of single agents' values.
    let reads = 0;
    for (const one of history.rows.flatMap((row) => [...row.values()])) {
        const get = (values, key) => {
            reads += /^\d+$/.test(String(key)) ? 1 : 0;
            return values[key];
        };
        one.values = new Proxy(one.values, { get });
    }
    const reads_of = (action) => {
        reads = 0;
        const result = action();
        return [reads, result];
    };
    const every = (course, value) => assert.ok(course.length === SAMPLES + 1 && course.every((one) => one === value), String(course[0]));
    const total = (AGENTS * (AGENTS - 1)) / 2;
    const ids = [...Array(AGENTS).keys()];

    let [number, course] = reads_of(() => history.sums(["sent", "received"]));
    every(course, 2 * total);
    assert.equal(number, 0);
    [number, course] = reads_of(() => history.greatest("p99"));
    every(course, AGENTS - 1);
    assert.equal(number, 0);
    let most;
    [number, most] = reads_of(() => history.top(["sent", "received"], ids, 5));
    assert.deepEqual(most, [999, 998, 997, 996, 995]);
    assert.equal(number, 0);
    [number, course] = reads_of(() => history.sums(["sent", "received"], [7]));
    every(course, 14);
    assert.equal(number, 2 * (SAMPLES + 1), "only the values of that agent");
    [number, course] = reads_of(() => history.sums(["sent"], ids.slice(1)));
    every(course, total);
    assert.equal(number, (AGENTS - 1) * (SAMPLES + 1), "each value once");
    [number, course] = reads_of(() => history.greatest("p99", [5, 3]));
    every(course, 5);
    assert.equal(number, 2 * (SAMPLES + 1));
});

test("many key presses cause one drawing", (context) => {
    // A clock that only pass() advances.
    const { setTimeout, clearTimeout } = globalThis;
    context.after(() => Object.assign(globalThis, { setTimeout, clearTimeout }));
    let now = 0;
    let timers = [];
    globalThis.setTimeout = (action, after) => {
        const timer = { action, at: now + after };
        timers.push(timer);
        return timer;
    };
    globalThis.clearTimeout = (timer) => {
        timers = timers.filter((one) => one !== timer);
    };
    const pass = (milliseconds) => {
        now += milliseconds;
        const due = timers.filter(({ at }) => at <= now);
        timers = timers.filter(({ at }) => at > now);
        due.forEach(({ action }) => action());
    };

    let drawn = 0;
    const draw = debounced(() => (drawn += 1));
    for (let key = 0; key < 20; key += 1) {
        draw();
        pass(50);
    }
    assert.equal(drawn, 0);
    pass(1000);
    assert.equal(drawn, 1);
    draw();
    pass(1000);
    assert.equal(drawn, 2);
});

/** A fake pmproxy with one agent that has sent `bytes` bytes. It is down while `context` is undefined. */
function pmproxy() {
    const proxy = { context: 7, time: 100, bytes: 0, cpuTime: undefined, opened: 0, hasAgents: true };
    const answer = (url) => {
        const { pathname } = new URL(url);
        const what = pathname.split("/").pop();
        if (what === "context") {
            proxy.opened += 1;
            return { context: proxy.context, labels: { hostname: "node1" } };
        }
        if (!pathname.includes(`/${proxy.context}/`)) {
            return { message: "unknown context identifier", success: false };
        }
        const agents = [[metric.STATUS, 3, "live"], [metric.SENT, 3, proxy.bytes]];
        const cpuTime = proxy.cpuTime === undefined ? [] : [[metric.CPU_TIME, null, proxy.cpuTime]];
        const host = [[metric.VERSION, null, "9"], [metric.COUNTS.live, null, proxy.hasAgents === "none" ? 0 : 1], ...cpuTime];
        const values = [...host, ...(proxy.hasAgents === true ? agents : [])];
        return {
            metric: { metrics: values.map(([name]) => ({ name, sem: name === metric.SENT ? "counter" : "instant", units: "byte" })) },
            fetch: {
                timestamp: proxy.time,
                values: values.map(([name, instance, value]) => ({ name, instances: [{ instance, value }] })),
            },
            indom: { instances: [{ instance: 3, name: "agent" }] },
            metrics: {},
        }[what];
    };
    globalThis.fetch = async (url) => {
        if (proxy.context === undefined) {
            throw new TypeError("Failed to fetch");
        }
        const text = JSON.stringify(answer(url));
        return { status: 200, text: async () => text };
    };
    return proxy;
}

test("a pmproxy that returns is queried again, and no rate covers the gap", async () => {
    const proxy = pmproxy();
    const source = new Source("http://node1:44322");
    const history = new History(600);
    const shown = [];
    const query = async (time, bytes) => {
        Object.assign(proxy, { time, bytes });
        try {
            const answer = await source.next();
            if (answer.isNew) {
                history.gap();
            }
            const row = history.add(answer, (name) => source.isCounter(name), always);
            shown.push(sum(row, [metric.SENT], [3]));
        } catch (trouble) {
            history.gap();
            shown.push(trouble.kind);
        }
    };
    await query(100, 0);
    await query(101, 10);
    proxy.context = undefined;
    await query(102, 20);
    await query(103, 30);
    // It is up again, with another context.
    proxy.context = 8;
    await query(104, 1000);
    await query(105, 1020);
    // It restarted between two requests, so no request failed.
    proxy.context = 9;
    await query(106, 5000);
    await query(107, 5030);
    assert.deepEqual(shown, [undefined, 10, "unreachable", "unreachable", undefined, 20, undefined, 30]);
    assert.equal(proxy.opened, 3);
    assert.deepEqual(history.sums([metric.SENT]), [null, 10, null, null, 20, null, null, 30]);
    assert.equal(source.names.get(3), "agent");
});

test("a context that lacks the agents of the host is replaced", async () => {
    const proxy = pmproxy();
    const source = new Source("http://node1:44322");
    const agents = async () => (await source.next()).values.get(metric.STATUS)?.size;
    assert.equal(await agents(), 1);
    proxy.hasAgents = false;
    // The values of the host are old then.
    await assert.rejects(agents, { kind: "nixl" });
    assert.equal(proxy.opened, 1);
    Object.assign(proxy, { context: 8, hasAgents: true });
    assert.equal(await agents(), 1);
    assert.equal(await agents(), 1);
    assert.equal(proxy.opened, 2);
});

test("values that pmproxy repeats after the end of pmdanixl are not taken", async () => {
    const proxy = pmproxy();
    const source = new Source("http://node1:44322");
    const query = async (time, cpuTime) => {
        Object.assign(proxy, { time, cpuTime, hasAgents: "none" });
        try {
            return (await source.next()).time;
        } catch (trouble) {
            return trouble.kind;
        }
    };
    const answers = [[100, 7], [101, 8], [102, 8], [103, 8], [104, 8], [110, 8], [111, 2], [120, 3], [50, 3], [51, 4], [90, undefined], [99, undefined]];
    const found = [];
    for (const [time, cpuTime] of answers) {
        found.push(await query(time, cpuTime));
    }
    assert.deepEqual(found, [100, 101, 102, 103, "nixl", 110, 111, 120, 50, 51, 90, 99]);
    assert.equal(proxy.opened, 2);
});
