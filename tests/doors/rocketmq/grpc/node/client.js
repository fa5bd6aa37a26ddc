// One piece of work with RocketMQ's client for Node: `node client.js WORK ENDPOINTS TOPIC GROUP`. Says a line of JSON
// for each thing that happened.
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const [work, endpoints, topic, group] = process.argv.slice(2);
const quiet = () => {};
const logger = { debug: quiet, info: quiet, warn: quiet, error: (...words) => console.error(...words), close: quiet };
const common = { endpoints, namespace: '', logger };

const say = (line) => console.log(JSON.stringify(line));
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function producing(act, checker) {
  const producer = new Producer({ ...common, topic, checker });
  await producer.startup();
  await act(producer, (body, more = {}) => producer.send({ topic, body: Buffer.from(body), ...more }));
  await producer.shutdown();
}

function send() {
  return producing(async (producer, sent) => {
    const properties = new Map([['color', 'blue']]);
    say({ id: (await sent('normal', { tag: 'red', keys: ['k'], properties })).messageId });
    await sent('fifo', { messageGroup: 'g' });
    await sent('later', { delay: 1500 });
    const { recallHandle, messageId } = await sent('recalled', { delay: 1500 });
    say({ recalled: (await producer.recallMessage(topic, recallHandle)).messageId === messageId });
  });
}

// Prepares four messages, ends two of them, and leaves the others to the questions of the broker.
function transactions() {
  const bodies = ['committed', 'rolled back', 'asked', 'given up'];
  const asked = new Set();
  const checker = {
    async check(message) {
      asked.add(message.body.toString());
      return message.body.toString() === 'asked' ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
    },
  };
  return producing(async (producer) => {
    for (const body of bodies) {
      const transaction = producer.beginTransaction();
      await producer.send({ topic, body: Buffer.from(body) }, transaction);
      if (body === 'committed') await transaction.commit();
      if (body === 'rolled back') await transaction.rollback();
    }
    while (asked.size < 2) await sleep(20);
    say({ asked: [...asked].sort() });
  }, checker);
}

function many() {
  return producing(async (_, sent) => {
    for (let number = 0; number < 6; number++) {
      await sent(`${number}`, { tag: number % 2 ? 'odd' : 'even', properties: new Map([['n', `${number}`]]) });
    }
  });
}

// Takes what has the tag, or meets the expression, three messages in all; the one with the body 2 only on its return.
async function simple(expression) {
  const consumer = new SimpleConsumer({
    ...common, consumerGroup: group, subscriptions: new Map([[topic, expression]]), awaitDuration: 5000,
  });
  await consumer.startup();
  let left = 3;
  while (left) {
    for (const message of await consumer.receive(4, 15000)) {
      const body = message.body.toString();
      if (body === '2' && message.deliveryAttempt === 1) {
        await consumer.changeInvisibleDuration(message, 1000);
      } else {
        await consumer.ack(message);
        say({ body, attempt: message.deliveryAttempt, tag: message.tag });
        left--;
      }
    }
  }
  await consumer.shutdown();
}

// Consumes six messages, of which one fails at first.
async function push() {
  let left = 6;
  const listener = {
    async consume(message) {
      const body = message.body.toString();
      if (body === '3' && message.deliveryAttempt === 1) return ConsumeResult.FAILURE;
      say({ body, attempt: message.deliveryAttempt, tag: message.tag });
      left--;
      return ConsumeResult.SUCCESS;
    },
  };
  const subscriptions = new Map([[topic, FilterExpression.SUB_ALL]]);
  const consumer = new PushConsumer({ ...common, consumerGroup: group, subscriptions, messageListener: listener });
  await consumer.startup();
  while (left) await sleep(20);
  // What was consumed is acknowledged beside.
  await sleep(500);
  await consumer.shutdown();
}

const works = {
  send, transactions, many, push,
  simple: () => simple(new FilterExpression('even')),
  sql: () => simple(new FilterExpression('n IS NOT NULL AND n <> 5 AND TAGS = \'even\'', FilterType.SQL)),
};
works[work]().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
