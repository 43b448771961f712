// SPDX-License-Identifier: GPL-2.0-or-later

// Client of pmproxy's REST interface (PMWEBAPI(3)), for one pmcd.

/** Reason for missing values. `kind` selects the advice. */
export class Trouble extends Error {
    constructor(kind, detail) {
        super(detail);
        this.kind = kind;
    }
}

const TIMEOUT_MS = 10_000;
// pmproxy closes a context without requests after this time. A browser runs the timers of a hidden page once a minute.
const CONTEXT_SECONDS = 150;

/** Completes a typed address. Returns undefined if it is not the address of a web server. */
export function address(typed) {
    let text = typed.trim();
    if (!/^[a-z][a-z0-9+.-]*:\/\//i.test(text)) {
        text = `http://${text}`;
    }
    let url;
    try {
        url = new URL(text);
    } catch {
        return undefined;
    }
    if (url.protocol !== "http:" && url.protocol !== "https:") {
        return undefined;
    }
    // The default is pmproxy's port, unless https:// or port 80 was typed.
    if (url.port === "" && url.protocol === "http:" && !/:80(\/|$)/.test(text)) {
        url.port = "44322";
    }
    return url.origin;
}

/** Returns the time of an answer, in seconds since 1970. pmproxy writes nanoseconds without leading zeros after the point:
 *  5.42 is 5 s and 42 ns. JSON.parse would read it as 5 s and 420 ms. */
export function timeOf(text) {
    const found = /^\s*\{[^{[]*?"timestamp":\s*(\d+)(?:\.(\d+))?/.exec(text);
    return found ? Number(found[1]) + Number(found[2] ?? 0) / 1e9 : undefined;
}

export class Pmproxy {
    constructor(base) {
        this.base = base;
        this.context = undefined;
    }

    async get(path) {
        let response;
        let text;
        try {
            response = await fetch(this.base + path, {
                cache: "no-store",
                credentials: "omit",
                referrerPolicy: "no-referrer",
                signal: AbortSignal.timeout(TIMEOUT_MS),
            });
            text = await response.text();
        } catch (error) {
            throw new Trouble("unreachable", error.name === "TimeoutError" ? "no answer within 10 s" : error.message);
        }
        return { status: response.status, text };
    }

    async json(path) {
        const { status, text } = await this.get(path);
        let answer;
        try {
            answer = JSON.parse(text);
        } catch {
            throw new Trouble("foreign", `HTTP status ${status}, and no JSON`);
        }
        if (answer === null || typeof answer !== "object") {
            throw new Trouble("foreign", "JSON that pmproxy does not send");
        }
        if (answer.success === false) {
            throw new Trouble(this.context === undefined ? "pmcd" : "context", String(answer.message));
        }
        return { answer, text };
    }

    async open() {
        this.context = undefined;
        const { answer } = await this.json(`/pmapi/context?polltimeout=${CONTEXT_SECONDS}`);
        if (!Number.isInteger(answer.context)) {
            throw new Trouble("foreign", "JSON that pmproxy does not send");
        }
        this.context = answer.context;
        return String(answer.labels?.hostname ?? answer.hostspec ?? "");
    }

    /** Returns unit, semantics and oneline by metric. Metrics that pmcd does not have are left out. */
    async describe(names) {
        const { answer } = await this.json(`/pmapi/${this.context}/metric?names=${names.join(",")}`);
        const found = new Map();
        for (const metric of (answer.metrics ?? []).filter((one) => one.success !== false)) {
            found.set(metric.name, {
                units: String(metric.units),
                isCounter: metric.sem === "counter",
                about: String(metric["text-oneline"] ?? ""),
            });
        }
        return found;
    }

    /** Returns the time, and the values by metric and instance (null for a metric without instances). */
    async fetch(names) {
        const { answer, text } = await this.json(`/pmapi/${this.context}/fetch?names=${names.join(",")}`);
        const values = new Map();
        for (const metric of answer.values ?? []) {
            values.set(metric.name, new Map((metric.instances ?? []).map((one) => [one.instance, one.value])));
        }
        const time = timeOf(text);
        if (time === undefined) {
            throw new Trouble("foreign", "values without a time");
        }
        return { time, values };
    }

    /** Returns the instance names of a metric, by instance id. */
    async instances(metric) {
        const { answer } = await this.json(`/pmapi/${this.context}/indom?name=${metric}`);
        return new Map((answer.instances ?? []).map((one) => [one.instance, String(one.name)]));
    }

    /** Returns the labels by instance. pmproxy of PCP 6 has them only in its text for Prometheus. */
    async labels(name) {
        const { text } = await this.get(`/pmapi/${this.context}/metrics?names=${name}`);
        return labelsIn(text, name.replaceAll(".", "_"));
    }
}

const ESCAPED = new Map([["n", 10], ["r", 13], ["t", 9], ["a", 7], ["b", 8]]);

/** Decodes the value of a label. pmproxy writes it as a JSON string, and that with the escapes of C, byte by byte. */
function unescape(text) {
    const bytes = [];
    const coder = new TextEncoder();
    for (const [part, hex, letter] of text.matchAll(/\\x([0-9a-f]{2})|\\(.)|[^\\]+/gis)) {
        if (hex !== undefined) {
            bytes.push(parseInt(hex, 16));
        } else if (ESCAPED.has(letter)) {
            bytes.push(ESCAPED.get(letter));
        } else {
            bytes.push(...coder.encode(letter ?? part));
        }
    }
    const once = new TextDecoder().decode(new Uint8Array(bytes));
    try {
        return String(JSON.parse(`"${once}"`));
    } catch {
        return once;
    }
}

/** Returns the labels of each line of a metric, by its label instid. Quoted values are skipped whole, so a value cannot
 *  be mistaken for a label. */
export function labelsIn(text, metric) {
    const found = new Map();
    for (const line of text.split("\n")) {
        if (!line.startsWith(`${metric}{`)) {
            continue;
        }
        const labels = new Map();
        const pair = /([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"(,?)/gsy;
        pair.lastIndex = metric.length + 1;
        for (let next = pair.exec(line); next; next = pair.exec(line)) {
            labels.set(next[1], unescape(next[2]));
            if (next[3] === "") {
                break;
            }
        }
        if (/^\d+$/.test(labels.get("instid") ?? "")) {
            found.set(Number(labels.get("instid")), labels);
        }
    }
    return found;
}
