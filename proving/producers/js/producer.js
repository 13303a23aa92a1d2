// The client kafkajs under the contract of proving/producers.
const fs = require('node:fs')
const { setTimeout: sleep } = require('node:timers/promises')
const { parseArgs } = require('node:util')
const { CompressionCodecs, CompressionTypes, Kafka } = require('kafkajs')

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy }
// The most records of one call, because the client makes a request of each; and the most calls under way.
const TOGETHER = 500
const UNDER_WAY = 20

const names = [
  'bootstrap', 'topic', 'client-id', 'first', 'count', 'rate', 'codec', 'password', 'ca', 'value-bytes', 'key', 'lines',
]
const { values: given } = parseArgs({ options: Object.fromEntries(names.map((name) => [name, { type: 'string' }])) })
const [first, count] = [Number(given.first), Number(given.count)]
const rate = Number(given.rate ?? 0)
const key = (given.key ?? given['client-id']) || null
const say = (line) => process.stdout.write(`${line}\n`)

async function send (producer, numbers) {
  const messages = numbers.map((n) => ({ key, value: String(n).padStart(Number(given['value-bytes'] ?? 0), '0') }))
  try {
    await producer.send({ topic: given.topic, compression: CODECS[given.codec], messages })
    if (given.lines !== 'failed') numbers.forEach((n) => say(`acked ${n}`))
  } catch (error) {
    numbers.forEach((n) => say(`failed ${n} ${error.message.replace(/\s+/g, ' ')}`))
  }
}

async function main () {
  const kafka = new Kafka({
    brokers: [given.bootstrap],
    clientId: given['client-id'],
    ...(given.ca && { ssl: { ca: [fs.readFileSync(given.ca, 'utf-8')] } }),
    ...(given.password && { sasl: { mechanism: 'plain', username: given['client-id'], password: given.password } }),
  })
  const producer = kafka.producer()
  await producer.connect()
  const underWay = new Set()
  const begun = performance.now()
  for (let sent = 0; sent < count;) {
    const due = rate ? Math.floor((performance.now() - begun) / 1000 * rate) + 1 - sent : TOGETHER
    if (due <= 0) {
      await sleep(1000 * (sent / rate) - (performance.now() - begun))
      continue
    }
    const size = Math.min(due, TOGETHER, count - sent)
    const call = send(producer, Array.from({ length: size }, (_, index) => first + sent + index))
    underWay.add(call)
    call.then(() => underWay.delete(call))
    sent += size
    if (underWay.size >= UNDER_WAY) await Promise.race(underWay)
  }
  await Promise.all(underWay)
  await producer.disconnect()
  say('end')
}

main()
