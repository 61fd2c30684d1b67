// Reads the graph around a job or a group, and replays what holds a job.

import { call, get, post, Refused } from "./api";
import type { Explained, GraphEdge, GraphNode, Help, JobSummary, Workflow } from "./types";

/** Calls that look for nodes which an answer has no more. */
const LOOKS = 8;
/** Dead jobs without a group, and groups, that one press of a button replays. */
const MOST = 100;
/** Dead jobs of one group that one press of a button replays. */
const AT_ONCE = 1000;

type Read = (path: string, signal: AbortSignal) => Promise<Workflow>;

const at = (node: GraphNode): string => `/v1/${node.kind}s/${encodeURIComponent(node.id)}/workflow`;

/**
 * Reads a graph, and remembers what it had while this page is shown: the store knows what a job waits for, but forgets it when the job
 * becomes ready, so a later answer may have fewer nodes and edges.
 */
export function remembering(): Read {
  let of = "";
  let before: Workflow | undefined;
  return async (path, signal) => {
    if (path !== of) before = undefined;
    const now = await get<Workflow>(path, signal);
    const whole = before ? await completed(before, now, signal) : now;
    [of, before] = [path, whole];
    return whole;
  };
}

async function completed(before: Workflow, now: Workflow, signal: AbortSignal): Promise<Workflow> {
  const nodes = new Map(now.nodes.map((node) => [node.id, node]));
  let edges = [...before.edges, ...now.edges];
  const gone = new Set<string>();
  for (let looks = 0; looks < LOOKS; looks += 1) {
    // The last one is the farthest, so its graph probably has the others.
    const missing = before.nodes.filter((node) => node.kind !== "event" && !nodes.has(node.id) && !gone.has(node.id)).at(-1);
    if (!missing) break;
    try {
      const more = await get<Workflow>(at(missing), signal);
      for (const node of more.nodes) if (!nodes.has(node.id)) nodes.set(node.id, node);
      edges = [...edges, ...more.edges];
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) throw error;
    }
    gone.add(missing.id);
  }
  return { nodes: [...nodes.values()], edges: joined(edges.filter((edge) => nodes.has(edge.from) && nodes.has(edge.to))), more: now.more };
}

/** One edge for each pair. What the second one needs is known of edges that wait, not of results that are arguments. */
export function joined(edges: GraphEdge[]): GraphEdge[] {
  const pairs = new Map<string, GraphEdge>();
  for (const edge of edges) {
    const pair = `${edge.from} ${edge.to}`;
    if (!pairs.get(pair)?.needs) pairs.set(pair, edge);
  }
  return [...pairs.values()];
}

/** The group whose dead jobs hold this one. */
export function holdingGroup(why: Explained | undefined): string | undefined {
  const id = why?.details["held_by_group"];
  return typeof id === "string" ? id : undefined;
}

/** The call that replays the dead job which holds this one. Undefined: none is known, or this caller may not. */
export function holding(why: Explained | undefined): Help | undefined {
  const id = why?.details["held_by"];
  return typeof id === "string" ? why?.help.find((help) => help.path === `/v1/jobs/${id}/retry`) : undefined;
}

/** Replay dead jobs, and those of dead groups, until none holds this job. Returns how many were replayed. */
export async function replayHolding(path: string): Promise<number> {
  let replayed = 0;
  // What has died again since then stays dead.
  const tried = new Set<string>();
  while (tried.size < MOST) {
    const why = await get<Explained>(`${path}/explain`);
    const [group, help] = [holdingGroup(why), holding(why)];
    const holds = group ?? help?.path;
    if (holds === undefined || tried.has(holds)) break;
    tried.add(holds);
    if (group) replayed += await replayGroup(`/v1/groups/${group}`);
    else if (help) replayed += await call(help.method, help.path, help.body ?? undefined).then(() => 1);
  }
  return replayed;
}

/** Replay the dead jobs of a group. Returns how many were made ready. */
export async function replayGroup(path: string): Promise<number> {
  const ids: string[] = [];
  let offset: number | null = 0;
  while (offset !== null && ids.length < AT_ONCE) {
    const page: { items: JobSummary[]; next: number | null } = await get(`${path}/jobs?state=dead&limit=500&offset=${offset}`);
    ids.push(...page.items.map((job) => job.id));
    offset = page.next;
  }
  return ids.length ? (await post<{ changed: number }>("/v1/jobs/bulk", { action: "retry", ids: ids.slice(0, AT_ONCE) })).changed : 0;
}
