"""The periodic tasks of control, for tests that drive them themselves."""

from service.ledger.intake import deliveries
from workers import control


def run_control() -> None:
    """Run every periodic task but polls once, one after another, until what each has begun is done.

    Reports come last, so that they tell what the others did.
    """
    deliveries.process_due()
    for lane in sorted(control.LANES, key=lambda lane: lane.name in ("reports", "notices")):
        if lane.name != "polls":
            lane.run()
