"""Endpoints from a file that may change at any time, in whatever way people and machines change files.

An editor rewrites in place, a careful script renames over it, a ConfigMap swaps a symlink two steps away. All of that
is seen from the directory, so the directory is watched and never the file. Events only say "look": what counts is the
content, read until two readings in a row agree. A slow poll finds what no event announced (network file systems, a
directory made anew).

At start the file must be right. Afterwards the pool outlives every mistake in it: a file that cannot be read changes
nothing, an entry that cannot be read keeps its last good value or is left out.
"""

import asyncio
import logging
from pathlib import Path

import watchfiles

from epp.pool.errors import DiscoveryError
from epp.pool.file_format import MAX_FILE_BYTES, EndpointsFile, parse_endpoints_file
from epp.pool.store import PoolStore

logger = logging.getLogger(__name__)

_MAX_READINGS = 20


class FileDiscovery:
    """Keeps `store` equal to what the file at `path` says.

    Call `load` once, then let `run` run; it returns at once unless `watch` is set.

    Args:
        poll_interval_s: how often to look without having been told to.
        settle_s: the pause between two readings that have to agree.
    """

    def __init__(
        self,
        path: str | Path,
        watch: bool,
        store: PoolStore,
        *,
        poll_interval_s: float = 5.0,
        settle_s: float = 0.05,
    ) -> None:
        self._path = Path(path)
        self._watch = watch
        self._store = store
        self._poll_interval_s = poll_interval_s
        self._settle_s = settle_s
        self._seen: bytes | str | None = None

    def load(self) -> None:
        """Read the file and fill the store.

        Raises:
            DiscoveryError: the file, or any entry of it, cannot be read.
        """
        content = self._read()
        if isinstance(content, str):
            raise DiscoveryError(content)
        file = parse_endpoints_file(content, str(self._path))
        if file.bad:
            more = f" (and {len(file.bad) - 1} more)" if len(file.bad) > 1 else ""
            raise DiscoveryError(file.bad[0].message + more)
        self._seen = content
        self._store.replace(file.endpoints)

    async def run(self) -> None:
        """Follow the file until cancelled."""
        if not self._watch:
            return
        changed = asyncio.Event()
        watcher = asyncio.create_task(self._set_on_events(changed))
        try:
            while True:
                await self._reload_if_changed()  # first of all: it may have changed since `load`
                try:
                    async with asyncio.timeout(self._poll_interval_s):
                        await changed.wait()
                except TimeoutError:
                    pass
                changed.clear()
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    async def _set_on_events(self, changed: asyncio.Event) -> None:
        directory = self._path.absolute().parent
        while True:
            try:
                async for _ in watchfiles.awatch(
                    directory, watch_filter=None, recursive=False, debounce=400, rust_timeout=1000
                ):
                    changed.set()
            except (OSError, RuntimeError) as error:
                logger.debug("cannot watch %s (%s); polling meanwhile", directory, error)
            await asyncio.sleep(self._poll_interval_s)

    async def _reload_if_changed(self) -> None:
        content = await asyncio.to_thread(self._read)
        if content == self._seen:
            return
        for _ in range(_MAX_READINGS):
            await asyncio.sleep(self._settle_s)
            before, content = content, await asyncio.to_thread(self._read)
            if content == before:
                break
        if content == self._seen:
            return
        self._seen = content
        try:
            if isinstance(content, str):
                raise DiscoveryError(content)
            file = await asyncio.to_thread(parse_endpoints_file, content, str(self._path))
        except DiscoveryError as error:
            logger.warning("%s (the %d endpoints of before stay)", error, len(self._store.snapshot()))
            return
        self._apply(file)

    def _apply(self, file: EndpointsFile) -> None:
        last_good = {e.id: e for e in self._store.snapshot().endpoints}
        good = {e.id for e in file.endpoints}
        kept = {b.id: last_good[b.id] for b in file.bad if b.id in last_good and b.id not in good}
        if file.bad:
            more = f" (and {len(file.bad) - 1} more bad entries)" if len(file.bad) > 1 else ""
            left_out = len(file.bad) - len(kept)
            fate = f"{len(kept)} keep their last good value, {left_out} left out"
            logger.warning("%s%s: %s", file.bad[0].message, more, fate)
        changes = self._store.replace((*file.endpoints, *kept.values()))
        if changes:
            sizes = len(changes.added), len(changes.removed), len(changes.changed)
            logger.info("%s: endpoints added %d, removed %d, changed %d", self._path, *sizes)

    def _read(self) -> bytes | str:
        """The content, one byte more than is allowed at most; or the line that says why there is none."""
        try:
            with self._path.open("rb") as file:
                return file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            return f"{self._path}: {error.strerror or error}; give the path of a readable file"
        except ValueError:  # a zero byte
            return f"{str(self._path)!r}: no file can have this name; give the path of a readable file"
