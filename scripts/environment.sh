# Sourced by the other scripts, which set `root` first: what every program they start should find in its environment.
# Another Spark's settings would mix its jars with the ones in .venv.
unset SPARK_HOME SPARK_CONF_DIR PYTHONHOME PYTHONPATH PYSPARK_SUBMIT_ARGS PYSPARK_DRIVER_PYTHON
export PYSPARK_PYTHON="$root/.venv/bin/python"
