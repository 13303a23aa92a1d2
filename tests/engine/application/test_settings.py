"""The settings of an application: its name, and combinations that cannot work."""

from __future__ import annotations

from typing import Any

import pytest

from wallaroo_spark.engine.application.settings import ApplicationSettings
from wallaroo_spark.errors import ConfigurationError


def test_the_name_is_the_last_part_of_the_folder_unless_it_is_given() -> None:
    assert ApplicationSettings(None, "/data/shop/").known_as == "shop"
    assert ApplicationSettings(None, "hdfs://name:8020/apps/shop").known_as == "shop"
    assert ApplicationSettings(None, "/data/shop", name="other").known_as == "other"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"folder": "/data/a b"}, "application name 'a b'.*give name"),
        ({"folder": "/"}, "application name ''"),
        ({"gateways": 0}, "gateways: 0 is not 1 or more"),
        ({"tls_certificate": "c.pem"}, "tls_certificate and tls_key go together"),
        ({"tls_ca": "c.pem"}, "tls_ca needs both"),
        ({"advertise": "host:{port"}, "cannot be parsed"),
        ({"state_partitions": 0}, "state_partitions: 0 is not 1 or more"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, Any], problem: str) -> None:
    settings = {"folder": "/data/shop", **given}

    with pytest.raises(ConfigurationError, match=problem):
        ApplicationSettings(None, settings.pop("folder"), **settings)
