// SPDX-License-Identifier: GPL-2.0-or-later

// Advice for the operator: a text that says what is wrong, and the commands that help.

import { clock } from "./format.js";

/** Returns the advice for a page without values. `answered` is the time of the last answer of pmdanixl, if there was one. */
export function trouble_advice(trouble, base, answered) {
    const { hostname, port } = new URL(base);
    switch (trouble.kind) {
        case "unreachable": {
            const isMixed = location.protocol === "https:" && base.startsWith("http:");
            return {
                text: `Nothing answers at ${base} (${trouble.message}). Check that pmproxy runs and listens there.${
                    isMixed ? " A page loaded with https: cannot query an address with http:." : ""
                }`,
                commands: [
                    "sudo systemctl start pmproxy      # on the host itself",
                    `ssh -L 44322:localhost:${port || 44322} ${hostname === "localhost" ? "HOST" : hostname}     # from another host; then use http://localhost:44322 here`,
                ],
            };
        }
        case "foreign":
            return {
                text: `${base} answers, but not as pmproxy does (${trouble.message}). The default port of pmproxy is 44322.`,
                commands: [],
            };
        case "nixl":
            return answered === undefined
                ? {
                      text: "pmcd has no values of NIXL: pmdanixl is not installed, has ended, or is starting.",
                      commands: ["cd /var/lib/pcp/pmdas/nixl && sudo ./Install", "tail /var/log/pcp/pmcd/nixl.log"],
                  }
                : {
                      text: `pmdanixl has not answered since ${clock(answered)}: it has ended, or is starting again.`,
                      commands: [
                          "tail /var/log/pcp/pmcd/nixl.log",
                          ". /etc/pcp.env && sudo $PCP_BINADM_DIR/pmsignal -a -s HUP pmcd     # starts it at once",
                      ],
                  };
        case undefined:
            return { text: `This page has an error: ${trouble.message}. The browser's console has details.`, commands: [] };
        default:
            return {
                text: `pmproxy answers, but pmcd does not: ${trouble.message}.`,
                commands: ["sudo systemctl start pmcd"],
            };
    }
}

/** Returns the advice for a page with values, or undefined if all is well. */
export function remark(counts, configError, agents) {
    if (configError) {
        return { text: `The configuration was not applied: ${configError}`, commands: ["sudo pmstore nixl.control.reload 1"] };
    }
    const stalled = agents.filter((agent) => agent.stall === "stalled");
    if (stalled.length > 0) {
        const [{ name, stallPeer, stallReason }] = stalled.sort((a, b) => b.stallAge - a.stallAge);
        const others = stalled.length > 1 ? ` (and of ${stalled.length - 1} more)` : "";
        return {
            text: `Transfers of ${name}${others} have stalled, with ${stallPeer}: ${stallReason}.`,
            commands: ["pminfo -f nixl.agent.stall"],
        };
    }
    const files = [];
    if (counts.unsupported > 0) {
        files.push(`${counts.unsupported} of a NIXL version that this pmdanixl cannot read`);
    }
    if (counts.rejected > 0) {
        files.push(`${counts.rejected} rejected`);
    }
    if (files.length > 0) {
        return { text: `Files that are not read: ${files.join(", ")}.`, commands: ["sudo /var/lib/pcp/pmdas/nixl/pmdanixl --check"] };
    }
    if (agents.length === 0) {
        return {
            text: "No agents: no application writes telemetry to a directory that pmdanixl scans. Set these variables in its environment, and telemetry_dir in nixl.conf:",
            commands: [
                "NIXL_TELEMETRY_ENABLE=y NIXL_TELEMETRY_EXPORTER=BUFFER NIXL_TELEMETRY_DIR=/dev/shm/nixl",
                "sudo /var/lib/pcp/pmdas/nixl/pmdanixl --check",
            ],
        };
    }
    return undefined;
}
