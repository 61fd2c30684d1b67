// A worker in plain JavaScript: node examples/worker.mjs http://127.0.0.1:8200 images
// HEADRACE_TOKEN, if it is set, is a token with the scope `work`.
const [base = "http://127.0.0.1:8200", queue = "foreign"] = process.argv.slice(2);
const token = process.env.HEADRACE_TOKEN;
const headers = { "content-type": "application/json", ...(token && { authorization: `Bearer ${token}` }) };
const LEASE = 30; // seconds without a heartbeat after which another worker may get the jobs

const tasks = {
  "image.resize": async ([width, height], _, job) => {
    await job.progress(0.5, "resizing");
    return { pixels: width * height };
  },
  "text.count": async ([text]) => text.split(/\s+/).filter(Boolean).length,
};

async function call(path, body) {
  const answer = await fetch(`${base}/v1/${path}`, { method: "POST", headers, body: JSON.stringify(body) });
  if (answer.status === 204) return null;
  const found = await answer.json();
  if (!answer.ok && found.code !== "lease_lost") throw new Error(`${path}: ${found.detail}`);
  return found;
}

async function run(lease, job) {
  const named = { position: job.position, id: job.id };
  if (!Object.hasOwn(tasks, job.task)) return { ...named, outcome: "snoozed", after: "1m", note: `this worker does not know ${job.task}` };
  const progress = (progress, note) => call("progress", { lease, position: job.position, progress, note });
  try {
    return { ...named, outcome: "succeeded", result: await tasks[job.task](job.args, job.kwargs, { ...job, progress }) };
  } catch (error) {
    return { ...named, outcome: "failed", kind: error.name, message: error.message, traceback: error.stack };
  }
}

async function work({ lease, jobs }) {
  const beat = setInterval(() => call("heartbeat", { leases: [lease], lease: LEASE }).catch(console.error), LEASE * 333);
  try {
    const settlements = await Promise.all(jobs.map((job) => run(lease, job)));
    const answer = await call("settle", { lease, settlements });
    for (const each of answer.settlements ?? []) console.log(`${each.id} ${each.state}`);
  } finally {
    clearInterval(beat);
  }
}

let stopping = false;
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => (stopping = true));
console.log(`working on ${queue} at ${base}`);
while (!stopping) {
  try {
    const ask = { queues: [queue], limit: 10, wait: 2, lease: LEASE, worker: `node:${process.pid}` };
    const claimed = await call("claim", { ...ask, tasks: Object.keys(tasks) });
    if (claimed) await work(claimed);
  } catch (error) {
    console.error(error.message);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
