// The caller of this page: what its token may do and see. Buttons and pages that it may not use do not exist.

import { call, get } from "./api";
import type { Session } from "./types";

class Caller {
  shown: Session | undefined = $state.raw();

  /** The scope `admin` includes all others. */
  may(scope: "read" | "operate" | "admin"): boolean {
    const scopes = this.shown?.scopes ?? [];
    return scopes.includes(scope) || scopes.includes("admin");
  }

  /** A tenant sees its own jobs; what several tenants share is not shown to it. */
  get tenant(): string | null {
    return this.shown?.tenant ?? null;
  }

  get bound(): boolean {
    return this.tenant !== null || (this.shown?.queues ?? null) !== null;
  }

  /** Whether the caller may pause and resume it: a paused queue concerns all its tenants, a paused tenant all its queues. */
  mayPause(kind: "queue" | "task" | "tenant"): boolean {
    if (!this.may("operate")) return false;
    if (kind === "queue") return this.tenant === null;
    if (kind === "tenant") return (this.shown?.queues ?? null) === null;
    return !this.bound;
  }

  /** Whether there is a session to sign out of: not with a server that asks for no token. */
  get signedIn(): boolean {
    return (this.shown?.expires_at ?? null) !== null;
  }

  async read(): Promise<void> {
    this.shown = await get<Session>("/v1/session");
  }

  /** Exchange a token for the session cookie. The page does not keep the token. */
  async signIn(token: string): Promise<void> {
    this.shown = await call<Session>("POST", "/v1/session", undefined, undefined, { Authorization: `Bearer ${token.trim()}` });
  }

  async signOut(): Promise<void> {
    await call("DELETE", "/v1/session");
    this.shown = undefined;
  }
}

export const caller = new Caller();
