"""scripts/setup: its refusals, the environments that it keeps, and those that it builds again.

The script is copied into a folder of its own, with a Python that builds a toy environment in no time and notes what was
asked of it; all else about it, the lock included, is real.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.waiting import SECONDS

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "setup"
TOOLS = ("bash", "cat", "cksum", "cp", "dirname", "env", "head", "mkdir", "mv", "readlink", "rm", "sed")

TOY_PYTHON = f"""#!/usr/bin/env bash
if [ "$1 $2" = "-m venv" ]; then
    echo venv >>"$NOTES"
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    printf 'VIRTUAL_ENV=%q\\n' "$3" >"$3/bin/activate"
    exit
fi
if [ "$1 $2" = "-m pip" ]; then
    [ "$3" = --version ] && exit
    echo "pip ${{@: -1}}" >>"$NOTES"
    while [ $# -gt 1 ]; do if [ "$1" = --target ]; then mkdir -p "$2"; fi; shift; done
    exit "${{PIP_STATUS:-0}}"
fi
exec "{sys.executable}" "$@"
"""

PYTHON_WITHOUT_VENV = """#!/usr/bin/env bash
case "$2" in
    *ensurepip*) exit 1 ;;
    *print*) echo python3.12 ;;
esac
"""


def write_program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


@dataclass(frozen=True)
class Machine:
    """A folder with the script in it, and a PATH that has only the programs of the test."""

    root: Path
    programs: Path
    notes: Path

    def java(self, version: str) -> None:
        write_program(self.programs / "java", f"#!/usr/bin/env bash\necho 'openjdk version \"{version}\"' >&2\n")

    def python(self, text: str = TOY_PYTHON) -> None:
        write_program(self.programs / "python3", text)

    def environment(self, **more: str) -> dict[str, str]:
        return {"PATH": str(self.programs), "NOTES": str(self.notes), **more}

    def setup(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.root / "scripts" / "setup"), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SECONDS, cwd="/", env=self.environment(**more)
        )

    def calls(self) -> list[str]:
        return self.notes.read_text(encoding="utf-8").splitlines() if self.notes.exists() else []


def copy_script(root: Path) -> None:
    (root / "scripts").mkdir(parents=True)
    shutil.copy(SCRIPT, root / "scripts" / "setup")
    (root / "pyproject.toml").write_text("[project]\n", encoding="utf-8")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with the usual tools, without Java and Python, and a folder whose name has spaces in it."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for tool in TOOLS:
        place = shutil.which(tool)
        assert place, f"{tool} is not installed"
        (programs / tool).symlink_to(place)
    write_program(programs / "chromium", "#!/usr/bin/env bash\n")
    root = tmp_path / "a folder with spaces"
    copy_script(root)
    return Machine(root, programs, tmp_path / "notes")


@pytest.fixture
def ready(machine: Machine) -> Machine:
    """The machine with Java and Python, after a first set-up."""
    machine.java("17.0.15")
    machine.python()
    done = machine.setup("test")
    assert done.returncode == 0, done.stderr
    assert machine.calls() == ["venv", "pip .[test]"]
    machine.notes.unlink()
    return machine


def test_without_java_the_package_is_named(machine: Machine) -> None:
    refused = machine.setup()

    assert refused.returncode == 1
    assert refused.stdout == ""
    assert len(refused.stderr.splitlines()) == 1
    assert "openjdk-17-jre-headless" in refused.stderr


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.20", "16"])
def test_an_old_java_is_refused_with_its_version(machine: Machine, version: str) -> None:
    machine.java(version)

    refused = machine.setup()

    assert refused.returncode == 1
    assert f"java is {version};" in refused.stderr
    assert "openjdk-17-jre-headless" in refused.stderr


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.2", "24-ea"])
def test_a_java_from_17_on_is_taken(machine: Machine, version: str) -> None:
    machine.java(version)
    machine.python()

    assert machine.setup().returncode == 0


def test_java_home_counts_when_it_is_set(machine: Machine) -> None:
    machine.java("17.0.15")

    refused = machine.setup(JAVA_HOME="/nowhere")

    assert refused.returncode == 1
    assert "/nowhere/bin/java is not there" in refused.stderr


def test_without_python_the_package_is_named(machine: Machine) -> None:
    machine.java("17.0.15")
    machine.python("#!/usr/bin/env bash\nexit 1\n")

    refused = machine.setup()

    assert refused.returncode == 1
    assert "Python 3.11 or newer is needed" in refused.stderr
    assert "apt-get install python3 python3-venv" in refused.stderr


def test_a_python_without_its_venv_module_names_the_package(machine: Machine) -> None:
    machine.java("17.0.15")
    machine.python(PYTHON_WITHOUT_VENV)

    refused = machine.setup()

    assert refused.returncode == 1
    assert "apt-get install python3.12-venv" in refused.stderr


def test_a_python_that_was_asked_for_is_the_one_that_is_used(machine: Machine, tmp_path: Path) -> None:
    machine.java("17.0.15")
    machine.python("#!/usr/bin/env bash\nexit 1\n")
    write_program(tmp_path / "my python", TOY_PYTHON)

    assert machine.setup(WALLAROO_PYTHON=str(tmp_path / "my python")).returncode == 0


def test_an_unknown_set_is_refused(machine: Machine) -> None:
    refused = machine.setup("everything")

    assert refused.returncode == 1
    assert "unknown set 'everything'" in refused.stderr


def test_the_oldest_pyspark_is_installed_once_and_beside_the_newest_one(ready: Machine) -> None:
    before = ready.calls()

    first, second = ready.setup("oldest-pyspark"), ready.setup("oldest-pyspark")

    assert (first.returncode, second.returncode, second.stderr) == (0, 0, ""), first.stderr
    assert ready.calls() == [*before, "pip pyspark==4.2.*"]
    assert (ready.root / ".venv" / "pyspark-4.2").is_dir()


def test_the_oldest_pyspark_is_installed_again_where_that_failed(ready: Machine) -> None:
    failed = ready.setup("oldest-pyspark", PIP_STATUS="1")

    assert failed.returncode == 1
    assert "PySpark 4.2 could not be installed" in failed.stderr
    assert not (ready.root / ".venv" / "pyspark-4.2").exists()
    assert ready.setup("oldest-pyspark").returncode == 0


def test_the_oldest_pyspark_needs_an_environment(machine: Machine) -> None:
    machine.java("17.0.1")
    refused = machine.setup("oldest-pyspark")

    assert refused.returncode == 1
    assert "run ./scripts/setup test first" in refused.stderr


def test_a_second_set_up_does_nothing_and_says_nothing(ready: Machine) -> None:
    again = ready.setup("test")

    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert ready.calls() == []


def test_the_packages_for_checks_are_enough_for_running(ready: Machine) -> None:
    assert ready.setup("all").returncode == 0
    assert ready.calls() == []


def test_a_changed_pyproject_is_installed_into_the_same_environment(ready: Machine) -> None:
    (ready.root / "pyproject.toml").write_text("[project]\nname = 'other'\n", encoding="utf-8")

    assert ready.setup("test").returncode == 0
    assert ready.calls() == ["pip .[test]"]


def test_a_moved_folder_builds_its_environment_again(ready: Machine, tmp_path: Path) -> None:
    moved = Machine(ready.root.rename(tmp_path / "moved"), ready.programs, ready.notes)

    done = moved.setup("test")

    assert done.returncode == 0, done.stderr
    assert "removing .venv: it was made elsewhere" in done.stderr
    assert moved.calls() == ["venv", "pip .[test]"]


def test_an_environment_whose_python_is_gone_is_built_again(ready: Machine) -> None:
    (ready.root / ".venv" / "bin" / "python").unlink()

    assert ready.setup("test").returncode == 0
    assert ready.calls() == ["venv", "pip .[test]"]


def test_an_environment_that_is_a_link_is_used_as_it_is(ready: Machine, tmp_path: Path) -> None:
    other = Machine(tmp_path / "a second folder", ready.programs, ready.notes)
    copy_script(other.root)
    (other.root / ".venv").symlink_to(ready.root / ".venv")

    done = other.setup("test")

    assert done.returncode == 0
    assert done.stderr == f"setup: using .venv as it is, a link to {ready.root / '.venv'}\n"
    assert (other.root / ".venv").is_symlink()
    assert ready.calls() == []


def test_a_link_that_leads_to_no_environment_is_refused(ready: Machine, tmp_path: Path) -> None:
    other = Machine(tmp_path / "a second folder", ready.programs, ready.notes)
    copy_script(other.root)
    (other.root / ".venv").symlink_to(tmp_path / "nowhere")

    refused = other.setup("test")

    assert refused.returncode == 1
    assert f".venv is a link to {tmp_path / 'nowhere'}, where no Python with pip runs; remove" in refused.stderr
    assert (other.root / ".venv").is_symlink()


def test_a_failed_installation_is_tried_again_the_next_time(ready: Machine) -> None:
    (ready.root / "pyproject.toml").write_text("[project]\nname = 'other'\n", encoding="utf-8")

    failed = ready.setup("test", PIP_STATUS="1")

    assert failed.returncode == 1
    assert "the installation failed" in failed.stderr
    assert ready.setup("test").returncode == 0
    assert ready.calls() == ["pip .[test]", "pip .[test]"]


def test_two_set_ups_at_once_build_one_environment(machine: Machine) -> None:
    machine.java("17.0.15")
    machine.python()
    command = [str(machine.root / "scripts" / "setup"), "test"]

    both = [
        subprocess.Popen(command, env=machine.environment(), stderr=subprocess.PIPE, text=True, cwd=os.sep)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=SECONDS)[1] for process in both]

    assert [process.returncode for process in both] == [0, 0], said
    assert machine.calls() == ["venv", "pip .[test]"]


APT_GET = """#!/usr/bin/env bash
echo "apt-get $1" >>"$NOTES"
exit "${APT_STATUS:-0}"
"""


def test_a_browser_that_is_asked_for_is_installed_as_root_and_else_named(ready: Machine) -> None:
    write_program(ready.programs / "apt-get", APT_GET)
    assert ready.setup("test", "--browser").stderr == ""

    (ready.programs / "chromium").unlink()
    assert ready.setup("all").stderr == ""
    assert ready.setup("test").stderr == ""
    assert ready.calls() == []
    done = ready.setup("test", "--browser")

    assert done.returncode == 0
    if os.geteuid() == 0:
        assert ready.calls() == ["apt-get update", "apt-get install"]
        assert "installing Chromium with apt-get" in done.stderr
    else:
        assert "install it (Debian: apt-get install chromium)" in done.stderr


def test_a_browser_that_cannot_be_installed_is_named_and_the_rest_is_set_up(ready: Machine) -> None:
    write_program(ready.programs / "apt-get", APT_GET)
    (ready.programs / "chromium").unlink()

    done = ready.setup("test", "--browser", APT_STATUS="100")

    assert done.returncode == 0
    assert "the tests of the status page will fail, because no Chromium is here" in done.stderr


@pytest.mark.parametrize("script", ["bench", "chaos", "cluster", "demo", "setup", "shop", "simulate", "soak", "test"])
def test_help_installs_nothing(tmp_path: Path, script: str) -> None:
    copy_script(tmp_path)
    for name in (script, "environment.sh"):
        shutil.copy(SCRIPT.with_name(name), tmp_path / "scripts" / name)

    done = subprocess.run(
        [str(tmp_path / "scripts" / script), "--help"], capture_output=True, text=True, check=False, timeout=SECONDS
    )

    assert done.returncode == 0, done.stderr
    assert f"./scripts/{script}" in done.stdout
    assert done.stderr == ""
    assert not (tmp_path / ".venv").exists()
