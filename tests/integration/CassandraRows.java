import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.UUID;
import org.apache.cassandra.cql3.QueryProcessor;
import org.apache.cassandra.db.ConsistencyLevel;
import org.apache.cassandra.service.CassandraDaemon;
import org.apache.cassandra.service.StorageService;

/** A Cassandra node in this process: for each line `WRITES READS` of stdin so many of bench.t, then `done`. */
public class CassandraRows {
    public static void main(String[] words) throws Exception {
        new CassandraDaemon(true).activate();
        QueryProcessor.process("create keyspace bench with replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
            ConsistencyLevel.ONE);
        QueryProcessor.process("create table bench.t (id uuid primary key, v text)", ConsistencyLevel.ONE);
        System.out.println("up");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        long written = 0;
        for (String line; (line = lines.readLine()) != null;) {
            String[] counts = line.split(" ");
            for (int i = 0; i < Integer.parseInt(counts[0]); i++)
                QueryProcessor.executeInternal("insert into bench.t (id, v) values (?, ?)", new UUID(1, written++), "x".repeat(500));
            for (int i = 0; i < Integer.parseInt(counts[1]); i++)
                QueryProcessor.process("select v from bench.t where id = " + new UUID(1, i), ConsistencyLevel.ONE);
            System.out.println("done");
        }
        StorageService.instance.drain();
        System.exit(0);
    }
}
