// SPDX-License-Identifier: GPL-2.0-or-later

// Source of the values: opens a context, opens another one if it is lost, and fetches names, labels and addresses.

import { one } from "./history.js";
import { Pmproxy, Trouble } from "./pmproxy.js";
import * as metric from "./metrics.js";
import { plain } from "./pairs.js";

/** With more agents, buckets and peers are not fetched: there are twenty buckets and up to 16 peers for each agent. */
export const MAX_DETAILED_AGENTS = 100;
const LABELS_INTERVAL_MS = 30_000;
// A daemon that answers uses CPU time. Answers in one instant may show the same.
const SAME_SECONDS = 2;

/** Returns true if the host has running agents, and none is an instance. */
function lacks_agents(values) {
    const running = [metric.COUNTS.live, metric.COUNTS.idle].some((name) => one(values, name, null) > 0);
    return running && !values.get(metric.STATUS)?.size;
}

export class Source {
    constructor(base) {
        this.proxy = new Pmproxy(base);
        this.about = undefined;
        this.host = "";
        this.clear();
    }

    clear() {
        this.names = new Map();
        this.buckets = new Map();
        this.processes = new Map();
        this.peers = new Map();
        this.addresses = new Set();
        this.labels = new Map();
        this.labelled = -Infinity;
        this.cpuTime = undefined;
    }

    /** Fetches the next answer. `isNew`: true if it is the first one of a context. */
    async next() {
        let isNew = false;
        if (this.about === undefined) {
            await this.open();
            isNew = true;
        }
        let answer;
        try {
            answer = await this.fetch();
        } catch (error) {
            if (error.kind !== "context") {
                this.about = undefined;
                throw error;
            }
            // pmcd or pmproxy was restarted, or the browser suspended this page.
            await this.open();
            isNew = true;
            answer = await this.fetch();
        }
        if (lacks_agents(answer.values) || this.is_old(answer)) {
            // pmproxy 6 repeats the last values of the host when pmdanixl has ended, and may have no instances after its restart.
            // The next request opens another context.
            this.about = undefined;
            throw new Trouble("nixl", "no new values");
        }
        await this.update_names(answer.values);
        return { ...answer, isNew };
    }

    /** Returns true if pmdanixl has used no CPU time between the answers of some seconds. */
    is_old({ time, values }) {
        const cpuTime = one(values, metric.CPU_TIME, null);
        if (cpuTime === undefined || cpuTime !== this.cpuTime) {
            this.cpuTime = cpuTime;
            this.changed = time;
        }
        return time - this.changed > SAME_SECONDS;
    }

    async open() {
        this.about = undefined;
        this.clear();
        this.host = await this.proxy.open();
        const about = await this.proxy.describe([...metric.ALL, ...metric.ADDRESSES]);
        if (!about.has(metric.VERSION)) {
            throw new Trouble("nixl", "no metrics");
        }
        this.about = about;
    }

    async fetch() {
        const isLarge = this.names.size > MAX_DETAILED_AGENTS;
        const answer = await this.proxy.fetch(metric.ALL.filter((name) => !isLarge || !metric.LARGE.includes(name)));
        // pmproxy 6 has an empty text where pmdanixl has ended before the first fetch of a context.
        if (!answer.values.get(metric.VERSION)?.get(null)) {
            throw new Trouble("nixl", "no values");
        }
        return answer;
    }

    /** Fetches the names of new instances, and at an interval the labels and the addresses of the host. */
    async update_names(values) {
        const agents = [...(values.get(metric.STATUS)?.keys() ?? [])];
        const isUnknown = agents.some((id) => !this.names.has(id));
        if (isUnknown || agents.length !== this.names.size) {
            this.names = await this.proxy.instances(metric.STATUS);
        }
        if (isUnknown || performance.now() - this.labelled > LABELS_INTERVAL_MS) {
            this.labels = await this.proxy.labels("nixl.agent.state");
            this.addresses = await this.own_addresses();
            this.labelled = performance.now();
        }
        const buckets = [...(values.get(metric.BUCKETS)?.keys() ?? [])];
        if (buckets.some((id) => !this.buckets.has(id))) {
            this.buckets = await this.proxy.instances(metric.BUCKETS);
        }
        const processes = [...(values.get(metric.PROCESS_SHARE)?.keys() ?? [])];
        if (processes.some((id) => !this.processes.has(id))) {
            this.processes = await this.proxy.instances(metric.PROCESS_SHARE);
        }
        const peers = [...(values.get(metric.PEER.sent)?.keys() ?? [])];
        if (peers.some((id) => !this.peers.has(id))) {
            this.peers = await this.proxy.instances(metric.PEER.sent);
        }
    }

    /** Fetches the addresses of the host. There are none without PCP's PMDA for Linux. */
    async own_addresses() {
        const known = metric.ADDRESSES.filter((name) => this.about.has(name));
        const { values } = known.length > 0 ? await this.proxy.fetch(known) : { values: new Map() };
        const texts = [...values.values()].flatMap((by_interface) => [...by_interface.values()]);
        return new Set(texts.map(plain).filter((address) => address !== undefined));
    }

    isCounter(name) {
        return this.about?.get(name)?.isCounter ?? false;
    }
}
