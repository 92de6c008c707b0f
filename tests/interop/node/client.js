// Sends or consumes with the client `ali-ons`: client.js '{"action":"send"|"consume",...}', see ../other_clients.py.
'use strict';

const { Consumer, Message, Producer } = require('ali-ons');

const options = JSON.parse(process.argv[2]);
const print = fields => process.stdout.write(JSON.stringify(fields) + '\n');
const complain = error => console.error(error);
const logger = { debug() {}, info() {}, warn: console.error, error: console.error };
const shared = { nameSrv: options.namesrv, httpclient: {}, logger, pollNameServerInteval: 1000 }; // ms

async function send() {
  const producer = new Producer({ ...shared, producerGroup: options.group });
  producer.on('error', complain);
  for (const { body, tag, key, shard } of options.messages) {
    const message = new Message(options.topic, tag, body);
    message.keys = [ key ];
    if (shard) message.shardingKey = shard;
    const { sendStatus, messageQueue, queueOffset } = await producer.send(message);
    if (sendStatus !== 'SEND_OK') throw new Error(sendStatus);
    print({ body, queue: Number(messageQueue.queueId), offset: queueOffset });
  }
}

async function consume() {
  const consumer = new Consumer({
    ...shared,
    consumerGroup: options.group,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    isBroadcast: options.broadcast,
    rebalanceInterval: 1000, // ms; it is not told when members come and go
  });
  consumer.on('error', complain);
  consumer.subscribe(options.topic, options.tags, async message => {
    const { tags: tag, keys: key, queueId: queue, queueOffset, reconsumeTimes: times } = message;
    print({ body: message.body.toString(), tag, key, queue, offset: Number(queueOffset), times });
    if (times < options.failures) throw new Error('to be retried'); // Consumer.ACTION_RETRY works only once
  });
  await consumer.ready();
  await new Promise(resolve => process.stdin.on('end', resolve).resume());
  await consumer.close();
}

({ send, consume })[options.action]().then(
  () => process.exit(0), // the client's inner producer would keep the process
  error => {
    complain(error);
    process.exit(1);
  }
);
