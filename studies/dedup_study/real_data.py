"""Successive versions of real data, a file each: releases of packages, backups, checkpoints of databases."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from penstock.errors import PenstockError

#: largest version
MOST_BYTES = 2 << 30
#: longest time of one program, and of the start or end of the server [s]
WITHIN_S, SERVER_WITHIN_S = 900.0, 60.0
USER = "postgres"
PORT = "15432"


@dataclass(frozen=True)
class Source:
    """Data of which `write` writes versions into a directory.

    `missing`: reason why this host cannot do that, or empty.
    """

    name: str
    write: Callable[[Path], list[Path]]
    missing: Callable[[], str]


def packages(package: str, releases: Sequence[str]) -> Source:
    """Wheels of releases of a package, decompressed: the files of each in one archive.

    Wheels, because pip builds the metadata of a source distribution, which executes its code.
    """

    def write(directory: Path) -> list[Path]:
        versions = []
        for number, release in enumerate(releases, 1):
            place = directory / f"{package}-{release}"
            run(
                [
                    *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                    *("--only-binary", ":all:", "--disable-pip-version-check"),
                    *("--dest", str(place), f"{package}=={release}"),
                ]
            )
            (wheel,) = place.glob("*.whl")
            versions.append(directory / f"{package}.{number}")
            archive_of(wheel_files(wheel), versions[-1])
            shutil.rmtree(place)
        return versions

    def missing() -> str:
        return without_programs([], module="pip")

    return Source(f"releases of {package}", write, missing)


def postgres(scale: int, transactions: int, versions: int) -> Source:
    """Base backups of PostgreSQL, with transactions of pgbench between them."""

    def write(directory: Path) -> list[Path]:
        base = directory / "postgres"
        base.mkdir(mode=0o700)
        account = pwd.getpwnam(USER)
        for above in (directory, directory.parent):
            os.chmod(above, 0o711)
        os.chown(base, account.pw_uid, account.pw_gid)
        written = []
        with _server(base):
            at = ["-h", str(base), "-p", PORT]
            run([_postgres("pgbench"), *at, "-i", "-q", "-s", str(scale), USER], user=USER, at=base)
            for number in range(1, versions + 1):
                if number > 1:
                    load = [*("-n", "-c", "2", "-t", str(transactions)), USER]
                    run([_postgres("pgbench"), *at, *load], user=USER, at=base)
                place = base / f"backup{number}"
                options = ["-F", "t", "-X", "none", "-c", "fast", "--no-sync"]
                run(
                    [_postgres("pg_basebackup"), *at, "-D", str(place), *options],
                    user=USER,
                    at=base,
                )
                written.append(directory / f"backup.{number}")
                shutil.move(place / "base.tar", written[-1])
        shutil.rmtree(base)
        return written

    def missing() -> str:
        programs = ("initdb", "postgres", "pgbench", "pg_basebackup", "pg_isready")
        if lacking := [name for name in programs if not Path(_postgres(name)).exists()]:
            return f"PostgreSQL: {lacking[0]} is not installed"
        return "" if os.geteuid() == 0 else "PostgreSQL: needs root to run as another user"

    return Source("base backups of PostgreSQL", write, missing)


def rocksdb(keys: int, writes: int, versions: int) -> Source:
    """Checkpoints of RocksDB, with random overwrites of keys between them."""

    def write(directory: Path) -> list[Path]:
        database = directory / "db"
        options = [f"--db={database}", f"--num={keys}", "--value_size=400", "--seed=1"]
        run(["db_bench", "--benchmarks=fillrandom", *options])
        written = []
        for number in range(1, versions + 1):
            if number > 1:
                more = ["--use_existing_db=1", f"--writes={writes}"]
                run(["db_bench", "--benchmarks=overwrite", *options, *more])
            place = directory / "checkpoint"
            run(["ldb", f"--db={database}", "checkpoint", f"--checkpoint_dir={place}"])
            written.append(directory / f"checkpoint.{number}")
            archive_of(directory_files(place), written[-1])
            shutil.rmtree(place)
        shutil.rmtree(database)
        return written

    def missing() -> str:
        return without_programs(["db_bench", "ldb"])

    return Source("checkpoints of RocksDB", write, missing)


def without_programs(programs: Iterable[str], module: str = "") -> str:
    """The first program or module that is not installed, as a reason; empty if all are."""
    for program in programs:
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if module:
        done = subprocess.run(
            [sys.executable, "-m", module, "--version"], capture_output=True, check=False
        )
        if done.returncode:
            return f"the Python module {module} is not installed"
    return ""


def run(argv: Sequence[str], *, user: str | None = None, at: Path | None = None) -> None:
    """Run a program to its end, as another user if given. Raises PenstockError if it fails."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=WITHIN_S,
            cwd=at,
            check=False,
            **_account(user),  # type: ignore[call-overload]
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PenstockError(f"{argv[0]}: {error}") from None
    if done.returncode:
        text = (done.stderr or done.stdout).strip()[-300:]
        raise PenstockError(f"{argv[0]}: status {done.returncode}: {text}")


def _account(user: str | None) -> dict[str, object]:
    """Arguments of a process of a user, who has no other groups."""
    if user is None:
        return {}
    account = pwd.getpwnam(user)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _postgres(program: str) -> str:
    """Path of a program of the newest PostgreSQL, which is not on PATH."""
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda at: at.parent.name.zfill(4)
    )
    return str(folders[-1] / program) if folders else f"/usr/lib/postgresql/bin/{program}"


@contextlib.contextmanager
def _server(base: Path) -> Iterator[None]:
    """Context of a server whose data and socket are in `base`; only they are reachable, by no network."""
    data = base / "data"
    initialise = ["-D", str(data), "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8"]
    run([_postgres("initdb"), *initialise], user=USER, at=base)
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(base),
        "port": PORT,
        # the written data do not depend on it
        "fsync": "off",
    }
    options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    with open(base / "log", "wb") as log:
        server = subprocess.Popen(
            [_postgres("postgres"), "-D", str(data), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=base,
            **_account(USER),  # type: ignore[call-overload]
        )
        try:
            _await(server, base)
            yield
        finally:
            # a fast shutdown, then an immediate one
            for sign in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
                server.send_signal(sign)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    server.wait(SERVER_WITHIN_S)
                    break


def _await(server: subprocess.Popen[bytes], base: Path) -> None:
    end = time.monotonic() + SERVER_WITHIN_S
    ready = [_postgres("pg_isready"), "-q", "-h", str(base), "-p", PORT]
    while time.monotonic() < end and server.poll() is None:
        if subprocess.run(ready, check=False).returncode == 0:
            return
        time.sleep(0.1)
    text = (base / "log").read_text(errors="replace").strip()[-300:]
    raise PenstockError(f"PostgreSQL did not start: {text}")


def wheel_files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Names and content of the files of a wheel, by name."""
    with zipfile.ZipFile(wheel) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        if sum(member.file_size for member in members) > MOST_BYTES:
            raise PenstockError(f"{wheel.name}: larger than {MOST_BYTES:,} bytes")
        for member in sorted(members, key=lambda member: member.filename):
            yield member.filename, archive.read(member)


def directory_files(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Names and content of the files of a directory, by name."""
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        yield str(path.relative_to(directory)), path.read_bytes()


def archive_of(files: Iterable[tuple[str, bytes]], target: Path) -> None:
    """Write files to an uncompressed archive that depends only on their names and content."""
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
