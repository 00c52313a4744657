"""The endpoints that change something.  Each names the scope that it needs, and runs as the sender."""

from fastapi import APIRouter

from service.api.writes import policies, runs, studies, targets, triage, workers

router = APIRouter()
for one in (targets.router, runs.router, triage.router, workers.router, policies.router, studies.router):
    router.include_router(one)
