"""Mounts that grant a lock to each machine, by the table of mounts."""

from __future__ import annotations

import pytest

from wallaroo_spark.storage.locations import locks_are_local, mount_in

TABLE = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
36 21 0:59 / /mnt/bucket rw,relatime - fuse.s3fs s3fs rw,user_id=0
37 21 0:60 / /mnt/gluster rw,relatime shared:3 master:2 - fuse.glusterfs server:/volume rw
38 21 0:61 / /mnt/nfs rw,relatime - nfs4 server:/export rw,vers=4.2,local_lock=none
39 21 0:62 / /mnt/nolock rw,relatime - nfs server:/export rw,vers=3,nolock,local_lock=all
40 21 0:63 / /mnt/host\\040folder rw,relatime - virtiofs host rw
41 21 0:64 / /mnt/windows rw - cifs //server/share rw,vers=3.0,nobrl
42 21 8:16 / /mnt/disk rw - fuseblk /dev/sdb1 rw
43 36 254:0 /x /mnt/bucket/inner rw - ext4 /dev/root rw
44 21 0:65 / /mnt/over rw - ext4 /dev/sdc rw
45 21 0:66 / /mnt/over rw - fuse.sshfs host: rw
no line of a table
"""


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/data/shop", False),
        ("/mnt/bucket", True),
        ("/mnt/bucket/shop", True),
        ("/mnt/bucketful", False),
        ("/mnt/bucket/inner/shop", False),
        ("/mnt/gluster/shop", False),
        ("/mnt/nfs/shop", False),
        ("/mnt/nolock/shop", True),
        ("/mnt/host folder/shop", True),
        ("/mnt/windows/shop", True),
        ("/mnt/disk/shop", False),
        ("/mnt/over/shop", True),
    ],
)
def test_mounts_are_known_by_their_type_and_options(path: str, local: bool) -> None:
    mount = mount_in(TABLE, path)

    assert mount is not None
    assert mount.locks_are_local is local


def test_a_path_outside_of_every_mount_is_no_mount() -> None:
    assert mount_in("", "/data") is None


def test_the_folder_of_the_tests_has_locks(tmp_path: object) -> None:
    assert not locks_are_local(str(tmp_path))
