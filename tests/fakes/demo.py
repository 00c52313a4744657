"""What the demo must come to, read from examples/norms/expected.toml and compared with what the API says."""

import tomllib
from pathlib import Path
from typing import Any

import httpx

from service.domain.policy import recipes

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "norms"
ENDED = {"done", "failed", "skipped", "superseded", "cancelled"}


def subjects() -> dict[str, str]:
    listed = tomllib.loads((EXAMPLE / "commits" / "commits.toml").read_text())["commit"]
    return {commit["name"]: commit["subject"] for commit in listed}


def expected() -> dict[str, Any]:
    return tomllib.loads((EXAMPLE / "expected.toml").read_text())


def cells(device: str) -> set[tuple[str, str]]:
    """(provider, case) of everything that a measured commit has a verdict on, and no more."""
    recipe = recipes.parse((EXAMPLE / "recipe.toml").read_text())
    return {
        (name, str(case))
        for name, provider in recipe.providers_on(device).items()
        for case in recipe.cases(recipe.suite_on(device))
        if f"{case.op}.{case.direction}" in provider.calls
    }


def runs(address: str) -> dict[str, dict[str, Any]]:
    """The demo's runs by the name of their commit, with verdicts, once every one has ended; {} before."""
    try:
        listed = httpx.get(f"{address}/api/v1/targets/demo/runs", params={"limit": 100}, timeout=10).json()["items"]
    except (httpx.HTTPError, KeyError, ValueError):
        return {}
    listed = [run for run in listed if run["purpose"] == "watch"]  # no steps of a bisection, and no calibrations
    names = {subject: name for name, subject in subjects().items()}
    if len(listed) < len(names) or any(run["state"] not in ENDED for run in listed):
        return {}
    whole = (httpx.get(f"{address}/api/v1/runs/{run['id']}", timeout=10).json() for run in listed)
    return {names[run["subject"]]: run for run in whole}


def differences(found: dict[str, dict[str, Any]]) -> list[str]:
    """One line for each thing that is not as expected; empty when all is."""
    wrong = []
    for name, wanted in expected().items():
        run = found[name]
        if run["state"] != wanted["state"]:
            wrong.append(f"{name}: {run['state']} instead of {wanted['state']} ({run['reason']})")
        if (said := wanted.get("log")) and said not in (run["log"] or ""):
            wrong.append(f"{name}: its log does not say {said!r}")
        judged = {(one["provider"], one["case"]): one for one in run["verdicts"] if one["baseline_kind"] == "parent"}
        should_be = cells(run["device"]) if wanted["state"] == "done" else set()
        wrong += [f"{name}: no verdict on {provider} {case}" for provider, case in sorted(should_be - judged.keys())]
        for (provider, case), verdict in judged.items():
            should = wanted.get(provider, {}).get(case, wanted["otherwise"]) if should_be else "no verdict"
            if verdict["outcome"] != should:
                cell = f"{name}: {provider} {case}"
                wrong.append(f"{cell}: {verdict['outcome']} instead of {should}: {verdict['reason']}")
    return wrong
