"""Client of `penstock serve`: clusters and disks of a local or remote host, from Python.

with Client.local() as client:
    cluster = client.put_up(Path("platform.yaml"))
    cluster.set_link("n-0", "net", out_bps=1e6, delay=0.01)
    print(cluster.exec(["n-*"], ["hostname"]))
    cluster.down()
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit, urlunsplit

import httpx

from penstock.errors import BadInput, PenstockError
from penstock.host.processes.servers import running_servers, server_at, trust_in, verification

NodeState = Literal["up", "down", "frozen", "running"]
#: timeout of a request; the start of a thousand nodes takes minutes [s]
_TIMEOUT_S = 900.0
_PREFIX = "/api/v1"


class Client:
    """Connection to one server, with the `url` and `token` that it prints. A context manager.

    `tls`: trusted certificates other than the authorities of this host.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        tls: ssl.SSLContext | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(
            verify=verification(url) if tls is None else tls,
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(_TIMEOUT_S, connect=10.0),
            transport=transport,
        )

    @classmethod
    def local(cls) -> Client:
        """Server of this user on this host. Raises BadInput if there is none, or several."""
        servers = running_servers()
        if len(servers) != 1:
            urls = ", ".join(server.url for server in servers) or "none"
            raise BadInput(f"found {len(servers)} servers on this host ({urls}); expected one")
        (server,) = servers
        tls = trust_in(server.cert) if server.cert else None
        return cls(server.url, server.token, tls=tls)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, method: str, path: str, **options: Any) -> Any:
        """Send a request below /api/v1; returns the JSON values of the response.

        Raises BadInput for an invalid request (400, 404, 409, 422), PenstockError if it failed.
        """
        try:
            response = self._http.request(method, f"{_PREFIX}{path}", **options)
        except httpx.HTTPError as error:
            raise PenstockError(f"{self._http.base_url}: {error}") from error
        return _content(response)

    def version(self) -> dict[str, Any]:
        """Version of the server."""
        return dict(self.request("GET", ""))

    def host(self) -> dict[str, Any]:
        """The host: processors, memory, features of its networks."""
        return dict(self.request("GET", "/host"))

    def state(self) -> dict[str, Any]:
        """All clusters and disks, with counters."""
        return dict(self.request("GET", "/state"))

    def live(self, interval_s: float = 1.0) -> Iterator[dict[str, Any]]:
        """`state` at regular intervals, until the caller closes the iterator."""
        with self._http.stream(
            "GET", f"{_PREFIX}/live", params={"interval_s": interval_s}
        ) as response:
            if response.is_error:
                response.read()
                _content(response)
            event = ""
            for line in response.iter_lines():
                if line.startswith("event: "):
                    event = line[7:]
                elif line.startswith("data: ") and event == "state":
                    yield json.loads(line[6:])

    def clusters(self) -> list[str]:
        """Names of the clusters that are up."""
        return list(self.request("GET", "/clusters"))

    def cluster(self, name: str) -> RemoteCluster:
        """A cluster. Raises BadInput if there is none of that name."""
        self.request("GET", f"/clusters/{_part(name)}")
        return RemoteCluster(self, name)

    def put_up(
        self,
        platform: Path | str | Mapping[str, Any] | None = None,
        *,
        spec: Mapping[str, Any] | None = None,
        overrides: Sequence[str] = (),
        name: str | None = None,
        runtime: str | None = None,
        ssh: bool = False,
    ) -> RemoteCluster:
        """Start a cluster from a platform file (its path, text or content), or from a saved specification."""
        body: dict[str, Any] = {"set": list(overrides), "ssh": ssh}
        if isinstance(platform, Path):
            try:
                platform = platform.read_text()
            except OSError as error:
                raise BadInput(f"{platform}: {error.strerror}") from None
        for key, value in (
            ("platform", platform),
            ("spec", spec),
            ("name", name),
            ("runtime", runtime),
        ):
            if value is not None:
                body[key] = value
        response = self.request("POST", "/clusters", json=body)
        return RemoteCluster(self, response["cluster"])

    def begin(self, method: str, path: str, **options: Any) -> Job:
        """Send a request that continues after its response."""
        headers = {**options.pop("headers", {}), "Prefer": "respond-async"}
        return Job(self, int(self.request(method, path, headers=headers, **options)["job"]))

    def disks(self) -> list[dict[str, Any]]:
        """Disks without a node."""
        return list(self.request("GET", "/disks"))

    def put_disk_up(
        self, profile: str, backing: Path | str, mount: Path | str, *, time_scale: float = 1.0
    ) -> dict[str, Any]:
        """Start a disk on the server's host."""
        body = {
            "profile": profile,
            "backing": str(backing),
            "mount": str(mount),
            "time_scale": time_scale,
        }
        return dict(self.request("POST", "/disks", json=body))

    def set_disk(self, disk: str, **patch: Any) -> dict[str, Any]:
        """Change a disk now: limits, features, faults."""
        return dict(self.request("PATCH", f"/disks/{_part(disk)}", json={"patch": patch}))

    def take_disk_down(self, disk: str) -> dict[str, Any]:
        """Stop a disk; its files stay."""
        return dict(self.request("DELETE", f"/disks/{_part(disk)}"))

    def journal(self) -> list[dict[str, Any]]:
        """Changes to the host that are not yet reversed."""
        return list(self.request("GET", "/journal")["entries"])


