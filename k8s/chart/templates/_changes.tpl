{{/* The changes that the values make in an object of k8s/base, one template for each kind. They print nothing. */}}

{{- define "client-lib.jobsNamespace" -}}
{{ .Values.jobsNamespace | default .Release.Namespace }}
{{- end }}

{{/* Name of the server's PriorityClass; empty: it has none. */}}
{{- define "client-lib.priority" -}}
{{- $own := .Values.priority.create | ternary (printf "client-lib-server.%s" .Release.Namespace) "" }}
{{- .Values.priority.name | default $own }}
{{- end }}

{{- define "client-lib.PriorityClass" }}
{{- $_ := set .object.metadata "name" (include "client-lib.priority" .root) }}
{{- end }}

{{- define "client-lib.ServiceAccount" }}
{{- with .root.Values.serviceAccount.annotations }}{{ $_ := set $.object.metadata "annotations" . }}{{ end }}
{{- with .root.Values.image.pullSecrets }}
{{- $names := list }}
{{- range . }}{{ $names = append $names (dict "name" .) }}{{ end }}
{{- $_ := set $.object "imagePullSecrets" $names }}
{{- end }}
{{- end }}

{{- define "client-lib.Role" }}
{{- $_ := set .object.metadata "namespace" (include "client-lib.jobsNamespace" .root) }}
{{- end }}

{{- define "client-lib.RoleBinding" }}
{{- $_ := set .object.metadata "namespace" (include "client-lib.jobsNamespace" .root) }}
{{- $_ := set (first .object.subjects) "namespace" .root.Release.Namespace }}
{{- end }}

{{- define "client-lib.ClusterRole" }}
{{- $_ := set .object.metadata "name" (replace "NAMESPACE" .root.Release.Namespace .object.metadata.name) }}
{{- end }}

{{- define "client-lib.ClusterRoleBinding" }}
{{- $_ := set .object.metadata "name" (replace "NAMESPACE" .root.Release.Namespace .object.metadata.name) }}
{{- $_ := set .object.roleRef "name" .object.metadata.name }}
{{- $_ := set (first .object.subjects) "namespace" .root.Release.Namespace }}
{{- end }}

{{- define "client-lib.PersistentVolumeClaim" }}
{{- $_ := set .object.metadata "annotations" (dict "helm.sh/resource-policy" "keep") }}
{{- $_ := set .object.spec.resources.requests "storage" .root.Values.storage.size }}
{{- with .root.Values.storage.className }}{{ $_ := set $.object.spec "storageClassName" . }}{{ end }}
{{- end }}

{{- define "client-lib.Service" }}
{{- with .root.Values.service }}
{{- if ne .type "ClusterIP" }}{{ $_ := set $.object.spec "type" .type }}{{ end }}
{{- if .nodePort }}{{ $_ := set (first $.object.spec.ports) "nodePort" (int .nodePort) }}{{ end }}
{{- end }}
{{- end }}

{{- define "client-lib.NetworkPolicy" }}
{{- $more := .root.Values.egress }}
{{- with .root.Values.database }}
{{- if or .url .secret }}{{ $more = prepend $more (dict "ports" (list (dict "port" (int .port)))) }}{{ end }}
{{- end }}
{{- $_ := set .object.spec "egress" (concat .object.spec.egress $more) }}
{{- end }}

{{- define "client-lib.Deployment" }}
{{- $values := .root.Values }}
{{- $pod := .object.spec.template.spec }}
{{- $container := first $pod.containers }}
{{- $_ := set $container "image" (printf "%s:%s" $values.image.repository ($values.image.tag | default .root.Chart.AppVersion)) }}
{{- with $values.resources }}{{ $_ := set $container "resources" . }}{{ end }}
{{- with include "client-lib.priority" .root }}{{ $_ := set $pod "priorityClassName" . }}{{ end }}
{{- range $field := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $values $field }}{{ $_ := set $pod $field . }}{{ end }}
{{- end }}
{{- $variables := list }}
{{- range $container.env }}
{{- if and $values.jobsNamespace (eq .name "CLIENT_LIB_SERVER_KUBE_NAMESPACE") }}{{ $_ := set . "value" $values.jobsNamespace }}{{ end }}
{{- $variables = append $variables . }}
{{- end }}
{{- range $name, $value := $values.settings }}
{{- $text := kindIs "string" $value | ternary $value (toJson $value) }}
{{- $variables = append $variables (dict "name" (printf "CLIENT_LIB_SERVER_%s" (upper $name)) "value" $text) }}
{{- end }}
{{- $_ := set $container "env" $variables }}
{{- if or $values.database.url $values.database.secret }}
{{- $secret := $values.database.secret | default "client-lib-server" }}
{{- $_ := set $container "envFrom" (list (dict "secretRef" (dict "name" $secret))) }}
{{- end }}
{{- range $pod.volumes }}
{{- if eq .name "users" }}{{ $_ := set .secret "secretName" ($values.users.secret | default "client-lib-users") }}{{ end }}
{{- end }}
{{- $_ := set $pod "volumes" (concat $pod.volumes $values.extraVolumes) }}
{{- $_ := set $container "volumeMounts" (concat $container.volumeMounts $values.extraVolumeMounts) }}
{{- $restarts := list (include "client-lib.catalogue" .root) $values.database.url | join "\n" | sha256sum }}
{{- $annotations := merge (dict "client-lib.io/restarts-with" $restarts) $values.podAnnotations }}
{{- $_ := set .object.spec.template.metadata "annotations" $annotations }}
{{- end }}

{{- define "client-lib.Ingress" }}
{{- with .root.Values.ingress }}
{{- $_ := set $.object.metadata "annotations" (merge .annotations $.object.metadata.annotations) }}
{{- $_ := set $.object.spec "ingressClassName" .className }}
{{- $_ := set $.object.spec "tls" (list (dict "hosts" (list .host) "secretName" .tlsSecret)) }}
{{- $_ := set (first $.object.spec.rules) "host" .host }}
{{- end }}
{{- end }}

{{- define "client-lib.ServiceMonitor" }}
{{- $_ := set .object.metadata "labels" .root.Values.monitoring.labels }}
{{- end }}

{{- define "client-lib.PrometheusRule" }}
{{- $_ := set .object.metadata "labels" .root.Values.monitoring.labels }}
{{- range (first .object.spec.groups).rules }}
{{- $_ := set . "expr" (replace "NAMESPACE" $.root.Release.Namespace .expr) }}
{{- end }}
{{- end }}

{{/* The catalogue as the text of its file. */}}
{{- define "client-lib.catalogue" -}}
{{- if .Values.catalogue }}{{ toYaml .Values.catalogue }}{{ else }}{{ .Files.Get "base/catalogue.yaml" }}{{ end }}
{{- end }}
