"""``wallaroo-spark token``: create, list and revoke the tokens of an application."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

from wallaroo_spark.cli.common import print_table
from wallaroo_spark.cli.schema import app_option, existing, json_option, one_object, schema_store
from wallaroo_spark.texts import day_and_clock

if TYPE_CHECKING:
    from wallaroo_spark.gateway.token_store import TokenStore
    from wallaroo_spark.gateway.tokens import KeptToken


@click.group()
def token() -> None:
    """Create, list and revoke the tokens of an application."""


@token.command(epilog="Example: wallaroo-spark token create shop-web --app ./shop")
@click.argument("name")
@app_option
@json_option
def create(name: str, app: str, as_json: bool) -> None:
    """Create a token with the permissions and the time to live of the Token NAME of the schema, and print it.

    It is shown once and kept as a hash. Gateways accept it within the length of a lease.
    """
    from wallaroo_spark.pipelines.schema.declarations import TokenDeclaration

    declared = one_object(schema_store(existing(app)).newest(), "Token", name)
    assert isinstance(declared, TokenDeclaration)
    text, kept = _store(app).create(declared, time.time())
    click.echo(json.dumps({**_described(kept), "token": text}) if as_json else text)
    if not as_json:
        until = "it does not expire" if kept.expires_at is None else f"valid until {day_and_clock(kept.expires_at)}"
        click.echo(f"Token {kept.id} of {kept.name}, {until}. It is shown only here.", err=True)


@token.command(name="list", epilog="Example: wallaroo-spark token list --app ./shop")
@app_option
@json_option
def list_tokens(app: str, as_json: bool) -> None:
    """List the tokens of the application, the oldest first, without their secrets."""
    now = time.time()
    found = list(_store(app).list().values())
    if as_json:
        click.echo(json.dumps({"tokens": [{**_described(one), "state": _state(one, now)} for one in found]}))
        return
    if not found:
        click.echo("There are no tokens.")
        return
    rows = (
        (
            one.id,
            one.name,
            _state(one, now),
            day_and_clock(one.created_at),
            "never" if one.expires_at is None else day_and_clock(one.expires_at),
        )
        for one in found
    )
    print_table(("id", "name", "state", "created", "expires"), rows)


@token.command(epilog="Example: wallaroo-spark token revoke 0123456789abcdef --app ./shop")
@click.argument("id_", metavar="ID")
@app_option
@json_option
def revoke(id_: str, app: str, as_json: bool) -> None:
    """Revoke the token with this ID, for ever. Gateways refuse it within the length of a lease."""
    kept = _store(app).revoke(id_)
    text = f"Token {kept.id} of {kept.name} is revoked."
    click.echo(json.dumps({**_described(kept), "state": "revoked"}) if as_json else text)


def _store(app: str) -> TokenStore:
    from wallaroo_spark.gateway.token_store import TokenStore

    return TokenStore(existing(app))


def _described(one: KeptToken) -> dict[str, object]:
    return {"id": one.id, "name": one.name, "createdAt": one.created_at, "expiresAt": one.expires_at}


def _state(one: KeptToken, now: float) -> str:
    if one.revoked:
        return "revoked"
    return "expired" if one.expires_at is not None and now >= one.expires_at else "valid"
