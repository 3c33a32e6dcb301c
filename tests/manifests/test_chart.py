"""What the chart makes of values: valid objects, flags that the picker takes, rights that it needs, clear refusals."""

import argparse
import importlib.util
import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_chart import (
    CHART,
    MANIFESTS,
    SERVERS,
    NoHelm,
    Object,
    faults,
    find_helm,
    helm,
    merged,
    objects,
    of_kind,
    render,
    template,
    the,
)

from epp import __version__
from epp.cli.flags import Parser
from epp.cli.serve import add_serve
from epp.kube.permissions import When, permissions
from epp.server.configuration import check
from epp.sim.envoyproxy import EnvoyError, find_envoy

STANDALONE = merged(SERVERS, {"mode": "standalone"})
LEGACY_POOL = {"router": {"inferencePool": {"create": False, "group": "inference.networking.x-k8s.io"}}}
METRICS_AUTH = {"router": {"monitoring": {"prometheus": {"enabled": True, "auth": {"enabled": True}}}}}


def epp(**values: Any) -> dict[str, Any]:
    return {"router": {"epp": values}}


EVERY_FLAG = {
    "v": 4,
    "seed": 1048576,
    "secure-serving": False,
    "tracing": False,
    "allow-experimental-plugins": True,
    "objective": ["batch=-1", "interactive=5"],
    "grpc-max-recv-msg-size": "64Mi",
    "max-snapshot-age": "30s",
    "ha-lease-duration": "5s",
    "observe-responses": 0.25,
    "training-server-url": "http://predictor:8000",
    "zap-log-level": "",
    "prediction-server-url": None,
}
CASES: Mapping[str, dict[str, Any]] = {
    "gateway": SERVERS,
    "gateway with three pickers": merged(SERVERS, epp(replicas=3)),
    "gateway with three active pickers": merged(
        SERVERS, epp(replicas=3, flags={"ha-enable-leader-election": False}), METRICS_AUTH
    ),
    "gateway with one leader": merged(SERVERS, epp(flags={"ha-enable-leader-election": True})),
    "gateway whose pool exists": {"router": {"inferencePool": {"create": False, "name": "other"}}},
    "gateway whose pool is old": LEGACY_POOL,
    "gke": merged(
        SERVERS,
        METRICS_AUTH,
        {"provider": {"name": "gke"}, "httpRoute": {"create": True}},
        {"router": {"monitoring": {"provider": {"name": "gmp", "gmp": {"autopilot": True}}}}},
    ),
    "istio": merged(
        SERVERS,
        {"httpRoute": {"create": True, "inferenceGatewayNamespace": "gateways"}},
        {"provider": {"name": "istio", "istio": {"destinationRule": {"trafficPolicy": {"connectionPool": {}}}}}},
    ),
    "kgateway": merged(SERVERS, {"provider": {"name": "kgateway"}}),
    "agentgateway": merged(SERVERS, {"provider": {"name": "agentgateway"}}),
    "every flag": merged(SERVERS, epp(flags=EVERY_FLAG)),
    "predicted latency": merged(SERVERS, {"router": {"latencyPredictor": {"enabled": True, "existingClaim": "m"}}}),
    "objectives": merged(SERVERS, {"router": {"inferenceObjectives": [{"name": "batch", "priority": -1}]}}),
    "own configuration": merged(
        SERVERS,
        epp(
            pluginsConfigFile="mine.yaml",
            pluginsConfig={
                "apiVersion": "llm-d.ai/v1alpha1",
                "kind": "EndpointPickerConfig",
                "plugins": [{"type": "running-requests-size-scorer"}],
            },
        ),
    ),
    "everything of the pod": merged(
        SERVERS,
        {"router": {"imagePullSecrets": [{"name": "pull"}], "extraServicePorts": [{"name": "more", "port": 7000}]}},
        {"router": {"serviceAccount": {"create": False, "name": "mine"}}},
        {
            "router": {
                "modelServers": {"type": "sglang", "protocol": "grpc", "targetPorts": [{"number": 1}, {"number": 2}]}
            }
        },
        epp(
            image={"registry": "registry.example.com/team/", "tag": "7"},
            env=[{"name": "A", "value": "b"}],
            parsers=["openai-parser"],
            tls={"secretName": "certificate"},
            probes="http",
            deploymentStrategy={"type": "Recreate"},
            podSecurityContext={"runAsUser": 1000},
            podAnnotations={"a": "b"},
            podLabels={"c": "d"},
            nodeSelector={"kubernetes.io/os": "linux"},
            affinity={"podAntiAffinity": {}},
            tolerations=[{"operator": "Exists"}],
            priorityClassName="high",
            extraContainerPorts=[{"name": "more", "containerPort": 7000}],
            volumes=[{"name": "more", "emptyDir": {}}],
            volumeMounts=[{"name": "more", "mountPath": "/more"}],
        ),
    ),
    "standalone": STANDALONE,
    "standalone with three pickers": merged(STANDALONE, epp(replicas=3)),
    "standalone that fails closed": merged(STANDALONE, {"router": {"proxy": {"failOpen": False, "drainSeconds": 0}}}),
    "standalone with grpc servers": merged(
        STANDALONE, {"router": {"modelServers": {"protocol": "grpc", "targetPorts": [{"number": 1}, {"number": 2}]}}}
    ),
}
EXAMPLES = sorted((MANIFESTS / "examples").rglob("*.yaml"))
by_case = pytest.mark.parametrize("values", CASES.values(), ids=list(CASES))


