"""Asynchronous requests: `Prefer: respond-async` returns status 202 and a job to poll."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, HTTPException, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from penstock.errors import BadInput, PenstockError, Refused

#: maximum number of ended jobs that are retained
_RETAINED_ENDED = 200

Prefer = Annotated[str | None, Header(description="`respond-async`: return 202 and a job at once.")]


class JobModel(BaseModel):
    """An asynchronous request. `status` is its HTTP status once it has ended."""

    job: int
    what: str
    state: Literal["running", "done", "failed"]
    started_s: float
    seconds: float
    status: int | None = None
    result: Any = None
    error: str | None = None


@dataclass
class _Job:
    number: int
    what: str
    started: float = field(default_factory=time.time)
    start_s: float = field(default_factory=time.monotonic)
    wall_s: float | None = None
    status: int | None = None
    result: Any = None
    error: str | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def as_model(self) -> JobModel:
        wall_s = self.wall_s if self.wall_s is not None else time.monotonic() - self.start_s
        state: Literal["running", "done", "failed"] = "running"
        if self.ended.is_set():
            state = "done" if self.error is None else "failed"
        return JobModel(
            job=self.number,
            what=self.what,
            state=state,
            started_s=self.started,
            seconds=wall_s,
            status=self.status,
            result=self.result,
            error=self.error,
        )


def status_of(error: Exception) -> int:
    """The HTTP status of an error."""
    return 400 if isinstance(error, BadInput) else 409 if isinstance(error, Refused) else 500


class JobRegistry:
    """The jobs of one server."""

    def __init__(self) -> None:
        self._jobs: dict[int, _Job] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def do(
        self, prefer: str | None, description: str, action: Callable[[], Any], status: int = 200
    ) -> Any:
        """Run `action` and respond with its result, or start a job if the Prefer header requests it.

        `prefer` is the value of that header, `description` the text of the job.
        """
        if prefer is None or "respond-async" not in prefer:
            return JSONResponse(action(), status)
        job = _Job(next(self._numbers), description)
        with self._lock:
            self._jobs[job.number] = job
            ended = [n for n, j in self._jobs.items() if j.ended.is_set()]
            for number in ended[: max(0, len(ended) - _RETAINED_ENDED)]:
                del self._jobs[number]
        threading.Thread(target=self._run, args=(job, action, status)).start()
        location = f"/api/v1/jobs/{job.number}"
        return JSONResponse(
            job.as_model().model_dump(),
            202,
            headers={"Location": location, "Preference-Applied": "respond-async"},
        )

    @staticmethod
    def _run(job: _Job, action: Callable[[], Any], status: int) -> None:
        try:
            job.result, job.status = action(), status
        except HTTPException as error:
            job.error, job.status = str(error.detail), error.status_code
        except (PenstockError, OSError) as error:
            job.error, job.status = str(error), status_of(error)
        except Exception as error:  # otherwise the job would stay 'running'
            job.error, job.status = f"{type(error).__name__}: {error}", 500
        finally:
            job.wall_s = time.monotonic() - job.start_s
            job.ended.set()

    def all(self) -> list[JobModel]:
        """All retained jobs, the latest first."""
        with self._lock:
            return [job.as_model() for job in reversed(self._jobs.values())]

    def one(self, number: int, wait_s: float) -> JobModel:
        """A job, once it has ended or after `wait_s`. Raises HTTPException 404 if there is none."""
        with self._lock:
            job = self._jobs.get(number)
        if job is None:
            raise HTTPException(404, f"no job {number}")
        job.ended.wait(wait_s)
        return job.as_model()


def router(registry: JobRegistry) -> APIRouter:
    """Routes of jobs."""
    api = APIRouter(prefix="/jobs", tags=["jobs"])

    @api.get("", summary="List asynchronous requests, the latest first")
    def jobs() -> list[JobModel]:
        return registry.all()

    @api.get("/{job}", summary="Get a job; waits at most wait_s for its end")
    def job(job: int, wait_s: Annotated[float, Query(ge=0, le=60)] = 0.0) -> JobModel:
        return registry.one(job, wait_s)

    return api
