"""The address under which a slot is announced, made from an option's template, the slot's number and the port."""

from __future__ import annotations

import contextlib
import ipaddress
import string

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.transport.address import format_address, parse_address

_FIELDS = ("slot", "port")


def advertised(template: str, slot: int, port: int) -> str:
    """The ``host:port`` of a slot whose listener has port ``port``, made from ``template``.

    A template is a host name or address, with or without a port; ``{slot}`` and ``{port}`` in it are replaced. Without
    a port it gets the listener's. Raises :class:`ConfigurationError` with the template's mistake.
    """
    try:
        unknown = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None} - {*_FIELDS}
        if unknown:
            raise ConfigurationError(
                f"{template!r} has {{{min(unknown)}}}, and only {{slot}} and {{port}} are replaced; write for example "
                "worker-{slot}.example.com:{port}",
                code="address-invalid",
                template=template,
            )
        text = template.format(slot=slot, port=port).strip()
    except ValueError as error:
        raise ConfigurationError(
            f"{template!r} cannot be parsed: {error}; write for example worker-{{slot}}.example.com:{{port}}",
            code="address-invalid",
            template=template,
        ) from None
    with contextlib.suppress(ValueError):
        return format_address(str(ipaddress.IPv6Address(text.strip("[]"))), port)
    return format_address(*parse_address(text if ":" in text else f"{text}:{port}"))
