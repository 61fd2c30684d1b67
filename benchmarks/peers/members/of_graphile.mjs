// graphile-worker: `work` or `produce`. The worker fetches and completes jobs in batches, its fastest way.
import { createRequire } from 'node:module'
import { body, serve } from './producer.mjs'

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
  await utils.migrate()
  await serve(
    (text) => utils.addJob('job', { text }),
    (texts) => utils.addJobs(texts.map((text) => ({ identifier: 'job', payload: { text } }))),
  )
  await utils.release()
}
