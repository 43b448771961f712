// What was seen in the last minutes: rates of counters, values of all else, by metric and instance.

/** The rates of a counter between two fetches, by instance; none where one of them lacks it, or where it went back. */
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

/** The values of a metric at one time, by instance: as arrays, since there may be a million in a history. `known` are the ids
 *  of others, which are shared where they are the same. */
function column(values, known) {
    const found = [...values].filter(([id, value]) => Number.isInteger(id) && typeof value === "number");
    found.sort((a, b) => a[0] - b[0]);
    const same = known.find((ids) => ids.length === found.length && ids.every((id, i) => id === found[i][0]));
    const ids = same ?? Int32Array.from(found, ([id]) => id);
    if (!same) {
        known.push(ids);
    }
    const numbers = Float32Array.from(found, ([, value]) => value);
    // Of all instances, so that nobody has to go through them again.
    const sum = numbers.length > 0 ? numbers.reduce((a, b) => a + b, 0) : undefined;
    const greatest = numbers.length > 0 ? numbers.reduce((a, b) => Math.max(a, b)) : undefined;
    return { ids, values: numbers, sum, greatest };
}

/** Where some ids are in others; both are in order. */
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
        // Columns by metric.
        this.rows = [];
        this.last = undefined;
        // What each instance's values in all rows come to, by metric, and how many of them are more than 0.
        this.totals = new Map();
    }

    /** From here on, nothing is compared with what came before, and lines are interrupted. */
    gap() {
        if (this.last !== undefined) {
            this.times.push(this.last.time + 0.001);
            this.rows.push(new Map());
            this.last = undefined;
        }
    }

    /** Takes an answer; the rates and values that it comes to, by metric. Of those for which `keeps` says so the course is
     *  remembered. */
    take({ time, values }, isCounter, keeps) {
        if (time <= this.times[this.times.length - 1]) {
            // The clock of that host was set back.
            this.clear();
        }
        const row = new Map();
        const columns = new Map();
        const before = this.rows[this.rows.length - 1]?.values() ?? [];
        const known = [...new Set([...before].map(({ ids }) => ids))];
        for (const [name, now] of values) {
            row.set(name, isCounter(name) ? rates(this.last?.values.get(name), now, time - this.last?.time) : now);
            if (keeps(name)) {
                columns.set(name, column(row.get(name), known));
            }
        }
        this.times.push(time);
        this.rows.push(columns);
        this.count(columns, 1);
        this.last = { time, values };
        const first = this.times.findIndex((t) => t >= time - this.span);
        this.times.splice(0, first);
        for (const gone of this.rows.splice(0, first)) {
            this.count(gone, -1);
        }
        return row;
    }

    /** Adds a row to the totals of each instance, or takes it away from them. */
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
                    // What is left of a sum by rounding is no value.
                    if (total.number === 0) {
                        totals.delete(ids[i]);
                    }
                }
            });
        }
    }

    /** The course of what `of_all` has of each column, or `of_some` makes of its values in these places if there are `ids`;
     *  null where that is nothing. */
    course(name, ids, of_all, of_some) {
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

    /** The course of the sum of metrics over instances, all there were if not told which; null where none has a value. */
    sums(names, ids) {
        const add = (values, at) => at.reduce((total, place) => total + values[place], 0);
        const [first, ...more] = names.map((name) => this.course(name, ids, ({ sum }) => sum, add));
        for (const course of more) {
            course.forEach((value, i) => {
                first[i] = value === null ? first[i] : (first[i] ?? 0) + value;
            });
        }
        return first;
    }

    /** The course of the greatest value of a metric, in the same way. */
    greatest(name, ids) {
        const find = (values, at) => at.reduce((most, place) => Math.max(most, values[place]), -Infinity);
        return this.course(name, ids, ({ greatest }) => greatest, find);
    }

    /** Those of some instances that did most of something, most first. */
    top(names, ids, number) {
        const sums = ids.map((id) => [id, names.reduce((sum, name) => sum + (this.totals.get(name)?.get(id)?.sum ?? 0), 0)]);
        const active = sums.filter(([, sum]) => sum > 0);
        return active.sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, number).map(([id]) => id);
    }
}

/** The value of a metric for one instance. */
export function one(row, name, instance) {
    const value = row.get(name)?.get(instance);
    return typeof value === "number" ? value : undefined;
}

/** The sum of metrics over instances; undefined where none of them has a value. */
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
