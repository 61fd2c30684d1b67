// The answers of the /v1 API that the pages read. The OpenAPI document describes every field.

export type State = "scheduled" | "ready" | "running" | "done" | "dead" | "cancelled" | "blocked";

export interface List<T> {
  items: T[];
  next: string | null;
}

export interface Session {
  name: string;
  scopes: string[];
  tenant: string | null;
  queues: string[] | null;
  expires_at: string | null;
}

export interface Queue {
  name: string;
  ready: number;
  scheduled: number;
  blocked: number;
  running: number;
  dead: number;
  done_total: number;
  failed_total: number;
  enqueued_total: number;
  oldest_ready: number | null;
  oldest_at_least: boolean;
  paused: boolean;
  paused_by: string | null;
  paused_since: string | null;
  paused_until: string | null;
  max_length: number | null;
}

export interface QueueDetail extends Queue {
  fair: string | null;
  open_hours: string | null;
  workers: number;
  seconds_to_drain: number | null;
  tenants: { tenant: string; ready: number; oldest: number | null; running: number; share: number | null; weight: number; paused: boolean }[];
  all_tenants: number;
  tasks: { task: string; ready: number; running: number; paused: boolean }[];
  limits: string[];
  whole: boolean;
}

export interface Pause {
  kind: "queue" | "task" | "tenant";
  name: string;
  by: string;
  since: string;
  until: string | null;
}

export interface Worker {
  id: string;
  name: string;
  queues: string[];
  slots: number;
  running: number;
  version: string;
  started_at: string;
  seen_at: string | null;
  tasks: string[];
  hindered: string[];
  memory: number | null;
  order: "quiet" | "drain" | null;
  ordered_by: string | null;
}

export interface Figures {
  concurrency?: number | null;
  rate?: string | number | null;
}

export interface Limit {
  name: string;
  declared: Figures | null;
  override: Figures | null;
  concurrency: number | null;
  rate: number | null;
  burst: number;
  closed_until: string | null;
  half_open: boolean;
}

export interface Holder {
  id: string;
  task: string;
  queue: string;
  tenant: string;
  key: string;
  units: number;
  since: string | null;
  worker: string | null;
}

export interface Decision {
  answer: string;
  slot: string;
  reason: string;
  count: number;
  job: string | null;
}

export interface Schedule {
  name: string;
  cron: string | null;
  every: string | null;
  tz: string;
  task: string;
  queue: string;
  tenant: string;
  declared: boolean;
  paused: boolean;
  paused_by: string;
  next: string | null;
  fired: number;
  skipped: number;
  last_job: string | null;
  recent: Decision[];
}

export interface JobSummary {
  id: string;
  task: string;
  queue: string;
  priority: number;
  tenant: string;
  state: State;
  attempt: number;
  failures: number;
  crashes: number;
  enqueued_at: string;
  run_at: string | null;
  claimed_at: string | null;
  finished_at: string | null;
  worker: string | null;
  cancelling: boolean;
  note: string | null;
  key: string | null;
  enqueued_by: string | null;
}

export interface Failure {
  attempt: number;
  kind: string;
  message: string;
  traceback: string;
  at: string;
  worker: string;
}

export interface Job extends JobSummary {
  limits: string[];
  arguments: Record<string, unknown>;
  options: Record<string, unknown>;
  history: Failure[];
  progress: number | null;
  doing: string | null;
  log: { at: string; text: string }[];
  timeline: { at: string; event: string; detail: string }[];
  result_expired: boolean;
  trace: string | null;
  trace_url: string | null;
  worker_name: string | null;
}

export interface Step {
  name: string;
  number: number;
  at: string;
  value: unknown;
}

export interface Help {
  label: string;
  method: string;
  path: string;
  body: Record<string, string> | null;
  safe: boolean;
  command: string;
}

export interface Explained {
  reason: string;
  sentence: string;
  until: string | null;
  details: Record<string, unknown>;
  help: Help[];
}

/** What hangs together with a job or a group. */
export interface Workflow {
  nodes: GraphNode[];
  edges: GraphEdge[];
  more: boolean;
}

export interface GraphNode {
  id: string;
  kind: "job" | "group" | "event";
  task: string | null;
  attempt: number | null;
  label: string | null;
  state: string | null;
  size: number | null;
  done: number | null;
  dead: number | null;
  cancelled: number | null;
}

export interface GraphEdge {
  from: string;
  to: string;
  /** Null: a member of a group, or a result that is an argument. */
  needs: "done" | "ended" | "failed" | null;
}

/** A group of jobs that are counted together. */
export interface JobGroup {
  id: string;
  label: string;
  tenant: string;
  queue: string;
  sealed: boolean;
  size: number;
  done: number;
  dead: number;
  cancelled: number;
  left: number;
  made_at: string;
  changed_at: string;
}

export interface Change {
  at: string;
  kind: "action" | "deploy" | "failure";
  action: string;
  what: string;
  by: string;
  jobs: number;
  id: string;
}

export interface AuditEntry {
  at: string;
  who: string;
  action: string;
  what: string;
  jobs: number;
}

export interface Token {
  id: string;
  name: string;
  scopes: string[];
  queues: string[] | null;
  tenant: string | null;
  created_at: string;
  expires_at: string | null;
  revoked_at: string | null;
  state: string;
}

export interface Result {
  state: State;
  result: unknown;
  result_expired: boolean;
  result_omitted: boolean;
}

export interface Group {
  fingerprint: string;
  title: string;
  count: number;
  tasks: string[];
  queues: string[];
  first_seen: string;
  last_seen: string;
  sample: string;
  /** Deaths in each of the last 24 hours, the latest last. */
  trend: number[];
}

export interface Groups extends List<Group> {
  looked_at: number;
  more: boolean;
}

export interface Replay {
  id: string;
  by: string;
  what: string;
  group: string | null;
  rate: string | null;
  canary: number | null;
  stage: "canary" | "watch" | "rest" | "ended";
  replayed: number;
  refused: number;
  late: number;
  trial: { tried: number; done: number; dead: number; expired: number; gone: number } | null;
  stopping: boolean;
  stopped: string | null;
  started_at: string;
  ended_at: string | null;
}

export interface Moved {
  changed: number;
  refused: number;
  more: boolean;
  next: string | null;
}

/** Seconds; null: no attempt was measured. */
export interface Percentiles {
  p50: number | null;
  p95: number | null;
  p99: number | null;
}

export interface HistoryPoint {
  at: string;
  name: string;
  count: number;
  ends: Record<string, number>;
  wait: Percentiles;
  run: Percentiles;
}

export interface History extends List<HistoryPoint> {
  /** Seconds. */
  step: number;
}

export interface SlotSeconds {
  busy_seconds: number;
  available_seconds: number;
  utilisation: number | null;
}

/** The part of a report that the page shows. */
export interface WorkReport {
  /** Null: the token may not know of all queues. */
  slots: (SlotSeconds & { steps: (SlotSeconds & { at: string })[] }) | null;
  /** A null name stands for all tenants that are not named, and an empty one for jobs without a tenant. */
  tenants: { tenant: string | null; run_seconds: number; share: number | null }[];
}
