#!/bin/sh
# The image's program. Spark starts an executor's container with the argument `executor` and its settings in SPARK_*;
# everything else is run as it is.
set -eu

if [ "${1:-}" != executor ]; then exec "$@"; fi

# Spark numbers the options of the executor's Java: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, …
set --
number=0
while option="$(printenv "SPARK_JAVA_OPT_$number")"; do
    set -- "$@" "$option"
    number=$((number + 1))
done

exec java "$@" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:-/opt/spark/conf}:/opt/spark/jars/*${SPARK_CLASSPATH:+:$SPARK_CLASSPATH}" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
