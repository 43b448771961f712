// pmproxy's REST interface (PMWEBAPI(3)), for one pmcd.

/** Why there are no values: `kind` says what to do about it. */
export class Trouble extends Error {
    constructor(kind, detail) {
        super(detail);
        this.kind = kind;
    }
}

const PATIENCE_MS = 10_000;
// pmproxy forgets a context that is silent for so long. A browser wakes a hidden page once a minute only.
const CONTEXT_SECONDS = 150;

/** An address as somebody types it, made whole; undefined where it is none of a web server. */
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
    // Without a port it is pmproxy's own, but where http:// or https:// was typed with the port left out on purpose.
    if (url.port === "" && url.protocol === "http:" && !/:80(\/|$)/.test(text)) {
        url.port = "44322";
    }
    return url.origin;
}

/** Seconds since 1970 of an answer. What pmproxy has behind the point are nanoseconds without leading zeros: 5.42 is 5 s and
 *  42 ns, which no parser of JSON knows. */
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
                signal: AbortSignal.timeout(PATIENCE_MS),
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

    /** Unit, semantics and one line of help, by metric; those that pmcd does not have are left out. */
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

    /** Time and values: by metric, then by instance (null where there are none). */
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

    /** Names by instance, of the domain that a metric has. */
    async instances(metric) {
        const { answer } = await this.json(`/pmapi/${this.context}/indom?name=${metric}`);
        return new Map((answer.instances ?? []).map((one) => [one.instance, String(one.name)]));
    }

    /** Labels by instance. Of all that pmproxy of PCP 6 serves, they are in its text for Prometheus only. */
    async labels(name) {
        const { text } = await this.get(`/pmapi/${this.context}/metrics?names=${name}`);
        return labelsIn(text, name.replaceAll(".", "_"));
    }
}

const ESCAPED = new Map([["n", 10], ["r", 13], ["t", 9], ["a", 7], ["b", 8]]);

/** What a label's value stands for: pmproxy writes it as JSON has strings, and that as C has them, byte by byte. */
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

/** The labels of each line of a metric, by the instance that its label instid has. Values are quoted, so that no value can
 *  pass for a label. */
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