@pytest.fixture(autouse=True, scope="module")
def _helm() -> None:
    """All tests here need Helm; where it is missing they are skipped and say how to get it."""
    try:
        find_helm()
    except NoHelm as missing:
        pytest.skip(f"needs Helm. {missing}")


@pytest.fixture(scope="module")
def rendered_cases() -> dict[int, list[Object]]:
    return {}


@pytest.fixture
def rendered(values: dict[str, Any], rendered_cases: dict[int, list[Object]]) -> list[Object]:
    if id(values) not in rendered_cases:
        rendered_cases[id(values)] = render(values)
    return rendered_cases[id(values)]


def picker(rendered: list[Object]) -> Object:
    (container,) = [
        c for c in the(rendered, "Deployment")["spec"]["template"]["spec"]["containers"] if c["name"] == "epp"
    ]
    return container


def serve_arguments(arguments: list[str]) -> argparse.Namespace:
    """As `epp serve` reads them; what it does not know fails."""
    parser = Parser(prog="epp")
    add_serve(parser.add_subparsers(parser_class=Parser))
    return parser.parse_args(["serve", *arguments])


@by_case
def test_every_object_is_valid_to_the_last_field(rendered: list[Object]) -> None:
    assert [fault for each in rendered for fault in faults(each)] == []
    names = [(each["kind"], each["metadata"]["name"]) for each in rendered]
    assert len(set(names)) == len(names)


@by_case
def test_the_picker_takes_its_flags_and_its_configuration(rendered: list[Object], tmp_path: Path) -> None:
    arguments = serve_arguments(picker(rendered)["args"])
    (config,) = [each for each in of_kind(rendered, "ConfigMap") if not each["metadata"]["name"].endswith("-envoy")]
    for name, text in config["data"].items():
        (tmp_path / name).write_text(text)
        check(str(tmp_path / name), None)
    assert Path(arguments.config_file).name in config["data"]
    mounts = {mount["name"]: mount["mountPath"] for mount in picker(rendered)["volumeMounts"]}
    assert str(Path(arguments.config_file).parent) == mounts["config"]
    assert arguments.cert_path == mounts.get("tls")
    assert (arguments.grpc_socket is not None) == ("socket" in mounts)


