// Bugs behind dead letters. One call of the API groups a thousand dead letters, so a page makes several.

import { get } from "./api";
import type { Group, Groups } from "./types";

const CALLS = 10;
const MOST = 5_000;

/** The groups of the newest dead letters. `path` may have a query. */
export async function readGroups(path: string, signal: AbortSignal, show: (part: Groups) => void): Promise<Groups> {
  let all = await get<Groups>(path, signal);
  for (let call = 1; call < CALLS && all.next !== null && all.looked_at < MOST; call += 1) {
    show(all);
    const older = await get<Groups>(`${path}${path.includes("?") ? "&" : "?"}before=${all.next}`, signal);
    all = { items: together(all.items, older.items), looked_at: all.looked_at + older.looked_at, more: older.more, next: older.next };
  }
  return all;
}

function together(groups: Group[], older: Group[]): Group[] {
  const known = new Map(groups.map((group) => [group.fingerprint, group]));
  for (const group of older) {
    const newer = known.get(group.fingerprint);
    known.set(group.fingerprint, newer ? added(newer, group) : group);
  }
  return [...known.values()].sort((one, other) => other.count - one.count);
}

function added(newer: Group, older: Group): Group {
  return {
    ...newer,
    count: newer.count + older.count,
    tasks: [...new Set([...newer.tasks, ...older.tasks])].sort(),
    queues: [...new Set([...newer.queues, ...older.queues])].sort(),
    trend: newer.trend.map((deaths, hour) => deaths + (older.trend[hour] ?? 0)),
    first_seen: newer.first_seen < older.first_seen ? newer.first_seen : older.first_seen,
    last_seen: newer.last_seen > older.last_seen ? newer.last_seen : older.last_seen,
  };
}
