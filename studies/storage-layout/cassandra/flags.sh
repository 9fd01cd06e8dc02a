# flags.sh: `flags`, what Cassandra's own start script opens of Java 17
exports="java.base/jdk.internal.misc java.base/java.lang.ref java.management/com.sun.jmx.remote.security
  java.management.rmi/com.sun.jmx.remote.internal.rmi java.rmi/sun.rmi.registry java.rmi/sun.rmi.server
  java.rmi/sun.rmi.transport.tcp java.sql/java.sql jdk.unsupported/sun.misc"
opens="java.base/java.io java.base/java.lang java.base/java.lang.module java.base/java.lang.reflect java.base/java.nio
  java.base/java.util java.base/java.util.concurrent java.base/java.util.concurrent.atomic java.base/sun.nio.ch
  java.base/jdk.internal.loader java.base/jdk.internal.ref java.base/jdk.internal.reflect java.base/jdk.internal.math
  java.base/jdk.internal.module java.base/jdk.internal.util.jar jdk.management/com.sun.management.internal"
flags=()
for name in $exports; do flags+=(--add-exports "$name=ALL-UNNAMED"); done
for name in $opens; do flags+=(--add-opens "$name=ALL-UNNAMED"); done
