// A worker whose task has steps and waits for a person: node examples/payout.mjs http://127.0.0.1:8200 payouts
// HEADRACE_TOKEN, if it is set, is a token with the scope `work`.
const [base = "http://127.0.0.1:8200", queue = "foreign"] = process.argv.slice(2);
const token = process.env.HEADRACE_TOKEN;
const headers = { "content-type": "application/json", ...(token && { authorization: `Bearer ${token}` }) };

async function call(method, path, body) {
  const answer = await fetch(`${base}/v1/${path}`, { method, headers, body: body && JSON.stringify(body) });
  if (answer.status === 204 || answer.status === 404) return null;
  const found = await answer.json();
  if (!answer.ok) throw new Error(`${path}: ${found.detail}`);
  return found;
}

class Suspended extends Error {
  constructor(events) {
    super("the task waits");
    this.events = events;
  }
}

// What a task gets: `step` runs a function once for the job, and `event` waits for a value without a worker.
function context(lease, job) {
  const journal = new Map(job.steps.map((step) => [`${step.name} ${step.number}`, step.value]));
  const step = async (name, work) => {
    if (journal.has(`${name} 0`)) return journal.get(`${name} 0`);
    const value = await work();
    await call("POST", "steps", { lease, position: job.position, id: job.id, name, value });
    return value;
  };
  const event = (name, key) =>
    step(`event ${name}[${key}]`, async () => {
      const tenant = job.tenant && `?tenant=${encodeURIComponent(job.tenant)}`;
      const found = await call("GET", `events/${name}/${encodeURIComponent(key)}${tenant}`);
      if (!found?.signalled) throw new Suspended([{ name, key: String(key) }]);
      return found.value;
    });
  return { step, event };
}

async function payout([order], { step, event }) {
  await step("ask", () => console.log(`please decide about ${order}`));
  const answer = await event("payout.approved", order);
  if (!answer.ok) return `refused by ${answer.by}`;
  return await step("transfer", () => `order ${order} is paid, approved by ${answer.by}`);
}

async function run(lease, job) {
  const named = { position: job.position, id: job.id };
  try {
    return { ...named, outcome: "succeeded", result: await payout(job.args, context(lease, job)) };
  } catch (error) {
    if (error instanceof Suspended) return { ...named, outcome: "suspended", events: error.events };
    return { ...named, outcome: "failed", kind: error.name, message: error.message, traceback: error.stack };
  }
}

let stopping = false;
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => (stopping = true));
console.log(`working on ${queue} at ${base}`);
while (!stopping) {
  try {
    const claimed = await call("POST", "claim", { queues: [queue], wait: 2, steps: true, worker: `node:${process.pid}` });
    for (const job of claimed?.jobs ?? []) {
      const answer = await call("POST", "settle", { lease: claimed.lease, settlements: [await run(claimed.lease, job)] });
      console.log(`${job.id} ${answer.settlements[0].state}`);
    }
  } catch (error) {
    console.error(error.message);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
