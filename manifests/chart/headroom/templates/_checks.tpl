{{/*
What the schema cannot say: values that do not fit each other, and values of other charts, each with what to do instead.
*/}}
{{- define "headroom.checks" -}}
{{- $epp := .Values.router.epp -}}
{{- $servers := .Values.router.modelServers -}}
{{- $standalone := eq .Values.mode "standalone" -}}

{{- $moved := dict "inferenceExtension" "router.epp, router.monitoring and router.latencyPredictor" "inferencePool" "router.modelServers and router.inferencePool" "inferenceObjectives" "router.inferenceObjectives" "experimentalHttpRoute" "httpRoute" -}}
{{- range $old, $new := $moved -}}
{{- if hasKey $.Values $old -}}
{{- fail (printf "\n\n%s: these values are now at %s; docs/migrate-from-llm-d.md has the table" $old $new) -}}
{{- end -}}
{{- end -}}
{{- range $key, $advice := dict "tracing" "tracing is not in this version; remove it" "tokenizer" "no tokenizer sidecar is needed; remove it" -}}
{{- if hasKey $.Values.router $key -}}
{{- $given := get $.Values.router $key -}}
{{- if $given.enabled -}}
{{- fail (printf "\n\nrouter.%s: %s" $key $advice) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- if and (not $servers.matchLabels) (or $standalone .Values.router.inferencePool.create) -}}
{{- fail "\n\nrouter.modelServers.matchLabels: say which pods serve the model, e.g. --set router.modelServers.matchLabels.app=vllm" -}}
{{- end -}}
{{- if and .Values.router.inferencePool.create (not $standalone) (ne .Values.router.inferencePool.group "inference.networking.k8s.io") -}}
{{- fail "\n\nrouter.inferencePool.group: the chart creates pools of inference.networking.k8s.io only; with create=false it follows one of the older group" -}}
{{- end -}}
{{- if and $standalone .Values.router.inferenceObjectives -}}
{{- fail "\n\nrouter.inferenceObjectives: without an InferencePool they belong to nothing; use router.epp.flags.objective: [NAME=PRIORITY]" -}}
{{- end -}}
{{- if and $standalone (ne .Values.provider.name "none") -}}
{{- fail (printf "\n\nprovider.name=%s is for mode=gateway; in standalone mode there is no gateway" .Values.provider.name) -}}
{{- end -}}
{{- if and $standalone .Values.httpRoute.create -}}
{{- fail "\n\nhttpRoute.create is for mode=gateway; in standalone mode clients use the Service" -}}
{{- end -}}

{{- if and .Values.router.latencyPredictor.existingClaim (not .Values.router.latencyPredictor.enabled) -}}
{{- fail "\n\nrouter.latencyPredictor.existingClaim: also set router.latencyPredictor.enabled=true" -}}
{{- end -}}
{{- if and .Values.router.latencyPredictor.existingClaim (gt (int $epp.replicas) 1) -}}
{{- fail "\n\nrouter.latencyPredictor.existingClaim: one picker may write the file; with several run `epp predictor serve` and set router.epp.flags.training-server-url" -}}
{{- end -}}
{{- if ge (int $epp.drainTimeoutSeconds) (int $epp.terminationGracePeriodSeconds) -}}
{{- fail (printf "\n\nrouter.epp.terminationGracePeriodSeconds (%d) must exceed router.epp.drainTimeoutSeconds (%d), or streams are cut" (int $epp.terminationGracePeriodSeconds) (int $epp.drainTimeoutSeconds)) -}}
{{- end -}}
{{- if and $standalone (ge (int .Values.router.proxy.drainSeconds) (int $epp.terminationGracePeriodSeconds)) -}}
{{- fail (printf "\n\nrouter.epp.terminationGracePeriodSeconds (%d) must exceed router.proxy.drainSeconds (%d), or streams are cut" (int $epp.terminationGracePeriodSeconds) (int .Values.router.proxy.drainSeconds)) -}}
{{- end -}}
{{- if and (eq $epp.probes "grpc") (semverCompare "<1.24.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "\n\nKubernetes %s has no gRPC probes: set router.epp.probes=http" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and $standalone (gt (int .Values.router.proxy.drainSeconds) 0) (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "\n\nKubernetes %s cannot delay the end of a container that has no shell: set router.proxy.drainSeconds=0" .Capabilities.KubeVersion.Version) -}}
{{- end -}}

{{- $files := include "headroom.configFiles" . | fromYaml -}}
{{- if not (hasKey $files (include "headroom.configFile" .)) -}}
{{- fail (printf "\n\nrouter.epp.pluginsConfigFile: there is no %s; there are %s, and what router.epp.pluginsCustomConfig adds" (include "headroom.configFile" .) (keys $files | sortAlpha | join ", ")) -}}
{{- end -}}

{{- $owned := dict "config-file" "router.epp.pluginsConfigFile" "config-text" "router.epp.pluginsConfig" "grpc-port" "router.epp.extProcPort" "grpc-health-port" "router.epp.grpcHealthPort" "metrics-port" "router.epp.metricsPort" "pool-name" "router.inferencePool.name" "pool-namespace" "helm install --namespace" "pool-group" "router.inferencePool.group" "endpoint-selector" "router.modelServers.matchLabels" "endpoint-target-ports" "router.modelServers.targetPorts" "endpoints" "router.modelServers.matchLabels" "cert-path" "router.epp.tls.secretName" "drain-timeout" "router.epp.drainTimeoutSeconds" "metrics-endpoint-auth" "router.monitoring.prometheus.auth.enabled" "model-file" "router.latencyPredictor.existingClaim" "grpc-socket" "mode=standalone" "kubeconfig" "nothing: the pod's service account is used" -}}
{{- range $flag, $_ := $epp.flags -}}
{{- if hasKey $owned $flag -}}
{{- fail (printf "\n\nrouter.epp.flags.%s: use %s" $flag (get $owned $flag)) -}}
{{- end -}}
{{- end -}}
{{- end }}
