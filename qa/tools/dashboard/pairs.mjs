// Unit tests of the page's pairs of agents and peers, as in units.mjs.

import assert from "node:assert/strict";
import { test } from "node:test";
import { PEER } from "../../../share/dashboard/src/metrics.js";
import { matrix, pairs, plain, Readings, resolved } from "../../../share/dashboard/src/pairs.js";

/** Values of peers by instance: bytes sent, bytes received, segments sent again, and the round-trip time. */
function values(peers) {
    const of = (at) => new Map(Object.entries(peers).map(([id, figures]) => [Number(id), figures[at]]).filter(([, value]) => value !== undefined));
    return new Map([PEER.sent, PEER.received, PEER.retransmits, PEER.rtt].map((name, at) => [name, of(at)]));
}

function readings_of(...answers) {
    const readings = new Readings();
    answers.forEach(([time, peers]) => readings.add({ time, values: values(peers) }));
    return readings;
}

test("addresses are compared in one form", () => {
    const found = ["10.0.0.1", "fe80::1/64", "fd00:0:0::0012", "fe80::1%eth0", "node1", "", "a:b", "::1"].map(plain);
    assert.deepEqual(found, ["10.0.0.1", "fe80::1", "fd00::12", "fe80::1", undefined, undefined, undefined, "::1"]);
});

test("rates are between readings of sockets, not between answers", () => {
    // Sockets are read at 7, 17 and 27; answers come every 2 s.
    const answers = Array.from({ length: 15 }, (_, i) => [2 * i, { 1: [1000 * Math.floor((2 * i + 3) / 10), 0, 0] }]);
    const rates = answers.map((_, i) => readings_of(...answers.slice(0, i + 1)).rate(PEER.sent, 1));
    assert.deepEqual(rates.slice(0, 9), Array(9).fill(undefined), "one reading");
    assert.deepEqual(rates.slice(9), Array(6).fill(100));
});

test("rates are of the last minute, and fall to 0 if nothing is moved", () => {
    const readings = new Readings();
    for (let time = 0; time <= 100; time += 10) {
        readings.add({ time, values: values({ 1: [time * time] }) });
    }
    assert.equal(readings.rate(PEER.sent, 1), (100 * 100 - 40 * 40) / 60);
    for (let time = 102; time <= 200; time += 2) {
        readings.add({ time, values: values({ 1: [100 * 100] }) });
    }
    assert.equal(readings.rate(PEER.sent, 1), 0);
    assert.equal(readings.kept.length < 8, true);
});

test("a peer that comes later has a rate from its second reading on", () => {
    const readings = readings_of([0, { 1: [0] }], [10, { 1: [100] }], [20, { 1: [200], 2: [50_000] }]);
    assert.deepEqual([1, 2].map((id) => readings.rate(PEER.sent, id)), [10, undefined]);
    readings.add({ time: 30, values: values({ 1: [300], 2: [60_000] }) });
    assert.deepEqual([1, 2].map((id) => readings.rate(PEER.sent, id)), [10, 1000]);
});

test("two readings are kept if answers are a minute apart, and none over a step of the clock", () => {
    const readings = readings_of([0, { 1: [0] }], [61, { 1: [610] }], [122, { 1: [1220] }]);
    assert.equal(readings.rate(PEER.sent, 1), 10);
    readings.add({ time: 50, values: values({ 1: [1300] }) });
    assert.equal(readings.rate(PEER.sent, 1), undefined);
});

