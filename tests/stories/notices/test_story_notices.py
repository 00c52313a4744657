"""The manual of notices as a story: a channel is subscribed, a commit is slower, people and programs are notified."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from apprise.plugins.slack import NotifySlack
from standardwebhooks import Webhook

from service.db.engine import transaction
from service.db.models import Target
from service.ops import doctor
from service.settings import settings, without_secrets
from tests.fakes.api import Api
from tests.fakes.receivers import Receiver, receiving
from tests.shell import kernelwatch
from tests.stories.test_story import WIDE, Story, story  # noqa: F401  (a fixture)
from tests.workers.periodic import run_control

SECRET = "whsec_" + "QUJD" * 8
TOKENS = "T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"


@dataclass
class Told:
    """The story, and what its channels got."""

    story: Story
    slack: Receiver
    hook: Receiver

    @property
    def titles(self) -> list[str]:
        """Subject lines in Slack."""
        return [one["attachments"][0]["title"] for one in self.slack.documents]

    @property
    def verified(self) -> list[dict[str, object]]:
        """The documents of the webhook, whose signatures are checked."""
        return [Webhook(SECRET).verify(one.body, one.headers)["data"] for one in self.hook.received]


@pytest.fixture
def told(story: Story, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:  # noqa: F811
    """The operator names two channels, and wants to wait for nothing."""
    with receiving() as slack, receiving() as hook:
        monkeypatch.setattr(NotifySlack, "webhook_url", f"{slack.address}/services")
        named = {"kernels": f"slack://{TOKENS}/#kernels", "ci": {"url": f"{hook.address}/in", "secret": SECRET}}
        monkeypatch.setenv("KERNELWATCH_CHANNELS", json.dumps(named))
        monkeypatch.setenv("KERNELWATCH_NOTICES_WAIT_S", "0")
        monkeypatch.setenv("KERNELWATCH_NOTICES_URGENT_WAIT_S", "0")
        settings.cache_clear()
        yield Told(story, slack, hook)


def test_a_regression_arrives_and_its_fix(told: Told) -> None:
    for channel in ("kernels", "ci"):
        kernelwatch(f"subscription create {channel} --target norms")
    slow = told.story.push("wide rows in two passes", wide=260.0)
    run_control()
    [title] = told.titles
    assert re.fullmatch(rf"✗ norms on cpu: 1 regression, (29|30)\.\d % slower, since {slow[:10]}", title)
    [data] = told.verified
    assert data["title"] == told.titles[0]
    [event] = data["events"]
    assert (event["case"], event["revision"], event["regression_id"]) == (WIDE, slow, 1)
    assert told.story.api("GET", event["url"].removeprefix(settings().address)).status_code == 200

    told.story.push("one pass again", wide=200.0)
    run_control()
    run_control()
    assert told.titles[1:] == ["✓ norms on cpu: 1 regression fixed"]
    assert [*told.verified[1]["counts"]] == ["regression.fixed"]


def test_people_see_what_they_subscribed_and_what_does_not_work(told: Told) -> None:
    kernelwatch("subscription create ci --target norms --severity fail --event regression")
    kernelwatch("subscription create kernels --device 'h*'")
    listed = json.loads(kernelwatch("subscription list --format json").stdout)["items"]
    assert [(one["channel"], one["target"], one["device"], one["severity"], one["kinds"]) for one in listed] == [
        ("kernels", None, "h*", "warn", None),
        ("ci", "norms", None, "fail", ["regression"]),
    ]
    assert "regression" in kernelwatch("subscription list norms").stdout
    assert "The test arrived" in kernelwatch("subscription test 2").stdout
    assert told.titles == ["· kernelwatch: test of subscription 2"]
    told.hook.status = 500
    assert "the receiver answered 500" in kernelwatch("subscription test 1", code=2).stdout

    told.story.push("wide rows in two passes", wide=260.0)
    run_control()
    shown = kernelwatch("status").stdout
    assert "channel ci: the last message failed: the receiver answered 500" in shown
    [check] = [one for one in doctor.checks(lambda: None, ["host"]) if one.name == "channel: ci"]
    assert (check.ok, check.found) == (False, "the receiver answered 500")
    assert "kernelwatch_channel_failures" in told.story.api("GET", "/metrics").text
    everything = shown + kernelwatch("subscription channels").stdout + kernelwatch("audit --format json").stdout
    assert TOKENS not in everything
    assert SECRET not in everything
    assert without_secrets(f"{SECRET} slack://{TOKENS}/#kernels") == "[secret] [secret]"

    kernelwatch("subscription delete 1")
    assert [one["id"] for one in json.loads(kernelwatch("subscription list --format json").stdout)["items"]] == [2]


def test_who_may_triage_one_target_subscribes_to_that_one(told: Told) -> None:
    kernelwatch("subscription create ci")
    api = Api()
    mine, reader, admin = api.with_key("triage:norms"), api.with_key("read"), api.with_key("admin")
    assert mine.post("/subscriptions", {"channel": "kernels", "target": "norms"}).status_code == 201
    assert mine.post("/subscriptions", {"channel": "kernels"}).status_code == 403
    assert [one["channel"] for one in mine.get("/subscriptions").json()["items"]] == ["kernels"]
    assert mine.post("/subscriptions/1/test").status_code == 403
    for refused in (api.get("/subscriptions"), api.get("/channels")):
        assert refused.status_code == 401
    for refused in (reader.get("/subscriptions"), reader.get("/channels"), reader.post("/subscriptions/1/test")):
        assert refused.status_code == 403
    assert {one["name"]: one["service"] for one in mine.get("/channels").json()["items"]} == {
        "ci": "http",
        "kernels": "slack",
    }
    assert mine.request("DELETE", "/subscriptions/2").status_code == 204
    actions = [one["action"] for one in admin.get("/audit?action=subscription").json()["items"]]
    assert actions == ["subscription.delete", "subscription.create", "subscription.create"]


def test_a_private_target_is_sent_to_who_may_read_it(told: Told) -> None:
    """A scope on all targets holds for a private one as well."""
    everyone = Api().with_key("triage")
    some = Api().with_key("triage:norms")
    assert everyone.post("/subscriptions", {"channel": "ci"}).status_code == 201
    assert some.post("/subscriptions", {"channel": "kernels", "target": "norms"}).status_code == 201
    with transaction() as session:
        session.get_one(Target, 1).private = True
    told.story.push("wide rows in two passes", wide=260.0)
    run_control()
    assert len(told.titles) == len(told.verified) == 1, "both were granted it"
