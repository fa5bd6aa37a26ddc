// kafkajs as a process of its own, in the shape that clients.py describes.
const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require('kafkajs')

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')

const codecs = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy }
const say = (what) => console.log(JSON.stringify(what))
const text = (bytes) => (bytes === null ? null : bytes.toString())

async function produce(kafka, s) {
  const careful = Boolean(s.idempotent || s.transactional_id)
  const producer = kafka.producer({ idempotent: careful, transactionalId: s.transactional_id, maxInFlightRequests: 1 })
  await producer.connect()
  const to = s.transactional_id ? await producer.transaction() : producer
  const messages = s.messages.map((each) => ({ ...each, value: each.value && each.value.repeat(s.times ?? 1) }))
  await to.send({ topic: s.topic, acks: s.acks ?? -1, compression: codecs[s.compression ?? 'none'], messages })
  if (s.transactional_id) await (s.abort ? to.abort() : to.commit())
  await producer.disconnect()
  say({ produced: s.messages.length })
}

async function consume(kafka, s) {
  const consumer = kafka.consumer({
    groupId: s.group,
    readUncommitted: !s.committed,
    heartbeatInterval: 200,
    maxWaitTimeInMs: 200,
    maxBytesPerPartition: 8 << 20,
  })
  const stopped = new Promise((resolve) => process.once('SIGTERM', resolve))
  let left = s.count
  await consumer.connect()
  await consumer.subscribe({ topics: [s.pattern ? new RegExp(s.topic) : s.topic], fromBeginning: true })
  await new Promise((resolve, reject) => {
    stopped.then(resolve)
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    const eachMessage = async ({ topic, partition, message }) => {
      if (left === 0) return
      const headers = Object.fromEntries(Object.entries(message.headers).map(([name, value]) => [name, text(value)]))
      const { offset, key, value } = message
      say({ key: text(key), value: text(value), headers, partition, offset: Number(offset) })
      await consumer.commitOffsets([{ topic, partition, offset: String(Number(offset) + 1) }])
      left -= 1
      if (left === 0) resolve()
    }
    consumer.run({ autoCommit: false, eachMessage }).catch(reject)
  })
  await consumer.disconnect()
}

async function administer(kafka, s) {
  const admin = kafka.admin()
  await admin.connect()
  const configEntries = [{ name: 'retention.ms', value: '86400000' }]
  await admin.createTopics({ topics: [{ topic: s.topic, numPartitions: 2, configEntries }] })
  const asked = [{ type: ConfigResourceTypes.TOPIC, name: s.topic, configNames: ['retention.ms'] }]
  const described = await admin.describeConfigs({ resources: asked })
  const said = { retention: described.resources[0].configEntries[0].configValue }
  const first = Date.now() - 3_600_000
  const producer = kafka.producer()
  await producer.connect()
  for (let i = 0; i < 10; i += 1) {
    const message = { value: 'x', partition: 0, timestamp: String(first + i * 60_000) }
    await producer.send({ topic: s.topic, messages: [message] })
  }
  await producer.disconnect()
  const zero = (offsets) => offsets.find(({ partition }) => partition === 0)
  said.by_time = Number(zero(await admin.fetchTopicOffsetsByTimestamp(s.topic, first + 210_000)).offset)
  await admin.deleteTopicRecords({ topic: s.topic, partitions: [{ partition: 0, offset: '3' }] })
  const { low, high } = zero(await admin.fetchTopicOffsets(s.topic))
  said.start = Number(low)
  await admin.setOffsets({ groupId: s.group, topic: s.topic, partitions: [{ partition: 0, offset: '6' }] })
  const [committed] = await admin.fetchOffsets({ groupId: s.group, topics: [s.topic] })
  said.lag = Number(high) - Number(zero(committed.partitions).offset)
  await admin.deleteGroups([s.group])
  await admin.deleteTopics({ topics: [s.topic] })
  said.left = (await admin.listTopics()).includes(s.topic)
  await admin.disconnect()
  say(said)
}

const s = JSON.parse(process.argv[2])
const kafka = new Kafka({ brokers: [s.broker], logLevel: logLevel.NOTHING })
const work = { produce, consume, administer }[s.do]
// What was said last may not be out yet.
const end = (code) => process.stdout.write('', () => process.exit(code))
work(kafka, s).then(
  () => end(0),
  (error) => {
    say({ error: `${error.name}: ${error.message}` })
    end(1)
  },
)
