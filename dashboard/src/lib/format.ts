// Numbers and times, as the command line writes them.

export const count = (value: number): string => Math.round(value).toLocaleString("en-US");

export const many = (value: number, one: string, more = `${one}s`): string => `${count(value)} ${value === 1 ? one : more}`;

/** Whole megabytes, as the command line writes them. */
export const bytes = (value: number): string => `${count(value / 1048576)} MB`;

export function rate(value: number): string {
  if (value === 0) return "0";
  return value < 10 ? value.toFixed(1) : count(value);
}

const UNITS: [string, number][] = [
  ["d", 86400],
  ["h", 3600],
  ["m", 60],
  ["s", 1],
];

/** `14m 32s`, `2d 4h`, `8.2s`, `600ms`. */
export function duration(seconds: number): string {
  if (seconds < 0) return duration(-seconds);
  if (seconds < 1) return `${Math.round(seconds * 1000)}ms`;
  if (seconds < 10) return `${(Math.floor(seconds * 10) / 10).toString()}s`;
  let rest = Math.floor(seconds);
  const parts: string[] = [];
  for (const [unit, size] of UNITS) {
    const whole = Math.floor(rest / size);
    rest -= whole * size;
    if (whole || parts.length) parts.push(`${whole}${unit}`);
    if (parts.length === 2) break;
  }
  return parts.filter((part, place) => place === 0 || !part.startsWith("0")).join(" ");
}

const SMALL: [string, number][] = [
  ["µs", 1e-6],
  ["ms", 1e-3],
  ["s", 1],
];

/** A measured time with three figures, `83.7 ms`; a dash if nothing was measured. */
export function measured(seconds: number | null): string {
  if (seconds === null) return "–";
  if (seconds === 0) return "0 s";
  const [unit, size] = SMALL.find(([, size]) => seconds < 1000 * size) ?? ["s", 1];
  const value = seconds / size;
  return `${value < 1000 ? Number(value.toPrecision(3)) : Math.round(value)} ${unit}`;
}

/** `0 %`, `2.5 %`, `40 %`; a dash if there is nothing to divide. */
export function percent(share: number | null): string {
  if (share === null) return "–";
  const value = 100 * share;
  return `${value === 0 || value >= 10 ? Math.round(value) : value < 0.1 ? "< 0.1" : value.toFixed(1)} %`;
}

export const clock = (at: Date): string => at.toISOString().slice(11, 19);

export const exact = (at: string): string => `${new Date(at).toISOString().slice(0, 19).replace("T", " ")} UTC`;

/** The end of an id: the beginning of a UUIDv7 is its time, which neighbours share. */
export const short = (id: string): string => `…${id.slice(-8)}`;

export const json = (value: unknown): string => JSON.stringify(value, null, 2) ?? "null";

/** The command that a sentence of the server names. */
export function command(sentence: string): string | undefined {
  return /headrace (?:[^;:,.]|[:,.](?=\S))+/.exec(sentence)?.[0].trim();
}
