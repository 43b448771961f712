// SPDX-License-Identifier: GPL-2.0-or-later

// Line charts with uPlot. The legend is our own: it can be read without colours and without a mouse.

import uPlot from "uplot";
import { colour, element, setName, setText } from "./dom.js";
import { brief, clock } from "./format.js";

const HEIGHT = 190;
// Dashes distinguish lines without colours.
const DASHES = [[], [], [8, 4], [2, 3], [10, 3, 2, 3], [4, 2], [14, 4]];

export class Chart {
    /** `place` is the parent element, `write` converts a value to text, `isLogarithmic` is the kind of the scale. */
    constructor(place, write, isLogarithmic = false) {
        this.isLogarithmic = isLogarithmic;
        this.write = write;
        this.plot = undefined;
        this.isEmpty = true;
        this.lines = [];
        this.area = element("div", { class: "plot", role: "img" });
        this.legend = element("ul", { class: "legend" });
        place.append(this.area, this.legend);
        new ResizeObserver(() => {
            this.plot?.setSize({ width: this.area.clientWidth, height: HEIGHT });
        }).observe(this.area);
    }

    /** Draws lines, each with a label and its values. If `hasSum`, the first line is the sum. */
    draw(span, times, lines, hasSum) {
        const style = (i) => {
            const isSum = hasSum && i === 0;
            const at = hasSum ? i : i + 1;
            return { stroke: colour(isSum ? "--text" : `--line-${at}`), width: isSum ? 2.5 : 1.75, dash: DASHES[at] };
        };
        this.span = span;
        this.isEmpty = times.length === 0;
        this.lines = lines;
        const data = [times, ...lines.map((line) => line.values)];
        if (this.plot === undefined || this.plot.series.length !== data.length) {
            this.create_plot(lines.map((_, i) => style(i)), data);
        } else {
            this.plot.setData(data);
        }
        this.write_legend(style);
        const texts = lines.map((line) => `${line.label}: ${this.write(last(line.values))}`);
        this.area.setAttribute("aria-label", texts.join("; ") || "no values yet");
    }

    create_plot(styles, data) {
        this.plot?.destroy();
        const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false } };
        const options = {
            width: this.area.clientWidth || 300,
            height: HEIGHT,
            legend: { show: false },
            cursor: { drag: { x: false, y: false }, points: { size: 6 } },
            scales: {
                x: { time: true, range: (_, from, to) => [to - this.span, to] },
                y: this.isLogarithmic
                    ? { distr: 3, range: (_, from, to) => (to > 0 ? decades(from, to) : [1, 10]) }
                    : { range: (_, from, to) => [0, to > 0 ? to * 1.08 : 1] },
            },
            axes: [
                // Before the first value, the scale begins at 0, which is in 1970.
                { ...axis, space: 80, size: 32, values: (_, ticks) => ticks.map((tick) => (this.isEmpty ? null : clock(tick))) },
                { ...axis, ...(this.isLogarithmic && { splits: powers }), size: 72, values: (_, ticks) => ticks.map((tick) => (tick === null ? null : brief(this.write(tick)))) },
            ],
            series: [{}, ...styles.map((style) => ({ ...style, points: { show: false } }))],
            hooks: { setCursor: [() => this.write_values()] },
        };
        this.plot = new uPlot(options, data, this.area);
    }

    write_legend(style) {
        while (this.legend.children.length > this.lines.length) {
            this.legend.lastChild.remove();
        }
        this.lines.forEach((line, i) => {
            let item = this.legend.children[i];
            if (item === undefined) {
                const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
                svg.setAttribute("viewBox", "0 0 24 8");
                svg.setAttribute("aria-hidden", "true");
                svg.append(document.createElementNS("http://www.w3.org/2000/svg", "path"));
                item = element("li", {}, svg, element("bdi"), element("b"));
                this.legend.append(item);
            }
            const path = item.querySelector("path");
            const { stroke, width, dash } = style(i);
            path.setAttribute("d", "M0 4H24");
            path.setAttribute("stroke", stroke);
            path.setAttribute("stroke-width", String(width));
            path.setAttribute("stroke-dasharray", dash.join(" "));
            setName(item.querySelector("bdi"), line.label);
        });
        this.write_values();
    }

    /** Writes the values under the mouse, or the last ones. */
    write_values() {
        const at = this.plot?.cursor.idx;
        this.lines.forEach((line, i) => {
            const value = typeof at === "number" ? line.values[at] : last(line.values);
            const place = this.legend.children[i]?.querySelector("b");
            if (place) {
                setText(place, this.write(value ?? undefined));
            }
        });
    }

    /** Removes the plot. The next draw creates it again, with the current colours. */
    reset() {
        this.plot?.destroy();
        this.plot = undefined;
    }
}

/** Returns the scale limits: the power of ten below and the one above. */
function decades(from, to) {
    const low = 10 ** Math.floor(Math.log10(Math.max(from, to / 1e6)));
    return [low, Math.max(low * 10, 10 ** Math.ceil(Math.log10(to)))];
}

/** Returns the powers of ten of a scale. */
function powers(_plot, _axis, low, high) {
    const found = [];
    for (let power = low; power <= high * 1.01; power *= 10) {
        found.push(power);
    }
    return found;
}

function last(values) {
    return values[values.length - 1] ?? undefined;
}
