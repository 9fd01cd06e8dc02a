"""The wheel, installed in an environment without clang, cargo and the source tree."""

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
#: directories of Debian's programs, without rustup and the development environment
SYSTEM = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
COMPILERS = ("clang", "cargo", "rustc", "cc", "gcc", "maturin")


def run_command(*argv: object, **overrides: object) -> subprocess.CompletedProcess[str]:
    options: dict[str, object] = {"capture_output": True, "text": True, "timeout": 250} | overrides
    result: subprocess.CompletedProcess[str] = subprocess.run(list(map(str, argv)), **options)  # type: ignore[call-overload]
    return result


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of `make wheel`, which uses the compiled parts of the build."""
    directory = tmp_path_factory.mktemp("dist")
    built = run_command("make", "-s", "wheel", f"DIST={directory}", cwd=ROOT)
    assert built.returncode == 0, built.stderr
    (path,) = directory.glob("*.whl")
    return path


def dependency_paths(package: metadata.Distribution) -> set[Path]:
    """Top-level paths in this environment's site-packages of all dependencies of a package."""
    site, paths, visited = Path(sysconfig.get_path("purelib")), set(), set()
    pending = [Requirement(text) for text in package.requires or []]
    while pending:
        requirement = pending.pop()
        extras = requirement.extras or {""}
        marker = requirement.marker
        if str(requirement) in visited or (marker and not marker.evaluate({"extra": ""})):
            continue
        visited.add(str(requirement))
        distribution = metadata.distribution(requirement.name)
        for text in distribution.requires or []:
            dependency = Requirement(text)
            if dependency.marker is None or any(
                dependency.marker.evaluate({"extra": e}) for e in extras
            ):
                dependency.marker = None
                pending.append(dependency)
        tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}
        paths |= {site / top for top in tops if not top.endswith((".pth", "__pycache__"))}
    return paths


@pytest.fixture(scope="module")
def prefix(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its dependencies only.

    The dependencies are links to installed packages, so that pip needs no index. The environment
    has no extras, no development tools and no source tree.
    """
    prefix = tmp_path_factory.mktemp("elsewhere")
    run_command(sys.executable, "-m", "venv", "--without-pip", prefix / "venv", check=True)
    site_packages = prefix / "venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site_packages /= "site-packages"
    # this environment's pip installs the wheel; --no-deps and --no-index: without downloads
    pip = (sys.executable, "-m", "pip", "--python", prefix / "venv" / "bin" / "python", "install")
    result = run_command(*pip, "-q", "--no-deps", "--no-index", wheel, cwd=prefix)
    assert result.returncode == 0, result.stderr
    (dist_info,) = site_packages.glob("penstock-*.dist-info")
    for path in dependency_paths(metadata.Distribution.at(dist_info)):
        if not (site_packages / path.name).exists():
            (site_packages / path.name).symlink_to(path)
    (prefix / "bin").mkdir()
    for directory in SYSTEM.split(":"):
        for program in Path(directory).glob("*") if Path(directory).is_dir() else ():
            link = prefix / "bin" / program.name
            if not program.name.startswith(COMPILERS) and not link.is_symlink():
                link.symlink_to(program)
    return prefix


def penstock(prefix: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command, without access to the source tree and compilers."""
    environment = {
        "PATH": f"{prefix}/venv/bin:{prefix}/bin",
        "HOME": str(prefix),
        "PENSTOCK_RUNTIME": str(prefix / "run"),
    }
    return run_command(
        prefix / "venv" / "bin" / "penstock", *arguments, cwd=prefix, env=environment
    )


def test_contents_of_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        files = {entry.filename: entry for entry in packed.infolist()}
    enter = files["penstock/host/penstock-enter"]
    assert enter.external_attr >> 16 & 0o111, "penstock-enter is not executable"
    # the native part contains the compiled BPF programs
    assert any(name.startswith("penstock/_native") for name in files)
    tracked = run_command("git", "ls-files", "python/penstock", cwd=ROOT, check=True).stdout.split()
    assert {name.removeprefix("python/") for name in tracked} <= set(files)


def test_the_environment_has_no_compiler(prefix: Path) -> None:
    for compiler in COMPILERS:
        assert not (prefix / "bin" / compiler).exists()
    code = "import penstock, penstock._native as n; print(penstock.__file__, n.__file__)"
    paths = run_command(
        prefix / "venv" / "bin" / "python", "-c", code, cwd=prefix, check=True
    ).stdout
    assert [str(prefix) in path for path in paths.split()] == [True, True]


def test_version_profiles_and_doctor(prefix: Path) -> None:
    assert penstock(prefix, "--version").stdout.split() == [
        run_command(sys.executable, "-m", "penstock", "--version", check=True).stdout.strip()
    ]
    profiles = penstock(prefix, "profile", "list", "--json")
    assert profiles.returncode == 0, profiles.stderr
    assert "hdd-7200" in profiles.stdout
    doctor = penstock(prefix, "doctor", "--json")
    assert doctor.returncode == 0, doctor.stderr
    assert json.loads(doctor.stdout)


@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/sys/kernel/btf/vmlinux").exists(),
    reason="tracing needs root and a kernel with type information",
)
def test_trace_of_a_command(prefix: Path) -> None:
    (prefix / "read").write_text("words")
    result = penstock(prefix, "trace", "--json", "--", "cat", "read")
    assert result.returncode == 0, result.stderr
    assert any(row["path"].endswith("/read") for row in json.loads(result.stdout)["files"])


def test_a_verb_without_its_extra_names_the_extra(prefix: Path) -> None:
    for verb, library, extra in (
        (("serve", "--port", "0"), "uvicorn", "serve"),
        (("learn", "."), "sklearn", "learn"),
    ):
        result = penstock(prefix, *verb)
        message = f"penstock: this needs {library}: pip install 'penstock[{extra}]'"
        assert (result.returncode, result.stderr.splitlines()[-1]) == (1, message), result.stderr
        assert "Traceback" not in result.stderr


#: package of a library whose package has another name
PACKAGES = {"sklearn": "scikit-learn", "dask": "distributed"}


def test_extras_equal_those_of_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (n for n in packed.namelist() if n.endswith(".dist-info/METADATA"))
        lines = packed.read(name).decode().splitlines()
    offered = {line.split()[1] for line in lines if line.startswith("Provides-Extra:")}
    mentioned = {extra for extras in EXTRAS.values() for extra in extras.split(",")}
    assert mentioned == offered - {"all"}
    for library, extras in EXTRAS.items():
        package = PACKAGES.get(library, library)
        for extra in extras.split(","):
            assert any(
                line.startswith(f"Requires-Dist: {package}>") and f"extra == '{extra}'" in line
                for line in lines
            ), (library, extra)
