"""Codes of options, settings, names, files and addresses."""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

OPTIONS = CodeGroup(
    "Options, settings and arguments",
    "Most are raised before anything is started.",
    (
        CodeEntry(
            "option-unknown",
            "There is no option or setting of this name.",
            "A name is misspelt, or belongs to another version of this package. Names are compared without regard to "
            "case.",
            "Use the name that the message suggests, or look it up in the page.",
            "docs/options.md",
        ),
        CodeEntry(
            "option-unreadable",
            "The value of an option cannot be read as the kind that the option takes.",
            "The text is not a number, a size (`64k`, `4m`), a time (`1500ms`, `2m`), a flag (`true`, `false`) or "
            "JSON.",
            "Write the value as the message says; the page has the kind of each option.",
            "docs/options.md",
        ),
        CodeEntry(
            "option-out-of-range",
            "The value of an option or a setting is outside its limits, or is not one of its choices.",
            "The message has the value and the limit.",
            "Give a value within the limit.",
            "docs/options.md",
        ),
        CodeEntry(
            "option-missing",
            "A required option or setting is not given.",
            "The value has no default, because no default would be right or safe.",
            "Give the option that the message names.",
            "docs/options.md",
        ),
        CodeEntry(
            "options-conflict",
            "Two options or settings cannot be used together, or one of them needs the other.",
            "Each value is valid alone. The message names both, and why they do not fit together.",
            "Change or remove one of the two.",
            "docs/options.md",
        ),
        CodeEntry(
            "config-invalid",
            "A configuration file is not what the command expects.",
            "The file is not YAML, has a name twice, lacks a part, or has a part of the wrong form. "
            "The message has the line.",
            "Correct that line; `wallaroo-spark validate FILE` names all mistakes at once, and "
            "`wallaroo-spark receive --sample` prints a configuration to begin with.",
            "docs/cli.md#wallaroo-spark-validate",
        ),
        CodeEntry(
            "profile-unknown",
            "There is no profile of this name, or no file of profiles.",
            "`--context` or `WALLAROO_CONTEXT` names a profile that the file of profiles does not have.",
            "Use a profile that the message lists, or add it to the file.",
            "docs/cli.md",
        ),
        CodeEntry(
            "secret-unavailable",
            "A secret that is given as `env:NAME` or `file:PATH` cannot be read.",
            "The variable is not set in this process, or the file is missing, not readable, or not text. Tasks on "
            "executors read it where they run.",
            "Set the variable, or correct the path and its permissions, on every machine that reads the secret.",
            "docs/security.md#secrets-in-options",
        ),
        CodeEntry(
            "secret-in-plain-text",
            "An option of `format('wallaroo')` has a secret in plain text.",
            "Spark shows the options of a source in plans and in its UI, so the secret would be visible there.",
            "Use `Receiver.stream()`, leave the option out in the driver that runs the receiver, or give `env:NAME` or "
            "`file:PATH`.",
            "docs/security.md#secrets-in-options",
        ),
        CodeEntry(
            "name-invalid",
            "A name of a receiver, topic, sink, instance or worker has characters or a length that is not permitted.",
            "Names become parts of keys in Redis, of file names and of frames.",
            "Use the characters and the length that the message lists.",
            "docs/options.md",
        ),
        CodeEntry(
            "address-invalid",
            "An address is not `host:port`.",
            "The port is missing or not a number from 1 to 65535, an IPv6 address has no brackets, or a template has "
            "another placeholder than `{slot}` and `{port}`.",
            "Write for example `10.0.0.7:4040`, `[::1]:4040` or `worker-{slot}.example.com:{port}`.",
            "docs/options.md",
        ),
        CodeEntry(
            "url-invalid",
            "The URL of a Redis or a database cannot be read.",
            "The scheme is unknown, or special characters of the password are not percent-encoded. The message does "
            "not repeat the URL, because it may contain a password.",
            "Write the URL in the form that the message shows.",
            "docs/options.md",
        ),
        CodeEntry(
            "file-unreadable",
            "A file that was named cannot be read.",
            "It does not exist, is a folder, or its permissions do not allow this user to read it.",
            "Check the path and its permissions on the machine that reads it.",
            "docs/cli.md",
        ),
        CodeEntry(
            "file-unwritable",
            "A file or folder that was named cannot be written.",
            "The folder does not exist, its permissions do not allow it, the disk is full, or the file exists already "
            "and is not overwritten.",
            "Name another path, make room, or correct the permissions.",
            "docs/cli.md",
        ),
        CodeEntry(
            "tls-files",
            "A TLS certificate, key or authority cannot be used.",
            "The file is missing or not PEM, the key is encrypted, certificate and key do not belong together, or "
            "one of the two is not given.",
            "Check the files with `openssl x509 -in FILE -noout -subject` and `openssl pkey -in FILE -noout`.",
            "docs/security.md",
        ),
        CodeEntry(
            "package-missing",
            "A Python package is not installed, or has a version that does not work.",
            "The package belongs to an extra of this package that was not installed in this Python environment.",
            "Run the `pip install` that the message shows, in the environment of the driver and, where the message "
            "says so, of the executors.",
            "docs/README.md",
        ),
        CodeEntry(
            "java-too-old",
            "Spark runs on a version of Java that is too old.",
            "`JAVA_HOME`, or the first `java` on the path, is of an old version.",
            "Install the version that the message names, or set `JAVA_HOME` to it.",
            "docs/cli.md#wallaroo-spark-check",
        ),
        CodeEntry(
            "executor-python",
            "Spark would run its Python workers with an interpreter that lacks this package.",
            "`PYSPARK_PYTHON` is not set, and the default `python3` is another environment than that of the driver.",
            "Set `PYSPARK_PYTHON` before the session is made, as the message shows; on a cluster, ship the "
            "environment.",
            "docs/cli.md#wallaroo-spark-check",
        ),
        CodeEntry(
            "cannot-listen",
            "A port cannot be opened.",
            "Another process uses the address, this host does not have it, or a port below 1024 needs rights that this "
            "user does not have.",
            "Free the address, use another one, or use port 0 for any free port.",
            "docs/options.md",
        ),
    ),
)
