"""How a series is named in lists and URLs."""


def choice(device: str, provider: str, case: str) -> str:
    """Name a series as the list of a target's page and its URL do."""
    return f"{device} {provider} {case}"


def parts(chosen: str) -> tuple[str, str, str]:
    """Split the name of a series into device, provider and case; missing ones are empty."""
    device, provider, case = (*chosen.split(" "), "", "")[:3]
    return device, provider, case
