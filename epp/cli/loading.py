"""How much is loaded: without looking for garbage that loading does not leave, which takes a tenth of its time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Around imports. What is there afterwards stays, and later collections need not look at it."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
