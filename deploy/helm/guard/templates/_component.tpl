{{/* What the gateway and the proxies have alike: dict "root" . "component" "gateway" "name" ... "of" .Values.gateway */}}

{{- define "guard.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  labels: {{- include "guard.labels" . | nindent 4 }}
  {{- with .of.service.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .of.service.type }}
  selector: {{- include "guard.selector" . | nindent 4 }}
  ports:
    - { name: http, port: {{ int .of.service.port }}, targetPort: http }
{{- end -}}

{{- define "guard.podDisruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels: {{- include "guard.labels" . | nindent 4 }}
spec:
  {{- toYaml .of.podDisruptionBudget | nindent 2 }}
  selector:
    matchLabels: {{- include "guard.selector" . | nindent 6 }}
{{- end -}}

{{- define "guard.autoscaler" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ .name }}
  labels: {{- include "guard.labels" . | nindent 4 }}
spec:
  scaleTargetRef: { apiVersion: apps/v1, kind: Deployment, name: {{ .name }} }
  minReplicas: {{ .of.autoscaling.minReplicas }}
  maxReplicas: {{ .of.autoscaling.maxReplicas }}
  metrics:
    {{- with .of.autoscaling.socketsPerPod }}
    - type: Pods
      pods:
        metric: { name: guard_gateway_control_sockets }
        target: { type: AverageValue, averageValue: {{ int . | toString | quote }} }
    {{- end }}
    - type: Resource
      resource:
        name: cpu
        target: { type: Utilization, averageUtilization: {{ .of.autoscaling.cpuPercent }} }
  behavior:
    # A pod that goes sends its connections to the others: one at a time.
    scaleDown:
      stabilizationWindowSeconds: 600
      policies:
        - { type: Pods, value: 1, periodSeconds: 120 }
{{- end -}}

{{- define "guard.ingress" -}}
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: {{ .name }}
  labels: {{- include "guard.labels" . | nindent 4 }}
  {{- with .of.ingress.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with .of.ingress.className }}
  ingressClassName: {{ . }}
  {{- end }}
  tls:
    - hosts: [{{ .of.ingress.host | quote }}]
      {{- with .of.ingress.tlsSecretName }}
      secretName: {{ . }}
      {{- end }}
  rules:
    - host: {{ .of.ingress.host | quote }}
      http:
        paths:
          - path: /
            pathType: Prefix
            backend:
              service:
                name: {{ .name }}
                port: { name: http }
{{- end -}}

{{- define "guard.serviceMonitor" -}}
{{- if not .of.secrets.metricsKey.key }}
{{- fail (printf "serviceMonitor needs %s.secrets.metricsKey: the key of a Secret with 32 or more random characters, for /metrics" .component) }}
{{- end }}
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ .name }}
  labels:
    {{- include "guard.labels" . | nindent 4 }}
    {{- with .root.Values.serviceMonitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels: {{- include "guard.selector" . | nindent 6 }}
  endpoints:
    - port: http
      path: /metrics
      authorization:
        credentials:
          name: {{ default .root.Values.secretName .of.secrets.metricsKey.name }}
          key: {{ .of.secrets.metricsKey.key }}
      interval: {{ .root.Values.serviceMonitor.interval }}
      relabelings:
        # The rules and the dashboard go by the names of the jobs.
        - { targetLabel: job, replacement: guard-{{ .component }} }
{{- end -}}

{{- define "guard.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ .name }}
  labels: {{- include "guard.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "guard.selector" . | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    - ports:
        - { port: http }
      from:
        {{- if eq .component "gateway" }}
        - podSelector:
            matchLabels: {{- include "guard.selector" (dict "root" .root "component" "proxy") | nindent 14 }}
        {{- end }}
        {{- with .root.Values.networkPolicy.from }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end -}}

{{- define "guard.component" -}}
{{ include "guard.service" . }}
---
{{ include "guard.podDisruptionBudget" . }}
{{- if .of.autoscaling.enabled }}
---
{{ include "guard.autoscaler" . }}
{{- end }}
{{- if .of.ingress.enabled }}
---
{{ include "guard.ingress" . }}
{{- end }}
{{- if .root.Values.serviceMonitor.enabled }}
---
{{ include "guard.serviceMonitor" . }}
{{- end }}
{{- if .root.Values.networkPolicy.enabled }}
---
{{ include "guard.networkPolicy" . }}
{{- end }}
{{- end -}}
