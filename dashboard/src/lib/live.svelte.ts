// The figures that every page shares, read again and again while the page is visible and not held.

import { follow, get, Refused } from "./api";
import { caller } from "./session.svelte";
import type { Limit, List, Pause, Queue, Worker } from "./types";

const KEPT = 600;
const WINDOW = 15;
/** Milliseconds: the server sends figures at least every five seconds, so a stream that is silent for longer is broken. */
const SILENT = 15_000;
const AGAIN = 10_000;

export interface Sample {
  at: number;
  ready: number;
  running: number;
  dead: number;
  done: number;
  failed: number;
  enqueued: number;
}

export interface Rates {
  done: number;
  failed: number;
  enqueued: number;
}

function sample(at: number, queues: Queue[]): Sample {
  const sum = (read: (queue: Queue) => number): number => queues.reduce((all, queue) => all + read(queue), 0);
  return {
    at,
    ready: sum((queue) => queue.ready),
    running: sum((queue) => queue.running),
    dead: sum((queue) => queue.dead),
    done: sum((queue) => queue.done_total),
    failed: sum((queue) => queue.failed_total),
    enqueued: sum((queue) => queue.enqueued_total),
  };
}

/** Events per second over the last seconds; undefined: there is one sample only. */
export function rates(samples: Sample[]): Rates | undefined {
  const last = samples.at(-1);
  const first = last && samples.find((each) => last.at - each.at <= WINDOW);
  if (!last || !first || last.at - first.at < 0.5) return undefined;
  const seconds = last.at - first.at;
  return {
    done: Math.max(0, last.done - first.done) / seconds,
    failed: Math.max(0, last.failed - first.failed) / seconds,
    enqueued: Math.max(0, last.enqueued - first.enqueued) / seconds,
  };
}

class Live {
  queues: Queue[] = $state.raw([]);
  pauses: Pause[] = $state.raw([]);
  workers: Worker[] = $state.raw([]);
  limits: Limit[] = $state.raw([]);
  total: Sample[] = $state.raw([]);
  each: Record<string, Sample[]> = $state.raw({});
  /** Milliseconds: changes once a second, so that ages are counted on. */
  now = $state(Date.now());
  loaded = $state(false);
  held = $state(false);
  /** The server asks for a token, with this sentence. */
  asked = $state("");
  /** Why there is no answer. */
  away = $state("");
  answered = $state(0);

  private round = 0;
  private busy = false;
  private stream: AbortController | undefined;
  /** When the stream brought figures; 0: there is no stream, so the page asks. */
  private heard = 0;
  private listenAt = 0;

  start(): void {
    setInterval(() => void this.step(), 1000);
    addEventListener("visibilitychange", () => void this.step());
    void this.step();
  }

  /** Follow the figures while they are shown. A hidden tab has no stream, because a browser has few connections to a server. */
  private listen(): void {
    if (document.hidden || this.held || this.asked || !caller.shown || (this.heard && Date.now() - this.heard > SILENT)) return this.deafen();
    if (this.stream || Date.now() < this.listenAt) return;
    const stop = (this.stream = new AbortController());
    this.listenAt = Date.now() + AGAIN;
    const hear = (name: string, data: string): void => {
      if (name !== "stats" || stop.signal.aborted) return;
      this.heard = this.answered = Date.now();
      this.queues = (JSON.parse(data) as List<Queue>).items;
    };
    follow("/v1/events?event=stats", hear, stop.signal)
      .catch(() => undefined)
      .finally(() => this.stream === stop && this.deafen());
  }

  private deafen(): void {
    this.stream?.abort();
    this.stream = undefined;
    this.heard = 0;
  }

  /** Sign in with a token. Returns why it failed, or an empty text. */
  async enter(token: string): Promise<string> {
    try {
      await caller.signIn(token);
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
    if (!caller.may("read")) {
      const lacks = `Token ${caller.shown?.name ?? ""} lacks the scope read.`;
      await caller.signOut();
      return lacks;
    }
    this.asked = "";
    await this.refresh();
    return "";
  }

  /** Sign out, and forget every figure of this caller. */
  async leave(): Promise<void> {
    this.deafen();
    await caller.signOut();
    this.queues = this.pauses = this.workers = this.limits = [];
    this.total = [];
    this.each = {};
    this.loaded = false;
    this.asked = "You are signed out.";
  }

  /** Read everything at once, after a change. */
  refresh(): Promise<void> {
    this.round = 0;
    return this.step(true);
  }

  private async step(now = false): Promise<void> {
    this.listen();
    if (this.asked || (!now && document.hidden)) return;
    this.now = Date.now();
    if ((this.held && !now) || this.busy) return;
    this.busy = true;
    try {
      if (!caller.shown) await caller.read();
      const rare = this.round++ % 3 === 0;
      const [queues, pauses, workers, limits] = await Promise.all([
        this.heard && !now ? undefined : get<List<Queue>>("/v1/queues"),
        rare ? get<List<Pause>>("/v1/pauses") : undefined,
        rare && caller.tenant === null ? get<List<Worker>>("/v1/workers") : undefined,
        rare && !caller.bound ? get<List<Limit>>("/v1/limits") : undefined,
      ]);
      if (queues) this.queues = queues.items;
      if (pauses) this.pauses = pauses.items;
      if (workers) this.workers = workers.items;
      if (limits) this.limits = limits.items;
      this.keep(this.queues);
      this.loaded = true;
      this.asked = this.away = "";
      if (queues) this.answered = Date.now();
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        caller.shown = undefined;
        this.asked ||= error.message;
      }
      else this.away = error instanceof Error ? error.message : String(error);
    } finally {
      this.busy = false;
    }
  }

  private keep(queues: Queue[]): void {
    const at = Date.now() / 1000;
    this.total = [...this.total, sample(at, queues)].slice(-KEPT);
    this.each = Object.fromEntries(
      queues.map((queue) => [queue.name, [...(this.each[queue.name] ?? []), sample(at, [queue])].slice(-KEPT)]),
    );
  }
}

export const live = new Live();
