// SPDX-License-Identifier: GPL-2.0-or-later

// Agents of a host as rows of the table.

import * as metric from "./metrics.js";
import { one, sum } from "./history.js";

const ROLES = ["prefill", "decode", "both"];

/** Returns engine, role and port of the value of nixl.agent.server, each "" if it is not in the value. */
function parts(server) {
    const [before, port = ""] = server.split(":");
    const words = before.split(" ");
    const role = ROLES.includes(words.at(-1)) ? words.pop() : "";
    return { engine: words.join(" "), role, port };
}

/** Returns the legend text of each agent: server and rank, else the command. The name is added if that is not unique, and stands
 *  alone if there is neither. */
export function titles(all) {
    const places = all.map(({ server, rank, command }) => `${server} ${rank}`.trim() || command);
    const counts = new Map();
    places.forEach((place) => counts.set(place, (counts.get(place) ?? 0) + 1));
    const title = (place, name) => (place === "" ? name : counts.get(place) === 1 ? place : `${place} ${name}`);
    return new Map(all.map(({ id, name }, i) => [id, title(places[i], name)]));
}

/** Returns the share over TCP of each process by its pid. The name of a process is its pid and command. */
function process_shares(totals, processes) {
    const shares = [...(totals.get(metric.PROCESS_SHARE) ?? [])];
    return new Map(shares.map(([id, share]) => [parseInt(processes.get(id), 10), share]));
}

/** Words for nixl.agent.stall.state. */
const STALLS = ["", "suspect", "stalled"];

/** Returns the state of an agent with stalled transfers, or that is suspected to have some, and what is known of it. */
function stall(text) {
    const state = STALLS[text(metric.STALL.state) ?? 0] ?? "";
    const peer = String(text(metric.STALL.peer) ?? "");
    const reason = String(text(metric.STALL.reason) ?? "");
    return state === "" ? { stall: "" } : { stall: state, stallAge: text(metric.STALL.age), stallPeer: peer, stallReason: reason };
}

/** Returns a row for each agent. `row` has rates and values, `totals` the fetched values. */
export function agents(row, totals, names, labels, processes) {
    const found = [];
    const shares = process_shares(totals, processes);
    for (const [id, status] of totals.get(metric.STATUS) ?? []) {
        const label = labels.get(id) ?? new Map();
        const text = (name) => totals.get(name)?.get(id);
        const server = String(text(metric.SERVER) ?? "");
        const name = names.get(id) ?? `#${id}`;
        const capacity = one(totals, metric.CAPACITY, id);
        const highwater = one(totals, metric.HIGHWATER, id);
        found.push({
            id,
            name,
            raw: label.get("nixl_agent") ?? name,
            status: String(status),
            ...parts(server),
            pod: label.get("pod") ?? "",
            server,
            rank: String(text(metric.RANK) ?? ""),
            user: String(text("nixl.agent.user") ?? ""),
            mode: String(text("nixl.agent.mode") ?? ""),
            pid: text("nixl.agent.pid"),
            command: String(text(metric.COMMAND) ?? ""),
            idle: text("nixl.agent.idle_time"),
            ...stall(text),
            sent: one(row, metric.SENT, id),
            received: one(row, metric.RECEIVED, id),
            transfers: sum(row, [metric.WRITES, metric.READS], [id]),
            ...Object.fromEntries(metric.QUANTILES.map((quantile) => [quantile, one(row, `${metric.TIME}.${quantile}`, id)])),
            slowness: one(totals, metric.PEER_RATIO, id),
            tcp: one(totals, metric.TCP_SHARE, id) ?? shares.get(text("nixl.agent.pid")),
            capacity,
            highwater,
            // A ring holds one event less than its capacity in slots.
            ring: capacity > 1 && highwater !== undefined ? highwater / (capacity - 1) : undefined,
            full: one(totals, metric.FULL, id),
            dropped: one(totals, metric.DROPPED, id),
            errors: one(totals, metric.ERRORS, id),
            isLosing: sum(row, [metric.FULL, metric.DROPPED], [id]) > 0,
            isFailing: one(row, metric.ERRORS, id) > 0,
        });
    }
    return found;
}

/** Returns the agents of the engine ("": any) with the text in name, user, state, stall, server, rank, command or pid. */
export function filtered(all, text, engine) {
    const wanted = text.trim().toLowerCase();
    return all.filter((agent) => {
        const words = [agent.name, agent.raw, agent.user, agent.status, agent.stall, `${agent.server} ${agent.rank}`, agent.command, `pid ${agent.pid ?? ""}`];
        return (engine === "" || agent.engine === engine) && words.some((word) => word.toLowerCase().includes(wanted));
    });
}

const ALPHABETICAL = new Intl.Collator(undefined, { numeric: true });

/** Sort keys that put the ranks of one server together. */
const BY_SERVER = ["engine", "role", "port", "pod", "rank"];

/** Returns the agents sorted by a value or by server. Agents without that value come last in both directions, and after them those
 *  that have exited, unless the value is the state. */
export function sorted(all, key, isDescending) {
    const direction = isDescending ? -1 : 1;
    const isLast = ({ status }) => key !== "status" && status === "exited";
    const isMissing = (value) => value === undefined || value === "";
    const compare = (a, b) => {
        if (key === "server") {
            // Agents without a server are sorted by their transfers.
            const order = BY_SERVER.map((part) => ALPHABETICAL.compare(a[part] ?? "", b[part] ?? "")).find((one) => one !== 0);
            return order ?? direction * ((b.transfers ?? -1) - (a.transfers ?? -1));
        }
        return typeof a[key] === "number" && typeof b[key] === "number" ? a[key] - b[key] : ALPHABETICAL.compare(a[key] ?? "", b[key] ?? "");
    };
    return [...all].sort((a, b) => {
        if (isLast(a) !== isLast(b)) {
            return isLast(a) ? 1 : -1;
        }
        if (isMissing(a[key]) !== isMissing(b[key])) {
            return isMissing(a[key]) ? 1 : -1;
        }
        return direction * compare(a, b) || ALPHABETICAL.compare(a.name, b.name);
    });
}
