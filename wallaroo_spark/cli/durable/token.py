"""``wallaroo-spark token``: create, list and revoke the tokens of an application."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

from wallaroo_spark.cli.common import debug_option, set_up_logging
from wallaroo_spark.cli.schema.application import app_option, json_option, need, one_object, schema_store, shown_time

if TYPE_CHECKING:
    from wallaroo_spark.gateway.token_store import TokenStore
    from wallaroo_spark.pipelines.tokens import KeptToken


@click.group(short_help="Create, list and revoke the tokens of an application.")
def token() -> None:
    """Create, list and revoke the tokens of an application."""


@token.command(epilog="Example: wallaroo-spark token create shop-web --app ./shop")
@click.argument("name")
@app_option
@json_option
@debug_option
def create(name: str, app: str, as_json: bool) -> None:
    """Create a token with the permissions and the time to live of the Token NAME of the schema, and print it.

    It is shown once and kept as a hash. Gateways accept it within the length of a lease.
    """
    from wallaroo_spark.pipelines.declarations import TokenDeclaration

    set_up_logging()
    declared = one_object(schema_store(app).newest(), "Token", name)
    assert isinstance(declared, TokenDeclaration)
    text, kept = _store(app).create(declared, time.time())
    click.echo(json.dumps({**_described(kept), "token": text}) if as_json else text)
    if not as_json:
        until = "it does not expire" if kept.expires_at is None else f"valid until {shown_time(kept.expires_at)}"
        click.echo(f"Token {kept.id} of {kept.name}, {until}. It is shown only here.", err=True)


@token.command(name="list", epilog="Example: wallaroo-spark token list --app ./shop")
@app_option
@json_option
@debug_option
def list_tokens(app: str, as_json: bool) -> None:
    """List the tokens of the application, the oldest first, without their secrets."""
    set_up_logging()
    now = time.time()
    found = list(_store(app).list().values())
    if as_json:
        click.echo(json.dumps({"tokens": [{**_described(one), "state": _state(one, now)} for one in found]}))
        return
    if not found:
        click.echo("There are no tokens.")
        return
    from rich.table import Table

    from wallaroo_spark.cli.status.sources import console

    table = Table(box=None)
    for column in ("id", "name", "state", "created", "expires"):
        table.add_column(column)
    for one in found:
        expires = "never" if one.expires_at is None else shown_time(one.expires_at)
        table.add_row(one.id, one.name, _state(one, now), shown_time(one.created_at), expires)
    console().print(table)


@token.command(epilog="Example: wallaroo-spark token revoke 0123456789abcdef --app ./shop")
@click.argument("id_", metavar="ID")
@app_option
@json_option
@debug_option
def revoke(id_: str, app: str, as_json: bool) -> None:
    """Revoke the token with this ID, for ever. Gateways refuse it within the length of a lease."""
    set_up_logging()
    kept = _store(app).revoke(id_)
    text = f"Token {kept.id} of {kept.name} is revoked."
    click.echo(json.dumps({**_described(kept), "state": "revoked"}) if as_json else text)


def _store(app: str) -> TokenStore:
    from wallaroo_spark.gateway.token_store import TokenStore

    return TokenStore(need(app))


def _described(one: KeptToken) -> dict[str, object]:
    return {"id": one.id, "name": one.name, "createdAt": one.created_at, "expiresAt": one.expires_at}


def _state(one: KeptToken, now: float) -> str:
    if one.revoked:
        return "revoked"
    return "expired" if one.expires_at is not None and now >= one.expires_at else "valid"
