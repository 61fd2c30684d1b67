// The page and its filters live in the fragment of the address, so that every view is a link, also under a prefix.

export class Route {
  parts: string[] = $state([]);
  query = $state(new URLSearchParams());

  constructor() {
    this.read();
    addEventListener("hashchange", () => this.read());
  }

  get page(): string {
    return this.parts[0] ?? "overview";
  }

  private read(): void {
    const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
    this.parts = path.split("/").filter(Boolean).map(decoded);
    this.query = new URLSearchParams(query);
  }
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = new Route();

export function link(page: string, id?: string, query?: Record<string, string | string[]>): string {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    for (const each of Array.isArray(value) ? value : [value]) if (each) given.append(name, each);
  }
  const text = given.toString();
  return `#/${page}${id === undefined ? "" : `/${encodeURIComponent(id)}`}${text ? `?${text}` : ""}`;
}

/** A link to the page that is shown, with some of its filters changed. An empty text removes a filter. */
export function changed(filters: Record<string, string>): string {
  return link(route.page, route.parts[1], { ...Object.fromEntries(route.query), ...filters });
}

export function go(to: string): void {
  location.hash = to;
}
