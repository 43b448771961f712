// SPDX-License-Identifier: GPL-2.0-or-later

// Builds index.html, one file, from the sources in src.

import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const read = (file) => readFileSync(join(here, file), "utf8");

async function bundle(entry) {
    const { outputFiles } = await build({
        absWorkingDir: here,
        entryPoints: [entry],
        bundle: true,
        write: false,
        format: "iife",
        target: ["chrome103", "firefox115", "safari16"],
        minify: true,
        charset: "ascii",
        legalComments: "none",
    });
    return outputFiles[0].text.trim();
}

/** Returns an element with this text, and its hash source for the Content-Security-Policy. */
function inlined(tag, text) {
    if (text.toLowerCase().includes(`</${tag}`)) {
        throw new Error(`the text of ${tag} contains </${tag}`);
    }
    const hash = createHash("sha256").update(text).digest("base64");
    return { html: `<${tag}>${text}</${tag}>`, source: `'sha256-${hash}'` };
}

const licence = read("node_modules/uplot/LICENSE").trim();
const { version } = JSON.parse(read("node_modules/uplot/package.json"));
const notice = `Built by make dashboard from share/dashboard/src. pmdanixl is licensed GPL-2.0-or-later. It contains uPlot ${version}:\n\n${licence}`;

const script = inlined("script", await bundle("src/main.js"));
const style = inlined("style", await bundle("src/style.css") + (await bundle("node_modules/uplot/dist/uPlot.min.css")));
const policy = [
    "default-src 'none'",
    "connect-src http: https:",
    "img-src data:",
    `script-src ${script.source}`,
    `style-src ${style.source}`,
    "base-uri 'none'",
    "form-action 'none'",
];
const parts = {
    CSP: `<meta http-equiv="Content-Security-Policy" content="${policy.join("; ")}">`,
    STYLE: style.html,
    SCRIPT: script.html,
};
let page = read("src/index.html");
for (const [name, part] of Object.entries(parts)) {
    const [before, after, ...more] = page.split(`<!-- ${name} -->`);
    if (after === undefined || more.length > 0) {
        throw new Error(`src/index.html must have exactly one comment ${name}`);
    }
    page = before + part + after;
}
page = page.replace("<!DOCTYPE html>", () => `<!DOCTYPE html>\n<!--\n${notice}\n-->`);
writeFileSync(join(here, "index.html"), page);
