"""Ctrl-C ends a program that proves something with a sentence, or with what it has found until then."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from proving.aqueduct import __main__ as aqueduct
from proving.aqueduct import histories
from proving.pipelines import __main__ as pipelines
from proving.reporting import reporting
from proving.simulator import __main__ as simulator


@pytest.mark.parametrize(
    ("program", "module", "name", "flags"),
    [
        (simulator, simulator, "simulate", []),
        (simulator, histories, "simulate", ["--aqueduct"]),
        (aqueduct, histories, "simulate", []),
        (pipelines, pipelines, "World", []),
    ],
    ids=["simulator", "simulator of Aqueduct", "aqueduct", "pipelines"],
)
def test_interrupted_histories_end_with_the_totals_of_those_that_were_run(
    program: Any,
    module: Any,
    name: str,
    flags: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one_history = getattr(module, name)

    def interrupted(seed: int, **more: Any) -> Any:
        if seed == 2:
            raise KeyboardInterrupt
        return one_history(seed, **more)

    monkeypatch.setattr(module, name, interrupted)
    monkeypatch.setattr(sys, "argv", ["program", "--seeds", "5", *flags])

    assert program.main() == 130
    printed, _ = capsys.readouterr()
    assert "2 of 5 histories" in printed
    assert "FAILED" not in printed


def test_an_interrupted_run_ends_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        with reporting() as (say, _):
            say("begun")
            raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        run()

    assert ended.value.code == 130
    assert capsys.readouterr().out == "begun\nInterrupted; every program of this run has ended.\n"
