// History as the server keeps it: which part a page asks for, and how the charts draw it.

import { route } from "./route.svelte";
import type { History, HistoryPoint, Percentiles } from "./types";

export interface Range {
  /** As in the address of the page, and in the question to the server. */
  name: string;
  label: string;
  words: string;
  seconds: number;
  /** The length of a step; undefined: the server chooses. */
  step?: string;
}

export const RANGES: Range[] = [
  { name: "1h", label: "1 h", words: "the last hour", seconds: 3600 },
  { name: "24h", label: "24 h", words: "the last 24 hours", seconds: 86_400 },
  { name: "7d", label: "7 d", words: "the last 7 days", seconds: 7 * 86_400, step: "2h" },
  { name: "30d", label: "30 d", words: "the last 30 days", seconds: 30 * 86_400 },
];

/** The range that the address names, if the page offers it. */
export const rangeOf = (offered: string[]): Range | undefined =>
  RANGES.find((range) => range.name === route.query.get("range") && offered.includes(range.name));

/** The path of a question. `step` in `more` wins over that of the range. */
export function historyPath(range: Range, more: Record<string, string>): string {
  return `/v1/history?${new URLSearchParams({ since: range.name, ...(range.step ? { step: range.step } : {}), ...more })}`;
}

/** Attempts that failed, whether the job runs again or not. */
export const failures = (point: HistoryPoint): number => (point.ends["failed"] ?? 0) + (point.ends["dead"] ?? 0);

/** The share of failures among the attempts that were done or failed. Null: there were none. */
export function failureShare(point: HistoryPoint): number | null {
  const failed = failures(point);
  const all = failed + (point.ends["done"] ?? 0);
  return all ? failed / all : null;
}

export const ORDERS: { name: string; label: string; key: (point: HistoryPoint) => number }[] = [
  { name: "failures", label: "failure share", key: (point) => failureShare(point) ?? -1 },
  { name: "attempts", label: "attempts", key: (point) => point.count },
  { name: "run", label: "run p95", key: (point) => point.run.p95 ?? -1 },
  { name: "wait", label: "wait p95", key: (point) => point.wait.p95 ?? -1 },
  { name: "name", label: "name", key: () => 0 },
];

/** The order that the address names, or this one. */
export const orderOf = (otherwise: string): string => ORDERS.find((order) => order.name === route.query.get("sort"))?.name ?? otherwise;

/** The largest first, and by name where they are equal. */
export function sorted(points: HistoryPoint[], order: string): HistoryPoint[] {
  const key = ORDERS.find((known) => known.name === order)?.key ?? (() => 0);
  return [...points].sort((one, two) => key(two) - key(one) || one.name.localeCompare(two.name));
}

export interface Line {
  name: string;
  /** Its colour and pattern in the chart and in the legend. */
  tone: "done" | "failed" | "p50" | "p95" | "p99";
  values: (number | null)[];
}

export interface Drawing {
  /** Seconds since 1970: the beginning of each step. */
  at: number[];
  /** Whether an attempt ended in the step. */
  ended: boolean[];
  lines: Line[];
}

type Read = [Line["tone"], string, (points: HistoryPoint[]) => number | null];

const sum = (points: HistoryPoint[], read: (point: HistoryPoint) => number): number => points.reduce((all, point) => all + read(point), 0);

export const ENDED: Read[] = [
  ["done", "done", (points) => sum(points, (point) => point.ends["done"] ?? 0)],
  ["failed", "failed", (points) => sum(points, failures)],
];

export const FAILING: Read[] = [["failed", "failure share", ([point]) => (point ? failureShare(point) : null)]];

export const times = (what: "wait" | "run"): Read[] =>
  (["p50", "p95", "p99"] as (keyof Percentiles)[]).map((name) => [name, name, ([point]) => point?.[what][name] ?? null]);

/** Every step of the range, also those without an attempt, which the server leaves out. `now` is in seconds. */
export function draw(history: History, range: Range, now: number, reads: Read[]): Drawing {
  const steps = new Map<number, HistoryPoint[]>();
  for (const point of history.items) {
    const at = Date.parse(point.at) / 1000;
    steps.set(at, [...(steps.get(at) ?? []), point]);
  }
  const whole = (at: number): number => at - (at % history.step);
  // The clock of the browser may be wrong: no point of the server is left out.
  const first = Math.min(whole(now - range.seconds), ...steps.keys());
  const last = Math.max(whole(now), ...steps.keys());
  const at: number[] = [];
  for (let step = first; step <= last; step += history.step) at.push(step);
  return { at, ended: at.map((step) => steps.has(step)), lines: reads.map(([tone, name, read]) => ({ name, tone, values: at.map((step) => read(steps.get(step) ?? [])) })) };
}

export const largest = (line: Line | undefined): number | null => {
  const values = (line?.values ?? []).filter((value) => value !== null);
  return values.length ? Math.max(...values) : null;
};

/** What a chart of percentiles says to a screen reader. */
export function timesSentence(title: string, range: Range, drawing: Drawing, show: (value: number | null) => string): string {
  const highest = drawing.lines.map((line) => `${line.name} at most ${show(largest(line))}`).join(", ");
  return `${title} over ${range.words}: ${highest} in a step.`;
}
