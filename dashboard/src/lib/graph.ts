// Draws a workflow: what each node says, and where it is. Layers go from left to right, so that every edge leads to the right.

import type { IconName } from "../parts/Icon.svelte";
import { count, many, short } from "./format";
import { link } from "./route.svelte";
import type { GraphEdge, GraphNode, State, Workflow } from "./types";
import { joined } from "./workflow";

export const WIDTH = 196;
export const HEIGHT = 74;
const BETWEEN = 60;
const GAP = 22;
const BEND = 18;
/** Nodes of a graph whose edges go around the layers between. In a larger one they go straight. */
const ROUTED = 150;
/** Pixels around the drawing. */
export const EDGE = 20;

/** The state of a node in one word. `held` and `suspended` are blocked, and say why. */
export type Word = State | "held" | "suspended" | "filling" | "open" | "signalled" | "not signalled";

export interface Card {
  node: GraphNode;
  title: string;
  word: Word;
  /** The word, or for a group the figure that matters most. */
  says: string;
  /** The class of its colours. */
  tone: State;
  icon: IconName;
  detail: string;
  /** What it waits for, for readers who do not see the edges. */
  after: string;
  href: string | undefined;
  x: number;
  y: number;
}

export interface Curve {
  key: string;
  d: string;
  head: string;
  tone: "done" | "dead" | "waits";
  /** What the second one needs of the first, where that is not that it is done. */
  label: string;
  x: number;
  y: number;
}

export interface Picture {
  cards: Card[];
  curves: Curve[];
  width: number;
  height: number;
  sentence: string;
}

const TONES: Record<Word, State> = {
  scheduled: "scheduled", ready: "ready", running: "running", done: "done", dead: "dead", cancelled: "cancelled", blocked: "blocked",
  held: "dead", suspended: "blocked", filling: "running", open: "running", signalled: "done", "not signalled": "blocked",
};
const ICONS: Record<Word, IconName> = {
  scheduled: "scheduled", ready: "ready", running: "running", done: "done", dead: "dead", cancelled: "cancelled", blocked: "blocked",
  held: "held", suspended: "blocked", filling: "groups", open: "groups", signalled: "done", "not signalled": "event",
};
const NEEDS = { done: "", ended: "when ended", failed: "when failed" };

export function draw(workflow: Workflow, self: string): Picture {
  const { nodes, edges } = simplified(workflow, self);
  const held = holds(nodes, edges);
  const names = new Map(nodes.map((node) => [node.id, titled(node)]));
  const before = (id: string): GraphEdge[] => edges.filter((edge) => edge.to === id);
  const said = (edge: GraphEdge): string => `${names.get(edge.from)}${edge.needs === "ended" || edge.needs === "failed" ? ` has ${edge.needs}` : ""}`;
  const places = laidOut(nodes, edges);
  const cards = nodes.map((node): Card => {
    const word = worded(node, held.has(node.id));
    const after = before(node.id).map(said);
    const [x, y] = places.points.get(node.id)!;
    return { node, title: names.get(node.id)!, word, says: says(node, word), tone: TONES[word], icon: ICONS[word], detail: detailed(node, word, after), after: after.join(", "), href: target(node), x, y };
  });
  cards.sort((one, two) => one.x - two.x || one.y - two.y);
  const words = new Map(cards.map((card) => [card.node.id, card]));
  const curves = edges.map((edge) => curve(edge, words.get(edge.from)!, words.get(edge.to)!, places.bends.get(key(edge)) ?? []));
  return { cards, curves, width: places.width, height: places.height, sentence: sentence(cards) };
}

const key = (edge: GraphEdge): string => `${edge.from} ${edge.to}`;
const isGate = (node: GraphNode): boolean => node.kind === "group" && !node.label;

/**
 * A gate without a label only joins jobs: its members lead to what waits for it. Where the answer has not all of its members, it stays, and
 * stands for those that lead nowhere else.
 */
function simplified(workflow: Workflow, self: string): { nodes: GraphNode[]; edges: GraphEdge[] } {
  let nodes = workflow.nodes;
  let edges = joined(workflow.edges);
  for (const gate of workflow.nodes.filter((node) => isGate(node) && node.id !== self)) {
    const into = edges.filter((edge) => edge.to === gate.id);
    const from = edges.filter((edge) => edge.from === gate.id);
    if (into.length === gate.size) {
      nodes = nodes.filter((node) => node !== gate);
      const through = into.flatMap((member) => from.map((edge) => ({ from: member.from, to: edge.to, needs: edge.needs })));
      edges = joined([...edges.filter((edge) => edge.from !== gate.id && edge.to !== gate.id), ...through]);
    } else {
      const busy = new Set(edges.filter((edge) => edge.to !== gate.id).flatMap((edge) => [edge.from, edge.to]));
      const alone = new Set(into.map((edge) => edge.from).filter((id) => id !== self && !busy.has(id)));
      nodes = nodes.filter((node) => !alone.has(node.id));
      edges = edges.filter((edge) => !alone.has(edge.from));
    }
  }
  return { nodes, edges };
}

