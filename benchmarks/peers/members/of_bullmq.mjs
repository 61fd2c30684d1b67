// BullMQ: `work` or `produce`. Ended jobs are removed, as its documentation advises for busy queues.
import { createRequire } from 'node:module'
import { body, serve } from './producer.mjs'

const { Queue, Worker } = createRequire(process.env.PEERS_MODULES + '/')('bullmq')
const place = new URL(process.env.PEERS_URL)
const connection = {
  host: place.hostname,
  port: Number(place.port),
  password: decodeURIComponent(place.password),
  db: Number(place.pathname.slice(1)),
  maxRetriesPerRequest: null,
}

if (process.argv[2] === 'work') {
  const worker = new Worker('peers', async (job) => body(job.data), { connection, concurrency: 100 })
  process.on('SIGTERM', async () => {
    await worker.close()
    process.exit(0)
  })
} else {
  const queue = new Queue('peers', { connection, defaultJobOptions: { removeOnComplete: true } })
  await serve(
    (text) => queue.add('job', text),
    (texts) => queue.addBulk(texts.map((data) => ({ name: 'job', data }))),
  )
  await queue.close()
}
