// graphile-worker: `work`, `produce` or `once`. The worker fetches and completes jobs in batches, its fastest way. It cannot
// retry a job at once, so it has no jobs that fail.
import { createRequire } from 'node:module'
import { body, once, serve } from './producer.mjs'

const load = createRequire(process.env.PEERS_MODULES + '/')
const { makeWorkerUtils, run, Logger } = load('graphile-worker')
const connectionString = process.env.PEERS_URL
const logger = new Logger(() => () => {})

if (process.argv[2] === 'work') {
  const runner = await run({
    connectionString,
    concurrency: 24,
    logger,
    taskList: { job: async (payload) => body(payload.text) },
    preset: { worker: { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } },
  })
  await runner.promise
} else {
  const utils = await makeWorkerUtils({ connectionString, logger })
  const enqueue = (text) => utils.addJob('job', { text })
  if (process.argv[2] === 'once') await once(enqueue, process.argv.slice(3))
  else {
    await utils.migrate()
    await serve(enqueue, (texts) => utils.addJobs(texts.map((text) => ({ identifier: 'job', payload: { text } }))))
  }
  await utils.release()
}
