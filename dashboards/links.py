"""Where the pages of the dashboard link to.  A static export has the same pages with other addresses."""

from functools import lru_cache
from urllib.parse import quote, urlencode


class ServiceLinks:
    """The addresses of a running service.  An empty address is no link: a template then writes the text alone."""

    live = True  # scripts can ask for more
    home_word = "Health"

    def home(self) -> str:
        return "/"

    def target(self, name: str) -> str:
        return f"/targets/{quote(name)}"

    def run(self, run_id: int) -> str:
        return f"/runs/{run_id}"

    def regression(self, regression_id: int) -> str:
        return f"/regressions/{regression_id}"

    def incident(self, incident_id: int) -> str:
        return f"/incidents/{incident_id}"

    def bisection(self, bisection_id: int) -> str:
        return f"/bisections/{bisection_id}"

    def worker(self, name: str) -> str:
        return f"/workers#worker-{quote(name)}"

    def revision(self, target: str, ordinal: int | None, run_id: int | None) -> str:
        """Its newest run; without one its row among those of the mainline."""
        if run_id is not None:
            return self.run(run_id)
        if ordinal is None:
            return self.target(target)
        return f"{self.target(target)}?before={ordinal + 1}#revision-{ordinal}"

    def pull(self, target: str, number: int) -> str:
        return f"/targets/{quote(target)}/pulls/{number}"

    def board(self, target: str, device: str) -> str:
        return f"/targets/{quote(target)}/board?{urlencode({'device': device})}"

    def trend(self, target: str, device: str, provider: str, case: str) -> str:
        return _trend(target, device, provider, case)


@lru_cache(8192)  # a board has some hundred, each twice
def _trend(target: str, device: str, provider: str, case: str) -> str:
    return f"/targets/{quote(target)}/trend?{urlencode({'device': device, 'provider': provider, 'case': case})}"


SERVICE = ServiceLinks()
