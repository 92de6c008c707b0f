import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs mqadmin commands: each line of stdin is a time limit in ms and words, separated by tabs; each output is a line of Base64. */
public class Mqadmin {
    public static void main(String[] args) throws Exception {
        PrintStream stdout = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", 2);
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            PrintStream capture = new PrintStream(bytes, true, StandardCharsets.UTF_8);
            System.setOut(capture);
            System.setErr(capture);
            Thread command = new Thread(() -> MQAdminStartup.main(words[1].isEmpty() ? new String[0] : words[1].split("\t")));
            command.setDaemon(true);
            command.start();
            command.join(Long.parseLong(words[0]));
            stdout.println(Base64.getEncoder().encodeToString(bytes.toByteArray()));
        }
        System.exit(0); // ends the commands that go on
    }
}
