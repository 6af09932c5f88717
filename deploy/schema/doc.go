// Package schema holds files of deploy/ to the types of the programs that read them: the dashboard to Grafana's, the compose file to
// the Compose specification. It is a module of its own, so that their libraries stay out of the product's.
package schema