/** The blocked jobs that do not run unless a dead job is replayed. */
function holds(nodes: GraphNode[], edges: GraphEdge[]): Set<string> {
  const held = new Set(nodes.filter((node) => node.kind !== "event" && (node.state === "dead" || (node.dead ?? 0) > 0)).map((node) => node.id));
  const dead = new Set(held);
  const blocked = new Set(nodes.filter((node) => node.state === "blocked").map((node) => node.id));
  for (let size = -1; size !== held.size; ) {
    size = held.size;
    for (const edge of edges) if (held.has(edge.from) && blocked.has(edge.to) && edge.needs !== "ended" && edge.needs !== "failed") held.add(edge.to);
  }
  return new Set([...held].filter((id) => !dead.has(id)));
}

function titled(node: GraphNode): string {
  if (node.kind === "job") return node.task ?? "job";
  if (node.kind === "event") return node.label ?? "event";
  return node.label ?? many(node.size ?? 0, "job");
}

function worded(node: GraphNode, held: boolean): Word {
  if (node.kind === "event") return node.state === "ended" ? "signalled" : "not signalled";
  if (node.kind === "group") return node.dead ? "dead" : node.cancelled ? "cancelled" : node.state === "ended" ? "done" : node.state === "filling" ? "filling" : "open";
  if (node.state === "blocked" && node.attempt) return "suspended";
  return held ? "held" : ((node.state ?? "blocked") as State);
}

function says(node: GraphNode, word: Word): string {
  if (node.kind !== "group" || word === "done") return word;
  if (word === "dead" || word === "cancelled") return `${count(node[word] ?? 0)} ${word}`;
  return word === "filling" ? "still filling" : `${count((node.size ?? 0) - (node.done ?? 0))} to go`;
}

function detailed(node: GraphNode, word: Word, after: string[]): string {
  if (node.kind === "group") return `${count(node.done ?? 0)} of ${count(node.size ?? 0)} done`;
  if (node.kind === "event") return "event";
  if ((word === "blocked" || word === "held") && after.length) return after.length > 1 ? `after ${after.length} others` : `after ${after[0]}`;
  return `${short(node.id)}${(node.attempt ?? 0) > 1 ? `, attempt ${node.attempt}` : ""}`;
}

function target(node: GraphNode): string | undefined {
  return node.kind === "event" ? undefined : link(node.kind === "job" ? "jobs" : "groups", node.id);
}

function sentence(cards: Card[]): string {
  const kinds = (["job", "group", "event"] as const).map((kind) => [cards.filter((card) => card.node.kind === kind).length, kind] as const);
  const words = new Map<Word, number>();
  for (const card of cards) if (card.node.kind === "job") words.set(card.word, (words.get(card.word) ?? 0) + 1);
  return `${kinds.filter(([number]) => number).map(([number, kind]) => many(number, kind)).join(", ")}: ${[...words].map(([word, number]) => `${count(number)} ${word}`).join(", ")}`;
}

// ── where ───────────────────────────────────────────────────────────────────

interface Places {
  points: Map<string, [number, number]>;
  /** Where an edge over several layers passes those between. */
  bends: Map<string, [number, number][]>;
  width: number;
  height: number;
}

interface Spot {
  id: string;
  height: number;
  y: number;
}

/** Layers by the longest way, an order within each layer with few crossings, and heights near the neighbours. */
function laidOut(nodes: GraphNode[], edges: GraphEdge[]): Places {
  const layer = layers(nodes, edges);
  const columns: Spot[][] = [];
  const put = (id: string, at: number, height: number): void => void (columns[at] ??= []).push({ id, height, y: 0 });
  for (const node of nodes) put(node.id, layer.get(node.id)!, HEIGHT);
  const links: [string, string][] = [];
  const routed = nodes.length <= ROUTED;
  for (const edge of edges) {
    let from = edge.from;
    for (let at = layer.get(edge.from)! + 1; routed && at < layer.get(edge.to)!; at += 1) {
      put(`${key(edge)} ${at}`, at, BEND);
      links.push([from, (from = `${key(edge)} ${at}`)]);
    }
    links.push([from, edge.to]);
  }
  arrange(columns, links);
  const least = Math.min(...columns.flat().map((spot) => spot.y));
  const spots = new Map(columns.flatMap((column, at) => column.map((spot) => [spot.id, { ...spot, y: spot.y - least + EDGE, at }] as const)));
  const x = (at: number): number => EDGE + at * (WIDTH + BETWEEN);
  const bends = edges.map((edge): [string, [number, number][]] => {
    const [first, last] = [layer.get(edge.from)! + 1, layer.get(edge.to)!];
    const passed = Array.from({ length: routed ? last - first : 0 }, (_, place) => spots.get(`${key(edge)} ${first + place}`)!);
    return [key(edge), passed.map((spot) => [x(spot.at), spot.y + BEND / 2])];
  });
  return {
    points: new Map(nodes.map((node) => [node.id, [x(layer.get(node.id)!), spots.get(node.id)!.y]])),
    bends: new Map(bends),
    width: x(columns.length) - BETWEEN + EDGE,
    height: Math.max(...[...spots.values()].map((spot) => spot.y + spot.height)) + EDGE,
  };
}

