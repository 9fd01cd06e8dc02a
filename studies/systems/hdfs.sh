# hdfs.sh, to be sourced: HDFS with one data node as Hadoop is, on addresses and ports of ours. `hdfs_start DIR` starts
# the name node and the data node on DIR until the shell ends, `fs …` is the file system shell.
hadoop=$("$(dirname "${BASH_SOURCE[0]}")/../../tools/hadoop.sh")
conf=$(mktemp -d)
stopped() {
  for pid in ${daemons:-}; do kill "$pid" 2>/dev/null || true; done
  for pid in ${daemons:-}; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$conf"
}
trap stopped EXIT

# a program of Hadoop's is "${java[@]}" CLASS WORDS…; no function, so that $! is its own pid
java=(java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData "-Djava.io.tmpdir=$conf"
  --add-opens=java.base/java.lang=ALL-UNNAMED --add-opens=java.base/java.util=ALL-UNNAMED
  --add-opens=java.base/java.nio=ALL-UNNAMED --add-opens=java.base/java.net=ALL-UNNAMED -cp "$conf:$hadoop/lib/*")

hdfs_configure() { # hdfs_configure DIR
  mkdir -p "$conf/webapps/hdfs" "$conf/webapps/datanode" # its pages are in another archive
  cat > "$conf/core-site.xml" <<X
<configuration>
  <property><name>fs.defaultFS</name><value>hdfs://127.0.0.1:21900</value></property>
  <property><name>hadoop.tmp.dir</name><value>$conf/tmp</value></property>
</configuration>
X
  cat > "$conf/hdfs-site.xml" <<X
<configuration>
  <property><name>dfs.replication</name><value>1</value></property>
  <property><name>dfs.blocksize</name><value>16777216</value></property>
  <property><name>dfs.namenode.name.dir</name><value>file://$1/name</value></property>
  <property><name>dfs.namenode.http-address</name><value>127.0.0.1:21901</value></property>
  <property><name>dfs.datanode.data.dir</name><value>file://$1/blocks</value></property>
  <property><name>dfs.datanode.address</name><value>127.0.0.1:21902</value></property>
  <property><name>dfs.datanode.http.address</name><value>127.0.0.1:21903</value></property>
  <property><name>dfs.datanode.ipc.address</name><value>127.0.0.1:21904</value></property>
  <property><name>dfs.datanode.synconclose</name><value>true</value></property>
  <property><name>dfs.permissions.enabled</name><value>false</value></property>
</configuration>
X
  cat > "$conf/log4j.properties" <<X
log4j.rootLogger=WARN,err
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
log4j.appender.err.layout.ConversionPattern=%d %p %c{1}: %m%n
X
}
hdfs_format() { "${java[@]}" org.apache.hadoop.hdfs.server.namenode.NameNode -format -force -nonInteractive; }
hdfs_start() {
  "${java[@]}" org.apache.hadoop.hdfs.server.namenode.NameNode 2> "$1/name.log" &
  daemons="$!"
  "${java[@]}" org.apache.hadoop.hdfs.server.datanode.DataNode 2> "$1/data.log" &
  daemons="$daemons $!"
  if ! python3 "$(dirname "${BASH_SOURCE[0]}")/../hadoop/live.py" http://127.0.0.1:21901 \
    Hadoop:service=NameNode,name=FSNamesystemState NumLiveDataNodes 1 120 $daemons; then
    grep -h -A 1 ERROR "$1/name.log" "$1/data.log" >&2
    return 1
  fi
}
fs() { "${java[@]}" org.apache.hadoop.fs.FsShell "$@"; }
