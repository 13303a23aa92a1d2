"""The page of the command line, written from the help of its verbs."""

from __future__ import annotations

from collections.abc import Iterator

import click

from wallaroo_spark.cli.main import VARIABLES, cli

HEAD = """\
# The command line

`pip install 'wallaroo-spark[cli]'` is enough for `send` and `sink`; `status`, `streams`, `top` and `list` need
`[worker]` beside it, `receive` and `demo` need `[spark,embedded,cli]`, or `[worker,cli]` where there is a Spark
already, with the URL of a Redis. This page is generated from the commands' own help by `python -m proving.pages`.

Errors are one sentence on standard error. The exit status is 0 when all is well, 1 after an error, 2 when the command
was not understood, 130 after Ctrl-C. `status` and `top` end with 1 when something of the receiver does not work.

**Defaults.** An option on the command line comes first, then the environment ({variables}), then a profile,
then its own default. Profiles stand in `~/.config/wallaroo-spark/config.toml` (or the file `WALLAROO_CONFIG`), and
`--context NAME`, `WALLAROO_CONTEXT` or the file itself chooses one:

```toml
context = "test"              # the profile without --context

[contexts.test]
registry = "redis://redis.test:6379"
receiver = "orders"

[contexts.test.streams]       # only for the verb streams
sort = "held"
```

**Completion.** The shell completes verbs and options after `eval "$(_WALLAROO_SPARK_COMPLETE=bash_source
wallaroo-spark)"` in `~/.bashrc`, with `zsh_source` in `~/.zshrc`, and after
`_WALLAROO_SPARK_COMPLETE=fish_source wallaroo-spark | source` in fish's `config.fish`.
"""
WIDTH = 100


def cli_page() -> str:
    """The whole page as Markdown: a head, then the help of the group and of each verb, as a terminal shows it."""
    head = HEAD.replace("{variables}", ", ".join(f"`{name}`" for name in VARIABLES.values()))
    return head + "".join(f"\n## {title}\n\n```text\n{text}\n```\n" for title, text in _helps())


def _helps() -> Iterator[tuple[str, str]]:
    group = click.Context(cli, info_name="wallaroo-spark", terminal_width=WIDTH, help_option_names=["-h", "--help"])
    yield "wallaroo-spark", cli.get_help(group)
    for verb in cli.list_commands(group):
        command = cli.get_command(group, verb)
        assert command is not None
        own = click.Context(command, info_name=verb, parent=group)
        yield f"wallaroo-spark {verb}", command.get_help(own)
        if isinstance(command, click.Group):
            for name in command.list_commands(own):
                inner = command.get_command(own, name)
                assert inner is not None
                context = click.Context(inner, info_name=name, parent=own)
                yield f"wallaroo-spark {verb} {name}", inner.get_help(context)
