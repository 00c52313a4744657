"""The endpoints that change something.  Each names the scope that it needs, and runs as the sender."""

from fastapi import APIRouter

from service.api.writes import runs, targets, triage

router = APIRouter()
for one in (targets.router, runs.router, triage.router):
    router.include_router(one)
