// BullMQ: `work`, `produce` or `once`. Ended jobs are removed, as its documentation advises for busy queues.
import { createRequire } from 'node:module'
import { body, failOnce, once, serve } from './producer.mjs'

const { Queue, Worker } = createRequire(process.env.PEERS_MODULES + '/')('bullmq')
const place = new URL(process.env.PEERS_URL)
const connection = {
  host: place.hostname,
  port: Number(place.port),
  password: decodeURIComponent(place.password),
  db: Number(place.pathname.slice(1)),
  maxRetriesPerRequest: null,
}
const bodies = { job: body, failing: failOnce }

if (process.argv[2] === 'work') {
  const worker = new Worker('peers', async (job) => bodies[job.name](job.data), { connection, concurrency: 100 })
  process.on('SIGTERM', async () => {
    await worker.close()
    process.exit(0)
  })
} else {
  const queue = new Queue('peers', { connection, defaultJobOptions: { removeOnComplete: true, attempts: 2 } })
  const enqueue = (text) => queue.add('job', text)
  const bulk = (name) => (texts) => queue.addBulk(texts.map((data) => ({ name, data })))
  if (process.argv[2] === 'once') await once(enqueue, process.argv.slice(3))
  else await serve(enqueue, bulk('job'), bulk('failing'))
  await queue.close()
}
