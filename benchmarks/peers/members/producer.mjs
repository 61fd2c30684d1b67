// The orders of producer.py, for producers in JavaScript.
import { createInterface } from 'node:readline'
import { openSync, writeSync } from 'node:fs'

const SMALL = 100
const now = () => process.hrtime.bigint()
const text = (order) => `${now()}:${order.number}:`.padEnd(order.size ?? SMALL, 'x')
const answer = (said) => process.stdout.write(JSON.stringify(said) + '\n')
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

export async function serve(enqueue, bulk) {
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
      await bulk(Array.from({ length: order.count }, () => text(order)))
      answer({})
    }
  }
}

let pipe
export function body(said) {
  const [began, order] = said.split(':', 2)
  const age = now() - BigInt(began)
  pipe ??= openSync(process.env.PEERS_PIPE, 'w')
  writeSync(pipe, `${order} ${age}\n`)
}
