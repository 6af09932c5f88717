// Package envoy holds the names that kvsteer and Envoy share and renders Envoy configuration.
package envoy
