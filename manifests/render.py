"""Write what is generated below manifests/: `make manifests`, or `python manifests/render.py --helm PATH`.

* chart/headroom/files/permissions.yaml, from epp/kube/permissions.py
* chart/headroom/files/envoy.yaml, from envoy/recommended.yaml
* install/*.yaml, the chart rendered with the values in install/*.values.yaml
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from epp.kube.permissions import When, permissions
from epp.kube.rbac import rules
from epp.kube.resources import POOLS

HERE = Path(__file__).resolve().parent
CHART = HERE / "chart" / "headroom"
INSTALL = HERE / "install"
BOOTSTRAP = HERE.parent / "envoy" / "recommended.yaml"


def _up_to(first: str, next_: str) -> "re.Pattern[str]":
    """From the first to just before the next; both are patterns."""
    return re.compile(f"{first}.*?(?={next_})", re.DOTALL)


_PICKER = _up_to("    - name: picker\n", "      # Only matters with several pickers")
_PICKER_TLS = _up_to("      # The picker's certificate is its own", "      circuit_breakers: # one stream")
_MEMBERS = _up_to("      # ADDRESS: the pool, the same", "      ignore_health_on_host_removal")
_FAIL_OPEN = _up_to("                        # SWITCH: what becomes", "                        - name: fail-closed")
_HEADER = _up_to(r"\A", "# The idea, in the order")

# What stands at the marked places in the chart. Each is a piece of the bootstrap, in the order of the file.
_REPLACED = (
    (
        _HEADER,
        "# envoy/recommended.yaml of Headroom with the addresses of a release; written by manifests/render.py.\n#\n",
    ),
    (
        re.compile(r"address: 0\.0\.0\.0, port_value: 8080\}\} # ADDRESS: where clients connect"),
        'address: "{{ .Values.router.proxy.listenerAddress }}", port_value: {{ .Values.router.proxy.listenerPort }}}}',
    ),
    (
        _FAIL_OPEN,
        """\
                        {{- if .Values.router.proxy.failOpen }}
                        # No answer of the picker: the server with the fewest requests in flight gets it.
                        - name: fail-open
                          match: {prefix: /}
                          route: {cluster: model_servers, timeout: 0s}
                        {{- end }}
""",
    ),
    (
        _MEMBERS,
        """\
      # The pods that are ready, as the cluster's DNS tells them. The picker knows changes sooner: an address that is
      # not here yet, or no longer, is passed over for the next.
      type: STRICT_DNS
      dns_refresh_rate: 1s
      load_assignment:
        cluster_name: model_servers
        endpoints:
          - lb_endpoints:
            {{- range .Values.router.modelServers.targetPorts }}
              - endpoint: {address: {socket_address: {{ include "headroom.serverAddress" (list $ .number) }}}}
            {{- end }}
""",
    ),
    (
        _PICKER,
        """\
    - name: picker
      connect_timeout: 1s
      type: STATIC
      load_assignment:
        cluster_name: picker
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {pipe: {path: /run/headroom/epp.sock}}}
""",
    ),
    (_PICKER_TLS, ""),
)
_HTTP1 = "explicit_http_config: {http_protocol_options: {}}"
_BY_PROTOCOL = 'explicit_http_config: { {{- include "headroom.serversProtocol" . }}: {}}'


def permissions_file() -> str:
    """Rules by pool group, each with what has to be switched on for it, for the chart to choose from."""
    by_group: dict[str, list[dict[str, Any]]] = {}
    for group in POOLS:
        for when in When:
            used = [permission for permission in permissions(group) if permission.when is when]
            for cluster_wide in (False, True):
                chosen = [permission for permission in used if permission.cluster_wide is cluster_wide]
                by_group.setdefault(group, []).extend(
                    {"when": str(when), "clusterWide": cluster_wide, "rule": rule} for rule in rules(chosen)
                )
    head = "# Written by manifests/render.py from epp/kube/permissions.py.\n"
    return head + yaml.safe_dump(by_group, sort_keys=False)


def bootstrap_file() -> str:
    """`recommended.yaml` with the marked places as a Helm template. Raises `ValueError` if it has no such place."""
    text = BOOTSTRAP.read_text()
    if "{{" in text:
        raise ValueError(f"{BOOTSTRAP} has {{{{, which Helm would take for its own")
    for place, replacement in _REPLACED:
        text, count = place.subn(lambda _, by=replacement: by, text)
        if count != 1:
            raise ValueError(f"{BOOTSTRAP} has {count} places like {place.pattern!r}, not one")
    if text.count(_HTTP1) != 1:
        raise ValueError(f"{BOOTSTRAP} does not say {_HTTP1!r} once")
    return text.replace(_HTTP1, _BY_PROTOCOL)


def installed(helm: str, values: Path) -> str:
    """The chart rendered for `kubectl apply`."""
    command = [helm, "template", "headroom", str(CHART), "--namespace", "inference", "--values", str(values)]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    head = f"# Written by `make manifests`: the chart with {values.name}. Change that, or install the chart.\n"
    return head + re.sub(r"^# Source: .*\n", "", rendered, flags=re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--helm", default=shutil.which("helm"), help="the helm command (default: as in $PATH)")
    arguments = parser.parse_args()
    if arguments.helm is None:
        print("helm is not in $PATH: install it (https://helm.sh), or say --helm PATH", file=sys.stderr)
        return 2
    (CHART / "files" / "permissions.yaml").write_text(permissions_file())
    (CHART / "files" / "envoy.yaml").write_text(bootstrap_file())
    for values in sorted(INSTALL.glob("*.values.yaml")):
        INSTALL.joinpath(values.name.replace(".values", "")).write_text(installed(arguments.helm, values))
    return 0


if __name__ == "__main__":
    sys.exit(main())
