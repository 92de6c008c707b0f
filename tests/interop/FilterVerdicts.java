import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.SqlFilter;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/** Reads lines "EXPRESSION PROPERTIES", both in base64, and prints for each: refused, true or false, as Apache's broker decides. */
public class FilterVerdicts {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        StringBuilder verdicts = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ", -1);
            verdicts.append(verdict(text(parts[0]), MessageDecoder.string2messageProperties(text(parts[1])))).append('\n');
        }
        System.out.print(verdicts);
    }

    private static String text(String encoded) {
        return new String(Base64.getDecoder().decode(encoded), StandardCharsets.UTF_8);
    }

    private static String verdict(String expression, Map<String, String> properties) {
        Expression compiled;
        try {
            compiled = new SqlFilter().compile(expression);
        } catch (Throwable e) {
            return "refused";
        }
        try {
            return String.valueOf(Boolean.TRUE.equals(compiled.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return new HashMap<>(properties);
                }
            })));
        } catch (Throwable e) {
            return "false";
        }
    }
}
