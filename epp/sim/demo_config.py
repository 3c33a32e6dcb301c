"""What `epp demo` runs by default: the profile of llm-d's chart with its latency predictor switched on."""

PREDICTED_LATENCY_CONFIG = """\
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
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: strict-affinity-filter}
      - {pluginRef: slo-headroom-tier-filter}
      - {pluginRef: loose-affinity-filter}
      - {pluginRef: latency-scorer}
      - {pluginRef: weighted-random-picker}
"""
