"""conf/yarn.conf on Hadoop's cluster for tests: ``python -m proving.yarn``."""
