// SPDX-License-Identifier: GPL-2.0-or-later

// Pairs of an agent and a peer, with rates over TCP, as pcp nixl --peers has them. Traffic over RDMA and shared memory has no peers.

import { one, rates } from "./history.js";
import { PEER } from "./metrics.js";

// Span of the rates. pmdanixl reads sockets every 10 s, so between most answers of the page no counter changes.
const SPAN_SECONDS = 60;
// Without a change for this time, nothing was moved.
const IDLE_SECONDS = 15;
const COUNTERS = [PEER.sent, PEER.received, PEER.retransmits];
// Bytes of a segment. Pairs of which more than LOSSY_SHARE of the bytes is sent again are marked.
const SEGMENT = 1460;
const LOSSY_SHARE = 0.01;
// A pair with a round-trip time of more than this many times the median is slow, and over this time in microseconds: a round trip
// within a host or a rack takes less, and differs by more without a reason to look.
const SLOW_RATIO = 3;
const SLOW_RTT = 1000;

/** Returns an address without its prefix length and in its usual form, or undefined if it is not one. */
export function plain(text) {
    const bare = String(text).split("/")[0].split("%")[0];
    if (/^\d+(\.\d+){3}$/.test(bare)) {
        return bare;
    }
    try {
        return bare.includes(":") ? new URL(`http://[${bare}]`).hostname.slice(1, -1) : undefined;
    } catch {
        return undefined;
    }
}

/** Readings of the counters of all peers in the last minute. */
export class Readings {
    constructor() {
        this.clear();
    }

    clear() {
        this.kept = [];
    }

    /** Keeps the counters of an answer if sockets were read since the last one that was kept. */
    add({ time, values }) {
        const now = new Map(COUNTERS.map((name) => [name, values.get(name) ?? new Map()]));
        const last = this.kept.at(-1);
        if (time <= last?.time) {
            // The clock of the host was set back.
            this.clear();
        }
        const isRead = COUNTERS.some((name) => [...now.get(name)].some(([id, value]) => one(last?.values ?? now, name, id) !== value));
        if (this.kept.length === 0 || isRead || time - last.time > IDLE_SECONDS) {
            // Sockets were read at some time before the first answer: rates begin with the next reading.
            this.kept.push({ time, values: now, isFirst: this.kept.length === 0 });
        }
        // A browser wakes a hidden page once a minute, so two are kept whatever their age.
        const from = this.kept.findIndex((reading) => reading.time >= time - SPAN_SECONDS);
        this.kept.splice(0, Math.min(from, this.kept.length - 2));
    }

    /** Returns the rate of a counter of a peer, from the oldest reading that has the peer to the last one. */
    rate(name, id) {
        const last = this.kept.at(-1);
        const first = this.kept.find(({ isFirst, values }) => !isFirst && values.get(name).has(id));
        const both = [first, last].map((reading) => new Map([[id, reading?.values.get(name).get(id)]]));
        return rates(...both, last?.time - first?.time).get(id);
    }
}

/** Returns all pairs. `names` has the instances, AGENT::ADDRESS, and a name of an agent has no colon. */
export function pairs(names, totals, readings) {
    const found = [];
    for (const id of totals.get(PEER.sent)?.keys() ?? []) {
        const [agent, ...address] = (names.get(id) ?? "").split("::");
        if (agent !== "" && address.length > 0) {
            const text = address.join("::");
            const [sent, received, retransmits] = COUNTERS.map((name) => readings.rate(name, id));
            found.push({ id, agent, address: plain(text) ?? text, sent, received, retransmits, rtt: one(totals, PEER.rtt, id) });
        }
    }
    return marked(found);
}

