// SPDX-License-Identifier: GPL-2.0-or-later

// What happened: the events of nixl.events.last as marks over the time of the charts, and as a list.

import { element, setName, setText } from "./dom.js";
import { clock, moment } from "./format.js";

// Number of events that the page keeps. nixl.events.last has 32.
const KEPT = 200;
const COLUMNS = [
    ["time", "Time"],
    ["kind", "Kind"],
    ["agent", "Agent"],
    ["server", "Server"],
    ["what", "What happened"],
];
const BAD = new Set([
    "ring_full", "lost", "errors", "tcp_fallback", "slow", "stalled", "slow_transfer", "configuration_rejected", "observer_lost",
    "unsupported", "missed", "left_out",
]);

/** Returns "bad" for a kind that means trouble, "good" for the end of it, and "plain" for all others. An end of which nothing is
 *  known is no good news. */
export function severity({ kind, what }) {
    if (BAD.has(kind)) {
        return "bad";
    }
    if (what.startsWith("no longer known")) {
        return "plain";
    }
    return kind.endsWith("_end") || kind === "observer_back" ? "good" : "plain";
}

/** Returns the events in a value of nixl.events.last, or undefined if it is none. */
function parsed(value) {
    let found;
    try {
        found = JSON.parse(value);
    } catch {
        return undefined;
    }
    const isTime = (time) => typeof time === "number" && Math.abs(time) < 8e12;
    if (!Array.isArray(found) || !found.every((event) => Number.isInteger(event?.number) && isTime(event.time))) {
        return undefined;
    }
    return found.map(({ number, time, kind, agent = "", server = "", text }) => {
        [kind, agent, server, text] = [kind, agent, server, text].map(String);
        const subject = server === "" ? `${agent}: ` : `${agent} (${server}): `;
        return { number, time, kind, agent, server, what: text.startsWith(subject) ? text.slice(subject.length) : text };
    });
}

/** Returns an entry for events from `from` to `time` that the page does not have. */
function missed(from, time, what) {
    return { from, time, kind: "missed", agent: "", server: "", what };
}

/** The events that the page has read, each once, the oldest first. */
export class Timeline {
    constructor() {
        this.clear();
    }

    clear() {
        this.events = [];
        // True if the last value could be read.
        this.isKnown = false;
    }

    /** Adds what is new in a value of nixl.events.last, and what is missing before it. */
    add(value) {
        const events = parsed(value);
        this.isKnown = events !== undefined;
        const newest = events?.at(-1);
        if (newest === undefined) {
            return;
        }
        const last = this.events.at(-1);
        const same = events.find(({ number }) => number === last?.number);
        // Numbers begin at 0 when pmdanixl starts.
        const isRestart = same ? same.time !== last.time : newest.number < last?.number;
        const next = last === undefined || isRestart ? 0 : last.number + 1;
        const added = events.filter(({ number }) => number >= next);
        if (added.length === 0) {
            return;
        }
        const [{ number, time }] = added;
        if (isRestart) {
            this.events.push(missed(last.time, time, "pmdanixl began again; events from just before its end may be missing"));
        }
        if (number > next) {
            const what = `${number - next} events before this time have not been read; pcp nixl --events prints those that pmdanixl still has`;
            this.events.push(missed(last?.time ?? -Infinity, time, what));
        }
        this.events.push(...added);
        const tooMany = this.events.length - KEPT;
        if (tooMany > 0) {
            const before = missed(-Infinity, this.events[tooMany + 1].time, "the page has no room for earlier events");
            this.events.splice(0, tooMany + 1, before);
        }
    }
}

/** Marks and rows of events. */
export class Events {
    constructor(place) {
        this.entries = [];
        this.strip = element("div", { class: "strip", role: "img" });
        this.ends = [element("span"), element("span")];
        this.list = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "List of events" });
        this.body = element("tbody", { role: "rowgroup" });
        const heads = COLUMNS.map(([, label]) => element("th", { scope: "col", role: "columnheader" }, label));
        const head = element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...heads));
        this.list.append(element("table", { role: "table", "aria-label": "Events" }, head, this.body));
        place.append(this.strip, element("div", { class: "ends", "aria-hidden": "true" }, ...this.ends), this.list);
    }

    /** Draws events, the oldest first. `end` is the time of the last answer, at the right edge of the strip. */
    draw(span, end, events) {
        if (events.length !== this.entries.length || events.some((event, i) => event !== this.entries[i].event)) {
            this.entries = events.map((event) => ({ event, mark: mark(event), row: row(event) }));
            this.strip.replaceChildren(...this.entries.map((entry) => entry.mark));
            this.body.replaceChildren(...this.entries.map((entry) => entry.row).reverse());
        }
        this.list.hidden = events.length === 0;
        const share = (time) => Math.min(1, Math.max(0, 1 - (end - time) / span));
        const counts = new Map();
        for (const { event, mark, row } of this.entries) {
            const { from = event.time, time, kind } = event;
            mark.hidden = !(time >= end - span && from <= end);
            if (!mark.hidden) {
                counts.set(kind, (counts.get(kind) ?? 0) + 1);
                mark.style.left = `${100 * share(from)}%`;
                mark.style.width = event.from === undefined ? "" : `${100 * (share(time) - share(from))}%`;
            }
            setText(row.querySelector("time"), moment(time, end));
        }
        const said = [...counts].map(([kind, count]) => `${count} ${kind}`).join(", ");
        this.strip.setAttribute("aria-label", `Events in the time of the charts: ${said || "none"}`);
        [end - span, end].forEach((time, i) => setText(this.ends[i], end === undefined ? "" : clock(time)));
    }
}

function mark(event) {
    const { time, from, kind, agent, what } = event;
    const made = element("span", { class: `mark ${from === undefined ? severity(event) : "missing"}` });
    made.title = [clock(time), kind, agent, what].filter((word) => word !== "").join("  ");
    return made;
}

function row(event) {
    const { time, kind, agent, server, what } = event;
    const cells = COLUMNS.map(([key, label]) => element("td", { role: "cell", class: `event-${key}`, "data-label": label }));
    const at = element("time", { datetime: new Date(time * 1000).toISOString() });
    at.title = at.dateTime;
    cells[0].append(at);
    cells[1].append(element("span", { class: `mark ${severity(event)}`, "aria-hidden": "true" }), kind);
    for (const [cell, name] of [[cells[2], agent], [cells[3], server]]) {
        cell.append(element("bdi"));
        setName(cell.firstChild, name || "–");
    }
    cells[4].append(element("bdi", {}, what));
    return element("tr", { role: "row" }, ...cells);
}
