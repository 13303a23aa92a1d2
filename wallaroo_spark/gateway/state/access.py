"""Who may use which object, by the token of a call. Pure. Source: ``docs/pipelines/gateway.md#tokens``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wallaroo_spark.gateway.refusals import Refused
from wallaroo_spark.gateway.state.schema_view import SchemaView
from wallaroo_spark.pipelines.names import ObjectKey
from wallaroo_spark.pipelines.tokens import KeptToken, permission_problem, token_problem

PUBLISH = "publish"
SUBSCRIBE = "subscribe"


@dataclass(frozen=True)
class AccessRules:
    """The tokens of an application, and the permissions in its schema."""

    schema: SchemaView
    """The schema, whose Tokens have the permissions."""
    kept: Mapping[str, KeptToken] = field(default_factory=dict)
    """The tokens, by identifier."""

    @property
    def open(self) -> bool:
        """Whether no Token is declared, so that everybody may do everything."""
        return not self.schema.tokens

    def check(self, token: str, access: str, kind: str, path: str, now: float) -> None:
        """Raise :class:`Refused` unless the bearer of a token has this access to an object. ``now`` is in seconds."""
        self.check_token(token, now)
        if self.open:
            return
        namespace, _, name = path.rpartition("/")
        key = ObjectKey(kind, namespace[:200], name[:200])
        if problem := permission_problem(token, access, key, self.kept, self.schema.tokens):
            raise Refused(problem, code="permission-missing", status="PERMISSION_DENIED")

    def check_token(self, token: str, now: float) -> None:
        """Raise :class:`Refused` unless a token is valid."""
        if self.open:
            return
        if not token:
            raise Refused(
                "the call has no token; send the metadata 'authorization: Bearer <token>' with one that "
                "wallaroo-spark token create has made",
                code="token-refused",
                status="UNAUTHENTICATED",
            )
        if problem := token_problem(token, self.kept, self.schema.tokens, now):
            raise Refused(problem, code="token-refused", status="UNAUTHENTICATED")


def bearer(authorization: str) -> str:
    """The token in the metadata ``authorization``; empty without one."""
    scheme, _, token = authorization.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
