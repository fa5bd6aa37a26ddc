import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs mqadmin's commands one after the other: one a line, with tabs between the arguments. */
public class Admin {
    public static void main(String[] args) throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("READY");
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            try {
                MQAdminStartup.main0(line.split("\t"), null);
            } catch (Throwable failure) {
                failure.printStackTrace(System.out);
            }
            // Some commands end without a line break.
            System.out.println("\nDONE");
        }
        System.exit(0);
    }
}
