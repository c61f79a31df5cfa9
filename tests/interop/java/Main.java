import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * The official Java client, driven by lines of JSON: a command a line on standard input, an answer a line on standard output.
 *
 * A command is {"id": 1, "do": "...", ...}; its answer is {"id": 1, "result": ...} or {"id": 1, "error": "...", "code": n}.
 * What a consumer receives is printed when it comes, as {"event": "message", ...}. The program ends with its input.
 */
public final class Main {
    private static final PrintStream ANSWERS = System.out;

    interface Verb {
        Object run(JSONObject command) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        Map<String, Verb> verbs = new LinkedHashMap<>();
        Producing.register(verbs);
        Timing.register(verbs);
        Consuming.register(verbs);
        Requesting.register(verbs);
        Administration.register(verbs);
        Transacting.register(verbs);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            answer(verbs, JSON.parseObject(line));
        }
        Runtime.getRuntime().halt(0);
    }

    static void print(Map<String, Object> line) {
        String text = JSON.toJSONString(line, SerializerFeature.WriteMapNullValue, SerializerFeature.DisableCircularReferenceDetect);
        synchronized (ANSWERS) {
            ANSWERS.println(text);
            ANSWERS.flush();
        }
    }

    /** What signs every request, or null for a client without an account. */
    static RPCHook hook(JSONObject command) {
        String accessKey = command.getString("accessKey");
        return accessKey == null ? null : new AclClientRPCHook(new SessionCredentials(accessKey, command.getString("secretKey")));
    }

    static Map<String, Object> map(Object... pairs) {
        Map<String, Object> made = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            made.put((String) pairs[i], pairs[i + 1]);
        }
        return made;
    }

    private static void answer(Map<String, Verb> verbs, JSONObject command) {
        Map<String, Object> line = map("id", command.get("id"));
        try {
            Verb verb = verbs.get(command.getString("do"));
            if (verb == null) {
                throw new IllegalArgumentException("no verb " + command.getString("do"));
            }
            line.put("result", verb.run(command));
        } catch (Throwable error) {
            line.put("error", error.toString());
            line.put("code", codeOf(error));
        }
        print(line);
    }

    private static int codeOf(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof MQBrokerException) {
                return ((MQBrokerException) cause).getResponseCode();
            }
        }
        return error instanceof MQClientException ? ((MQClientException) error).getResponseCode() : -1;
    }
}
