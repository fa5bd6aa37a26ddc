// nsqjs as a process of its own, in the shape that clients.py describes.
'use strict'

const fs = require('fs')
const nsq = require('nsqjs')

const spec = JSON.parse(process.argv[2])

const say = (what) => process.stdout.write(JSON.stringify(what) + '\n')

const fail = (error) => {
  say({ error: String(error.message || error) })
  process.exit(1)
}

const settings = () => {
  const given = { outputBufferTimeout: 25 }
  if (spec.snappy) given.snappy = true
  if (spec.deflate) given.deflate = true
  if (spec.auth) given.authSecret = spec.auth
  if (spec.msg_timeout_ms) given.messageTimeout = spec.msg_timeout_ms
  if (spec.tls_ca) Object.assign(given, { tls: true, ca: fs.readFileSync(spec.tls_ca) })
  return given
}

const publish = () => {
  const [host, port] = spec.nsqd.split(':')
  const writer = new nsq.Writer(host, Number(port), settings())
  writer.on('error', fail)
  writer.on('ready', () => {
    const done = (error) => {
      if (error) fail(error)
      say({ published: spec.bodies.length })
      process.exit(0)
    }
    // Each waits for the answer to the one before, as with the other clients.
    const next = (index) => (error) => {
      if (error || index === spec.bodies.length) return done(error)
      const body = spec.bodies[index]
      if (spec.how === 'defer') writer.deferPublish(spec.topic, [body], spec.defer_ms, next(index + 1))
      else writer.publish(spec.topic, body, next(index + 1))
    }
    if (spec.how === 'batch') writer.publish(spec.topic, spec.bodies, done)
    else next(0)()
  })
  writer.connect()
}

const consume = () => {
  const where = spec.lookup
    ? { lookupdHTTPAddresses: [spec.lookup], lookupdPollInterval: 1 }
    : { nsqdTCPAddresses: [spec.nsqd] }
  const reader = new nsq.Reader(spec.topic, spec.channel, {
    maxInFlight: spec.in_flight || 1,
    maxBackoffDuration: 1,
    ...where,
    ...settings(),
  })
  let left = spec.count || Infinity
  const finish = (message) => {
    message.finish()
    left -= 1
    if (left === 0) {
      // What was written must leave first.
      setTimeout(() => process.exit(0), 200)
    }
  }
  reader.on('error', fail)
  reader.on('message', (message) => {
    say({
      body: message.body.toString(),
      attempts: message.attempts,
      timestamp: Number(message.timestamp),
      id: message.id.toString(),
      at: Date.now(),
    })
    const first = message.attempts === 1 && spec.first ? spec.first : 'finish'
    if (first === 'requeue') message.requeue(spec.delay_ms, false)
    else if (first === 'fail') message.requeue(spec.delay_ms)
    else if (first === 'touch') {
      let times = 0
      const timer = setInterval(() => {
        times += 1
        message.touch()
        if (times === 8) {
          clearInterval(timer)
          finish(message)
        }
      }, spec.hold_ms / 8)
    } else if (first === 'finish') finish(message)
  })
  reader.connect()
}

if (spec.do === 'publish') publish()
else consume()
