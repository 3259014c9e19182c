{{- define "cascade.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cascade.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "cascade.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Labels of the Pods of a component, by which Services and policies select. */}}
{{- define "cascade.selector" -}}
app.kubernetes.io/name: cascade
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "cascade.labels" -}}
{{ include "cascade.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: cascade
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "cascade.image" -}}
{{- with .image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.root.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cascade.pod" -}}
serviceAccountName: {{ include "cascade.serviceAccount" . | quote }}
automountServiceAccountToken: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "cascade.container" -}}
image: {{ include "cascade.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* Name of the state in Kubernetes. */}}
{{- define "cascade.stateName" -}}
{{- default (include "cascade.fullname" . | trunc 40 | trimSuffix "-") .Values.controlPlane.state.kubernetes.name -}}
{{- end -}}

{{/* What ${…} in the control plane's fleet file stands for. */}}
{{- define "cascade.controlEnv" -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
{{- if or .Values.controlPlane.state.etcd.endpoints .Values.controlPlane.state.kubernetes.enabled }}
- {name: CONTROL_SERVICE_IP, value: $({{ include "cascade.fullname" . | upper | replace "-" "_" }}_SERVICE_HOST)}
{{- end }}
{{- end -}}

{{/* The volume "tls" of a component: tls.crt, tls.key and ca.crt. */}}
{{- define "cascade.tlsVolume" -}}
- name: tls
{{- with .root.Values.tls.certManager }}
{{- if .enabled }}
  csi:
    driver: csi.cert-manager.io
    readOnly: true
    volumeAttributes:
      csi.cert-manager.io/issuer-name: {{ .issuerName | quote }}
      csi.cert-manager.io/issuer-kind: {{ .issuerKind }}
      csi.cert-manager.io/issuer-group: {{ .issuerGroup | quote }}
      csi.cert-manager.io/duration: {{ .duration }}
      csi.cert-manager.io/uri-names: spiffe://{{ $.root.Values.tls.trustDomain }}/{{ $.role }}/{{ $.name }}
      csi.cert-manager.io/dns-names: {{ $.dns }}
      csi.cert-manager.io/key-usages: digital signature,server auth,client auth
      csi.cert-manager.io/fs-group: "65532"
{{- else }}
  secret:
    secretName: {{ $.secret | quote }}
    defaultMode: 288
{{- end }}
{{- end }}
{{- end -}}

{{/* The sections of the fleet file that all components share. */}}
{{- define "cascade.tls" -}}
{cert: /etc/cascade/tls/tls.crt, key: /etc/cascade/tls/tls.key, ca: /etc/cascade/tls/ca.crt, trust_domain: {{ .Values.tls.trustDomain | quote }}, plaintext: {{ toJson .Values.tls.plaintext }}}
{{- end -}}

{{/* What is wrong with values that the schema cannot relate to each other. */}}
{{- define "cascade.check" -}}
{{- $c := .Values.controlPlane -}}
{{- if and (gt (int $c.replicas) 1) (not $c.state.etcd.endpoints) (not $c.state.kubernetes.enabled) -}}
{{- fail "controlPlane.replicas: several control planes share their state: set controlPlane.state.etcd.endpoints or controlPlane.state.kubernetes.enabled" -}}
{{- end -}}
{{- if and $c.state.etcd.endpoints $c.state.kubernetes.enabled -}}
{{- fail "controlPlane.state: etcd and kubernetes are both set: choose one" -}}
{{- end -}}
{{- if $c.discovery.enabled -}}
{{- if eq (empty $c.discovery.pool) (empty $c.discovery.service) -}}
{{- fail "controlPlane.discovery: name the InferencePool or the Service that selects the Pods: pool or service" -}}
{{- end -}}
{{- range .Values.fleet.models -}}
{{- if hasKey $.Values.fleetFiles .profile -}}
{{- fail (printf "fleet.models: profile %s: with discovery the fleet file is in another folder: write /etc/cascade/fleet/%s" .profile .profile) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.epp.inferencePool.create (not .Values.epp.inferencePool.matchLabels) -}}
{{- fail "epp.inferencePool.matchLabels: name the labels of the Pods with engine and migrator" -}}
{{- end -}}
{{- if and .Values.epp.inferencePool.create (not .Values.epp.enabled) -}}
{{- fail "epp.inferencePool.create: a pool without an endpoint picker serves no request: set epp.enabled" -}}
{{- end -}}
{{- if and .Values.epp.enabled (gt (int .Values.epp.replicas) 1) (not .Values.tls.certManager.enabled) -}}
{{- fail "epp.replicas: each picker needs a certificate of its own, which a Secret cannot give: set tls.certManager.enabled" -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled: set metrics.enabled, too" -}}
{{- end -}}
{{- if and .Values.hpa.enabled (or (not .Values.hpa.model) (not .Values.hpa.target.name)) -}}
{{- fail "hpa: name the model and the Deployment: hpa.model, hpa.target.name" -}}
{{- end -}}
{{- if and .Values.hpa.enabled (not (regexMatch "^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" .Values.hpa.model)) -}}
{{- fail (printf "hpa.model: %s cannot be the value of a label, by which the autoscaler selects the metric: use deploy/kubernetes/keda.yaml, or serve the model under a name without such characters (vLLM's --served-model-name)" .Values.hpa.model) -}}
{{- end -}}
{{- end -}}
