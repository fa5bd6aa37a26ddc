import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * What RocketMQ's own filter makes of expressions: CLASS FILE, whose lines are an expression and properties (name=value)
 * with tabs between them. The outcome is printed in front of each: true, false, null, error or refused.
 */
public class SqlVectors {
    public static void main(String[] given) throws Exception {
        for (String line : Files.readAllLines(Paths.get(given[0]))) {
            String[] parts = line.split("\t", -1);
            Map<String, String> properties = new HashMap<>();
            for (int i = 1; i < parts.length; i++) {
                String[] pair = parts[i].split("=", 2);
                properties.put(pair[0], pair[1]);
            }
            System.out.println(outcome(parts[0], properties) + "\t" + line);
        }
    }

    static String outcome(String text, Map<String, String> properties) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (Throwable refused) {
            return "refused";
        }
        try {
            return String.valueOf(expression.evaluate(new EvaluationContext() {
                public Object get(String name) {
                    return properties.get(name);
                }

                public Map<String, Object> keyValues() {
                    return null;
                }
            }));
        } catch (Throwable error) {
            return "error";
        }
    }
}
