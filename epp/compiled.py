"""Whether this installation holds modules compiled by mypyc, which Python prefers to the sources beside them.

Figures and faults of a compiled picker are not those of its sources, so whoever reads one has to be told.
"""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def compiled_modules(package: Path = Path(__file__).parent) -> int:
    """How many modules of the package there are as extension modules."""
    return sum(1 for file in package.rglob(f"*{EXTENSION_SUFFIXES[0]}"))


def build_in_words() -> str:
    """`pure Python`, or `31 modules compiled`."""
    count = compiled_modules()
    return f"{count} modules compiled" if count else "pure Python"
