// Unit tests of the page's events, as in units.mjs.

import assert from "node:assert/strict";
import { test } from "node:test";
import { severity, Timeline } from "../../../share/dashboard/src/events.js";

/** A value of nixl.events.last: events with numbers `from` to `to` of a pmdanixl that began at `start`. */
function last_events(from, to, start = 1000) {
    const numbers = Array.from({ length: to - from + 1 }, (_, i) => from + i);
    return JSON.stringify(numbers.map((number) => ({ number, time: start + number, kind: "errors", agent: "a", server: "", value: 1, text: `a: ${number}` })));
}

/** The entries of a timeline: what an event says, and in brackets from and to when some are missing. */
function entries(timeline) {
    return timeline.events.map(({ from, time, what }) => (from === undefined ? what : `[${from} ${time}] ${what.split("; ")[0]}`));
}

test("events are read once, and missing ones are entries", () => {
    const timeline = new Timeline();
    timeline.add("[]");
    assert.deepEqual([timeline.isKnown, entries(timeline)], [true, []]);
    timeline.add(last_events(0, 2));
    timeline.add(last_events(0, 2));
    timeline.add(last_events(1, 4));
    assert.deepEqual(entries(timeline), ["0", "1", "2", "3", "4"]);
    timeline.add(last_events(7, 8));
    assert.deepEqual(entries(timeline).slice(5), ["[1004 1007] 2 events before this time have not been read", "7", "8"]);
    timeline.clear();
    timeline.add(last_events(30, 31));
    assert.deepEqual(entries(timeline), ["[-Infinity 1030] 30 events before this time have not been read", "30", "31"]);
});

test("events of a pmdanixl that began again follow those of before", () => {
    const again = (time) => `[1004 ${time}] pmdanixl began again`;
    for (const to of [1, 4, 6]) {
        const timeline = new Timeline();
        timeline.add(last_events(3, 4));
        timeline.add(last_events(0, to, 2000));
        const expected = Array.from({ length: to + 1 }, (_, number) => String(number));
        assert.deepEqual(entries(timeline).slice(1), ["3", "4", again(2000), ...expected]);
        timeline.add(last_events(0, to + 1, 2000));
        assert.equal(entries(timeline).at(-1), String(to + 1));
        assert.equal(entries(timeline).length, to + 6);
    }
});

test("the list of events is limited, and says so", () => {
    const timeline = new Timeline();
    for (let number = 0; number < 500; number += 20) {
        timeline.add(last_events(Math.max(0, number - 12), number + 19));
    }
    const [first, ...rest] = entries(timeline);
    assert.equal(first, "[-Infinity 1301] the page has no room for earlier events");
    assert.deepEqual(rest, Array.from({ length: 199 }, (_, i) => String(301 + i)));
});

test("what is no list of events adds none, and is not known", () => {
    const timeline = new Timeline();
    timeline.add(last_events(0, 1));
    for (const value of ["", "{}", "null", "[null]", '[{"number":"1","time":1}]', '[{"number":2}]', '[{"number":2,"time":9e99}]', "[{"]) {
        timeline.add(value);
        assert.deepEqual([timeline.isKnown, entries(timeline)], [false, ["0", "1"]], value);
    }
    timeline.add('[{"number":2,"time":1002,"kind":"exited","agent":"a","server":"vllm:1","text":"a (vllm:1): a: b"}]');
    assert.deepEqual([timeline.isKnown, entries(timeline).at(-1)], [true, "a: b"]);
});

test("an event is trouble, the end of it, or neither", () => {
    const severities = (kinds, what) => kinds.map((kind) => severity({ kind, what }));
    const kinds = ["stalled", "stalled_end", "observer_back", "appeared", "of a later version"];
    assert.deepEqual(severities(kinds, ""), ["bad", "good", "good", "plain", "plain"]);
    assert.deepEqual(severities(["slow_end"], "no longer known to be slow: it has exited"), ["plain"]);
});
