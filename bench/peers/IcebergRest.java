import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** Iceberg's own REST catalogue on loopback: its RESTCatalogServer binds to all addresses. */
public class IcebergRest {
  public static void main(String[] arguments) throws Exception {
    Map<String, String> properties =
        Map.of(
            "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri", "jdbc:sqlite:" + arguments[1],
            "jdbc.schema-version", "V1",
            "warehouse", arguments[2],
            "io-impl", "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.endpoint", arguments[3],
            "s3.path-style-access", "true",
            "client.region", "us-east-1",
            "http-client.type", "urlconnection");
    ServletContextHandler handler = new ServletContextHandler();
    RESTCatalogAdapter catalog =
        new RESTCatalogAdapter(CatalogUtil.buildIcebergCatalog("lake", properties, null));
    handler.addServlet(new ServletHolder(new RESTCatalogServlet(catalog)), "/*");
    Server server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])));
    server.setHandler(handler);
    server.start();
    server.join();
  }
}
