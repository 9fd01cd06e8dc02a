"""The wheel, installed where there is neither clang nor cargo nor this tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from penstock.cli import EXTRAS

pytestmark = [pytest.mark.host, pytest.mark.long]

ROOT = Path(__file__).parents[2]
#: where a Debian has its own programs; rustup's and the development environment's are elsewhere
SYSTEM = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
COMPILERS = ("clang", "cargo", "rustc", "cc", "gcc", "maturin")


def called(*words: object, **more: object) -> subprocess.CompletedProcess[str]:
    options: dict[str, object] = {"capture_output": True, "text": True, "timeout": 250} | more
    done: subprocess.CompletedProcess[str] = subprocess.run(list(map(str, words)), **options)  # type: ignore[call-overload]
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheel` makes, with what the build has already compiled."""
    folder = tmp_path_factory.mktemp("dist")
    built = called("make", "-s", "wheel", f"DIST={folder}", cwd=ROOT)
    assert built.returncode == 0, built.stderr
    (made,) = folder.glob("*.whl")
    return made


def needed(wanted: metadata.Distribution) -> set[Path]:
    """What the dependencies of a package, and theirs, have put into the site-packages of here."""
    site, found, asked = Path(sysconfig.get_path("purelib")), set(), set()
    left = [Requirement(text) for text in wanted.requires or []]
    while left:
        requirement = left.pop()
        extras = requirement.extras or {""}
        marker = requirement.marker
        if str(requirement) in asked or (marker and not marker.evaluate({"extra": ""})):
            continue
        asked.add(str(requirement))
        its = metadata.distribution(requirement.name)
        for text in its.requires or []:
            one = Requirement(text)
            if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in extras):
                one.marker = None
                left.append(one)
        tops = {file.parts[0] for file in its.files or [] if file.parts[0] != ".."}
        found |= {site / top for top in tops if not top.endswith((".pth", "__pycache__"))}
    return found


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with the wheel in it.

    What it says it depends on, and nothing else, are links to what is installed here, so that no index
    is asked: no extra, no tool of ours, not this tree.
    """
    place = tmp_path_factory.mktemp("elsewhere")
    called(sys.executable, "-m", "venv", "--without-pip", place / "venv", check=True)
    inside = place / "venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    inside /= "site-packages"
    # pip of here installs into there; --no-deps and --no-index: nothing is fetched
    pip = (sys.executable, "-m", "pip", "--python", place / "venv" / "bin" / "python", "install")
    done = called(*pip, "-q", "--no-deps", "--no-index", wheel, cwd=place)
    assert done.returncode == 0, done.stderr
    (said,) = inside.glob("penstock-*.dist-info")
    for there in needed(metadata.Distribution.at(said)):
        if not (inside / there.name).exists():
            (inside / there.name).symlink_to(there)
    (place / "bin").mkdir()
    for folder in SYSTEM.split(":"):
        for program in Path(folder).glob("*") if Path(folder).is_dir() else ():
            link = place / "bin" / program.name
            if not program.name.startswith(COMPILERS) and not link.is_symlink():
                link.symlink_to(program)
    return place


def penstock(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Called as its user does, in an environment of which nothing leads to the tree or a compiler."""
    environment = {
        "PATH": f"{place}/venv/bin:{place}/bin",
        "HOME": str(place),
        "PENSTOCK_RUNTIME": str(place / "run"),
    }
    return called(place / "venv" / "bin" / "penstock", *words, cwd=place, env=environment)


def test_what_is_inside(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        files = {entry.filename: entry for entry in packed.infolist()}
    enter = files["penstock/host/penstock-enter"]
    assert enter.external_attr >> 16 & 0o111, "it cannot be executed"
    # the kernel's programs are in the native part, ready to be loaded
    assert any(name.startswith("penstock/_native") for name in files)
    tracked = called("git", "ls-files", "python/penstock", cwd=ROOT, check=True).stdout.split()
    assert {name.removeprefix("python/") for name in tracked} <= set(files)


def test_nothing_there_could_compile(place: Path) -> None:
    for compiler in COMPILERS:
        assert not (place / "bin" / compiler).exists()
    which = "import penstock, penstock._native as n; print(penstock.__file__, n.__file__)"
    found = called(place / "venv" / "bin" / "python", "-c", which, cwd=place, check=True).stdout
    assert [str(place) in path for path in found.split()] == [True, True]


def test_it_says_what_it_is_and_what_the_host_can_do(place: Path) -> None:
    assert penstock(place, "--version").stdout.split() == [
        called(sys.executable, "-m", "penstock", "--version", check=True).stdout.strip()
    ]
    listed = penstock(place, "profile", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    assert "hdd-7200" in listed.stdout
    doctor = penstock(place, "doctor", "--json")
    assert doctor.returncode == 0, doctor.stderr
    assert json.loads(doctor.stdout)


@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/sys/kernel/btf/vmlinux").exists(),
    reason="tracing needs root and a kernel with type information",
)
def test_it_traces(place: Path) -> None:
    (place / "read").write_text("words")
    done = penstock(place, "trace", "--json", "--", "cat", "read")
    assert done.returncode == 0, done.stderr
    assert any(row["path"].endswith("/read") for row in json.loads(done.stdout)["files"])


def test_a_verb_of_an_extra_says_which(place: Path) -> None:
    for verb, library, extra in (
        (("serve", "--port", "0"), "uvicorn", "serve"),
        (("learn", "."), "sklearn", "learn"),
    ):
        done = penstock(place, *verb)
        told = f"penstock: this needs {library}: pip install 'penstock[{extra}]'"
        assert (done.returncode, done.stderr.splitlines()[-1]) == (1, told), done.stderr
        assert "Traceback" not in done.stderr


#: what a library is installed as, where that is another name
PACKAGES = {"sklearn": "scikit-learn", "dask": "distributed"}


def test_the_extras_are_those_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (n for n in packed.namelist() if n.endswith(".dist-info/METADATA"))
        lines = packed.read(name).decode().splitlines()
    offered = {line.split()[1] for line in lines if line.startswith("Provides-Extra:")}
    named = {extra for each in EXTRAS.values() for extra in each.split(",")}
    assert named == offered - {"all"}
    for library, extras in EXTRAS.items():
        of = PACKAGES.get(library, library)
        for extra in extras.split(","):
            assert any(
                line.startswith(f"Requires-Dist: {of}>") and f"extra == '{extra}'" in line
                for line in lines
            ), (library, extra)
