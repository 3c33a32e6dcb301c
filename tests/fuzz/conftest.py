"""Fuzz targets judge by helpers that lie beside the tests of the wire and of the lean transport."""

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path += [str(TESTS / "wire"), str(TESTS / "server" / "lean")]