class RemoteCluster:
    """A cluster on the server."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    def _request(self, method: str, path: str, **options: Any) -> Any:
        return self.client.request(method, f"/clusters/{_part(self.name)}{path}", **options)

    def nodes(self) -> list[dict[str, Any]]:
        """Nodes: state, addresses, disks."""
        return list(self._request("GET", "/nodes"))

    def status(self) -> dict[str, Any]:
        """Status of its nodes."""
        return dict(self._request("GET", "/status"))

    def platform(self) -> dict[str, Any]:
        """Specification, for `Client.put_up(spec=…)`."""
        return dict(self._request("GET", "/platform"))

    def networks(self) -> list[dict[str, Any]]:
        """Networks: subnet, carrier, delays between nodes, counters of the relay."""
        return list(self._request("GET", "/networks"))

    def set_delays(self, network: str, delays: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
        """Change one-way delays [s] from node to node; both ways unless both are given."""
        by_node = {a: dict(to) for a, to in delays.items()}
        return dict(self._request("PATCH", f"/networks/{_part(network)}", json={"delays": by_node}))

    def certificate(self, length_s: float = 4.0) -> dict[str, Any]:
        """Observe its disks for `length_s`; returns `valid`, `reason`, and the evidence for each."""
        return dict(self._request("POST", "/certificate", json={"seconds": length_s}))

    def change(self, changes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Make changes `{nodes, resource, name?, patch}`, all checked first; returns the values read back."""
        return list(self._request("PATCH", "", json={"changes": list(changes)})["applied"])

    def set_link(self, node: str, network: str, **patch: Any) -> dict[str, Any]:
        """Change a link: out_bps, in_bps, delay, loss, …; None removes a limit."""
        return dict(
            self._request("PATCH", f"/nodes/{_part(node)}/links/{_part(network)}", json=patch)
        )

    def set_disk(self, node: str, disk: str, **patch: Any) -> dict[str, Any]:
        """Change a disk: limits, profile, slow, faults, …"""
        return dict(self._request("PATCH", f"/nodes/{_part(node)}/disks/{_part(disk)}", json=patch))

    def set_cpu(self, node: str, **patch: Any) -> dict[str, Any]:
        """Change processors: cpus, cpuset, ratio."""
        return dict(self._request("PATCH", f"/nodes/{_part(node)}/cpu", json=patch))

    def set_memory(self, node: str, **patch: Any) -> dict[str, Any]:
        """Change memory [bytes]: hard, soft."""
        return dict(self._request("PATCH", f"/nodes/{_part(node)}/memory", json=patch))

    def set_state(self, node: str, state: NodeState) -> dict[str, Any]:
        """Start, stop, freeze or thaw a node."""
        return dict(self._request("PUT", f"/nodes/{_part(node)}/state", json={"state": state}))

    def exec(
        self,
        nodes: Sequence[str],
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout_s: float | None = 60.0,
    ) -> list[dict[str, Any]]:
        """Run a command in nodes at once: exit_status, stdout, stderr, seconds of each."""
        body: dict[str, Any] = {"nodes": list(nodes), "argv": list(argv), "timeout_s": timeout_s}
        body |= {"env": dict(env or {}), "cwd": cwd, "user": user}
        return list(self._request("POST", "/exec", json=body)["results"])

    def read_file(self, node: str, path: str) -> bytes:
        """Read a file of a node."""
        return bytes(self._request("GET", f"/nodes/{_part(node)}/files/{_path(path)}"))

    def write_file(self, node: str, path: str, content: bytes) -> None:
        """Write a file of a node."""
        self._request(
            "PUT",
            f"/nodes/{_part(node)}/files/{_path(path)}",
            content=content,
            headers={"Content-Type": "application/octet-stream"},
        )

    def schedule(self, events: Sequence[Mapping[str, Any]]) -> int:
        """Schedule changes; returns the time they count from [ns]."""
        return int(self._request("POST", "/events", json={"events": list(events)})["start_ns"])

    def events(self) -> list[dict[str, Any]]:
        """Events and their state."""
        return list(self._request("GET", "/events"))

    def mark(self, phase: str) -> int:
        """Mark the start of a phase; returns the number of events that waited for it."""
        return int(self._request("POST", "/marks", json={"phase": phase})["events"])

    def down(self) -> None:
        """Stop the cluster."""
        self._request("DELETE", "")


