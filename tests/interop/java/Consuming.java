import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Receiving in every way the client has: push, lite pull, pull. */
final class Consuming {
    private static final Map<String, DefaultMQPushConsumer> PUSH = new ConcurrentHashMap<>();
    private static final Map<String, DefaultLitePullConsumer> LITE = new ConcurrentHashMap<>();
    private static final Map<String, DefaultMQPullConsumer> PULL = new ConcurrentHashMap<>();

    private Consuming() {
    }

    static void register(Map<String, Main.Verb> verbs) {
        verbs.put("push", Consuming::push);
        verbs.put("push-close", command -> {
            PUSH.remove(command.getString("name")).shutdown();
            return null;
        });
        verbs.put("lite", Consuming::lite);
        verbs.put("lite-poll", command -> {
            List<Object> found = new ArrayList<>();
            for (MessageExt message : lite(command.getString("name")).poll(command.getLongValue("timeoutMs"))) {
                found.add(described(message));
            }
            return found;
        });
        verbs.put("lite-assigned", command -> queues(new TreeSet<>(lite(command.getString("name")).assignment())));
        verbs.put("lite-seek", command -> {
            lite(command.getString("name")).seek(queue(command), command.getLongValue("offset"));
            return null;
        });
        verbs.put("lite-commit", command -> {
            lite(command.getString("name")).commitSync();
            return null;
        });
        verbs.put("lite-committed", command -> lite(command.getString("name")).committed(queue(command)));
        verbs.put("lite-offset-for", command -> lite(command.getString("name")).offsetForTimestamp(queue(command), command.getLong("timestamp")));
        verbs.put("lite-close", command -> {
            LITE.remove(command.getString("name")).shutdown();
            return null;
        });
        verbs.put("pull", Consuming::openPull);
        verbs.put("pull-queues", command -> queues(new TreeSet<>(pull(command).fetchSubscribeMessageQueues(command.getString("topic")))));
        verbs.put("pull-once", Consuming::pullOnce);
        verbs.put("pull-offsets", command -> Main.map("min", pull(command).minOffset(queue(command)), "max", pull(command).maxOffset(queue(command)),
            "atTime", pull(command).searchOffset(queue(command), command.getLongValue("timestamp")),
            "earliest", pull(command).earliestMsgStoreTime(queue(command)),
            "committed", pull(command).fetchConsumeOffset(queue(command), true)));
        verbs.put("pull-commit", command -> {
            DefaultMQPullConsumer consumer = pull(command);
            consumer.getOffsetStore().updateConsumeOffsetToBroker(queue(command), command.getLongValue("offset"), false);
            return null;
        });
        verbs.put("pull-close", command -> {
            PULL.remove(command.getString("name")).shutdown();
            return null;
        });
    }

