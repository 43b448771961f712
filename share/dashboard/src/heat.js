// SPDX-License-Identifier: GPL-2.0-or-later

// Heat map of transfer times: a row for each bucket; a darker cell has more transfers.

import { colour, element, setText } from "./dom.js";
import { brief, clock, count, microseconds } from "./format.js";
import { BUCKETS } from "./metrics.js";

const HEIGHT = 220;
const LEFT = 72;
const BOTTOM = 22;

/** Returns the agent and the bounds of a bucket instance such as agent::100-250. */
export function bucket(instance) {
    const found = /^(.*)::([0-9.]+)-([0-9.]+|inf)$/s.exec(instance);
    return found && { agent: found[1], low: Number(found[2]), high: found[3] === "inf" ? Infinity : Number(found[3]) };
}

/** Returns the buckets of some agents in order, each with the instances that are added up for it. */
export function buckets(names, agents) {
    const found = new Map();
    for (const [id, name] of names) {
        const one = bucket(name);
        if (one && agents.has(one.agent)) {
            const key = `${one.low}-${one.high}`;
            found.set(key, found.get(key) ?? { low: one.low, high: one.high, ids: [] });
            found.get(key).ids.push(id);
        }
    }
    return [...found.values()].sort((a, b) => a.low - b.low || a.high - b.high);
}

function label({ low, high }) {
    return high === Infinity ? `over ${brief(microseconds(low))}` : `to ${brief(microseconds(high))}`;
}

function words({ low, high }) {
    return high === Infinity ? label({ low, high }) : `${brief(microseconds(low))} to ${brief(microseconds(high))}`;
}

export class Heat {
    constructor(place) {
        this.canvas = element("canvas", { class: "heat", role: "img" });
        this.note = element("p", { class: "note" });
        place.append(this.canvas, this.note);
        new ResizeObserver(() => this.paint()).observe(place);
        this.canvas.addEventListener("mousemove", (event) => this.point(event));
        this.canvas.addEventListener("mouseleave", () => this.say());
    }

    draw(span, history, names, agents) {
        this.span = span;
        this.times = [...history.times];
        const all = buckets(names, agents);
        const series = all.map(({ ids }) => history.sums([BUCKETS], ids));
        // Empty rows at both ends are not drawn.
        const used = series.map((sums) => sums.some((value) => value > 0));
        const [from, to] = [Math.max(0, used.indexOf(true) - 1), used.lastIndexOf(true) + 2];
        this.rows = used.includes(true) ? all.slice(from, to) : [];
        this.cells = this.times.map((_, i) => series.slice(from, to).map((sums) => sums[i]));
        this.most = this.cells.flat().reduce((most, value) => Math.max(most, value), 0);
        this.paint();
        this.say();
    }

    paint() {
        const context = this.canvas.getContext("2d");
        const ratio = window.devicePixelRatio || 1;
        const width = this.canvas.clientWidth;
        this.canvas.width = width * ratio;
        this.canvas.height = HEIGHT * ratio;
        context.scale(ratio, ratio);
        if (!this.rows?.length) {
            return;
        }
        this.area = { width: width - LEFT - 8, height: HEIGHT - BOTTOM - 4 };
        const { times, rows } = this;
        const end = times[times.length - 1];
        const tall = this.area.height / rows.length;
        const x = (time) => LEFT + (1 - (end - time) / this.span) * this.area.width;
        context.fillStyle = colour("--heat");
        for (let i = 1; i < times.length; i += 1) {
            const [from, to] = [x(times[i - 1]), x(times[i])];
            rows.forEach((_, row) => {
                const value = this.cells[i][row];
                if (value > 0) {
                    context.globalAlpha = 0.12 + 0.88 * Math.sqrt(value / this.most);
                    context.fillRect(from, 4 + this.area.height - (row + 1) * tall, to - from + 0.5, tall - 1);
                }
            });
        }
        context.globalAlpha = 1;
        context.fillStyle = colour("--soft");
        context.font = "12px system-ui, sans-serif";
        context.textAlign = "right";
        context.textBaseline = "middle";
        const every = Math.ceil(15 / tall);
        rows.forEach((row, i) => {
            if (i % every === 0) {
                context.fillText(label(row), LEFT - 6, 4 + this.area.height - (i + 0.5) * tall);
            }
        });
        context.textBaseline = "alphabetic";
        context.textAlign = "left";
        context.fillText(clock(end - this.span), LEFT, HEIGHT - 5);
        context.textAlign = "right";
        context.fillText(clock(end), width - 8, HEIGHT - 5);
    }

    /** Writes the value under the mouse. */
    point(event) {
        if (!this.rows?.length) {
            return;
        }
        const time = this.times[this.times.length - 1] - (1 - (event.offsetX - LEFT) / this.area.width) * this.span;
        const at = this.times.findIndex((t) => t >= time);
        const row = Math.floor((4 + this.area.height - event.offsetY) / (this.area.height / this.rows.length));
        const value = at > 0 ? this.cells[at]?.[row] : undefined;
        if (typeof value !== "number") {
            this.say();
        } else {
            setText(this.note, `${words(this.rows[row])}: ${count(value)} transfers/s`);
        }
    }

    /** Describes the heat map in words: the bucket with most transfers now. */
    say() {
        const column = this.cells?.[this.cells.length - 1] ?? [];
        const most = Math.max(0, ...column);
        let text = this.times?.length ? "No transfers yet." : "No values yet.";
        if (most > 0) {
            const times = words(this.rows[column.indexOf(most)]);
            text = `Most transfers take ${times} now (${count(most)}/s). The strongest colour is ${count(this.most)}/s.`;
        } else if (this.most > 0) {
            text = `No transfers now. The strongest colour is ${count(this.most)}/s.`;
        }
        setText(this.note, text);
        this.canvas.setAttribute("aria-label", text);
    }

    /** Shows a text in place of the heat map. */
    show_text(text) {
        this.rows = [];
        this.cells = [];
        this.paint();
        setText(this.note, text);
        this.canvas.setAttribute("aria-label", text);
    }
}
