"""Send the lines of a file as they are written; started again, it goes on behind the last line that Spark committed.

python examples/tail_a_file.py orders.log --workers host-a:7100,host-b:7101 --instance shop-1

A line's message id is the byte offset behind it, so the file itself is the log that is sent again after a failure:
nothing is kept here. Keep the instance's name from run to run, since the workers know the file by instance and path.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib

from wallaroo_spark.connector import Connector, FeedProgress, Lines


def show(progress: FeedProgress) -> None:
    """Say how far the file is committed."""
    print(f"sent {progress.messages} lines, committed up to byte {progress.acknowledged or 0}", flush=True)


async def tail(path: str, workers: str, instance: str, cookie: str = "") -> None:
    """Send the lines of the file, and then each line that is appended, until this is cancelled."""
    async with Connector("tail", instance=instance, workers=workers, cookie=cookie) as connector:
        await connector.feed(Lines(path, follow=True), progress=show)


def main() -> None:
    """Read the command line and run until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Send the lines of a file as they are written.")
    parser.add_argument("file")
    parser.add_argument("--workers", required=True, help="addresses of workers, host:port, separated by commas")
    parser.add_argument("--instance", required=True, help="the name by which the receiver knows this program")
    parser.add_argument("--cookie", default="", help="what the receiver asks for; env:NAME or file:PATH hide it")
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(tail(given.file, given.workers, given.instance, given.cookie))


if __name__ == "__main__":
    main()
