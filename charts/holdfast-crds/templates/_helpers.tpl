{{- define "holdfast-crds.labels" -}}
{{- range $key, $_ := .Values.labels }}
{{- if regexMatch "^(app[.]kubernetes[.]io/(name|managed-by|instance|version)|helm[.]sh/chart)$" $key }}
{{- fail (printf "labels: %s is the chart's own: take another name" $key) }}
{{- end }}
{{- end }}
app.kubernetes.io/name: holdfast
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "holdfast-crds.annotations" -}}
{{- if hasKey .Values.annotations "helm.sh/resource-policy" }}
{{- fail "annotations: helm.sh/resource-policy is the chart's own: set keep" }}
{{- end }}
{{- if .Values.keep }}
helm.sh/resource-policy: keep
{{- end }}
{{- with .Values.annotations }}
{{ toYaml . }}
{{- end }}
{{- end }}
