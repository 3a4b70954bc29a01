{{- define "holdfast-crds.labels" -}}
{{- range $key, $_ := .Values.labels }}
{{- if regexMatch "^(app[.]kubernetes[.]io/(name|managed-by|instance|version)|helm[.]sh/chart)$" $key }}
{{- fail (printf "labels: the chart sets the label %s itself; use another label" $key) }}
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
{{- fail "annotations: the chart sets the annotation helm.sh/resource-policy itself; set keep instead" }}
{{- end }}
{{- if .Values.keep }}
helm.sh/resource-policy: keep
{{- end }}
{{- with .Values.annotations }}
{{ toYaml . }}
{{- end }}
{{- end }}
