// SPDX-License-Identifier: GPL-2.0-or-later

// Values of the last minutes, by metric and instance: rates of counters, and values of all other metrics.

/** Returns the rates of a counter between two fetches, by instance. There is none if a value is missing or went down. */
export function rates(before, now, seconds) {
    const found = new Map();
    if (!(seconds > 0)) {
        return found;
    }
    for (const [instance, value] of now ?? []) {
        const old = before?.get(instance);
        if (typeof value === "number" && typeof old === "number" && value >= old) {
            found.set(instance, (value - old) / seconds);
        }
    }
    return found;
}

/** Id of the value of a metric without instances. */
const NO_INSTANCE = -1;

/** Returns the values of a metric at one time, as arrays, because a history may have a million values. `known` has the arrays
 *  of ids of other columns: an equal one is shared. */
function column(values, known) {
    const all = [...values].map(([id, value]) => [id ?? NO_INSTANCE, value]);
    const found = all.filter(([id, value]) => Number.isInteger(id) && typeof value === "number");
    found.sort((a, b) => a[0] - b[0]);
    const same = known.find((ids) => ids.length === found.length && ids.every((id, i) => id === found[i][0]));
    const ids = same ?? Int32Array.from(found, ([id]) => id);
    if (!same) {
        known.push(ids);
    }
    const numbers = Float32Array.from(found, ([, value]) => value);
    // Cached, because the sum over 1,000 agents is drawn at every update.
    const sum = numbers.length > 0 ? numbers.reduce((a, b) => a + b, 0) : undefined;
    const greatest = numbers.length > 0 ? numbers.reduce((a, b) => Math.max(a, b)) : undefined;
    return { ids, values: numbers, sum, greatest };
}

/** Returns the positions of the wanted ids in `ids`. Both are sorted. */
function places(wanted, ids) {
    const found = [];
    let at = 0;
    for (const id of wanted) {
        while (ids[at] < id) {
            at += 1;
        }
        if (ids[at] === id) {
            found.push(at);
        }
    }
    return found;
}

export class History {
    constructor(span) {
        this.span = span;
        this.clear();
    }

    clear() {
        this.times = [];
        // One map per time: columns by metric.
        this.rows = [];
        this.last = undefined;
        // By metric and instance: the sum of the values above 0 in all rows, and their number.
        this.totals = new Map();
    }

    /** Starts again without a previous value. Lines have a gap here. */
    gap() {
        if (this.last !== undefined) {
            this.times.push(this.last.time + 0.001);
            this.rows.push(new Map());
            this.last = undefined;
        }
    }

    /** Adds an answer, and returns its rates and values by metric. The history stores the metrics for which `isStored`
     *  returns true. */
    add({ time, values }, isCounter, isStored) {
        if (time <= this.times[this.times.length - 1]) {
            // The clock of the host was set back.
            this.clear();
        }
        const row = new Map();
        const columns = new Map();
        const before = this.rows[this.rows.length - 1]?.values() ?? [];
        const known = [...new Set([...before].map(({ ids }) => ids))];
        for (const [name, now] of values) {
            row.set(name, isCounter(name) ? rates(this.last?.values.get(name), now, time - this.last?.time) : now);
            if (isStored(name)) {
                columns.set(name, column(row.get(name), known));
            }
        }
        this.times.push(time);
        this.rows.push(columns);
        this.count(columns, 1);
        this.last = { time, values };
        const first = this.times.findIndex((t) => t >= time - this.span);
        this.times.splice(0, first);
        for (const removed of this.rows.splice(0, first)) {
            this.count(removed, -1);
        }
        return row;
    }

    /** Adds a row to the totals of each instance, or subtracts it (`sign` -1). */
    count(columns, sign) {
        for (const [name, { ids, values }] of columns) {
            const totals = this.totals.get(name) ?? new Map();
            this.totals.set(name, totals);
            values.forEach((value, i) => {
                if (value > 0) {
                    const total = totals.get(ids[i]) ?? { sum: 0, number: 0 };
                    total.sum += sign * value;
                    total.number += sign;
                    totals.set(ids[i], total);
                    // Rounding can leave a remainder in the sum.
                    if (total.number === 0) {
                        totals.delete(ids[i]);
                    }
                }
            });
        }
    }

    /** Returns a value for each row: `of_all` of the column, or with `ids` `of_some` of the values at their positions. It is
     *  null for a row without such values. */
    series(name, ids, of_all, of_some) {
        const wanted = ids && Int32Array.from(ids).sort();
        let where;
        return this.rows.map((row) => {
            const one = row.get(name);
            if (one === undefined || wanted === undefined) {
                return (one && of_all(one)) ?? null;
            }
            if (where?.ids !== one.ids) {
                where = { ids: one.ids, places: places(wanted, one.ids) };
            }
            return where.places.length > 0 ? of_some(one.values, where.places) : null;
        });
    }

    /** Returns the sum of metrics over the instances (default: all) for each row; null for a row without values. */
    sums(names, ids) {
        const add = (values, at) => at.reduce((total, place) => total + values[place], 0);
        const [first, ...more] = names.map((name) => this.series(name, ids, ({ sum }) => sum, add));
        for (const series of more) {
            series.forEach((value, i) => {
                first[i] = value === null ? first[i] : (first[i] ?? 0) + value;
            });
        }
        return first;
    }

    /** Returns the greatest value of a metric over the instances (default: all) for each row; null for a row without values. */
    greatest(name, ids) {
        const find = (values, at) => at.reduce((most, place) => Math.max(most, values[place]), -Infinity);
        return this.series(name, ids, ({ greatest }) => greatest, find);
    }

    /** Returns the `number` instances of `ids` with the greatest sums of the metrics, greatest first. */
    top(names, ids, number) {
        const sums = ids.map((id) => [id, names.reduce((sum, name) => sum + (this.totals.get(name)?.get(id)?.sum ?? 0), 0)]);
        const active = sums.filter(([, sum]) => sum > 0);
        return active.sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, number).map(([id]) => id);
    }
}

/** Returns the number that a metric has for one instance, or undefined. */
export function one(row, name, instance) {
    const value = row.get(name)?.get(instance);
    return typeof value === "number" ? value : undefined;
}

/** Returns the sum of metrics over instances, or undefined if none has a value. */
export function sum(row, names, instances) {
    let total;
    for (const name of names) {
        for (const instance of instances) {
            const value = one(row, name, instance);
            if (value !== undefined) {
                total = (total ?? 0) + value;
            }
        }
    }
    return total;
}
