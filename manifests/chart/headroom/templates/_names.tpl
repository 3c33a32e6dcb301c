{{/* What objects are called, and what follows from the values. */}}

{{- define "headroom.name" -}}
{{ printf "%s-epp" (.Release.Name | trunc 59 | trimSuffix "-") }}
{{- end }}

{{- define "headroom.poolName" -}}
{{ .Values.router.inferencePool.name | default .Release.Name }}
{{- end }}

{{- define "headroom.serviceAccount" -}}
{{ .Values.router.serviceAccount.name | default (ternary (include "headroom.name" .) "default" .Values.router.serviceAccount.create) }}
{{- end }}

{{- define "headroom.selectorLabels" -}}
app.kubernetes.io/name: headroom
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: epp
{{- end }}

{{- define "headroom.labels" -}}
{{ include "headroom.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "headroom.image" -}}
{{- with .Values.router.epp.image -}}
{{ if .registry }}{{ .registry | trimSuffix "/" }}/{{ end }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* "true" or "": whether one picker leads and the others stand by. An empty flag or null is as if it were not given. */}}
{{- define "headroom.leaderElection" -}}
{{- $given := get .Values.router.epp.flags "ha-enable-leader-election" | toString | lower -}}
{{- if has $given (list "true" "t" "1") -}}
true
{{- else if and (has $given (list "" "<nil>")) (gt (int .Values.router.epp.replicas) 1) -}}
true
{{- end -}}
{{- end }}

{{- define "headroom.configFile" -}}
{{- if .Values.router.epp.pluginsConfigFile -}}
{{ .Values.router.epp.pluginsConfigFile }}
{{- else if .Values.router.latencyPredictor.enabled -}}
predicted-latency.yaml
{{- else -}}
default-plugins.yaml
{{- end -}}
{{- end }}

{{- define "headroom.metricsAuth" -}}
{{- if .Values.router.monitoring.prometheus.auth.enabled }}true{{ end -}}
{{- end }}

{{/* Files of the configuration by name, as a map of texts. */}}
{{- define "headroom.configFiles" -}}
{{- $epp := .Values.router.epp -}}
{{- $files := dict "default-plugins.yaml" (include "headroom.defaultPlugins" .) "predicted-latency.yaml" (include "headroom.predictedLatency" .) -}}
{{- if $epp.pluginsConfig -}}
{{- $_ := set $files (include "headroom.configFile" .) (toYaml $epp.pluginsConfig) -}}
{{- end -}}
{{- toYaml (merge (deepCopy $epp.pluginsCustomConfig) $files) -}}
{{- end }}

{{- define "headroom.containerSecurity" -}}
{{- toYaml (mergeOverwrite (dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL"))) (deepCopy .Values.router.epp.securityContext)) -}}
{{- end }}

{{/* The Envoy of standalone mode: envoy/recommended.yaml with the addresses of this release. */}}
{{- define "headroom.bootstrap" -}}
{{- tpl (.Files.Get "files/envoy.yaml") . -}}
{{- end }}

{{/* By which Envoy finds the model servers, and how it speaks to them. */}}
{{- define "headroom.serverAddress" -}}
{{- $root := index . 0 -}}
{address: {{ include "headroom.name" $root }}-servers.{{ $root.Release.Namespace }}.svc.{{ $root.Values.router.clusterDomain }}., port_value: {{ index . 1 }}}
{{- end }}

{{- define "headroom.serversProtocol" -}}
{{ ternary "http2_protocol_options" "http_protocol_options" (eq .Values.router.modelServers.protocol "grpc") }}
{{- end }}
