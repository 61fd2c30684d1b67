// Calls of the public /v1 API. The browser adds the session cookie, which this page cannot read.

const base = new URL(".", document.location.href);

export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
  ) {
    super(detail);
  }
}

export function address(path: string): URL {
  return new URL(path.replace(/^\//, ""), base);
}

export async function call<T>(method: string, path: string, body?: unknown, signal?: AbortSignal, headers: Record<string, string> = {}): Promise<T> {
  const request: RequestInit = { method, headers, cache: "no-store" };
  if (signal) request.signal = signal;
  if (body !== undefined) {
    request.headers = { ...headers, "Content-Type": "application/json" };
    request.body = JSON.stringify(body);
  }
  let answer: Response;
  try {
    answer = await fetch(address(path), request);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, "away", "the server does not answer");
  }
  if (answer.status === 204) return undefined as T;
  const text = await answer.text();
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Refused(answer.status, "unreadable", `the answer is not JSON (status ${answer.status})`);
  }
  if (!answer.ok) {
    const problem = value as { code?: string; detail?: string };
    throw new Refused(answer.status, problem.code ?? "unknown", problem.detail ?? `status ${answer.status}`);
  }
  return value as T;
}

export const get = <T>(path: string, signal?: AbortSignal): Promise<T> => call<T>("GET", path, undefined, signal);
export const post = <T>(path: string, body: unknown = {}): Promise<T> => call<T>("POST", path, body);

/** Follow a stream of server-sent events until the signal ends it. Unlike EventSource, fetch does not begin again by itself. */
export async function follow(path: string, heard: (name: string, data: string) => void, signal: AbortSignal): Promise<void> {
  const answer = await fetch(address(path), { signal, cache: "no-store" });
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
      if (name) heard(name, /^data: (.*)$/m.exec(part)?.[1] ?? "");
    }
  }
}
