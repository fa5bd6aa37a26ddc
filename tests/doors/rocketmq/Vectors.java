import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.SerializeType;

/**
 * Prints what RocketMQ's own classes write, as lines of a name and hexadecimal digits (or text).
 *
 * vectors.txt was made with the jars that `bench.peers.jars.rocketmq()` fetches, and without the lines of its logger:
 *
 *     java -cp "bench/.peers/rocketmq-5.5.0/*" tests/doors/rocketmq/Vectors.java | grep -v '|-' > vectors.txt
 */
public class Vectors {
    static void print(String name, byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte each : bytes) {
            text.append(String.format("%02x", each));
        }
        System.out.println(name + " " + text);
    }

    static byte[] bytes(ByteBuffer buffer) {
        byte[] out = new byte[buffer.remaining()];
        buffer.get(out);
        return out;
    }

    static void command(SerializeType type) {
        RemotingCommand request = RemotingCommand.createRequestCommand(105, null);
        request.setSerializeTypeCurrentRPC(type);
        request.setOpaque(77);
        request.addExtField("topic", "orders é");
        print(type + ".request", bytes(request.encode()));
        RemotingCommand answer = RemotingCommand.createResponseCommand(17, "no \"route\"\n here");
        answer.setSerializeTypeCurrentRPC(type);
        answer.setOpaque(-5);
        answer.setLanguage(LanguageCode.GO);
        answer.setBody(new byte[] {0, 1, (byte) 0xff});
        print(type + ".answer", bytes(answer.encode()));
        RemotingCommand oneWay = RemotingCommand.createRequestCommand(40, null);
        oneWay.setSerializeTypeCurrentRPC(type);
        oneWay.setOpaque(1);
        oneWay.markOnewayRPC();
        print(type + ".oneway", bytes(oneWay.encode()));
    }

    static void message(String name, String topic, String born, String store) throws Exception {
        MessageExt message = new MessageExt();
        message.setTopic(topic);
        message.setQueueId(3);
        message.setFlag(9);
        message.setQueueOffset(12345678901L);
        message.setCommitLogOffset(1L << 40 | 7);
        message.setBornTimestamp(1700000000001L);
        message.setBornHost(new InetSocketAddress(InetAddress.getByName(born), 54321));
        message.setStoreTimestamp(1700000000002L);
        message.setStoreHost(new InetSocketAddress(InetAddress.getByName(store), 10911));
        message.setReconsumeTimes(2);
        message.setPreparedTransactionOffset(0);
        message.setBody("body ü".getBytes("UTF-8"));
        message.setTags("TagA");
        if (born.contains(":")) {
            message.setBornHostV6Flag();
        }
        if (store.contains(":")) {
            message.setStoreHostAddressV6Flag();
        }
        message.setBodyCRC(org.apache.rocketmq.common.UtilAll.crc32(message.getBody()));
        print("message." + name, MessageDecoder.encode(message, false));
    }

    public static void main(String[] given) throws Exception {
        System.out.println("version " + MQVersion.Version.V5_5_0.ordinal());
        command(SerializeType.JSON);
        command(SerializeType.ROCKETMQ);
        message("v4", "orders", "192.0.2.1", "127.0.0.1");
        message("v6", "%RETRY%billing", "2001:db8::1", "::1");
        message("mixed", "orders", "2001:db8::1", "127.0.0.1");
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            Message each = new Message("orders", ("b" + i).getBytes("UTF-8"));
            each.setFlag(i);
            each.setTags("T" + i);
            batch.add(each);
        }
        print("batch", MessageDecoder.encodeMessages(batch));
        System.out.println("id.v4 " + MessageDecoder.createMessageId(
            new InetSocketAddress(InetAddress.getByName("192.0.2.1"), 10911), 1L << 40 | 7));
        System.out.println("id.v6 " + MessageDecoder.createMessageId(
            new InetSocketAddress(InetAddress.getByName("2001:db8::1"), 10911), 1L << 40 | 7));
        print("properties", MessageDecoder.messageProperties2String(Collections.singletonMap("KEYS", "a ü b"))
            .getBytes("UTF-8"));
        for (String tag : new String[] {"", "TagA", "a tag that overflows", "ü€𝄞"}) {
            print("hash.of", tag.getBytes("UTF-8"));
            System.out.println("hash.is " + tag.hashCode());
        }
    }
}
