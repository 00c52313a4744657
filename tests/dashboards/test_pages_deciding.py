"""The pages of what was decided: causes, the lives of regressions, bisections, change points, calibration."""

import asyncio
import re
from collections.abc import Callable

import httpx
import pytest

from service.app import create_app
from tests.dashboards.seed import Seeded

Get = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def get() -> Get:
    """GET a page of the app, in this process."""
    app = create_app()

    def ask(path: str, **rest: object) -> httpx.Response:
        async def once() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://watch.example") as client:
                return await client.get(path, **rest)  # type: ignore[arg-type]

        return asyncio.run(once())

    return ask


def words(page: httpx.Response) -> str:
    """The text of a page on one line."""
    assert page.status_code == 200, page.text
    main = page.text[page.text.index("<main") : page.text.index("</main>")]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", main))


def test_a_run_says_why_in_words_and_what_that_rests_on(get: Get, decided: Seeded) -> None:
    said = words(get(f"/runs/{decided.runs['slow']}"))
    assert "Slower because the kernel now spills 12 registers. Cause: the code." in said
    assert "3 confirming launches, q 7.1e-05, smallest change that matters 2 %." in said.lower()
    assert re.search(r"version \w{10} , advisory, smallest change 2 %", said)
    assert "Recorded as regression 1 , regression 2" in said


def test_a_run_has_its_geometric_means(get: Get, decided: Seeded) -> None:
    said = words(get(f"/runs/{decided.runs['slow']}"))
    assert re.search(r"rmsnorm\.fwd norms 2 10\.2 % slower 1\.102 1\.098 to 1\.106", said)


def test_a_run_has_the_other_baselines_and_what_nobody_is_alarmed_by(get: Get, decided: Seeded) -> None:
    said = words(get(f"/runs/{decided.runs['fast']}"))
    assert "Last good revision 0123456789 : 3.1 % slower, 1.025 to 1.037; As slow as since 3f2a9c0d11" in said
    assert "Slow baseline v1.2 : 4.1 % slower" in said
    assert "Best of the baselines inductor : 33.0 % slower" in said
    assert "Not your commit: Quack 0.6.4 → 0.6.5 made the baseline 6 % faster." in said
    for badge in ("⊘ quarantined", "△ slow before", "◣ leak", "⊖ removed"):
        assert badge in said, badge
