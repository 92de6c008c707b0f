import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.acl.plain.PlainAccessResource;
import org.apache.rocketmq.acl.plain.RemoteAddressStrategy;
import org.apache.rocketmq.acl.plain.RemoteAddressStrategyFactory;

/** Reads a line of addresses, then patterns; prints for each pattern: refused, or for each address 1, 0 or x (it fails). */
public class AddressVerdicts {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String[] addresses = lines.readLine().split(" ");
        StringBuilder verdicts = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            verdicts.append(verdict(line, addresses)).append('\n');
        }
        System.out.print(verdicts);
    }

    private static String verdict(String pattern, String[] addresses) {
        RemoteAddressStrategy strategy;
        try {
            strategy = new RemoteAddressStrategyFactory().getRemoteAddressStrategy(pattern);
        } catch (Throwable e) {
            return "refused";
        }
        StringBuilder found = new StringBuilder();
        for (String address : addresses) {
            PlainAccessResource peer = new PlainAccessResource();
            peer.setWhiteRemoteAddress(address);
            try {
                found.append(strategy.match(peer) ? '1' : '0');
            } catch (Throwable e) {
                found.append('x');
            }
        }
        return found.toString();
    }
}
