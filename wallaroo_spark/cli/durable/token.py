"""``wallaroo-spark token``: create, list and revoke the tokens of an application."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import click

from wallaroo_spark.cli.common import Columns, print_result, print_rows
from wallaroo_spark.cli.schema import AppOptions, one_object
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.texts import day_and_clock

if TYPE_CHECKING:
    from wallaroo_spark.gateway.tokens import KeptToken, TokenStore


@click.group()
def token() -> None:
    """Create, list and revoke the tokens of an application."""


@verb(token)
def create(name: str, *, app: AppOptions, as_json: Json = False) -> None:
    """Create a token with the permissions and the time to live of the Token NAME of the schema, and print it.

    It is shown once and kept as a hash. Gateways accept it within the length of a lease.

    Options:
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark token create shop-web --app ./shop
    """
    declared: Any = one_object(app.stored(), "Token", name)
    text, kept = _store(app).create(declared, time.time())
    print_result(as_json, {**_described(kept), "token": text}, text)
    if not as_json:
        until = "it does not expire" if kept.expires_at is None else f"valid until {day_and_clock(kept.expires_at)}"
        click.echo(f"Token {kept.id} of {kept.name}, {until}. It is shown only here.", err=True)


@verb(token, "list")
def list_tokens(*, app: AppOptions, as_json: Json = False) -> None:
    """List the tokens of the application, the oldest first, without their secrets.

    Options:
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark token list --app ./shop
    """
    now = time.time()
    found = list(_store(app).list().values())
    columns: Columns[KeptToken] = {
        "id": lambda one: one.id,
        "name": lambda one: one.name,
        "state": lambda one: _state(one, now),
        "created": lambda one: day_and_clock(one.created_at),
        "expires": lambda one: "never" if one.expires_at is None else day_and_clock(one.expires_at),
    }
    values = {"tokens": [{**_described(one), "state": _state(one, now)} for one in found]}
    print_rows(as_json, values, columns, found, "There are no tokens.")


@verb(token)
def revoke(id_: Annotated[str, "ID"], *, app: AppOptions, as_json: Json = False) -> None:
    """Revoke the token with this ID, for ever. Gateways refuse it within the length of a lease.

    Options:
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark token revoke 0123456789abcdef --app ./shop
    """
    kept = _store(app).revoke(id_)
    print_result(as_json, {**_described(kept), "state": "revoked"}, f"Token {kept.id} of {kept.name} is revoked.")


def _store(app: AppOptions) -> TokenStore:
    from wallaroo_spark.gateway.tokens import TokenStore

    return TokenStore(app.existing())


def _described(one: KeptToken) -> dict[str, object]:
    return {"id": one.id, "name": one.name, "createdAt": one.created_at, "expiresAt": one.expires_at}


def _state(one: KeptToken, now: float) -> str:
    if one.revoked:
        return "revoked"
    return "expired" if one.expires_at is not None and now >= one.expires_at else "valid"
