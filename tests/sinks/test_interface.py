"""The ids of transactions, and that a prepared transaction survives the log of decisions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.strategies import steady
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.sinks import Prepared, Transaction
from wallaroo_spark.sinks.interface import LONGEST_NAME

names = st.from_regex(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}", fullmatch=True)
transactions = st.builds(
    Transaction,
    names,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**31),
    st.from_regex(r"[0-9a-z]{1,32}", fullmatch=True),
)


@steady
@given(transactions)
def test_an_id_names_one_transaction_and_fits_a_short_name(transaction: Transaction) -> None:
    assert Transaction.parse(transaction.id) == transaction
    assert len(transaction.id.encode("ascii")) < 200


@steady
@given(st.text(max_size=30) | st.from_regex(r"a/0*[0-9]+/[0-9]+/[0-9a-z]+", fullmatch=True))
def test_the_text_of_a_parsed_transaction_is_the_same(text: str) -> None:
    found = Transaction.parse(text)

    assert found is None or found.id == text


@pytest.mark.parametrize("text", ["", "a", "a/1/2/", "a/01/2/x", "a/1/-2/x", "a/1/2/x/", "a/1/2/X", "a/1/2/x\n"])
def test_transactions_of_other_sinks_are_ignored(text: str) -> None:
    assert Transaction.parse(text) is None


def test_every_attempt_is_a_transaction_of_its_own() -> None:
    made = {Transaction.new("orders", 3, 1).id for _ in range(100)}

    assert len(made) == 100
    assert all(Transaction.parse(text) for text in made)


@pytest.mark.parametrize("name", ["", "a/b", ".a", "a b", "ä", "x" * 65])
def test_a_name_that_cannot_be_part_of_a_path_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="a sink is named"):
        Transaction(name, 0, 0, "a")


def test_a_batch_below_zero_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="numbers from 0 on"):
        Transaction("orders", -1, 0, "a")


@steady
@given(transactions, st.integers(0, 2**40), st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5)))
def test_a_prepared_transaction_survives_the_log(
    transaction: Transaction, rows: int, detail: dict[str, int | str]
) -> None:
    prepared = Prepared(transaction, rows, detail)

    assert Prepared.from_json(json.loads(json.dumps(prepared.to_json()))) == prepared
