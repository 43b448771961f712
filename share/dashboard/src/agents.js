// The agents of a host as the table has them.

import * as metric from "./metrics.js";
import { one, sum } from "./history.js";

/** One row for each instance of the agents' domain. `row` has rates and values, `totals` what was fetched. */
export function agents(row, totals, names, labels) {
    const found = [];
    for (const [id, status] of totals.get(metric.STATUS) ?? []) {
        const label = labels.get(id) ?? new Map();
        const text = (name) => totals.get(name)?.get(id);
        const name = names.get(id) ?? `#${id}`;
        const capacity = one(totals, metric.CAPACITY, id);
        const highwater = one(totals, metric.HIGHWATER, id);
        found.push({
            id,
            name,
            raw: label.get("nixl_agent") ?? name,
            status: String(status),
            engine: label.get("engine") ?? "",
            rank: label.get("local_rank") ?? "",
            user: String(text("nixl.agent.user") ?? ""),
            mode: String(text("nixl.agent.mode") ?? ""),
            pid: text("nixl.agent.pid"),
            idle: text("nixl.agent.idle_time"),
            sent: one(row, metric.SENT, id),
            received: one(row, metric.RECEIVED, id),
            transfers: sum(row, [metric.WRITES, metric.READS], [id]),
            ...Object.fromEntries(metric.QUANTILES.map((quantile) => [quantile, one(row, `${metric.TIME}.${quantile}`, id)])),
            capacity,
            highwater,
            // A ring holds one event less than it has slots.
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

/** Those whose name, user, state, rank or pid has the text in it, and that are of the engine; "" is of any. */
export function filtered(all, text, engine) {
    const wanted = text.trim().toLowerCase();
    return all.filter((agent) => {
        const words = [agent.name, agent.raw, agent.user, agent.status, agent.engine, `pid ${agent.pid ?? ""}`];
        return (engine === "" || agent.engine === engine) && words.some((word) => word.toLowerCase().includes(wanted));
    });
}

const ALPHABETICAL = new Intl.Collator(undefined, { numeric: true });

/** In the order of one of their values; those without one come last whichever way it goes. */
export function sorted(all, key, isDescending) {
    const direction = isDescending ? -1 : 1;
    const nothing = (value) => value === undefined || value === "";
    return [...all].sort((a, b) => {
        if (nothing(a[key]) !== nothing(b[key])) {
            return nothing(a[key]) ? 1 : -1;
        }
        const both = typeof a[key] === "number" && typeof b[key] === "number";
        const order = both ? a[key] - b[key] : ALPHABETICAL.compare(a[key] ?? "", b[key] ?? "");
        return direction * order || ALPHABETICAL.compare(a.name, b.name);
    });
}
