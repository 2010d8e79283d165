"""What every flow needs.

A flow is a function that gets a `Page` of scripts/test-web and fails by an
exception. `mock` marks flows that need the answers of mock_server.py, `screens` those
that only take screenshots.
"""

FLOWS = []
BOTH = ("desktop-light", "phone-dark")
DESKTOP = ("desktop-light",)
ALL = ("desktop-light", "desktop-dark", "phone-light", "phone-dark")


def flow(variants=BOTH, mock=True, screens=False):
    def mark(function):
        function.variants, function.mock, function.screens = variants, mock, screens
        FLOWS.append(function)
        return function

    return mark


def same(found, wanted):
    assert found == wanted, f"found {found!r}, wanted {wanted!r}"
