// An action on every job that a filter matches: counted first, then done page by page, so that it can be stopped.

import { get, post } from "./api";

export type Action = "retry" | "cancel" | "delete";

export interface Counted {
  count: number;
  exact: boolean;
  states: Record<string, number>;
  next: string | null;
}

interface Page {
  found: number;
  changed: number;
  next: string | null;
}

const NAMES = ["queue", "task", "tenant", "since", "until", "text"] as const;
/** Calls of one count. Beyond them the page says "or more". */
const CALLS = 40;
const STEP = 500;

/** The parts of the address that choose jobs. */
export function filterOf(query: URLSearchParams): URLSearchParams {
  const filter = new URLSearchParams();
  for (const [name, value] of query) if (name === "state" || (NAMES as readonly string[]).includes(name)) filter.append(name, value);
  return filter;
}

export class Bulk {
  /** Undefined: nothing was counted yet. */
  count: number | undefined = $state();
  exact = $state(false);
  action: Action | undefined = $state();
  found = $state(0);
  changed = $state(0);
  error = $state("");
  private stopped = new AbortController();

  constructor(readonly filter: URLSearchParams) {}

  /** Count the jobs that match. Figures appear as they come. */
  async read(): Promise<void> {
    let before: string | null = null;
    let sum = 0;
    try {
      for (let calls = 0; calls < CALLS && !this.stopped.signal.aborted; calls++) {
        const query = new URLSearchParams(this.filter);
        if (before) query.set("before", before);
        const part: Counted = await get<Counted>(`/v1/jobs/count?${query}`, this.stopped.signal);
        sum += part.count;
        this.count = sum;
        this.exact = part.exact || part.next === null;
        before = part.next;
        if (this.exact || before === null) return;
      }
    } catch (error) {
      if (!this.stopped.signal.aborted) this.error = error instanceof Error ? error.message : String(error);
    }
  }

  /** Returns whether it got to the end. */
  async run(action: Action): Promise<boolean> {
    this.action = action;
    this.found = this.changed = 0;
    let before: string | null = null;
    try {
      do {
        if (this.stopped.signal.aborted) return false;
        const page: Page = await post<Page>("/v1/jobs/bulk", this.body(action, before));
        this.found += page.found;
        this.changed += page.changed;
        before = page.next;
      } while (before !== null);
      return true;
    } catch (error) {
      this.error = error instanceof Error ? error.message : String(error);
      return false;
    } finally {
      this.action = undefined;
    }
  }

  stop(): void {
    this.stopped.abort();
  }

  private body(action: Action, before: string | null): Record<string, unknown> {
    const filter: Record<string, unknown> = Object.fromEntries([...this.filter].filter(([name]) => name !== "state"));
    const states = this.filter.getAll("state");
    if (states.length) filter["state"] = states;
    const empty = Object.keys(filter).length === 0;
    return { action, filter, limit: STEP, ...(empty ? { everything: true } : {}), ...(before ? { before } : {}) };
  }
}
