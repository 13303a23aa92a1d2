{{- define "name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}

{{- define "labels" -}}
app.kubernetes.io/name: wallaroo-spark
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "image" -}}{{ .Values.image.repository }}:{{ .Values.image.tag }}{{- end }}

{{- /* The ports of slot .slot for its connectors and the clients of its doors, as names and numbers. */}}
{{- define "slot-ports" -}}
{{- $receive := .Values.receive }}
connectors: {{ add (int $receive.port) .slot }}
{{- range $name := list "http" "otlp" }}
{{- with index $receive (printf "%s.port" $name) }}
{{ $name }}: {{ add (int .) $.slot }}
{{- end }}
{{- end }}
{{- with index $receive "kafka.port" }}
{{- $nodes := int (default 4 (index $receive "kafka.nodes")) }}
{{- range $node := until $nodes }}
kafka-{{ $node }}: {{ add (int (index $receive "kafka.port")) (mul $.slot $nodes) $node }}
{{- end }}
{{- end }}
{{- end }}

{{- define "security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* The pod of driver and executors: without root, whatever the image says. */}}
{{- define "pod-security" -}}
runAsNonRoot: true
runAsUser: 10185
runAsGroup: 10185
fsGroup: 10185
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "secret-env" -}}
- name: WALLAROO_COOKIE
  valueFrom: {secretKeyRef: {name: {{ .Values.secret }}, key: cookie}}
{{- if .Values.redis.enabled }}
- name: WALLAROO_REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .Values.secret }}, key: redis-password}}
- name: WALLAROO_REGISTRY
  value: redis://:$(WALLAROO_REDIS_PASSWORD)@{{ include "name" . }}-redis.{{ .Release.Namespace }}.svc:6379/0
{{- else }}
- name: WALLAROO_REGISTRY
  valueFrom: {secretKeyRef: {name: {{ .Values.secret }}, key: registry}}
{{- end }}
{{- end }}

{{- define "volumes" -}}
- name: tmp
  emptyDir: {}
{{- with .Values.claim }}
- name: data
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- with .Values.tls.secret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- define "mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .Values.claim }}
- {name: data, mountPath: /data}
{{- end }}
{{- if .Values.tls.secret }}
- {name: tls, mountPath: /etc/wallaroo/tls, readOnly: true}
{{- end }}
{{- end }}

{{- /* receive.yaml: the values, and what the chart knows. */}}
{{- define "receive" -}}
{{- $given := .Values.receive }}
{{- $set := dict "registry" "env:WALLAROO_REGISTRY" "cookie" "env:WALLAROO_COOKIE" "statusPage" "0.0.0.0:4140"
  "statusPageToken" "env:WALLAROO_STATUS_PAGE_TOKEN" "innerPort" (int .Values.slots.innerPort) }}
{{- $executors := printf "%s-executors.%s.svc:{port}" (include "name" .) .Release.Namespace }}
{{- if .Values.slots.service }}
{{- $inside := printf "%s-slot-{slot}.%s.svc:{port}" (include "name" .) .Release.Namespace }}
{{- $_ := set $set "advertise" (default $inside .Values.slots.advertise) }}
{{- else if .Values.tls.secret }}
{{- $_ := set $set "advertise" $executors }}
{{- end }}
{{- if .Values.tls.secret }}
{{- $tls := "/etc/wallaroo/tls" }}
{{- $_ := set $set "innerAdvertise" $executors }}
{{- $_ := set $set "tls.certificate" (printf "%s/tls.crt" $tls) }}
{{- $_ := set $set "tls.key" (printf "%s/tls.key" $tls) }}
{{- if .Values.tls.workersCa }}{{ $_ := set $set "tls.workersCa" (printf "%s/ca.crt" $tls) }}{{ end }}
{{- if .Values.tls.clients }}{{ $_ := set $set "tls.ca" (printf "%s/ca.crt" $tls) }}{{ end }}
{{- end }}
{{- range $name, $_ := $set }}
{{- if hasKey $given $name }}{{ fail (printf "receive.%s is set by the chart; remove it from the values" $name) }}{{ end }}
{{- end }}
{{- toYaml (merge $set $given) }}
{{- end }}
