"""Fuzz targets judge by the rules that lie beside the tests of the wire."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "wire"))
