import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sending in every way the client has. */
final class Producing {
    private static final long TIMEOUT_MS = 10_000;
    private static final Map<String, DefaultMQProducer> PRODUCERS = new ConcurrentHashMap<>();

    private Producing() {
    }

    static void register(Map<String, Main.Verb> verbs) {
        verbs.put("producer", Producing::open);
        verbs.put("producer-close", command -> {
            DefaultMQProducer producer = PRODUCERS.remove(command.getString("name"));
            if (producer != null) {
                producer.shutdown();
            }
            return null;
        });
        verbs.put("send", Producing::sendEach);
        verbs.put("batch", command -> result(producer(command).send(messages(command))));
        verbs.put("async", Producing::sendLater);
        verbs.put("oneway", command -> {
            for (Message message : messages(command)) {
                producer(command).sendOneway(message);
            }
            return null;
        });
        verbs.put("publish-queues", command -> {
            List<Object> queues = new ArrayList<>();
            for (MessageQueue queue : producer(command).fetchPublishMessageQueues(command.getString("topic"))) {
                queues.add(queue.getBrokerName() + "/" + queue.getQueueId());
            }
            return queues;
        });
    }

    private static Object open(JSONObject command) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(
            command.getString("group"), Main.hook(command), command.getBooleanValue("trace"), null);
        producer.setNamesrvAddr(command.getString("nameServer"));
        if (command.containsKey("pollNameServerMs")) {
            producer.setPollNameServerInterval(command.getIntValue("pollNameServerMs"));
        }
        producer.setInstanceName(command.getString("name"));
        producer.setUseTLS(command.getBooleanValue("tls"));
        producer.setVipChannelEnabled(command.getBooleanValue("vip"));
        producer.setSendMsgTimeout(command.containsKey("timeoutMs") ? command.getIntValue("timeoutMs") : (int) TIMEOUT_MS);
        if (command.containsKey("compressAbove")) {
            producer.setCompressMsgBodyOverHowmuch(command.getIntValue("compressAbove"));
        }
        producer.start();
        PRODUCERS.put(command.getString("name"), producer);
        return null;
    }

    static DefaultMQProducer producer(JSONObject command) {
        DefaultMQProducer producer = PRODUCERS.get(command.getString("name"));
        if (producer == null) {
            throw new IllegalArgumentException("no producer " + command.getString("name"));
        }
        return producer;
    }

    /** One synchronous send a body; with "shard" the queue follows from it, with "queue" it is given. */
    private static Object sendEach(JSONObject command) throws Exception {
        DefaultMQProducer producer = producer(command);
        List<Object> results = new ArrayList<>();
        for (Message message : messages(command)) {
            SendResult sent;
            if (command.containsKey("shard")) {
                int shard = command.getIntValue("shard");
                sent = producer.send(message, (queues, each, any) -> queues.get(shard % queues.size()), null);
            } else if (command.containsKey("queue")) {
                sent = producer.send(message, new MessageQueue(command.getString("topic"), command.getString("broker"), command.getIntValue("queue")));
            } else {
                sent = producer.send(message);
            }
            results.add(result(sent));
        }
        return results;
    }

    private static Object sendLater(JSONObject command) throws Exception {
        List<CompletableFuture<SendResult>> pending = new ArrayList<>();
        for (Message message : messages(command)) {
            CompletableFuture<SendResult> future = new CompletableFuture<>();
            pending.add(future);
            producer(command).send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult sent) {
                    future.complete(sent);
                }

                @Override
                public void onException(Throwable error) {
                    future.completeExceptionally(error);
                }
            });
        }
        List<Object> results = new ArrayList<>();
        for (CompletableFuture<SendResult> future : pending) {
            results.add(result(future.get(TIMEOUT_MS, TimeUnit.MILLISECONDS)));
        }
        return results;
    }

    private static List<Message> messages(JSONObject command) {
        List<Message> made = new ArrayList<>();
        JSONArray bodies = command.getJSONArray("bodies");
        for (int i = 0; i < bodies.size(); i++) {
            byte[] body = bodies.getString(i).getBytes(StandardCharsets.UTF_8);
            Message message = new Message(command.getString("topic"), body);
            if (command.containsKey("tag")) {
                message.setTags(command.getString("tag"));
            }
            if (command.containsKey("key")) {
                message.setKeys(command.getString("key"));
            }
            if (command.containsKey("delayLevel")) {
                message.setDelayTimeLevel(command.getIntValue("delayLevel"));
            }
            JSONObject properties = command.getJSONObject("properties");
            for (String name : properties == null ? new HashMap<String, Object>().keySet() : properties.keySet()) {
                message.putUserProperty(name, properties.getString(name));
            }
            made.add(message);
        }
        return made;
    }

    private static Object result(SendResult sent) {
        MessageQueue queue = sent.getMessageQueue();
        return Main.map("status", sent.getSendStatus().name(), "msgId", sent.getMsgId(), "offsetMsgId", sent.getOffsetMsgId(),
            "broker", queue.getBrokerName(), "queue", queue.getQueueId(), "offset", sent.getQueueOffset(),
            "region", sent.getRegionId(), "traceOn", sent.isTraceOn());
    }
}
