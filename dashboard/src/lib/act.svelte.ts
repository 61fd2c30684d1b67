// What an operator does: one call, a message that says how it ended, and a way back where there is one.

import { post, Refused } from "./api";
import { live } from "./live.svelte";

interface Toast {
  text: string;
  bad: boolean;
  undo?: () => Promise<unknown>;
}

class Toasts {
  shown: Toast | undefined = $state.raw();
  private timer: ReturnType<typeof setTimeout> | undefined;

  say(text: string, undo?: () => Promise<unknown>, bad = false): void {
    clearTimeout(this.timer);
    this.shown = undo ? { text, bad, undo } : { text, bad };
    this.timer = setTimeout(() => this.close(), 8000);
  }

  close(): void {
    this.shown = undefined;
  }
}

export const toasts = new Toasts();

/** Do it, say so unless the text is empty, and read the figures again. Returns whether it worked. */
export async function act(doing: Promise<unknown>, done: string, undo?: () => Promise<unknown>): Promise<boolean> {
  try {
    await doing;
    if (done) toasts.say(done, undo && (() => act(undo(), "Taken back.")));
    return true;
  } catch (error) {
    toasts.say(error instanceof Refused ? error.message : String(error), undefined, true);
    return false;
  } finally {
    void live.refresh();
  }
}

type Kind = "queue" | "task" | "tenant";

const pausing = (kind: Kind, name: string): Promise<unknown> => post("/v1/pauses", { [kind]: name });
const resuming = (kind: Kind, name: string): Promise<unknown> => post("/v1/pauses/resume", { [kind]: name });

export const pause = (kind: Kind, name: string): Promise<boolean> =>
  act(pausing(kind, name), `${name} is paused. Running jobs continue.`, () => resuming(kind, name));

export const resume = (kind: Kind, name: string): Promise<boolean> =>
  act(resuming(kind, name), `${name} goes on.`, () => pausing(kind, name));

export async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    toasts.say("Copied.");
  } catch {
    toasts.say("The browser does not allow this page to copy.", undefined, true);
  }
}
