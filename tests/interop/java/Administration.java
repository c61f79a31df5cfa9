import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** mqadmin, and the queries of its client. */
final class Administration {
    private static final Map<String, DefaultMQAdminExt> CLIENTS = new ConcurrentHashMap<>();

    private Administration() {
    }

    static void register(Map<String, Main.Verb> verbs) {
        verbs.put("mqadmin", Administration::mqadmin);
        verbs.put("admin", command -> {
            DefaultMQAdminExt client = new DefaultMQAdminExt(Main.hook(command), 10_000);
            client.setAdminExtGroup("admin-" + command.getString("name"));
            client.setNamesrvAddr(command.getString("nameServer"));
            client.setInstanceName(command.getString("name"));
            client.start();
            CLIENTS.put(command.getString("name"), client);
            return null;
        });
        verbs.put("admin-close", command -> {
            CLIENTS.remove(command.getString("name")).shutdown();
            return null;
        });
        verbs.put("view", command -> Consuming.described(client(command).viewMessage(command.getString("topic"), command.getString("msgId"))));
        verbs.put("query", command -> {
            QueryResult found = client(command).queryMessage(command.getString("topic"), command.getString("key"), 32, 0, Long.MAX_VALUE);
            List<Object> messages = new ArrayList<>();
            for (MessageExt message : found.getMessageList()) {
                messages.add(Consuming.described(message));
            }
            return messages;
        });
    }

    private static DefaultMQAdminExt client(JSONObject command) {
        return CLIENTS.get(command.getString("name"));
    }

    /** Everything the command prints, as its user would see it. */
    private static Object mqadmin(JSONObject command) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        PrintStream out = new PrintStream(bytes, true, "UTF-8");
        PrintStream oldOut = System.out;
        PrintStream oldErr = System.err;
        System.setOut(out);
        System.setErr(out);
        try {
            MQAdminStartup.main0(command.getJSONArray("words").toArray(new String[0]), null);
        } finally {
            System.setOut(oldOut);
            System.setErr(oldErr);
        }
        return new String(bytes.toByteArray(), StandardCharsets.UTF_8);
    }
}
