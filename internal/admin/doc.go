// Package admin serves what operators and monitoring read of a running router: /metrics, /healthz and /readyz.
//
// /healthz answers 200 while the process runs. /readyz answers 200 once nothing is missing, else 503 with one line per thing
// that is missing. The listener belongs on loopback: metrics name endpoints and pools.
//
// # Concurrency
//
// Run serves until its context ends, then closes the listener and returns when all requests have ended. Options.Ready is
// called by request goroutines, several at a time.
package admin
