// The orders of producer.py, for producers in JavaScript, and the bodies of body.py.
import { createInterface } from 'node:readline'
import { openSync, writeSync } from 'node:fs'
import { randomBytes } from 'node:crypto'

const SMALL = 100
const CALL = 1000
const LONG = 60000
const HEAD = 80
const now = () => process.hrtime.bigint()
const answer = (said) => process.stdout.write(JSON.stringify(said) + '\n')
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

const digits = {}
function text(order, number = 0) {
  const size = order.size ?? SMALL
  digits[size] ??= randomBytes(size / 2).toString('hex')
  const head = `${now()}:${order.number}:${order.every ?? 1}:${number}:`
  return head + digits[size].slice(0, size - head.length)
}

export async function serve(enqueue, bulk, failing) {
  answer({ ready: true })
  for await (const line of createInterface({ input: process.stdin })) {
    const order = JSON.parse(line)
    if (order.do === 'single') {
      const ms = []
      for (let n = 0; n < order.count; n++) {
        const said = text(order)
        const began = now()
        await enqueue(said)
        ms.push(Number(now() - began) / 1e6)
      }
      answer({ ms })
    } else if (order.do === 'paced') {
      const began = performance.now()
      let due = 0
      for (const gap of order.gaps) {
        due += 1000 * gap
        // A timer of Node.js counts whole milliseconds and is late by up to one.
        const left = began + due - performance.now()
        if (left > 0) await pause(left)
        await enqueue(text(order))
      }
      answer({})
    } else {
      const texts = Array.from({ length: order.count }, (_, number) => text(order, number))
      const act = order.fails ? failing : bulk
      const began = now()
      for (let first = 0; first < texts.length; first += CALL) await act(texts.slice(first, first + CALL))
      answer({ s: Number(now() - began) / 1e9 })
    }
  }
}

// A script that enqueues one job and ends. `words`: the number of the order, and whether to go on until it is interrupted.
export async function once(enqueue, words) {
  const said = text({ number: Number(words[0]) })
  await enqueue(said)
  // The numbers are too long for a number of JavaScript.
  process.stdout.write(`{"began": ${said.split(':', 1)[0]}, "answered": ${now()}}\n`)
  if (words[1]) await pause(LONG)
}

let pipe
const counts = {}
export function body(said) {
  const [began, order, every] = said.slice(0, HEAD).split(':', 3)
  const age = now() - BigInt(began)
  counts[order] = (counts[order] ?? 0) + 1
  if (counts[order] % Number(every)) return
  pipe ??= openSync(process.env.PEERS_PIPE, 'w')
  writeSync(pipe, `${order} ${age}\n`)
}

const failed = new Set()
export function failOnce(said) {
  const [, order, , number] = said.slice(0, HEAD).split(':', 4)
  const job = `${order}:${number}`
  if (!failed.has(job)) {
    failed.add(job)
    throw new Error('this job fails once')
  }
  body(said)
}
