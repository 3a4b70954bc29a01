{{- define "holdfast.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "holdfast.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" }}
{{- else if contains (include "holdfast.name" .) .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "holdfast.name" .) | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "holdfast.selector" -}}
app.kubernetes.io/name: {{ include "holdfast.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "holdfast.operatorSelector" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "holdfast.consoleSelector" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/component: console
{{- end }}

{{- define "holdfast.consoleName" -}}
{{- printf "%s-console" (include "holdfast.fullname" .) }}
{{- end }}

{{- define "holdfast.consoleServiceAccountName" -}}
{{- with .Values.console.serviceAccount }}
{{- if .create }}
{{- default (include "holdfast.consoleName" $) .name }}
{{- else }}
{{- default "default" .name }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Whether the console reads the operator's volume. Only one pod can use a ReadWriteOncePod volume. */}}
{{- define "holdfast.consoleVolume" -}}
{{- if and .Values.storage.embedded.enabled (ne .Values.storage.embedded.accessMode "ReadWriteOncePod") }}true{{ end }}
{{- end }}

{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "holdfast.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* The operator's own image has Spark too, unless its tag ends with -slim. So jobs have the operator's version. */}}
{{- define "holdfast.sparkImage" -}}
{{- $repository := default .Values.image.repository .Values.spark.image.repository }}
{{- with .Values.spark.image }}
{{- if .digest }}
{{- printf "%s@%s" $repository .digest }}
{{- else if not (or .repository .tag (hasSuffix "-slim" $.Values.image.tag)) }}
{{- include "holdfast.image" $ }}
{{- else }}
{{- printf "%s:%s" $repository (default (default $.Chart.AppVersion $.Values.image.tag | trimSuffix "-slim") .tag) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "holdfast.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "holdfast.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "holdfast.claim" -}}
{{- default (include "holdfast.fullname" .) .Values.storage.embedded.existingClaim }}
{{- end }}

{{- /* The common part of the pods of hooks and of the operator. */}}
{{- define "holdfast.podBasics" -}}
{{- $root := default . .root -}}
serviceAccountName: {{ default (include "holdfast.serviceAccountName" $root) .serviceAccountName | quote }}
{{- with $root }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- /*
The rights of the operator on its own kinds. When a namespace is deleted, its Roles are often deleted before the
resources. Then nobody could remove the finalizers, and the namespace would hang. So these rights, and no others,
are in a ClusterRole. With watch.namespaces, the operator reads no Secret, starts no job and writes no ConfigMap
in other namespaces.
*/}}
{{- define "holdfast.ownRules" -}}
- apiGroups: [holdfast.dev]
  resources: [catalogs, catalogmigrations, storagecollections, collectionsnapshots]
  verbs: [get, list, watch, patch]
- apiGroups: [holdfast.dev]
  resources: [catalogs/status, catalogmigrations/status, storagecollections/status, collectionsnapshots/status]
  verbs: [patch]
{{- end }}

{{- /* What the console reads of a namespace. It gets the Secrets that Catalogs name, as the operator does. */}}
{{- define "holdfast.consoleRules" -}}
- apiGroups: [holdfast.dev]
  resources: [catalogs, catalogmigrations, storagecollections, collectionsnapshots]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}

{{- /* The other rights of the operator in the namespaces that it watches. */}}
{{- define "holdfast.rules" -}}
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create, patch]
- apiGroups: [holdfast.dev]
  resources: [collectionsnapshots]
  verbs: [create, delete]
{{- if .Values.spark.enabled }}
{{- $adapter := .Values.spark.adapter }}
{{- if has $adapter (list "auto" "kubeflow") }}
- apiGroups: [sparkoperator.k8s.io]
  resources: [sparkapplications]
  verbs: [create, list, watch, delete]
{{- end }}
{{- if has $adapter (list "auto" "apache") }}
- apiGroups: [spark.apache.org]
  resources: [sparkapplications]
  verbs: [create, list, watch, delete]
{{- end }}
{{- if has $adapter (list "auto" "job") }}
- apiGroups: [batch]
  resources: [jobs]
  verbs: [create, list, watch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [list]
{{- end }}
{{- end }}
{{- end }}

{{- /*
The first value that gives the operator or the console credentials of its own, or nothing. `prefix` is that of the
names of the values, such as `console.`.
*/}}
{{- define "holdfast.ownCredentials" -}}
{{- $prefix := .prefix }}
{{- with .values }}
{{- if .credentialsSecret -}}
{{ $prefix }}credentialsSecret
{{- else -}}
{{- $found := list }}
{{- range $name, $_ := .serviceAccount.annotations }}
{{- if has $name (list "eks.amazonaws.com/role-arn" "iam.gke.io/gcp-service-account" "azure.workload.identity/client-id") }}
{{- $found = append $found (printf "%sserviceAccount.annotations (%s)" $prefix $name) }}
{{- end }}
{{- end }}
{{- range $name, $_ := .podAnnotations }}
{{- if eq $name "iam.amazonaws.com/role" }}
{{- $found = append $found (printf "%spodAnnotations (%s)" $prefix $name) }}
{{- end }}
{{- end }}
{{- range .extraEnv }}
{{- if regexMatch "^(AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|(DEFAULT_)?PROFILE|ROLE_ARN|SHARED_CREDENTIALS_FILE|CONFIG_FILE|WEB_IDENTITY_TOKEN_FILE|CONTAINER_CREDENTIALS_(FULL|RELATIVE)_URI)|BOTO_CONFIG|PG(PASSWORD|PASSFILE|SERVICE|SERVICEFILE|SSLKEY))$" (default "" .name) }}
{{- $found = append $found (printf "%sextraEnv (%s)" $prefix .name) }}
{{- end }}
{{- end }}
{{- with $found }}{{ first . }}{{ end -}}
{{- end }}
{{- end }}
{{- end }}

{{- /* Checks that a schema can't express, or only with an unhelpful message. */}}
{{- define "holdfast.check" -}}
{{- $name := include "holdfast.fullname" . }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
{{- fail (printf "%s is not a valid name for a Service, which must start with a letter and contain only lowercase letters, digits and dashes; choose another release name or set fullnameOverride" $name) }}
{{- end }}
{{- range $where, $labels := dict "podLabels" .Values.podLabels "serviceMonitor.labels" .Values.serviceMonitor.labels "prometheusRule.labels" .Values.prometheusRule.labels "dashboard.labels" .Values.dashboard.labels }}
{{- range $key, $_ := $labels }}
{{- if regexMatch "^(app[.]kubernetes[.]io/(name|instance|version|managed-by|component)|helm[.]sh/chart)$" $key }}
{{- fail (printf "%s: the chart sets the label %s itself; use another label" $where $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.storage.embedded.enabled (gt (int .Values.replicas) 1) }}
{{- fail "replicas must be 1, because storage.embedded.enabled=true stores catalogs on a volume that only one pod can use; for more replicas, set storage.embedded.enabled=false and use S3 or Postgres in the Catalogs" }}
{{- end }}
{{- if and (gt (int .Values.replicas) 1) (not .Values.leaderElection.enabled) }}
{{- fail "replicas > 1 requires leaderElection.enabled=true, because only one operator may act at a time" }}
{{- end }}
{{- with .Values.leaderElection }}
{{- if not (and (gt (float64 .leaseDuration) (float64 .renewDeadline)) (gt (float64 .renewDeadline) (float64 .retryPeriod))) }}
{{- fail (printf "leaderElection: leaseDuration (%v) must be greater than renewDeadline (%v), and renewDeadline must be greater than retryPeriod (%v)" .leaseDuration .renewDeadline .retryPeriod) }}
{{- end }}
{{- end }}
{{- $spark := .Values.spark.serviceAccount }}
{{- if and $spark.create (has $spark.name (list (include "holdfast.serviceAccountName" .) $name)) }}
{{- fail (printf "spark.serviceAccount.name (%s) is the ServiceAccount of the operator; choose another name, because drivers need their own account" $spark.name) }}
{{- end }}
{{- range .Values.storage.allowedLocations }}
{{- if regexMatch "[{}]" (replace "{namespace}" "" .) }}
{{- fail (printf "storage.allowedLocations: %s contains braces; the only placeholder is {namespace}, so write other braces as %%7B and %%7D" .) }}
{{- end }}
{{- end }}
{{- $owns := list (include "holdfast.ownCredentials" (dict "prefix" "" "values" .Values)) }}
{{- if .Values.console.enabled }}
{{- $owns = append $owns (include "holdfast.ownCredentials" (dict "prefix" "console." "values" .Values.console)) }}
{{- end }}
{{- range $own := without $owns "" }}
{{- if not (or $.Values.watch.namespaces $.Values.storage.allowedLocations $.Values.storage.letAllNamespacesUseOwnCredentialsAnywhere) }}
{{- fail (printf "%s gives the %s credentials that Catalogs of all namespaces could use at any location; set storage.allowedLocations or watch.namespaces, or permit it with storage.letAllNamespacesUseOwnCredentialsAnywhere=true" $own (ternary "console" "operator" (hasPrefix "console." $own))) }}
{{- end }}
{{- end }}
{{- if and .Values.console.enabled (eq (include "holdfast.consoleServiceAccountName" .) (include "holdfast.serviceAccountName" .)) }}
{{- fail (printf "console.serviceAccount.name (%s) is the ServiceAccount of the operator; choose another name, because the console must have fewer rights" (include "holdfast.serviceAccountName" .)) }}
{{- end }}
{{- if and .Values.storage.shared (not .Values.storage.embedded.enabled) }}
{{- fail "storage.shared requires storage.embedded.enabled=true, because it shares the volume of the embedded storage" }}
{{- end }}
{{- end }}
