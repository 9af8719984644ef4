"""Is the process alive, and does it take runs."""

from fastapi import APIRouter, Response

from app.api.answers import JsonAnswer
from app.api.doors import OpenDoors
from app.api.openapi import answers

router = APIRouter(tags=["health"], default_response_class=Response)


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", responses=answers("Health", "Alive."))
async def healthz() -> Response:
    """Liveness: the process answers."""
    return JsonAnswer({"status": "ok"})


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses=answers("Health", "Ready; with status 503 while shutting down."))
async def readyz(doors: OpenDoors) -> Response:
    """Readiness: new runs are taken."""
    if doors.is_draining:
        return JsonAnswer({"status": "draining"}, 503)
    return JsonAnswer({"status": "ready"})
