// One answer of the API that a page needs, read again while the page is shown.

import { get } from "./api";
import { live } from "./live.svelte";

export class Poll<T> {
  data: T | undefined = $state.raw();
  error = $state("");
  private path: () => string | undefined;
  private turn = $state(0);

  /** Must be made while a component is set up. A change of the path reads at once; `every` is in milliseconds. */
  constructor(path: () => string | undefined, every: number) {
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
            this.data = await get<T>(wanted, stop.signal);
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
