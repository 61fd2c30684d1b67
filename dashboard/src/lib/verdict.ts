// What needs an operator, in sentences, each with its cause and the action that helps. Keys are causes, so rows stay in place.

import type { IconName } from "../parts/Icon.svelte";
import { count, duration, many } from "./format";
import { link } from "./route.svelte";
import type { Change, Limit, Pause, Queue, Worker } from "./types";

const LONG = 60;

export interface Verdict {
  key: string;
  tone: "paused" | "dead" | "blocked";
  icon: IconName;
  claim: string;
  because: string;
  since?: string;
  resume?: { kind: Pause["kind"]; name: string };
  limit?: string;
  see?: string;
  seeing?: string;
}

export function verdicts(queues: Queue[], pauses: Pause[], workers: Worker[], limits: Limit[], changes: Change[], now: number): Verdict[] {
  const found: Verdict[] = [];
  const paused = new Set(pauses.filter((each) => each.kind === "queue").map((each) => each.name));
  const served = new Set(workers.flatMap((worker) => worker.queues));
  for (const queue of queues) {
    const see = link("jobs", undefined, { queue: queue.name, state: "ready" });
    if (queue.ready > 0 && !served.has(queue.name)) {
      const because = `Start one: headrace worker APP --queues ${queue.name}`;
      found.push({ key: `worker ${queue.name}`, tone: "dead", icon: "workers", claim: `No worker serves ${queue.name}: ${count(queue.ready)} waiting`, because, see, seeing: "See jobs" });
    } else if ((queue.oldest_ready ?? 0) > LONG && !paused.has(queue.name)) {
      const claim = `${queue.name} is backed up: ${count(queue.ready)} waiting, the oldest for ${duration(queue.oldest_ready ?? 0)}`;
      found.push({ key: `behind ${queue.name}`, tone: "blocked", icon: "queues", claim, because: "Open a waiting job to read why it waits.", see, seeing: "See jobs" });
    }
  }
  for (const bug of changes) {
    if (bug.kind !== "failure") continue;
    found.push({ key: `bug ${bug.id}`, tone: "dead", icon: "dead", claim: `${many(bug.jobs, "job")} died of a new bug`, because: bug.what, since: bug.at, see: link("dead", bug.id), seeing: "See bug" });
  }
  for (const limit of limits) {
    if (limit.closed_until === null || Date.parse(limit.closed_until) <= now) continue;
    const until = `until ${limit.closed_until.slice(11, 19)} UTC (in ${duration((Date.parse(limit.closed_until) - now) / 1000)})`;
    found.push({ key: `limit ${limit.name}`, tone: "blocked", icon: "limits", claim: `Limit ${limit.name} is closed ${until}`, because: "A refusal or failures closed it. To open it now may bring another refusal.", limit: limit.name });
  }
  for (const pause of pauses) {
    const waiting = queues.find((queue) => pause.kind === "queue" && queue.name === pause.name)?.ready;
    const claim = `${pause.kind === "queue" ? "" : `${pause.kind} `}${pause.name} is paused${pause.by ? ` by ${pause.by}` : ""}${waiting ? `, ${count(waiting)} waiting` : ""}`;
    const because = pause.until ? `Until ${pause.until.slice(11, 19)} UTC.` : "Until it is resumed.";
    found.push({ key: `pause ${pause.kind} ${pause.name}`, tone: "paused", icon: "pause", claim, because, since: pause.since, resume: { kind: pause.kind, name: pause.name } });
  }
  return found;
}
