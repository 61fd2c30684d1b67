// Calls of the public /v1 API. The token stays in the memory of this page: a reload asks for it again.

const base = new URL(".", document.location.href);
let token = "";

export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
  ) {
    super(detail);
  }
}

export function signIn(given: string): void {
  token = given.trim();
}

export function headers(): Record<string, string> {
  return token ? { Authorization: `Bearer ${token}` } : {};
}

export function address(path: string): URL {
  return new URL(path.replace(/^\//, ""), base);
}

export async function call<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const given: RequestInit = { method, headers: headers(), cache: "no-store" };
  if (signal) given.signal = signal;
  if (body !== undefined) {
    given.headers = { ...headers(), "Content-Type": "application/json" };
    given.body = JSON.stringify(body);
  }
  let answer: Response;
  try {
    answer = await fetch(address(path), given);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, "away", "the server does not answer");
  }
  if (answer.status === 204) return undefined as T;
  const text = await answer.text();
  let found: unknown;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Refused(answer.status, "unreadable", `the answer is not JSON (status ${answer.status})`);
  }
  if (!answer.ok) {
    const problem = found as { code?: string; detail?: string };
    throw new Refused(answer.status, problem.code ?? "unknown", problem.detail ?? `status ${answer.status}`);
  }
  return found as T;
}

export const get = <T>(path: string, signal?: AbortSignal): Promise<T> => call<T>("GET", path, undefined, signal);
export const post = <T>(path: string, body: unknown = {}): Promise<T> => call<T>("POST", path, body);

/** Follow a stream of server-sent events until the signal ends it. EventSource cannot send a token, so fetch reads it. */
export async function follow(path: string, heard: (name: string) => void, signal: AbortSignal): Promise<void> {
  const answer = await fetch(address(path), { headers: headers(), signal, cache: "no-store" });
  if (!answer.ok || answer.status === 204 || !answer.body) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop() ?? "";
    for (const part of parts) {
      const name = /^event: (.*)$/m.exec(part)?.[1];
      if (name) heard(name);
    }
  }
}
