// SPDX-License-Identifier: GPL-2.0-or-later

// Numbers with the units of their metrics.

const NONE = "–";

function digits(value) {
    const size = Math.abs(value);
    return value.toFixed(size >= 99.95 || size === 0 ? 0 : size >= 9.995 ? 1 : 2);
}

function scaled(value, base, prefixes) {
    let step = 0;
    while (Math.abs(value) >= base * 0.9995 && step < prefixes.length - 1) {
        value /= base;
        step += 1;
    }
    return [digits(value), prefixes[step]];
}

/** Formats a count with k, M, G for thousands. Integers below 10,000 are exact. */
export function count(value) {
    if (typeof value !== "number") {
        return NONE;
    }
    if (Number.isInteger(value) && Math.abs(value) < 10_000) {
        return String(value);
    }
    const [number, prefix] = scaled(value, 1000, ["", " k", " M", " G", " T", " P"]);
    return number + prefix;
}

export function bytes(value) {
    if (typeof value !== "number") {
        return NONE;
    }
    const [number, prefix] = scaled(value, 1000, ["", "k", "M", "G", "T", "P"]);
    return `${number} ${prefix}B`;
}

export function microseconds(value) {
    if (typeof value !== "number") {
        return NONE;
    }
    const [number, unit] = scaled(value, 1000, ["µs", "ms", "s"]);
    return `${number} ${unit}`;
}

/** Formats a share, such as 0.5, in percent. */
export function percent(value) {
    return typeof value === "number" ? `${count(Math.round(value * 100))} %` : NONE;
}

/** Formats the loss of telemetry: events that NIXL dropped, and how often rings were found full. NIXL does not count what a full
 *  ring loses. */
export function lost_events(dropped, full) {
    const number = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;
    if (!(full > 0)) {
        return { text: dropped > 0 ? number(dropped, "event") : count(dropped ?? full), note: "" };
    }
    const text = dropped > 0 ? `at least ${number(dropped, "event")}` : "unknown number";
    return { text, note: `rings found full ${number(full, "time")}` };
}

const BY_UNITS = new Map([["byte", bytes], ["microsec", microseconds], ["count", count]]);

/** Returns the formatter of a metric: by its units, and per second if it is a counter. */
export function writer({ units, isCounter }) {
    const plain = BY_UNITS.get(units) ?? ((value) => `${count(value)} ${units}`);
    if (!isCounter) {
        return plain;
    }
    return (value) => (typeof value === "number" ? `${plain(value)}/s` : NONE);
}

/** Removes zeros at the end of round numbers, such as bounds and the marks of an axis. */
export function brief(text) {
    return text.replace(/(\.\d*[1-9])0+(?!\d)|\.0+(?!\d)/, "$1");
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** Formats the time of day in the browser's time zone. */
export function clock(seconds) {
    return CLOCK.format(seconds * 1000);
}

const DAY = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });

/** Formats a time as the time of day, with the date in front unless it is that of `now`. */
export function moment(seconds, now) {
    const [day, today] = [seconds, now].map((time) => DAY.format(time * 1000));
    return day === today ? clock(seconds) : `${day}, ${clock(seconds)}`;
}

export function duration(milliseconds) {
    if (typeof milliseconds !== "number") {
        return NONE;
    }
    const seconds = milliseconds / 1000;
    if (seconds < 1) {
        return "now";
    }
    for (const [limit, size, unit] of [[120, 1, "s"], [7200, 60, "min"], [172_800, 3600, "h"]]) {
        if (seconds < limit) {
            return `${Math.floor(seconds / size)} ${unit}`;
        }
    }
    return `${Math.floor(seconds / 86_400)} days`;
}
