// SPDX-License-Identifier: GPL-2.0-or-later

// Matrix of pairs: a row for each agent, a column for each of their peers; a darker cell has more bytes.

import { element, setName, setText } from "./dom.js";
import { brief, bytes, count, microseconds } from "./format.js";

// Limit of rows, and of columns.
export const LIMIT = 16;
const ABOUT = "TCP only: traffic over RDMA, NVLink and shared memory has no peers.";
const NONE = "No peers: these agents have no TCP connections of their own. Traffic over RDMA, NVLink and shared memory has no peers, nor have agents that share a process.";
const per_second = (write, value) => (value === undefined ? "–" : `${write(value)}/s`);

/** Returns the figures of a cell in words. */
function words({ number, sent, received, retransmits, rtt, isLossy, isSlow }) {
    const parts = [
        `sent ${per_second(bytes, sent)}`,
        `received ${per_second(bytes, received)}`,
        `segments sent again ${per_second(count, retransmits)}${isLossy ? " (over 1 %)" : ""}`,
        `${number > 1 ? "longest RTT" : "RTT"} ${microseconds(rtt)}${isSlow ? " (over 1 ms and 3 times the median)" : ""}`,
    ];
    return parts.join(", ");
}

export class Matrix {
    constructor(place) {
        this.area = element("div", { class: "matrix", tabindex: "0", role: "region", "aria-label": "Agents and their peers" });
        this.note = element("p", { class: "note" });
        place.append(this.area, this.note);
        this.lines = "";
        for (const event of ["pointerover", "click"]) {
            this.area.addEventListener(event, ({ target }) => setText(this.note, target.closest?.("td")?.title || this.text));
        }
        this.area.addEventListener("pointerleave", () => setText(this.note, this.text));
    }

    /** Draws rows, columns and cells. `titles` has the texts of agents by name. */
    draw({ rows, columns, cells }, titles) {
        const title = (key) => (key.startsWith("::") ? key.slice(2) : titles.get(key) ?? key);
        const texts = [rows, columns].map(({ keys, rest }, i) => [...keys.map(title), ...(rest > 0 ? [`${rest} more ${["agents", "peers"][i]}`] : [])]);
        const lines = JSON.stringify(texts);
        // A new element would end the tooltip of the old one.
        if (lines !== this.lines) {
            this.build(...texts);
            this.lines = lines;
        }
        const most = Math.max(0, ...cells.flat().map((cell) => moved(cell) ?? 0));
        cells.forEach((line, i) => line.forEach((cell, j) => fill(this.cells[i][j], cell, most, `${texts[0][i]} and ${texts[1][j]}`)));
        this.area.hidden = cells.length === 0;
        this.say(cells.flat().filter((cell) => cell !== undefined), rows.rest + columns.rest > 0);
    }

    build(rows, columns) {
        const names = (name, text) => {
            const cell = element("th", { scope: name, role: `${name === "col" ? "column" : "row"}header` }, element("bdi"));
            setName(cell.firstChild, text);
            return cell;
        };
        this.cells = rows.map(() => columns.map(() => element("td", { role: "cell" }, element("span", { class: "fill" }), element("span"), element("span"))));
        const head = element("tr", { role: "row" }, element("td", { role: "cell" }), ...columns.map((text) => names("col", text)));
        const lines = rows.map((text, i) => element("tr", { role: "row" }, names("row", text), ...this.cells[i]));
        const table = element("table", { role: "table", "aria-label": "Bytes per second by agent and peer" });
        table.append(element("thead", { role: "rowgroup" }, head), element("tbody", { role: "rowgroup" }, ...lines));
        this.area.replaceChildren(table);
    }

    /** Describes the matrix in words. */
    say(pairs, isLimited) {
        const parts = [ABOUT];
        if (pairs.every((pair) => moved(pair) === undefined)) {
            parts.push("Rates come with the second reading of sockets, after 20 s at most.");
        } else {
            parts.push("Means of the last minute.");
        }
        if (pairs.some(({ isLossy }) => isLossy)) {
            parts.push("◆ and red: over 1 % of the bytes are sent again.");
        }
        if (pairs.some(({ isSlow }) => isSlow)) {
            parts.push("RTT and dashes: over 1 ms and 3 times the median.");
        }
        if (isLimited) {
            parts.push(`At most ${LIMIT} rows and columns: the last one has the sums of the rest.`);
        }
        this.set_text(pairs.length > 0 ? parts.join(" ") : NONE);
    }

    /** Shows a text in place of the matrix. */
    show_text(text) {
        this.area.hidden = true;
        this.set_text(text);
    }

    /** Sets the text that is shown while no cell is pointed at. */
    set_text(text) {
        if (this.text !== text) {
            this.text = text;
            setText(this.note, text);
        }
    }
}

/** Returns the bytes of a cell per second, or undefined if they are not known. */
function moved(cell) {
    return cell?.sent === undefined && cell?.received === undefined ? undefined : (cell.sent ?? 0) + (cell.received ?? 0);
}

function fill(place, cell, most, names) {
    const [ground, rate, marks] = place.children;
    const value = moved(cell);
    // Text stays readable on the strongest colour.
    ground.style.opacity = value > 0 ? 0.06 + 0.44 * Math.sqrt(value / most) : 0;
    setText(rate, cell === undefined ? "" : brief(bytes(value)));
    const texts = [cell?.isLossy ? `◆ ${brief(count(cell.retransmits))}/s` : "", cell?.isSlow ? `RTT ${brief(microseconds(cell.rtt))}` : ""];
    setText(marks, texts.filter((text) => text !== "").join(" "));
    place.classList.toggle("lossy", cell?.isLossy === true);
    place.classList.toggle("slow", cell?.isSlow === true);
    place.title = cell === undefined ? "" : `${names}: ${words(cell)}`;
}
