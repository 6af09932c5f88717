// Package schema holds files of deploy/ to the types of the programs that read them: the dashboard to Grafana's, the compose file to
// the Compose specification, the manifests to those of Kubernetes, the Gateway API, Envoy Gateway, Istio and Envoy, each kustomization
// built as kubectl builds it. It is a module of its own, so that their libraries stay out of the product's.
//
// kubernetes-validate comes from KVSTEER_KUBERNETES_VALIDATE, or from scripts/kubernetes.sh when that is not set.
package schema
