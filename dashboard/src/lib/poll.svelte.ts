// One answer of the API that a page needs, read again while the page is shown.

import { get } from "./api";
import { live } from "./live.svelte";

/** Reads one answer. `show` shows a part of it meanwhile. */
type Read<T> = (path: string, signal: AbortSignal, show: (part: T) => void) => Promise<T>;

export class Poll<T> {
  data: T | undefined = $state.raw();
  error = $state("");
  private path: () => string | undefined;
  private turn = $state(0);

  /** Must be made while a component is set up. A change of the path reads at once; `every` is in milliseconds. */
  constructor(path: () => string | undefined, every: number, ask: Read<T> = (wanted, signal) => get<T>(wanted, signal)) {
    this.path = path;
    let last: string | undefined;
    $effect(() => {
      const wanted = this.path();
      void this.turn;
      if (wanted !== last) this.data = undefined;
      last = wanted;
      if (wanted === undefined) return;
      const stop = new AbortController();
      let timer: ReturnType<typeof setTimeout>;
      const read = async (): Promise<void> => {
        if (!document.hidden && !live.held) {
          try {
            // Only the first time: later, the answer before it shows more.
            this.data = await ask(wanted, stop.signal, (part) => (this.data ??= part));
            this.error = "";
          } catch (error) {
            if (stop.signal.aborted) return;
            this.error = error instanceof Error ? error.message : String(error);
          }
        }
        timer = setTimeout(() => void read(), every);
      };
      void read();
      return () => {
        stop.abort();
        clearTimeout(timer);
      };
    });
  }

  again(): void {
    this.turn += 1;
  }
}
