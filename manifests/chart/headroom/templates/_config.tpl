{{/* The two configurations that the chart makes. */}}

{{- define "headroom.dataPlugins" -}}
- type: metrics-data-source
  parameters:
    scheme: {{ .Values.router.epp.metricsDataSource.scheme }}
    path: {{ .Values.router.epp.metricsDataSource.path }}
    insecureSkipVerify: {{ .Values.router.epp.metricsDataSource.insecureSkipVerify }}
- type: core-metrics-extractor
  parameters:
    defaultEngine: {{ .Values.router.modelServers.type }}
{{- end }}

{{- define "headroom.parsers" -}}
{{- with .Values.router.epp.parsers }}
requestHandler:
  parsers:
  {{- range . }}
    - pluginRef: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "headroom.defaultPlugins" -}}
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: queue-scorer
  - type: kv-cache-utilization-scorer
  - type: prefix-cache-scorer
  {{- include "headroom.dataPlugins" . | nindent 2 }}
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: queue-scorer, weight: 2}
      - {pluginRef: kv-cache-utilization-scorer, weight: 2}
      - {pluginRef: prefix-cache-scorer, weight: 3}
{{- include "headroom.parsers" . }}
{{- end }}

{{- define "headroom.predictedLatency" -}}
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: predicted-latency-producer
  - type: prefix-cache-affinity-filter
    name: strict-affinity-filter
    parameters: {affinityThreshold: 0.99, ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000}
  - type: slo-headroom-tier-filter
  - type: prefix-cache-affinity-filter
    name: loose-affinity-filter
    parameters: {affinityThreshold: 0.80, ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000}
  - type: latency-scorer
  - type: latency-slo-admitter
  - type: weighted-random-picker
  {{- include "headroom.dataPlugins" . | nindent 2 }}
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: strict-affinity-filter}
      - {pluginRef: slo-headroom-tier-filter}
      - {pluginRef: loose-affinity-filter}
      - {pluginRef: latency-scorer}
      - {pluginRef: weighted-random-picker}
{{- include "headroom.parsers" . }}
{{- end }}