/** Marks pairs that send much again, and those that are far away. */
function marked(all) {
    const times = all.map(({ rtt }) => rtt).filter((rtt) => rtt !== undefined).sort((a, b) => a - b);
    // Of an even number, the lower of the two in the middle, as for peer_ratio.
    const median = times[Math.floor((times.length - 1) / 2)];
    return all.map((pair) => {
        const again = (pair.retransmits ?? 0) * SEGMENT;
        return { ...pair, isLossy: again > 0 && again > LOSSY_SHARE * (pair.sent ?? 0), isSlow: pair.rtt > Math.max(SLOW_RATIO * median, SLOW_RTT) };
    });
}

/** Finds the agent behind each address of this host, if only one can be meant: `to`. `addresses` are those of the host. */
export function resolved(all, addresses) {
    const isOwn = ({ address }) => /^127\.|^::1$/.test(address) || addresses.has(address);
    const here = new Set(all.filter(isOwn).map(({ agent }) => agent));
    return all.map((pair) => {
        const others = [...here].filter((agent) => agent !== pair.agent);
        return { ...pair, to: isOwn(pair) && others.length === 1 ? others[0] : undefined };
    });
}

const total = (a, b) => (a === undefined ? b : a + (b ?? 0));

/** Returns several pairs as one: sums, and the longest round-trip time. */
function merged(some) {
    const sum = (key) => some.map((pair) => pair[key]).reduce(total, undefined);
    const times = some.map(({ rtt }) => rtt).filter((rtt) => rtt !== undefined);
    return {
        number: some.length,
        sent: sum("sent"),
        received: sum("received"),
        retransmits: sum("retransmits"),
        rtt: times.length > 0 ? Math.max(...times) : undefined,
        isLossy: some.some(({ isLossy }) => isLossy),
        isSlow: some.some(({ isSlow }) => isSlow),
    };
}

const moved = ({ sent, received }) => (sent ?? 0) + (received ?? 0);

/** Returns the pairs by a key of each. */
function grouped(all, key_of) {
    const groups = new Map();
    for (const pair of all) {
        const key = key_of(pair);
        groups.set(key, groups.get(key) ?? []);
        groups.get(key).push(pair);
    }
    return groups;
}

const COLLATOR = new Intl.Collator(undefined, { numeric: true });

/** Returns the keys of one side, at most `limit` in the order of `agents`, and the number of those that have no line of their own.
 *  Keys with marked pairs come before those with the most bytes. */
function side(all, key_of, agents, limit) {
    const weights = [...grouped(all, key_of)].map(([key, some]) => ({ key, ...merged(some) }));
    const isMarked = ({ isLossy, isSlow }) => isLossy || isSlow;
    weights.sort((a, b) => isMarked(b) - isMarked(a) || moved(b) - moved(a));
    // The rest takes a line.
    const keys = weights.slice(0, weights.length > limit ? limit - 1 : limit).map(({ key }) => key);
    const place = (key) => (agents.includes(key) ? agents.indexOf(key) : agents.length);
    keys.sort((a, b) => place(a) - place(b) || COLLATOR.compare(a, b));
    return { keys, rest: weights.length - keys.length };
}

/** Returns the keys of rows (agents) and columns (agents of this host, then addresses), and the cells of each row, `undefined` for no
 *  pair. `agents` has the names of agents in their order. The sums of the rest are in one more row and column. */
export function matrix(all, agents, limit) {
    const row_of = ({ agent }) => agent;
    // A name of an agent has no colon.
    const column_of = ({ to, address }) => to ?? `::${address}`;
    const [rows, columns] = [row_of, column_of].map((key_of) => side(all, key_of, agents, limit));
    const place = ({ keys }, key) => (keys.includes(key) ? keys.indexOf(key) : keys.length);
    const length = ({ keys, rest }) => keys.length + (rest > 0 ? 1 : 0);
    const cells = Array.from({ length: length(rows) }, () => Array(length(columns)).fill(undefined));
    const by_cell = grouped(all, (pair) => place(rows, row_of(pair)) * (length(columns) + 1) + place(columns, column_of(pair)));
    for (const [at, some] of by_cell) {
        cells[Math.floor(at / (length(columns) + 1))][at % (length(columns) + 1)] = merged(some);
    }
    return { rows, columns, cells };
}
