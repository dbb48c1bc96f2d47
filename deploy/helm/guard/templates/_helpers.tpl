{{/* The name of the chart's objects; those of the proxy end in -proxy. */}}
{{- define "guard.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
{{- $full = ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- end -}}
{{- $full = $full | trunc 50 | trimSuffix "-" -}}
{{- if eq $full "guard-gateway" -}}
{{- fail "guard-gateway cannot be the name: the cluster would set GUARD_GATEWAY_PORT to an address; call the release something else" -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{- define "guard.proxyname" -}}
{{ include "guard.fullname" . }}-proxy
{{- end -}}

{{/* What selects the pods of a component: dict "root" . "component" "gateway" */}}
{{- define "guard.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "guard.labels" -}}
{{ include "guard.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "guard.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* The address of the gateway inside the cluster. */}}
{{- define "guard.serviceUrl" -}}
{{- $port := int .Values.gateway.service.port -}}
http://{{ include "guard.fullname" . }}{{ if ne $port 80 }}:{{ $port }}{{ end }}
{{- end -}}

{{/* The address that people and programs use. */}}
{{- define "guard.publicUrl" -}}
{{- if .Values.gateway.publicUrl -}}
{{ .Values.gateway.publicUrl }}
{{- else if .Values.gateway.ingress.enabled -}}
https://{{ .Values.gateway.ingress.host }}
{{- else -}}
{{ include "guard.serviceUrl" . }}
{{- end -}}
{{- end -}}

{{/* A reference to a key of a Secret: dict "root" . "of" .Values.gateway.secrets.database */}}
{{- define "guard.secretKeyRef" -}}
secretKeyRef:
  name: {{ default .root.Values.secretName .of.name }}
  key: {{ .of.key }}
{{- end -}}

{{/* The secrets that the gateway reads from files: its setting, without _file, by the value's name. */}}
{{- define "guard.secretFiles" -}}
firstAdminKey: first_admin_key
firstApiKey: first_api_key
firstPassword: first_password
openidClientSecret: openid_client_secret
metricsKey: metrics_key
loginKey: login_key
{{- end -}}

{{/* A setting's value as a text: numbers without an exponent, lists with commas. */}}
{{- define "guard.settingText" -}}
{{- if kindIs "slice" . -}}
{{ join "," . }}
{{- else if kindIs "float64" . -}}
{{ . | int64 }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}

{{/* The parts that all pods have: dict "root" . "component" "gateway" "of" .Values.gateway */}}
{{- define "guard.podSettings" -}}
serviceAccountName: {{ include "guard.fullname" .root }}
automountServiceAccountToken: false
# What the cluster would set for the services beside it is no setting of guard.
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: { type: RuntimeDefault }
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "guard.selector" . | nindent 8 }}
{{- with .of.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "guard.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}
