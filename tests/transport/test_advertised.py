"""Advertised addresses: names, ports, and both by slot."""

from __future__ import annotations

import pytest

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.transport import advertised


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("worker", "worker:7103"),
        ("10.0.0.7", "10.0.0.7:7103"),
        ("fd00::7", "[fd00::7]:7103"),
        ("[fd00::7]", "[fd00::7]:7103"),
        ("[fd00::7]:443", "[fd00::7]:443"),
        ("worker:443", "worker:443"),
        ("worker-{slot}.example.com", "worker-3.example.com:7103"),
        ("worker-{slot}.example.com:{port}", "worker-3.example.com:7103"),
        ("worker-{slot:02d}.example.com:443", "worker-03.example.com:443"),
        ("worker.example.com:3{slot}443", "worker.example.com:33443"),
        ("[fd00::{slot}]:{port}", "[fd00::3]:7103"),
    ],
)
def test_placeholders_of_a_template_are_replaced(template: str, told: str) -> None:
    assert advertised(template, 3, 7103) == told


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("worker-{pod}:{port}", r"has \{pod\}, and only \{slot\} and \{port\} are replaced"),
        ("worker-{}", r"has \{\}, and only"),
        ("worker-{slot.real}", r"has \{slot\.real\}, and only"),
        ("worker-{slot", "cannot be parsed: expected '}'"),
        ("worker-{slot:q}", "cannot be parsed: Unknown format code"),
        ("worker:{slot}99999", "has port '399999'"),
        ("two words", "has no host name"),
        ("http://worker", "is a URL and not an address; leave http:// out"),
    ],
)
def test_an_invalid_template_is_refused_with_an_example(template: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        advertised(template, 3, 7103)