test("pairs with a long round-trip time or many segments sent again are marked", () => {
    const names = new Map(["a::10.0.0.2", "a::10.0.0.3", "a::10.0.0.4", "a::fd00::1", "no peer"].map((name, id) => [id, name]));
    const before = { 0: [0, 0, 0], 1: [0, 0, 0], 2: [0, 0, 0], 3: [0, 0, 0], 4: [0, 0, 0] };
    // 1 % of the bytes, and a segment more.
    const now = { 0: [1_460_000, 0, 10, 1000], 1: [1_460_000, 0, 11, 1000], 2: [0, 9, 0, 3001], 3: [0, 0, 0, 3000], 4: [1, 1, 1, 1] };
    const readings = readings_of([0, {}], [10, before], [20, now]);
    const found = pairs(names, values(now), readings);
    assert.deepEqual(found.map(({ address }) => address), ["10.0.0.2", "10.0.0.3", "10.0.0.4", "fd00::1"]);
    assert.deepEqual(found.map(({ isLossy }) => isLossy), [false, true, false, false]);
    assert.deepEqual(found.map(({ isSlow }) => isSlow), [false, false, true, false]);
    assert.deepEqual(found.map(({ sent }) => sent), [146_000, 146_000, 0, 0]);
    const near = { 0: [0, 0, 0, 20], 1: [0, 0, 0, 20], 2: [0, 0, 0, 1000], 3: [0, 0, 0, 1001] };
    const times = pairs(names, values(near), readings_of([20, near]));
    assert.deepEqual(times.map(({ isSlow }) => isSlow), [false, false, false, true]);
    const first = pairs(names, values(now), readings_of([20, now]));
    assert.deepEqual(first.map(({ sent, isLossy }) => [sent, isLossy]), Array(4).fill([undefined, false]));
});

/** Pairs from texts such as "a 10.0.0.2". */
function pairs_of(...texts) {
    return texts.map((text) => {
        const [agent, address, sent = 0, mark = ""] = text.split(" ");
        return { agent, address, sent: Number(sent), isLossy: mark === "lossy", isSlow: mark === "slow" };
    });
}

test("an address of the host is named only if it can be one agent", () => {
    const own = new Set(["10.0.0.1"]);
    const to = (...texts) => resolved(pairs_of(...texts), own).map(({ to }) => to);
    assert.deepEqual(to("a 127.0.0.1", "b 127.0.0.1"), ["b", "a"]);
    assert.deepEqual(to("a 10.0.0.1", "b ::1", "b 10.0.0.2"), ["b", "a", undefined]);
    assert.deepEqual(to("a 10.0.0.1", "b 10.0.0.1", "c ::1"), [undefined, undefined, undefined]);
    assert.deepEqual(to("a 127.0.0.1", "a 10.0.0.5", "b 10.0.0.5"), [undefined, undefined, undefined]);
});

test("cells add up the addresses of one agent, and agents come before addresses", () => {
    const all = pairs_of("a2 10.0.0.10 1", "a2 10.0.0.9 2", "a10 127.0.0.1 3", "a10 ::1 4", "a2 127.0.0.1 5");
    const { rows, columns, cells } = matrix(resolved(all, new Set()), ["a2", "a10"], 16);
    assert.deepEqual(rows, { keys: ["a2", "a10"], rest: 0 });
    assert.deepEqual(columns, { keys: ["a2", "a10", "::10.0.0.9", "::10.0.0.10"], rest: 0 });
    assert.deepEqual(cells.map((line) => line.map((cell) => cell?.sent)), [[undefined, 5, 2, 1], [7, undefined, undefined, undefined]]);
    assert.equal(cells[1][0].number, 2);
    assert.deepEqual(matrix([], ["a"], 16).cells, []);
});

test("a large matrix has the marked pairs, the busiest ones, and the sums of the rest", () => {
    const many = Array.from({ length: 40 }, (_, i) => `a${i} 10.0.0.${i} ${i === 3 ? "0 slow" : i === 7 ? "0 lossy" : i}`);
    const { rows, columns, cells } = matrix(pairs_of(...many), [], 5);
    assert.deepEqual(rows, { keys: ["a3", "a7", "a38", "a39"], rest: 36 });
    assert.deepEqual(columns, { keys: ["::10.0.0.3", "::10.0.0.7", "::10.0.0.38", "::10.0.0.39"], rest: 36 });
    assert.deepEqual([cells.length, cells[0].length], [5, 5]);
    assert.equal(cells[4][4].sent, (37 * 38) / 2 - 3 - 7);
    assert.deepEqual([cells[4][4].isSlow, cells[0][0].isSlow, cells[1][1].isLossy, cells[0][4]], [false, true, true, undefined]);
    assert.equal(matrix(pairs_of(...many.slice(0, 5)), [], 5).rows.rest, 0, "all have a line");
});
