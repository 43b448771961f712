// What is wrong, and what to do about it. Each is a text and the commands that help.

/** Why there are no values at all. */
export function why(trouble, base) {
    const { hostname, port } = new URL(base);
    switch (trouble.kind) {
        case "unreachable": {
            const isMixed = location.protocol === "https:" && base.startsWith("http:");
            return {
                text: `Nothing answers at ${base} (${trouble.message}). Is pmproxy running there, and does it listen there?${
                    isMixed ? " A page that came by https: may not ask an address with http:." : ""
                }`,
                commands: [
                    "sudo systemctl start pmproxy      # on the host itself",
                    `ssh -L 44322:localhost:${port || 44322} ${hostname === "localhost" ? "HOST" : hostname}     # from elsewhere, then http://localhost:44322 here`,
                ],
            };
        }
        case "foreign":
            return {
                text: `${base} answers, but not as pmproxy does (${trouble.message}). pmproxy's port is 44322.`,
                commands: [],
            };
        case "nixl":
            return {
                text: "pmcd has no values of NIXL: pmdanixl is not installed there, or has ended, or is starting.",
                commands: ["cd /var/lib/pcp/pmdas/nixl && sudo ./Install", "tail /var/log/pcp/pmcd/nixl.log"],
            };
        case undefined:
            return { text: `This page fails: ${trouble.message}. Its console says more.`, commands: [] };
        default:
            return {
                text: `pmproxy answers, but pmcd does not: ${trouble.message}.`,
                commands: ["sudo systemctl start pmcd"],
            };
    }
}

/** What to know although there are values; undefined if nothing. */
export function remark(counts, configError, isEmpty) {
    if (configError) {
        return { text: `The configuration was not taken: ${configError}`, commands: ["sudo pmstore nixl.control.reload 1"] };
    }
    const files = [];
    if (counts.unsupported > 0) {
        files.push(`${counts.unsupported} of a NIXL version that this pmdanixl does not know`);
    }
    if (counts.refused > 0) {
        files.push(`${counts.refused} that cannot be read as they are`);
    }
    if (files.length > 0) {
        return { text: `Rings left alone: ${files.join(", ")}.`, commands: ["sudo /var/lib/pcp/pmdas/nixl/pmdanixl --check"] };
    }
    if (isEmpty) {
        return {
            text: "No agents: no application writes telemetry where pmdanixl looks for it. Set these in its environment, and telemetry_dir in nixl.conf:",
            commands: [
                "NIXL_TELEMETRY_ENABLE=y NIXL_TELEMETRY_EXPORTER=BUFFER NIXL_TELEMETRY_DIR=/dev/shm/nixl",
                "sudo /var/lib/pcp/pmdas/nixl/pmdanixl --check",
            ],
        };
    }
    return undefined;
}
