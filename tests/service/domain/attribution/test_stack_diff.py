"""What changed between two stacks, in words."""

from service.domain.attribution.causes import moved


def test_what_changed_is_said_in_the_order_of_the_stack():
    before = {"python": "3.12.3", "torch": "2.11.0", "quack": "0.6.5", "driver": "590.44"}
    now = {"python": "3.12.3", "torch": "2.13.0", "liger": "0.8.5", "driver": "590.48"}
    assert moved(before, now) == (
        "torch 2.11.0 → 2.13.0",
        "liger 0.8.5 is new",
        "driver 590.44 → 590.48",
        "quack 0.6.5 is gone",
    )
    assert moved(now, now) == ()
