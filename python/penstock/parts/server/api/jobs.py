"""Requests that go on after their answer: `Prefer: respond-async` gives 202 and a job to be asked for."""

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

#: jobs that have ended are forgotten beyond this number
_MOST_ENDED = 200

Prefer = Annotated[
    str | None, Header(description="`respond-async`: answer at once with 202 and a job.")
]


class JobModel(BaseModel):
    """One request that goes on: `state` running, done or failed; `status` is the HTTP status it came to."""

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
    began: float = field(default_factory=time.monotonic)
    took: float | None = None
    status: int | None = None
    result: Any = None
    error: str | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def as_model(self) -> JobModel:
        took = self.took if self.took is not None else time.monotonic() - self.began
        state: Literal["running", "done", "failed"] = "running"
        if self.over.is_set():
            state = "done" if self.error is None else "failed"
        return JobModel(
            job=self.number,
            what=self.what,
            state=state,
            started_s=self.started,
            seconds=took,
            status=self.status,
            result=self.result,
            error=self.error,
        )


def status_of(error: Exception) -> int:
    """The HTTP status of what went wrong."""
    return 400 if isinstance(error, BadInput) else 409 if isinstance(error, Refused) else 500


class JobRegistry:
    """The jobs of one server."""

    def __init__(self) -> None:
        self._jobs: dict[int, _Job] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def do(self, prefer: str | None, what: str, act: Callable[[], Any], status: int = 200) -> Any:
        """Does it and gives its result; or, where that is preferred, begins it and gives the job."""
        if prefer is None or "respond-async" not in prefer:
            return JSONResponse(act(), status)
        job = _Job(next(self._numbers), what)
        with self._lock:
            self._jobs[job.number] = job
            ended = [n for n, j in self._jobs.items() if j.over.is_set()]
            for number in ended[: max(0, len(ended) - _MOST_ENDED)]:
                del self._jobs[number]
        threading.Thread(target=self._run, args=(job, act, status)).start()
        where = f"/api/v1/jobs/{job.number}"
        return JSONResponse(
            job.as_model().model_dump(),
            202,
            headers={"Location": where, "Preference-Applied": "respond-async"},
        )

    @staticmethod
    def _run(job: _Job, act: Callable[[], Any], status: int) -> None:
        try:
            job.result, job.status = act(), status
        except HTTPException as error:
            job.error, job.status = str(error.detail), error.status_code
        except (PenstockError, OSError) as error:
            job.error, job.status = str(error), status_of(error)
        except Exception as error:  # a job must not stay 'running'
            job.error, job.status = f"{type(error).__name__}: {error}", 500
        finally:
            job.took = time.monotonic() - job.began
            job.over.set()

    def all(self) -> list[JobModel]:
        """Every job that is remembered, the last first."""
        with self._lock:
            return [job.as_model() for job in reversed(self._jobs.values())]

    def one(self, number: int, wait_s: float) -> JobModel:
        """One job, after it has ended or after `wait_s`."""
        with self._lock:
            job = self._jobs.get(number)
        if job is None:
            raise HTTPException(404, f"no job {number}")
        job.over.wait(wait_s)
        return job.as_model()


def router(registry: JobRegistry) -> APIRouter:
    """Jobs, to be asked for."""
    api = APIRouter(prefix="/jobs", tags=["jobs"])

    @api.get("", summary="Requests that went on after their answer, the last first")
    def jobs() -> list[JobModel]:
        return registry.all()

    @api.get("/{job}", summary="One of them; waits for its end for at most wait_s")
    def job(job: int, wait_s: Annotated[float, Query(ge=0, le=60)] = 0.0) -> JobModel:
        return registry.one(job, wait_s)

    return api
