"""The job of spark-submit: ``spark-submit --properties-file conf/local.conf jobs/receive.py conf/receive.yaml``.

Takes what ``wallaroo-spark receive`` takes.
"""

from __future__ import annotations

import sys

from wallaroo_spark.cli.main import main

if __name__ == "__main__":
    main(["receive", *sys.argv[1:]])