class Job:
    """A request that continues after its response."""

    def __init__(self, client: Client, number: int) -> None:
        self._client = client
        self.number = number

    def state(self, wait_s: float = 0.0) -> dict[str, Any]:
        """State, after waiting at most `wait_s` seconds (at most 60) for its end."""
        return dict(self._client.request("GET", f"/jobs/{self.number}", params={"wait_s": wait_s}))

    def result(self) -> Any:
        """Wait for the end and return the result. Raises the errors of the request."""
        while (job := self.state(30.0))["state"] == "running":
            pass
        if job["state"] == "failed":
            error = BadInput if (job["status"] or 500) < 500 else PenstockError
            raise error(job["error"])
        return job["result"]


def _content(response: httpx.Response) -> Any:
    if response.is_success:
        if response.content and "json" in response.headers.get("content-type", ""):
            return response.json()
        return response.content
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = response.text[:500]
    if isinstance(detail, list):  # FastAPI's errors for an invalid body
        detail = "; ".join(f"{'.'.join(map(str, d['loc']))}: {d['msg']}" for d in detail)
    error = BadInput if response.status_code in (400, 404, 409, 422) else PenstockError
    raise error(f"{detail} ({response.status_code})")


def _part(text: str) -> str:
    return quote(text, safe="")


def _path(text: str) -> str:
    return quote(text.lstrip("/"), safe="/")


def download(url: str, most_bytes: int) -> tuple[bytes, Mapping[str, str]]:
    """Download at most `most_bytes`; returns the body and the headers of the response.

    Servers of this user on this host get their own token, and the server $PENSTOCK_SERVER gets
    $PENSTOCK_TOKEN. Raises PenstockError without a response, BadInput for an error status or a longer body.
    """
    parts: list[bytes] = []
    total = 0
    address, headers, tls = _authorized(url)
    try:
        with httpx.stream(
            "GET", address, headers=headers, timeout=httpx.Timeout(60.0, connect=10.0), verify=tls
        ) as response:
            if response.status_code != 200:
                raise BadInput(f"{url}: found status {response.status_code}; expected 200")
            for part in response.iter_bytes():
                total += len(part)
                if total > most_bytes:
                    raise BadInput(
                        f"{url}: found more than {most_bytes} bytes; expected that at most"
                    )
                parts.append(part)
    except httpx.InvalidURL as error:
        raise BadInput(f"{url}: {error}; expected the address of an export") from None
    except httpx.HTTPError as error:
        raise PenstockError(f"{url}: {error}") from error
    return b"".join(parts), response.headers


def _authorized(url: str) -> tuple[str, dict[str, str], ssl.SSLContext | bool]:
    """URL to use, headers with a token if there is one, and TLS settings."""
    server_url, token = (
        os.environ.get("PENSTOCK_SERVER", "").rstrip("/"),
        os.environ.get("PENSTOCK_TOKEN"),
    )
    if token and server_url and url.startswith(f"{server_url}/"):
        return url, {"Authorization": f"Bearer {token}"}, verification(url)
    server = server_at(url)
    if server is None:
        return url, {}, verification(url)
    parts = urlsplit(url)
    own = urlsplit(server.url)
    address = urlunsplit((own.scheme, own.netloc, parts.path, parts.query, ""))
    headers = {"Authorization": f"Bearer {server.experiments_token}"}
    return address, headers, verification(address, server.cert)
