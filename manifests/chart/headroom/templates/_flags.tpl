{{/* The command line of the picker: what the values say, and router.epp.flags over it. Sorted, one argument per line. */}}
{{- define "headroom.args" -}}
{{- $epp := .Values.router.epp -}}
{{- $flags := dict
  "grpc-port" $epp.extProcPort
  "grpc-health-port" $epp.grpcHealthPort
  "metrics-port" $epp.metricsPort
  "pool-namespace" .Release.Namespace
  "drain-timeout" (printf "%ds" (int $epp.drainTimeoutSeconds))
  "zap-encoder" "json" -}}
{{- if not $epp.flags.profile -}}
{{- $_ := set $flags "config-file" (printf "/etc/headroom/config/%s" (include "headroom.configFile" .)) -}}
{{- end -}}
{{- if eq .Values.mode "standalone" -}}
{{- $selector := list -}}
{{- range $label, $value := .Values.router.modelServers.matchLabels -}}
{{- $selector = append $selector (printf "%s=%s" $label $value) -}}
{{- end -}}
{{- $_ := set $flags "endpoint-selector" ($selector | join ",") -}}
{{- $ports := list -}}
{{- range .Values.router.modelServers.targetPorts -}}
{{- $ports = append $ports (.number | toJson) -}}
{{- end -}}
{{- $_ := set $flags "endpoint-target-ports" ($ports | join ",") -}}
{{- $_ := set $flags "grpc-socket" "/run/headroom/epp.sock" -}}
{{- else -}}
{{- $_ := set $flags "pool-name" (include "headroom.poolName" .) -}}
{{- $_ := set $flags "pool-group" .Values.router.inferencePool.group -}}
{{- end -}}
{{- if include "headroom.metricsAuth" . -}}
{{- $_ := set $flags "metrics-endpoint-auth" true -}}
{{- end -}}
{{- if $epp.tls.secretName -}}
{{- $_ := set $flags "cert-path" "/etc/headroom/tls" -}}
{{- $_ := set $flags "enable-cert-reload" true -}}
{{- end -}}
{{- if .Values.router.latencyPredictor.existingClaim -}}
{{- $_ := set $flags "model-file" "/var/lib/headroom/model.bin" -}}
{{- end -}}
{{- $_ := mergeOverwrite $flags (deepCopy $epp.flags) -}}
{{- if include "headroom.leaderElection" . -}}
{{- $_ := set $flags "ha-enable-leader-election" true -}}
{{- end -}}
{{- $args := list -}}
{{- range $name, $value := $flags -}}
{{- range (kindIs "slice" $value | ternary $value (list $value)) -}}
{{- if and (not (kindIs "invalid" .)) (ne (toString .) "") -}}
{{- $args = append $args (printf "--%s=%s" $name (kindIs "string" . | ternary (toString .) (toJson .))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $args -}}
{{- end }}
