"""Is the process alive, and does it take runs."""

from fastapi import APIRouter, Response

from app.api.answers import JsonAnswer
from app.api.doors import OpenDoors

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> Response:
    """Liveness: the process answers."""
    return JsonAnswer({"status": "ok"})


@router.get("/readyz", responses={503: {"description": "Shutting down: no new runs are taken."}})
async def readyz(doors: OpenDoors) -> Response:
    """Readiness: new runs are taken."""
    if doors.is_draining:
        return JsonAnswer({"status": "draining"}, 503)
    return JsonAnswer({"status": "ready"})
