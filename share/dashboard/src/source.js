// Where the values come from: opens a context, and another one when that is lost; names and labels of what is new.

import { Pmproxy, Trouble } from "./pmproxy.js";
import * as metric from "./metrics.js";

/** Above so many agents the ranges of times are not asked for: they are twenty for each. */
export const MOST_WITH_RANGES = 100;
const LABELS_AGAIN_MS = 30_000;

export class Source {
    constructor(base) {
        this.proxy = new Pmproxy(base);
        this.about = undefined;
        this.host = "";
        this.forget();
    }

    forget() {
        this.names = new Map();
        this.ranges = new Map();
        this.labels = new Map();
        this.labelled = -Infinity;
    }

    /** The next answer. `isNew`: it has nothing to do with the one before. */
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
            // pmcd or pmproxy was started anew, or this page was asleep.
            await this.open();
            isNew = true;
            answer = await this.fetch();
        }
        await this.learn(answer.values);
        return { ...answer, isNew };
    }

    async open() {
        this.about = undefined;
        this.forget();
        this.host = await this.proxy.open();
        const about = await this.proxy.describe(metric.ALL);
        if (!about.has(metric.VERSION)) {
            throw new Trouble("nixl", "no metrics");
        }
        this.about = about;
    }

    async fetch() {
        const isLarge = this.names.size > MOST_WITH_RANGES;
        const answer = await this.proxy.fetch(metric.ALL.filter((name) => name !== metric.BUCKETS || !isLarge));
        if (!answer.values.get(metric.VERSION)?.size) {
            throw new Trouble("nixl", "no values");
        }
        return answer;
    }

    /** Asks for the names of instances that were not there before, and now and then for labels. */
    async learn(values) {
        const agents = [...(values.get(metric.STATUS)?.keys() ?? [])];
        const isUnknown = agents.some((id) => !this.names.has(id));
        if (isUnknown || agents.length !== this.names.size) {
            this.names = await this.proxy.instances(metric.STATUS);
        }
        if (isUnknown || performance.now() - this.labelled > LABELS_AGAIN_MS) {
            this.labels = await this.proxy.labels("nixl.agent.state");
            this.labelled = performance.now();
        }
        const ranges = [...(values.get(metric.BUCKETS)?.keys() ?? [])];
        if (ranges.some((id) => !this.ranges.has(id))) {
            this.ranges = await this.proxy.instances(metric.BUCKETS);
        }
    }

    isCounter(name) {
        return this.about?.get(name)?.isCounter ?? false;
    }
}
