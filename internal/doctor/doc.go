// Package doctor looks at a running site from outside and says what is misconfigured.
//
// It reads four sources: the configuration file, every engine's HTTP server, the router's admin listener and Envoy's admin
// listener; or, with the file of a node, that, its engines and its own admin listener. What it finds are [Finding]s of the closed [Catalogue]: each has a stable code, a severity and an advice. What it
// could not look at without more rights, and what is not its business, stands in [Report.NotChecked], which is no finding; a
// part that does not answer is one.
//
//	d, err := doctor.New(doctor.Options{Config: cfg, Admin: "http://127.0.0.1:9003", Envoy: "http://127.0.0.1:9901"})
//	report, err := d.Run(ctx)
//	report.WriteTable(os.Stdout)
//	// error    KV204  engine 10.0.0.11:8000   prefix caching is off …
//
// Everything read is bounded in time and size, and nothing is changed anywhere: every request is a GET, but for a call of
// /tokenize and, when Options.Probe asks for it, one completion of one token per engine.
//
// Run first gathers facts over the network and then judges them: the judging functions are pure, and a fact that is missing
// makes no finding beside the one of the source that did not answer.
//
// # Concurrency
//
// Run asks all sources at the same time, at most maxParallel engines at once, and returns when every request has ended. A
// Doctor may be used by several goroutines.
package doctor
