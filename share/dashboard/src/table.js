// SPDX-License-Identifier: GPL-2.0-or-later

// The table of agents, one row for each, sorted by any column. Rows are reused from one answer to the next.

import { sorted } from "./agents.js";
import { element, setName, setText } from "./dom.js";
import { bytes, count, duration, microseconds, percent } from "./format.js";

const perSecond = (write) => (value) => (value === undefined ? write(undefined) : `${write(value)}/s`);
const plain = (value) => (value === undefined || value === "" ? "–" : String(value));

const COLUMNS = [
    { key: "name", label: "Agent" },
    { key: "server", label: "Server", about: "engine, role and HTTP port of the server, else the command of the process" },
    { key: "rank", label: "Rank", write: plain },
    { key: "status", label: "State" },
    { key: "user", label: "User", write: plain },
    { key: "sent", label: "Sent", write: perSecond(bytes), about: "bytes of WRITE transfers per second" },
    { key: "received", label: "Received", write: perSecond(bytes), about: "bytes of READ transfers per second" },
    { key: "transfers", label: "Transfers", write: perSecond(count), about: "WRITE and READ transfers per second" },
    { key: "p50", label: "p50", write: microseconds, about: "median transfer time of the last 60 s: red if transfers take over 3 times as long as those of the agent's peers" },
    { key: "p90", label: "p90", write: microseconds, about: "90th percentile of transfer times, last 60 s" },
    { key: "p99", label: "p99", write: microseconds, about: "99th percentile of transfer times, last 60 s" },
    { key: "max", label: "Max", write: microseconds, about: "longest transfer time of the last 60 s" },
    { key: "tcp", label: "TCP", write: percent, about: "bytes over TCP by the bytes of transfers, last 60 s: about 100 % if NIXL has fallen back to TCP; of agents that share a process: of all of them" },
    { key: "ring", label: "Ring", about: "most events that waited in the ring, as a share of its capacity" },
    { key: "full", label: "Full", write: count, about: "drains that found the ring full: events may be lost" },
    { key: "dropped", label: "Dropped", write: count, about: "events that NIXL dropped before they reached the ring" },
    { key: "errors", label: "Errors", write: count, about: "errors of all kinds" },
];
const NUMBERS_FROM = 5;
// A greater share of the bytes over TCP is a fallback.
const FALLBACK_SHARE = 0.5;
// An agent with a greater ratio to its peers is slow.
const SLOW_RATIO = 3;
const METER = { min: "0", max: "1", low: "0.75", high: "0.999", optimum: "0", "aria-hidden": "true" };

/** Returns an explanation of the state of an agent. */
function about_state(agent) {
    if (agent.stall) {
        return `no transfer has advanced for ${duration(agent.stallAge)}, with ${agent.stallPeer}: ${agent.stallReason}`;
    }
    if (agent.mode === "observe") {
        return "not drained, and not counted";
    }
    return agent.status === "idle" ? `no event for ${duration(agent.idle)}` : "";
}

export class Table {
    /** `choose` is called with the id of an agent that the user selects. */
    constructor(place, choose) {
        this.choose = choose;
        this.key = "server";
        this.isDescending = false;
        this.rows = new Map();
        this.body = element("tbody", { role: "rowgroup" });
        const head = element("tr", { role: "row" });
        this.heads = COLUMNS.map((column, i) => {
            const button = element("button", { type: "button" }, column.label);
            button.title = column.about ?? "";
            button.addEventListener("click", () => this.sort(column.key, i >= NUMBERS_FROM));
            const cell = element("th", { scope: "col", role: "columnheader" }, button);
            cell.classList.toggle("number", i >= NUMBERS_FROM);
            head.append(cell);
            return cell;
        });
        const table = element("table", { role: "table", "aria-label": "Agents" });
        table.append(element("thead", { role: "rowgroup" }, head), this.body);
        place.append(table);
        this.agents = [];
        this.shown = [];
    }

    sort(key, startsDescending) {
        this.isDescending = this.key === key ? !this.isDescending : startsDescending;
        this.key = key;
        this.draw(this.agents, this.shown, this.chosen);
    }

