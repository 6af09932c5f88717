// Package admin serves what operators and monitoring want of a running router: metrics and health, what it holds and has decided
// lately, and a few commands.
//
//	GET  /metrics                            Prometheus metrics
//	GET  /healthz                            200 while the process runs
//	GET  /readyz                             200 once nothing is missing, else 503 with one line per thing that is missing
//	GET  /api/v1/state                       pools and endpoints, as router.State
//	GET  /api/v1/decisions?n=100             the latest decisions, the newest first
//	GET  /api/v1/config                      the configuration in use, without secrets
//	GET  /api/v1/bundle                      all of it in one tar.gz, for a report
//	POST /api/v1/pools/{pool}/mode           {"mode": "on", "percent": 10}
//	POST /api/v1/endpoints/{address}/drain   also undrain and reset; no body
//
// A node's admin server has the same paths but for decisions and modes; its state is of the node's own form ([Options].Node).
//
// Answers under /api are JSON, errors {"error": "…", "known": ["…"]}: known lists the pools or endpoints there are when the one asked
// for is not among them. Nothing here holds text or token ids of a request, or the content of a key file.
//
// # Who may ask
//
// Without a token the listener must be on loopback, and whoever is on the host may read. So that web pages in a browser there may
// not, a request must name a loopback host (a page of another name that resolves to 127.0.0.1 does not), and commands from another
// origin are refused. With a token every request must bring it as "Authorization: Bearer TOKEN"; only /healthz and /readyz answer without it, the
// latter with nothing but ready or not ready. The token is compared in constant time, and its file is read again when it changes, and by Reload.
//
// Commands need Options.Control and Write, else the listener only reads; each one is logged. They want Content-Type application/json, which no HTML form can send.
//
// # Concurrency
//
// Run serves until its context ends, then closes the listener and returns when all requests have ended. Viewer, Control, Ready and Config
// are called by request goroutines, several at a time.
package admin
