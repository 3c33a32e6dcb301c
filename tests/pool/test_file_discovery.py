import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from epp.pool.errors import DiscoveryError
from epp.pool.file import FileDiscovery
from epp.pool.store import PoolStore

ONLY_EVENTS = 3600.0


def listing(*names: str, port: int | str = 8000) -> str:
    return "endpoints:\n" + "".join(f"- {{name: {n}, address: {n}.example, port: {port}}}\n" for n in names)


def names(store: PoolStore) -> list[str]:
    return [e.name for e in store.snapshot().endpoints]


def write(path: Path, text: str) -> None:
    path.write_text(text)


def rename_over(path: Path, text: str) -> None:
    fresh = path.with_name("fresh")
    fresh.write_text(text)
    fresh.rename(path)


def swap(link: Path, target: str) -> None:
    """Point `link` elsewhere in one step, as the kubelet does."""
    fresh = link.with_name("..fresh")
    fresh.symlink_to(target)
    fresh.rename(link)


async def until(condition: Callable[[], bool], act: Callable[[], None] = lambda: None) -> None:
    """Do `act` again and again until `condition` holds: an act before the watch is up may go unseen."""
    async with asyncio.timeout(20):
        while not condition():
            act()
            await asyncio.sleep(0.05)


@asynccontextmanager
async def following(path: Path, poll_interval_s: float = ONLY_EVENTS) -> AsyncIterator[PoolStore]:
    store = PoolStore()
    discovery = FileDiscovery(path, True, store, poll_interval_s=poll_interval_s, settle_s=0.01)
    discovery.load()
    task = asyncio.create_task(discovery.run())
    try:
        yield store
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()


async def watch_is_up(path: Path, store: PoolStore) -> None:
    original = path.read_text()  # noqa: ASYNC240
    await until(lambda: names(store) == ["probe"], lambda: write(path, listing("probe")))
    write(path, original)
    await until(lambda: names(store) != ["probe"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "endpoints.yaml"
    path.write_text(listing("a", "b"))
    return path


async def test_a_rewrite_in_place_is_seen(path: Path) -> None:
    async with following(path) as store:
        await watch_is_up(path, store)
        write(path, listing("a", "c"))
        await until(lambda: names(store) == ["a", "c"])


async def test_an_atomic_rename_is_seen(path: Path) -> None:
    async with following(path) as store:
        await watch_is_up(path, store)
        rename_over(path, listing("c"))
        await until(lambda: names(store) == ["c"])


async def test_delete_and_recreate_is_seen_and_meanwhile_nothing_is_lost(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(path) as store:
        await watch_is_up(path, store)
        await asyncio.to_thread(path.unlink)
        await until(lambda: any("2 endpoints of before stay" in m for m in caplog.messages))
        assert names(store) == ["a", "b"]
        write(path, listing("c"))
        await until(lambda: names(store) == ["c"])


async def test_a_configmap_swap_is_seen(tmp_path: Path) -> None:
    for version, content in (("..1", listing("a")), ("..2", listing("b"))):
        (tmp_path / version).mkdir()
        write(tmp_path / version / "endpoints.yaml", content)
    data = tmp_path / "..data"
    data.symlink_to("..1")
    path = tmp_path / "endpoints.yaml"
    path.symlink_to("..data/endpoints.yaml")
    async with following(path) as store:
        await until(lambda: names(store) == ["b"], lambda: swap(data, "..2"))
        swap(data, "..1")
        await until(lambda: names(store) == ["a"])


async def test_what_no_event_announces_is_found_by_polling(tmp_path: Path) -> None:
    for directory, content in (("x", listing("a")), ("y", listing("b"))):
        (tmp_path / directory).mkdir()
        write(tmp_path / directory / "endpoints.yaml", content)
    (tmp_path / "watched").mkdir()
    current = tmp_path / "current"
    current.symlink_to("x")
    path = tmp_path / "watched" / "endpoints.yaml"
    path.symlink_to(current / "endpoints.yaml")
    async with following(path, poll_interval_s=0.05) as store:
        await asyncio.sleep(0.2)  # past the look at the beginning
        swap(current, "y")
        await until(lambda: names(store) == ["b"])


async def test_a_half_written_file_keeps_the_last_good_set(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with following(path, poll_interval_s=0.05) as store:
        caplog.clear()
        rename_over(path, "endpoints:\n- {name: c, addr")
        await until(lambda: bool(caplog.messages))
        assert names(store) == ["a", "b"]
        assert f"{path}:3: not valid" in caplog.messages[0]
        await asyncio.sleep(0.3)  # several polls of the same bad content
        assert len(caplog.messages) == 1
        write(path, listing("c"))
        await until(lambda: names(store) == ["c"])


async def test_a_bad_entry_keeps_its_last_good_value_and_a_new_bad_one_is_left_out(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(path) as store:
        await watch_is_up(path, store)
        caplog.clear()
        rename_over(path, listing("a", "z", port=0) + listing("c").removeprefix("endpoints:\n"))
        await until(lambda: names(store) == ["a", "c"])
        assert store.snapshot().endpoints[0].port == 8000
        warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert "endpoints[0].port: 0 is not a port" in warnings[0]
        assert "1 more" in warnings[0]


async def test_without_watch_the_file_is_read_once(path: Path) -> None:
    store = PoolStore()
    discovery = FileDiscovery(path, False, store)
    discovery.load()
    write(path, listing("c"))
    await discovery.run()
    assert names(store) == ["a", "b"]


def test_of_duplicates_the_later_counts(path: Path) -> None:
    path.write_text(listing("a") + listing("a", port=9).removeprefix("endpoints:\n"))
    store = PoolStore()
    FileDiscovery(path, False, store).load()
    assert [e.address for e in store.snapshot().endpoints] == ["a.example:9"]


@pytest.mark.parametrize("content", [None, "endpoints:", listing("a", port=0)])
def test_at_start_the_file_must_be_right(path: Path, content: str | None) -> None:
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(DiscoveryError) as raised:
        FileDiscovery(path, True, PoolStore()).load()
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)
