"""The checks as a job of spark-submit: ``spark-submit --properties-file conf/local.conf jobs/check.py receive.yaml``.

Takes what ``wallaroo-spark check`` takes, and checks the cluster that the receiver will run on.
"""

from __future__ import annotations

import sys

from wallaroo_spark.cli.main import main

if __name__ == "__main__":
    main(["check", *sys.argv[1:]])
