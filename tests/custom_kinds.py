"""Schemas of the custom kinds that our manifests use: the fields that they use, and what is demanded of those.

The definitions themselves are their owners'. These are ours, from the owners' documentation, and just complete enough
that a field with a wrong name, place or type is found.
"""

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]


def obj(required: str = "", **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, **({"required": required.split()} if required else {})}


def many(items: Schema, most: int = 64) -> Schema:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


TEXT: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
WHOLE: Schema = {"type": "integer"}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
GO_DURATION: Schema = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
TARGET = obj("group kind name", group={"type": "string"}, kind=TEXT, name=TEXT)

POOL = obj(
    "selector targetPorts endpointPickerRef",
    selector=obj("matchLabels", matchLabels={**TEXTS, "minProperties": 1, "maxProperties": 64}),
    targetPorts=many(obj("number", number=PORT), 8),
    appProtocol=one_of("http", "kubernetes.io/h2c"),
    endpointPickerRef=obj(
        "name port",
        group={"type": "string"},
        kind=TEXT,
        name=TEXT,
        port=obj("number", number=PORT),
        failureMode=one_of("FailOpen", "FailClose"),
    ),
)
OBJECTIVE = obj("poolRef", priority=WHOLE, poolRef=obj("name", group=TEXT, kind=TEXT, name=TEXT))
GATEWAY = obj(
    "gatewayClassName listeners",
    gatewayClassName=TEXT,
    listeners=many(
        obj(
            "name port protocol",
            name=TEXT,
            port=PORT,
            protocol=one_of("HTTP", "HTTPS", "TLS", "TCP", "UDP"),
            allowedRoutes=obj(namespaces=obj(**{"from": one_of("All", "Selector", "Same")})),
        )
    ),
)
ROUTE = obj(
    "",
    parentRefs=many(obj("name", group=TEXT, kind=TEXT, name=TEXT, namespace=TEXT)),
    rules=many(
        obj(
            "",
            matches=many(obj(path=obj(type=one_of("Exact", "PathPrefix", "RegularExpression"), value=TEXT))),
            backendRefs=many(obj("name", group=TEXT, kind=TEXT, name=TEXT)),
            timeouts=obj(request=GO_DURATION, backendRequest=GO_DURATION),
        )
    ),
)
CREDENTIALS = obj("name key", name=TEXT, key=TEXT)
KINDS: Mapping[tuple[str, str], Schema] = {
    ("inference.networking.k8s.io/v1", "InferencePool"): POOL,
    ("llm-d.ai/v1alpha2", "InferenceObjective"): OBJECTIVE,
    ("gateway.networking.k8s.io/v1", "GatewayClass"): obj("controllerName", controllerName=TEXT),
    ("gateway.networking.k8s.io/v1", "Gateway"): GATEWAY,
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): ROUTE,
    ("gateway.envoyproxy.io/v1alpha1", "ClientTrafficPolicy"): obj(
        "targetRefs", targetRefs=many(TARGET), connection=obj(bufferLimit=TEXT)
    ),
    ("networking.gke.io/v1", "HealthCheckPolicy"): obj(
        "targetRef default",
        targetRef=TARGET,
        default=obj(
            "config",
            config=obj("type", type=one_of("HTTP", "GRPC"), httpHealthCheck=obj(requestPath=TEXT, port=PORT)),
        ),
    ),
    ("networking.gke.io/v1", "GCPBackendPolicy"): obj(
        "targetRef default", targetRef=TARGET, default=obj(timeoutSec=WHOLE, logging=obj(enabled=FLAG))
    ),
    ("networking.istio.io/v1", "DestinationRule"): obj(
        "host",
        host=TEXT,
        trafficPolicy=obj(
            tls=obj("mode", mode=one_of("DISABLE", "SIMPLE", "MUTUAL", "ISTIO_MUTUAL"), insecureSkipVerify=FLAG),
            connectionPool=obj(http=obj(maxRequestsPerConnection=WHOLE)),
        ),
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): obj(
        "selector endpoints",
        selector=obj(matchLabels=TEXTS),
        endpoints=many(obj(port=TEXT, path=TEXT, interval=TEXT, authorization=obj(type=TEXT, credentials=CREDENTIALS))),
    ),
    ("monitoring.googleapis.com/v1", "PodMonitoring"): obj(
        "selector endpoints",
        selector=obj(matchLabels=TEXTS),
        endpoints=many(
            obj(
                "port interval",
                port=TEXT,
                path=TEXT,
                interval=TEXT,
                authorization=obj(type=TEXT, credentials=obj(secret=CREDENTIALS)),
            )
        ),
    ),
}
CLUSTER_WIDE = {"GatewayClass"}


def closed(schema: Schema) -> Schema:
    """The same, with every field refused that it does not name. (An API server drops them.)"""
    if "items" in schema:
        return {**schema, "items": closed(schema["items"])}
    if "properties" not in schema:
        return schema
    properties = {name: closed(below) for name, below in schema["properties"].items()}
    return {**schema, "properties": properties, "additionalProperties": False}


def plural(kind: str) -> str:
    return {"GatewayClass": "gatewayclasses"}.get(
        kind, kind.lower()[:-1] + "ies" if kind.endswith("y") and not kind.endswith("ay") else kind.lower() + "s"
    )


def definition(api_version: str, kind: str) -> dict[str, Any]:
    """The CustomResourceDefinition."""
    group, version = api_version.split("/")
    schema = obj("spec", spec=KINDS[api_version, kind])
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural(kind)}.{group}",
            # Groups under k8s.io are for those that were approved, or say that they were not.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural(kind), "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": "Cluster" if kind in CLUSTER_WIDE else "Namespaced",
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }
