// Sends and receives with npm's ali-ons; run by recorder.py with the name server's address.
const { Producer, Consumer, Message } = require('ali-ons');
const httpclient = require('urllib'); // it asks for one, and does not use it
const quiet = { info() {}, warn: console.error, error: console.error, debug() {} };
const common = { accessKeyId: 'goldenkey', accessKeySecret: 'goldensecret', nameSrv: process.argv[2], httpclient, logger: quiet };

(async () => {
  const producer = new Producer(Object.assign({ producerGroup: 'GoldenProducer' }, common));
  producer.on('error', console.error);
  await producer.ready();
  const message = new Message('GoldenNode', 'TagA', 'hello größe');
  message.keys = ['K1'];
  await producer.send(message);
  const consumer = new Consumer(Object.assign({ consumerGroup: 'GoldenConsumer', isBroadcast: false }, common));
  consumer.on('error', console.error);
  const got = new Promise(resolve => consumer.subscribe('GoldenNode', '*', async received => { resolve(received); }));
  await Promise.race([ consumer.ready(), new Promise(resolve => setTimeout(resolve, 5000)) ]);
  await producer.send(new Message('GoldenNode', 'TagA', 'second'));
  await Promise.race([ got, new Promise(resolve => setTimeout(resolve, 40000)) ]);
  await new Promise(resolve => setTimeout(resolve, 7000));
  await Promise.race([ consumer.close(), new Promise(resolve => setTimeout(resolve, 2000)) ]);
  await Promise.race([ producer.close(), new Promise(resolve => setTimeout(resolve, 2000)) ]);
  process.exit(0);
})().catch(error => { console.error(error); process.exit(1); });