    /** Event lines say what comes; "failFirst": n asks for n more deliveries of every message. */
    private static Object push(JSONObject command) throws Exception {
        String name = command.getString("name");
        int failFirst = command.getIntValue("failFirst");
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(command.getString("group"), Main.hook(command), new AllocateMessageQueueAveragely(),
                command.getBooleanValue("trace"), null);
        consumer.setNamesrvAddr(command.getString("nameServer"));
        if (command.containsKey("pollNameServerMs")) {
            consumer.setPollNameServerInterval(command.getIntValue("pollNameServerMs"));
        }
        consumer.setInstanceName(name);
        consumer.setUseTLS(command.getBooleanValue("tls"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setSuspendCurrentQueueTimeMillis(200);
        if (command.getBooleanValue("broadcast")) {
            setModel(consumer, "BROADCASTING");
        }
        if (command.containsKey("maxReconsume")) {
            consumer.setMaxReconsumeTimes(command.getIntValue("maxReconsume"));
        }
        if (command.containsKey("sql")) {
            consumer.subscribe(command.getString("topic"), MessageSelector.bySql(command.getString("sql")));
        } else {
            consumer.subscribe(command.getString("topic"), command.containsKey("tags") ? command.getString("tags") : "*");
        }
        if (command.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                boolean failed = arrived(name, messages, failFirst);
                return failed ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                boolean failed = arrived(name, messages, failFirst);
                return failed ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        if (command.getBooleanValue("pop")) {
            setPop(consumer);
        }
        consumer.start();
        PUSH.put(name, consumer);
        return null;
    }

    /** Queues as the broker shares them out, and retries after a second: 5.x only, so by name. */
    private static void setPop(DefaultMQPushConsumer consumer) throws Exception {
        DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        Object inner = consumer.getDefaultMQPushConsumerImpl();
        java.lang.reflect.Field delays = inner.getClass().getDeclaredField("popDelayLevel");
        delays.setAccessible(true);
        java.util.Arrays.fill((int[]) delays.get(inner), 1);
    }

    private static boolean arrived(String name, List<MessageExt> messages, int failFirst) {
        boolean failed = false;
        for (MessageExt message : messages) {
            Map<String, Object> line = described(message);
            line.put("event", "message");
            line.put("consumer", name);
            Main.print(line);
            failed |= message.getReconsumeTimes() < failFirst;
        }
        return failed;
    }

    private static Object lite(JSONObject command) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(command.getString("group"));
        consumer.setNamesrvAddr(command.getString("nameServer"));
        consumer.setInstanceName(command.getString("name"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        if (command.containsKey("assign")) {
            consumer.start();
            for (MessageQueue queue : consumer.fetchMessageQueues(command.getString("topic"))) {
                if (queue.getQueueId() == command.getIntValue("assign")) {
                    consumer.assign(Collections.singletonList(queue));
                }
            }
        } else {
            consumer.subscribe(command.getString("topic"), command.containsKey("tags") ? command.getString("tags") : "*");
            consumer.start();
        }
        LITE.put(command.getString("name"), consumer);
        return null;
    }

    private static DefaultLitePullConsumer lite(String name) {
        return LITE.get(name);
    }

    private static Object openPull(JSONObject command) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(command.getString("group"));
        consumer.setNamesrvAddr(command.getString("nameServer"));
        consumer.setInstanceName(command.getString("name"));
        consumer.start();
        PULL.put(command.getString("name"), consumer);
        return null;
    }

    private static DefaultMQPullConsumer pull(JSONObject command) {
        return PULL.get(command.getString("name"));
    }

    private static Object pullOnce(JSONObject command) throws Exception {
        String tags = command.containsKey("tags") ? command.getString("tags") : "*";
        int max = command.containsKey("max") ? command.getIntValue("max") : 32;
        PullResult pulled = command.getBooleanValue("block")
            ? pull(command).pullBlockIfNotFound(queue(command), tags, command.getLongValue("offset"), max)
            : pull(command).pull(queue(command), tags, command.getLongValue("offset"), max);
        List<Object> found = new ArrayList<>();
        for (MessageExt message : pulled.getMsgFoundList() == null ? new ArrayList<MessageExt>() : pulled.getMsgFoundList()) {
            found.add(described(message));
        }
        return Main.map("status", pulled.getPullStatus().name(), "next", pulled.getNextBeginOffset(), "min", pulled.getMinOffset(),
            "max", pulled.getMaxOffset(), "messages", found);
    }

    private static MessageQueue queue(JSONObject command) {
        return new MessageQueue(command.getString("topic"), command.getString("broker"), command.getIntValue("queue"));
    }

    private static List<String> queues(Iterable<MessageQueue> queues) {
        List<String> names = new ArrayList<>();
        for (MessageQueue queue : queues) {
            names.add(queue.getBrokerName() + "/" + queue.getQueueId());
        }
        return names;
    }

    /** The enum of message models moved between 4.9 and 5.x, so its class is taken from the setter. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void setModel(DefaultMQPushConsumer consumer, String model) throws Exception {
        for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                method.invoke(consumer, Enum.valueOf((Class) method.getParameterTypes()[0], model));
            }
        }
    }

    static Map<String, Object> described(MessageExt message) {
        return Main.map("topic", message.getTopic(), "body", new String(message.getBody(), StandardCharsets.UTF_8), "tag", message.getTags(),
            "keys", message.getKeys(), "queue", message.getQueueId(), "offset", message.getQueueOffset(), "msgId", message.getMsgId(),
            "logPosition", message.getCommitLogOffset(), "reconsumeTimes", message.getReconsumeTimes(), "sysFlag", message.getSysFlag(),
            "storeTimestamp", message.getStoreTimestamp(), "bornTimestamp", message.getBornTimestamp(), "properties", message.getProperties());
    }
}
