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

export class History {
    constructor(span) {
        this.span = span;
        this.clear();
    }

    clear() {
        this.times = [];
        this.rows = [];
        this.last = undefined;
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
        for (const [name, now] of values) {
            row.set(name, isCounter(name) ? rates(this.last?.values.get(name), now, time - this.last?.time) : now);
        }
        this.times.push(time);
        this.rows.push(new Map([...row].filter(([name]) => keeps(name))));
        this.last = { time, values };
        const first = this.times.findIndex((t) => t >= time - this.span);
        this.times.splice(0, first);
        this.rows.splice(0, first);
        return row;
    }

    /** The course of what `value` makes of each row; null where that is nothing. */
    course(value) {
        return this.rows.map((row) => value(row) ?? null);
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
        const values = row.get(name);
        if (values === undefined) {
            continue;
        }
        for (const instance of instances) {
            const value = values.get(instance);
            if (typeof value === "number") {
                total = (total ?? 0) + value;
            }
        }
    }
    return total;
}

/** The greatest value of a metric over instances. */
export function greatest(row, name, instances) {
    let found;
    for (const instance of instances) {
        const value = one(row, name, instance);
        if (value !== undefined && !(found >= value)) {
            found = value;
        }
    }
    return found;
}
