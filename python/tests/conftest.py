"""What several tests need."""

import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def vectors():
    """The repository's golden vectors of a codec, by its name."""

    def read(name):
        return json.loads((ROOT / "tests" / "vectors" / f"{name}.json").read_text())

    return read
