'use strict';

// npm's ali-ons, driven by lines of JSON as java/Main.java is. It sends synchronously and consumes concurrently, no more.

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const print = line => process.stdout.write(JSON.stringify(line) + '\n');
const quiet = { info() {}, debug() {}, warn: (...words) => console.error(...words), error: (...words) => console.error(...words) };
const made = new Map();

const verbs = {
  async producer({ name, group, nameServer }) {
    const producer = new Producer({ nameSrv: nameServer, producerGroup: group, logger: quiet, httpclient: {} });
    producer.on('error', error => console.error(error));
    await producer.ready();
    made.set(name, producer);
  },

  async send({ name, topic, bodies, tag, key, shard }) {
    const results = [];
    for (const body of bodies) {
      const message = new Message(topic, tag || '', body);
      if (key) message.keys = [ key ];
      if (shard !== undefined) message.shardingKey = String(shard);
      const sent = await made.get(name).send(message);
      results.push({ status: sent.sendStatus, msgId: sent.msgId, queue: sent.messageQueue.queueId, offset: Number(sent.queueOffset) });
    }
    return results;
  },

  async push({ name, group, nameServer, topic, tags, failFirst, broadcast }) {
    const consumer = new Consumer({
      nameSrv: nameServer, consumerGroup: group, logger: quiet, httpclient: {}, isBroadcast: Boolean(broadcast), instanceName: name,
      consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', rebalanceInterval: 2000,
    });
    consumer.on('error', error => console.error(error));
    consumer.subscribe(topic, tags || '*', async message => {
      print({
        event: 'message', consumer: name, topic, body: message.body.toString(), tag: message.tags, keys: message.keys,
        queue: message.queueId, offset: Number(message.queueOffset), reconsumeTimes: message.reconsumeTimes,
      });
      if (message.reconsumeTimes < (failFirst || 0)) throw new Error('asked to fail');
    });
    await consumer.ready();
    made.set(name, consumer);
  },

  async close({ name }) {
    const one = made.get(name);
    made.delete(name);
    if (one) await one.close();
  },
};
verbs['producer-close'] = verbs['push-close'] = verbs.close;

let last = Promise.resolve();
const lines = readline.createInterface({ input: process.stdin });
lines.on('line', line => {
  const command = JSON.parse(line);
  last = last.then(async () => {
    try {
      print({ id: command.id, result: await verbs[command.do](command) });
    } catch (error) {
      print({ id: command.id, error: String(error && error.stack || error), code: Number(error && error.code) || -1 });
    }
  });
});
lines.on('close', () => process.exit(0));
process.on('unhandledRejection', error => console.error(error));