@by_case
def test_the_rights_are_those_that_the_code_needs(rendered: list[Object]) -> None:
    arguments = serve_arguments(picker(rendered)["args"])
    on = {When.DISCOVERY}
    on |= {When.POOL} if arguments.pool_name else set()
    on |= {When.LEADER_ELECTION} if arguments.ha_enable_leader_election else set()
    on |= {When.METRICS_AUTH} if arguments.metrics_endpoint_auth else set()

    def granted(kind: str, name: str) -> set[tuple[str, str, str]]:
        return {
            (group, resource, verb)
            for role in of_kind(rendered, kind)
            if role["metadata"]["name"] == name
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    def needed(*, cluster_wide: bool) -> set[tuple[str, str, str]]:
        return {
            (permission.resource.group, permission.resource.plural, verb)
            for permission in permissions(arguments.pool_group)
            if permission.when in on and permission.cluster_wide is cluster_wide
            for verb in permission.verbs
        }

    assert granted("Role", "llama-epp") == needed(cluster_wide=False)
    assert granted("ClusterRole", "inference-llama-epp") == needed(cluster_wide=True)
    account = the(rendered, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
    for binding in of_kind(rendered, "RoleBinding") + of_kind(rendered, "ClusterRoleBinding"):
        (subject,) = binding["subjects"]
        assert subject["name"] in (account, "llama-epp-metrics-reader", "collector")


@by_case
def test_pods_are_hardened_found_and_given_time(rendered: list[Object]) -> None:
    deployment = the(rendered, "Deployment")["spec"]
    pod, labels = deployment["template"]["spec"], deployment["template"]["metadata"]["labels"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert container["readinessProbe"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    drain_s = serve_arguments(picker(rendered)["args"]).drain_timeout
    assert pod["terminationGracePeriodSeconds"] >= drain_s + 60, "streams that run have a minute beyond the drain"

    for service in of_kind(rendered, "Service"):
        if not service["metadata"]["name"].endswith("-servers"):
            assert service["spec"]["selector"].items() <= labels.items()
    named = {port["name"] for container in pod["containers"] for port in container["ports"]}
    allowed = {port["port"] for rule in the(rendered, "NetworkPolicy")["spec"]["ingress"] for port in rule["ports"]}
    assert named <= allowed | {"more"}
    assert ("more" in named) == (7000 in allowed)


@by_case
def test_a_rollout_and_an_eviction_can_always_end(rendered: list[Object]) -> None:
    """Where one leads only that one is ready, so nothing may demand that one stays ready."""
    deployment = the(rendered, "Deployment")["spec"]
    leads = serve_arguments(picker(rendered)["args"]).ha_enable_leader_election
    budgets = of_kind(rendered, "PodDisruptionBudget")
    assert len(budgets) == (deployment["replicas"] > 1 and not leads)
    rolling = deployment["strategy"].get("rollingUpdate")
    if leads and deployment["replicas"] > 1:
        assert rolling == {"maxUnavailable": "100%", "maxSurge": "100%"}
    elif rolling:
        assert rolling == {"maxUnavailable": 0, "maxSurge": 1}


@pytest.mark.envoy
@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("standalone")])
def test_envoy_takes_its_bootstrap(case: str, tmp_path: Path) -> None:
    try:
        envoy = find_envoy()
    except EnvoyError as error:
        pytest.skip(f"needs the real Envoy. {error}")
    rendered = render(CASES[case])
    (config,) = [each for each in of_kind(rendered, "ConfigMap") if each["metadata"]["name"].endswith("-envoy")]
    (tmp_path / "envoy.yaml").write_text(config["data"]["envoy.yaml"])
    command = [str(envoy), "--mode", "validate", "--disable-hot-restart", "-c", str(tmp_path / "envoy.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    routes = config["data"]["envoy.yaml"].count("- name: fail-open")
    assert routes == (0 if case == "standalone that fails closed" else 1)
    servers = [each for each in of_kind(rendered, "Service") if each["metadata"]["name"] == "llama-epp-servers"]
    for port in servers[0]["spec"]["ports"]:
        member = f"address: llama-epp-servers.inference.svc.cluster.local., port_value: {port['port']}"
        assert member in config["data"]["envoy.yaml"]


def test_flags_are_passed_as_they_are_meant() -> None:
    """Empty and null leave a flag out, false stays, lists repeat, large numbers stay whole."""
    arguments = picker(render(CASES["every flag"]))["args"]
    for flag in (
        "--secure-serving=false",
        "--seed=1048576",
        "--objective=batch=-1",
        "--objective=interactive=5",
        "--v=4",
    ):
        assert flag in arguments
    assert not any(flag.startswith(("--zap-log-level", "--prediction-server-url")) for flag in arguments)


def test_every_flag_of_the_picker_can_be_set_left_out_and_false() -> None:
    """But for those that other values set: they are refused, and it is said which value."""
    parser = Parser(prog="epp")
    commands = parser.add_subparsers(parser_class=Parser)
    add_serve(commands)
    flags = set(re.findall(r"--([a-z0-9][a-z0-9-]+)", commands.choices["serve"].format_usage())) - {"help"}
    owned = {flag for flag in flags if f'"{flag}" "' in (CHART / "templates" / "_checks.tpl").read_text()}
    assert {"pool-name", "config-file", "kubeconfig"} <= owned
    free = flags - owned
    assert len(free) > 20
    for value, argument in (("x y", "--{}=x y"), (False, "--{}=false"), (0, "--{}=0"), ("", None), (None, None)):
        arguments = picker(render(merged(SERVERS, epp(flags=dict.fromkeys(free - {"profile"}, value)))))["args"]
        given = {argument for argument in arguments if argument[2:].partition("=")[0] in free}
        assert given == ({argument.format(flag) for flag in free - {"profile"}} if argument is not None else set())
    done = template(merged(SERVERS, epp(flags={"kubeconfig": "x"})))
    assert "router.epp.flags.kubeconfig" in done.stderr


@pytest.mark.parametrize("value", ["", None, "1", "T"])
def test_leading_pickers_are_rolled_out_as_such_however_the_flag_is_written(value: str | None) -> None:
    """Left out, it follows from the number of replicas, as when it was never given."""
    values = merged(SERVERS, epp(replicas=3, flags={"ha-enable-leader-election": value, "secure-serving": "0"}))
    rendered = render(merged(values, {"provider": {"name": "istio"}}))
    assert serve_arguments(picker(rendered)["args"]).ha_enable_leader_election is True
    strategy = the(rendered, "Deployment")["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": "100%", "maxSurge": "100%"}
    assert of_kind(rendered, "PodDisruptionBudget") == []
    assert the(rendered, "DestinationRule")["spec"]["trafficPolicy"]["tls"] == {"mode": "DISABLE"}


def test_names_that_yaml_takes_for_something_else_stay_names() -> None:
    everything = merged(
        METRICS_AUTH,
        {"router": {"inferencePool": {"name": "123"}, "inferenceObjectives": [{"name": "1e3", "priority": 1}]}},
        {"provider": {"name": "istio"}, "httpRoute": {"create": True, "inferenceGatewayNamespace": "789"}},
        epp(priorityClassName="0", tls={"secretName": "1.5"}),
        {"router": {"latencyPredictor": {"enabled": True, "existingClaim": "2"}}},
        {"router": {"monitoring": {"prometheus": {"auth": {"secretName": "3"}}}, "serviceAccount": {"name": "4"}}},
    )
    for values in (merged(SERVERS, everything), STANDALONE):
        done = helm("template", "true", str(CHART), "--namespace", "456", values=values)
        assert done.returncode == 0, done.stderr
        rendered = objects(done.stdout)
        assert [fault for each in rendered for fault in faults(each)] == []
        for each in rendered:
            metadata = each["metadata"]
            assert isinstance(metadata["name"], str)
            assert metadata["labels"]["app.kubernetes.io/instance"] == "true"
            assert metadata.get("namespace", "456") == "456"


def test_a_profile_of_the_picker_takes_the_place_of_the_configuration() -> None:
    """`epp serve` refuses both together."""
    arguments = picker(render(merged(SERVERS, epp(flags={"profile": "predicted-latency"}))))["args"]
    assert "--profile=predicted-latency" in arguments
    assert not any(flag.startswith("--config-file") for flag in arguments)


REFUSED: Mapping[str, tuple[dict[str, Any], list[str]]] = {
    "unknown key": (merged(SERVERS, epp(replica=3)), ["/router/epp", "replica"]),
    "wrong type": (merged(SERVERS, epp(replicas="three")), ["/router/epp/replicas"]),
    "no labels": ({}, ["router.modelServers.matchLabels", "--set"]),
    "a label that is two": (
        merged(STANDALONE, {"router": {"modelServers": {"matchLabels": {"app": "a,b"}}}}),
        ["/router/modelServers/matchLabels/app"],
    ),
    "failure mode of a README": (
        merged(SERVERS, {"router": {"inferencePool": {"failureMode": "FailClosed"}}}),
        ["failureMode", "FailClose"],
    ),
    "older chart": ({"inferenceExtension": {"replicas": 3}}, ["inferenceExtension", "router.epp"]),
    "older pool": ({"inferencePool": {"targetPorts": []}}, ["inferencePool", "router.modelServers"]),
    "tracing": (merged(SERVERS, {"router": {"tracing": {"enabled": True}}}), ["router.tracing", "remove it"]),
    "owned flag": (merged(SERVERS, epp(flags={"grpc-port": 1})), ["flags.grpc-port", "router.epp.extProcPort"]),
    "no such configuration": (merged(SERVERS, epp(pluginsConfigFile="x.yaml")), ["x.yaml", "default-plugins.yaml"]),
    "drain beyond grace": (merged(SERVERS, epp(drainTimeoutSeconds=200)), ["terminationGracePeriodSeconds", "200"]),
    "a file for several": (
        merged(SERVERS, epp(replicas=2), {"router": {"latencyPredictor": {"enabled": True, "existingClaim": "m"}}}),
        ["existingClaim", "training-server-url"],
    ),
    "provider without gateway": (merged(STANDALONE, {"provider": {"name": "gke"}}), ["mode=gateway"]),
    "nine ports": (
        merged(SERVERS, {"router": {"modelServers": {"targetPorts": [{"number": i} for i in range(1, 10)]}}}),
        ["/router/modelServers/targetPorts"],
    ),
}


@pytest.mark.parametrize(("values", "words"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_work_is_refused_with_advice(values: dict[str, Any], words: list[str]) -> None:
    done = template(values)
    assert done.returncode != 0
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize(
    ("version", "values", "advice"),
    [("1.23.0", SERVERS, "router.epp.probes=http"), ("1.29.0", STANDALONE, "router.proxy.drainSeconds=0")],
    ids=["no gRPC probes", "no sleep"],
)
def test_older_clusters_are_told_what_to_set(version: str, values: dict[str, Any], advice: str) -> None:
    done = template(values, "--kube-version", version)
    assert done.returncode != 0
    assert advice in done.stderr


def test_disabled_parts_of_other_charts_are_let_pass() -> None:
    """llm-d's values files have them."""
    others = {"tracing": {"enabled": False, "sampling": {}}, "tokenizer": {"enabled": False}}
    predictor = {"enabled": True, "trainingServer": {"port": 8000}, "predictionServers": {"count": 3}, "eppEnv": {}}
    arguments = picker(render(merged(SERVERS, {"router": {**others, "latencyPredictor": predictor}})))["args"]
    assert "--config-file=/etc/headroom/config/predicted-latency.yaml" in arguments


def test_every_value_is_explained_by_the_schema_and_by_the_defaults() -> None:
    """Whoever adds a value to one adds it to the other."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    of_others = {"global", "inferenceExtension", "inferencePool", "inferenceObjectives", "experimentalHttpRoute"}
    of_others |= {"router.tracing", "router.tokenizer"}
    of_others |= {f"router.latencyPredictor.{key}" for key in ("trainingServer", "predictionServers", "eppEnv")}

    def missing(schema: dict[str, Any], values: dict[str, Any], path: str) -> list[str]:
        found = []
        for key, below in schema["properties"].items():
            here = f"{path}{key}"
            if key not in values:
                found += [] if here in of_others else [here]
            elif "properties" in below and values[key] and "requests" not in below["properties"]:
                found += missing(below, values[key], f"{here}.")
        return found

    assert missing(schema, defaults, "") == []


def test_what_is_generated_is_up_to_date() -> None:
    """The rights, the bootstrap and the plain manifests are what `make manifests` writes."""
    spec = importlib.util.spec_from_file_location("render_manifests", MANIFESTS / "render.py")
    assert spec is not None
    assert spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    advice = "run make manifests"
    assert (CHART / "files" / "permissions.yaml").read_text() == written.permissions_file(), advice
    assert (CHART / "files" / "envoy.yaml").read_text() == written.bootstrap_file(), advice
    for values in sorted((MANIFESTS / "install").glob("*.values.yaml")):
        install = values.with_name(values.name.replace(".values", ""))
        # Helm's own order and spacing may change with its version; the objects may not.
        assert objects(install.read_text()) == objects(written.installed(find_helm(), values)), advice


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


@pytest.mark.parametrize("path", EXAMPLES, ids=[f"{path.parent.name}/{path.name}" for path in EXAMPLES])
def test_examples_are_valid(path: Path) -> None:
    if path.name == "values.yaml":
        rendered = render(yaml.safe_load(path.read_text()))
        serve_arguments(picker(rendered)["args"])
    else:
        rendered = objects(path.read_text())
    assert rendered
    assert [fault for each in rendered for fault in faults(each)] == []


def test_examples_and_installs_fit_each_other() -> None:
    """Routes go to the pool that a release called llama makes, and the pool selects the servers of the example."""
    examples = MANIFESTS / "examples"
    (servers,) = objects((examples / "vllm.yaml").read_text())
    labels = servers["spec"]["template"]["metadata"]["labels"]
    for gateway in sorted(examples.glob("*/gateway.yaml")):
        pool = the(render(yaml.safe_load(gateway.with_name("values.yaml").read_text())), "InferencePool")
        assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
        (backend,) = the(objects(gateway.read_text()), "HTTPRoute")["spec"]["rules"][0]["backendRefs"]
        assert (backend["kind"], backend["name"]) == ("InferencePool", pool["metadata"]["name"])
