/* How long a stock broker's own class takes to write down the progress of many groups; it prints milliseconds, one a line.
 *
 *   java -cp JARS PersistedOffsets.java FILE GROUPS QUEUES ROUNDS
 *
 * Every group moves on every queue before each round, as in offsets.py. The first rounds are the compiler's and are to be
 * left out. ConfigManager.persist writes FILE.tmp, copies FILE to FILE.bak and puts the new one into its
 * place; it does not ask for the disk's word.
 */
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;

public class PersistedOffsets {
    private static final String TOPIC = "progress";

    public static void main(String[] words) {
        int groups = Integer.parseInt(words[1]);
        int queues = Integer.parseInt(words[2]);
        int rounds = Integer.parseInt(words[3]);
        ConsumerOffsetManager offsets = new ConsumerOffsetManager() {
            @Override
            public String configFilePath() {
                return words[0];
            }
        };
        for (int round = 1; round <= rounds; round++) {
            for (int group = 0; group < groups; group++) {
                for (int queue = 0; queue < queues; queue++) {
                    offsets.commitOffset("bench", "group-" + group, TOPIC, queue, round);
                }
            }
            long begin = System.nanoTime();
            offsets.persist();
            System.out.println((System.nanoTime() - begin) / 1e6);
        }
    }
}