    /** Draws the agents `shown`. Rows of the others are hidden, not removed, because creating a thousand rows is slow. */
    draw(agents, shown, chosen) {
        this.agents = agents;
        this.shown = shown;
        this.chosen = chosen;
        COLUMNS.forEach(({ key }, i) => {
            const direction = this.isDescending ? "descending" : "ascending";
            this.heads[i].setAttribute("aria-sort", key === this.key ? direction : "none");
        });
        const ids = new Set(agents.map((agent) => agent.id));
        const visible = new Set(shown.map((agent) => agent.id));
        for (const [id, row] of this.rows) {
            row.hidden = !visible.has(id);
            if (!ids.has(id)) {
                row.remove();
                this.rows.delete(id);
            }
        }
        let place = this.body.firstElementChild;
        for (const agent of sorted(shown, this.key, this.isDescending)) {
            const row = this.rows.get(agent.id) ?? this.add(agent.id);
            this.fill(row, agent);
            row.classList.toggle("chosen", agent.id === chosen);
            row.querySelector("button").setAttribute("aria-pressed", String(agent.id === chosen));
            // A row is moved only if necessary, because moving it removes the focus.
            if (row === place) {
                place = row.nextElementSibling;
            } else {
                const focused = row.contains(document.activeElement) ? document.activeElement : undefined;
                this.body.insertBefore(row, place);
                focused?.focus();
            }
        }
    }

    add(id) {
        const row = element("tr", { role: "row" });
        COLUMNS.forEach((column, i) => {
            const cell = element(i === 0 ? "th" : "td", { role: i === 0 ? "rowheader" : "cell", "data-label": column.label });
            cell.classList.add(column.key);
            cell.classList.toggle("number", i >= NUMBERS_FROM);
            row.append(cell);
        });
        const pick = element("button", { type: "button" }, element("bdi"));
        pick.addEventListener("click", () => this.choose(id));
        row.children[0].append(pick, element("bdi", { class: "raw" }));
        row.querySelector(".status").append(element("span", { class: "dot", "aria-hidden": "true" }), element("span"));
        row.querySelector(".ring").append(element("span"), element("meter", METER));
        this.rows.set(id, row);
        return row;
    }

    fill(row, agent) {
        COLUMNS.forEach(({ key, write }, i) => {
            if (write) {
                setText(row.children[i], write(agent[key]));
            }
        });
        setName(row.querySelector(".name bdi"), agent.name);
        setText(row.querySelector(".server"), plain(agent.server || (agent.rank ? "" : agent.command)));
        setName(row.querySelector(".raw"), agent.raw === agent.name ? "" : agent.raw);
        row.children[0].title = agent.pid === undefined ? "" : `process ${agent.pid}  ${agent.command}`.trim();
        row.dataset.status = agent.stall || agent.status;
        setText(row.querySelector(".status span:last-child"), agent.stall || agent.status);
        row.querySelector(".status").title = about_state(agent);
        const median = row.querySelector(".p50");
        median.classList.toggle("bad", agent.slowness > SLOW_RATIO);
        median.title = agent.slowness === undefined ? "" : `transfers take ${agent.slowness.toFixed(2)} times as long as those of its peers`;
        row.querySelector(".tcp").classList.toggle("bad", agent.tcp > FALLBACK_SHARE);
        const ring = row.querySelector(".ring");
        const share = agent.ring === undefined ? "–" : `${Math.floor(agent.ring * 100)} %`;
        setText(ring.firstChild, share);
        ring.lastChild.hidden = agent.ring === undefined;
        ring.lastChild.value = agent.ring ?? 0;
        ring.title = agent.ring === undefined ? "" : `${agent.highwater} of ${agent.capacity - 1} events at most`;
        ring.classList.toggle("bad", agent.ring >= 1);
        ring.classList.toggle("warn", agent.ring >= 0.75 && agent.ring < 1);
        row.querySelector(".full").classList.toggle("bad", agent.full > 0);
        row.querySelector(".dropped").classList.toggle("bad", agent.dropped > 0);
        row.querySelector(".errors").classList.toggle("warn", agent.errors > 0);
        row.classList.toggle("losing", agent.isLosing);
    }
}
