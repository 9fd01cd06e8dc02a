import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Date;
import java.util.List;
import java.util.SplittableRandom;
import java.util.UUID;
import org.apache.cassandra.cql3.QueryProcessor;
import org.apache.cassandra.db.ColumnFamilyStore;
import org.apache.cassandra.db.ConsistencyLevel;
import org.apache.cassandra.db.Keyspace;
import org.apache.cassandra.db.SystemKeyspace;
import org.apache.cassandra.service.CassandraDaemon;
import org.apache.cassandra.service.StorageService;

/**
 * Documents in one Cassandra node, in this process.
 *
 * <pre>
 *   Rows load COUNT FLUSHES SEED   COUNT rows of 1 to 6 kB under random keys, flushed FLUSHES times: so many data files
 *   Rows index                     a secondary index on their number: reads every row once
 * </pre>
 *
 * `index` has built one on a small table before, so that the virtual machine has compiled what it runs. It prints
 * `seconds`, `cpu_seconds` of the process meanwhile, and what a query through the index finds.
 */
public class Rows {
    private static final int NUMBERS = 1000;
    private static final int WARM_UP = 4000;

    public static void main(String[] words) throws Exception {
        CassandraDaemon daemon = new CassandraDaemon(true);
        daemon.activate();
        if (words.length == 4 && words[0].equals("load")) {
            define("create keyspace documents with replication = {'class': 'SimpleStrategy', 'replication_factor': 1}");
            SplittableRandom random = new SplittableRandom(Long.parseLong(words[3]));
            load("warm_up", WARM_UP, 1, random);
            load("document", Integer.parseInt(words[1]), Integer.parseInt(words[2]), random);
        } else if (words.length == 1 && words[0].equals("index")) {
            index("warm_up");
            long cpu = cpuNanoseconds();
            long begin = System.nanoTime();
            index("document");
            System.out.printf("seconds: %.6f%n", (System.nanoTime() - begin) / 1e9);
            System.out.printf("cpu_seconds: %.6f%n", (cpuNanoseconds() - cpu) / 1e9);
            String query = "select id from documents.document where number = 7";
            System.out.println("with_seven: " + QueryProcessor.executeInternal(query).size());
        } else {
            System.err.println("usage: Rows load COUNT FLUSHES SEED | Rows index");
            System.exit(2);
        }
        StorageService.instance.drain();
        System.out.flush();
        System.exit(0);
    }

    private static void define(String statement) {
        QueryProcessor.process(statement, ConsistencyLevel.ONE);
    }

    private static void load(String name, int count, int flushes, SplittableRandom random) throws Exception {
        define("create table documents." + name + " (id uuid primary key, number int, at timestamp, first text,"
            + " second text, parts list<text>) with compaction ="
            + " {'class': 'SizeTieredCompactionStrategy', 'enabled': 'false'}");
        ColumnFamilyStore table = Keyspace.open("documents").getColumnFamilyStore(name);
        int sevens = 0;
        for (int i = 0; i < count; i++) {
            int size = 1024 + random.nextInt(5121);
            int number = random.nextInt(NUMBERS);
            sevens += number == 7 ? 1 : 0;
            List<String> parts = new ArrayList<>();
            int pieces = random.nextInt(5);
            for (int part = 0; part < pieces; part++)
                parts.add(text(random, size / 8));
            int rest = (size - pieces * (size / 8)) / 2;
            QueryProcessor.executeInternal("insert into documents." + name + " (id, number, at, first, second, parts)"
                + " values (?, ?, ?, ?, ?, ?)", new UUID(random.nextLong(), random.nextLong()), number,
                new Date(1_500_000_000_000L + i), text(random, rest), text(random, rest), parts);
            if ((i + 1) % ((count + flushes - 1) / flushes) == 0 || i + 1 == count)
                table.forceBlockingFlush(ColumnFamilyStore.FlushReason.USER_FORCED);
        }
        System.out.println(name + "_files: " + table.getLiveSSTables().size());
        System.out.println(name + "_with_seven: " + sevens);
    }

    private static void index(String name) throws Exception {
        define("create index " + name + "_number on documents." + name + " (number)");
        while (!SystemKeyspace.isIndexBuilt("documents", name + "_number"))
            Thread.sleep(2);
    }

    private static String text(SplittableRandom random, int size) {
        byte[] letters = new byte[size];
        for (int i = 0; i < size; i++)
            letters[i] = (byte) ('0' + random.nextInt(75));
        return new String(letters, StandardCharsets.US_ASCII);
    }

    private static long cpuNanoseconds() {
        var system = java.lang.management.ManagementFactory.getOperatingSystemMXBean();
        return ((com.sun.management.OperatingSystemMXBean) system).getProcessCpuTime();
    }
}