function layers(nodes: GraphNode[], edges: GraphEdge[]): Map<string, number> {
  const layer = new Map(nodes.map((node) => [node.id, 0]));
  // A graph has no cycle, so it needs at most as many rounds as it has nodes.
  for (let round = 0, changed = true; changed && round <= nodes.length; round += 1) {
    changed = false;
    for (const edge of edges) {
      if (layer.get(edge.to)! > layer.get(edge.from)!) continue;
      layer.set(edge.to, layer.get(edge.from)! + 1);
      changed = true;
    }
  }
  // What waits for nothing is drawn beside what waits for it.
  for (const node of nodes) {
    if (edges.some((edge) => edge.to === node.id)) continue;
    const next = edges.filter((edge) => edge.from === node.id).map((edge) => layer.get(edge.to)!);
    if (next.length) layer.set(node.id, Math.min(...next) - 1);
  }
  return layer;
}

function arrange(columns: Spot[][], links: [string, string][]): void {
  const spots = new Map(columns.flat().map((spot) => [spot.id, spot]));
  const beside = (side: 0 | 1): Map<string, Spot[]> => {
    const found = new Map<string, Spot[]>();
    for (const pair of links) found.set(pair[side], [...(found.get(pair[side]) ?? []), spots.get(pair[1 - side]!)!]);
    return found;
  };
  const [after, before] = [beside(0), beside(1)];
  for (const column of columns) stack(column, () => undefined);
  for (let sweep = 0; sweep < 6; sweep += 1) {
    const forth = sweep % 2 === 0;
    for (const column of forth ? columns : [...columns].reverse()) {
      const wanted = (spot: Spot): number | undefined => middle((forth ? before : after).get(spot.id));
      column.sort((one, two) => (wanted(one) ?? one.y + one.height / 2) - (wanted(two) ?? two.y + two.height / 2));
      stack(column, wanted);
    }
  }
}

const middle = (spots: Spot[] | undefined): number | undefined => spots && spots.reduce((sum, spot) => sum + spot.y + spot.height / 2, 0) / spots.length;

/** Put the spots of a layer below each other, as near as possible to where each is wanted. */
function stack(column: Spot[], wanted: (spot: Spot) => number | undefined): void {
  const aims = column.map((spot) => (wanted(spot) ?? spot.y + spot.height / 2) - spot.height / 2);
  let least = -Infinity;
  column.forEach((spot, place) => {
    spot.y = Math.max(aims[place]!, least);
    least = spot.y + spot.height + GAP;
  });
  const off = column.reduce((sum, spot, place) => sum + aims[place]! - spot.y, 0) / column.length;
  for (const spot of column) spot.y += off;
}

function curve(edge: GraphEdge, from: Card, to: Card, bends: [number, number][]): Curve {
  const start: [number, number] = [from.x + WIDTH, from.y + HEIGHT / 2];
  const end: [number, number] = [to.x - 1, to.y + HEIGHT / 2];
  let d = `M${start[0]} ${start[1]}`;
  let last = start;
  // An edge passes a layer between as a line as wide as the cards of that layer.
  for (const [x, y] of [...bends, end]) {
    const half = (last[0] + x) / 2;
    d += `C${half} ${last[1]} ${half} ${y} ${x} ${y}`;
    last = x === end[0] && y === end[1] ? end : [x + WIDTH, y];
    if (last !== end) d += `L${last[0]} ${last[1]}`;
  }
  const tone = from.word === "done" || from.word === "signalled" ? "done" : to.word === "held" && from.tone === "dead" ? "dead" : "waits";
  const head = `M${end[0] - 8} ${end[1] - 4.5}L${end[0]} ${end[1]}L${end[0] - 8} ${end[1] + 4.5}Z`;
  return { key: key(edge), d, head, tone, label: edge.needs ? NEEDS[edge.needs] : "", x: start[0] + 8, y: start[1] - 6 };
}
