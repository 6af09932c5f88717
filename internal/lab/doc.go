// Package lab runs a whole kvsteer site on loopback as child processes: simulated engines, nodes, routers and real Envoys. The demo
// shows one to people, the end-to-end tests break one on purpose.
//
// A Lab owns every process it starts. Close ends them all at once, and on Linux the kernel ends them when the lab's own
// process dies without closing, so that nothing is left behind in either case.
//
//	l, err := lab.New(lab.Options{Kvsteer: "bin/kvsteer", Envoy: "/usr/bin/envoy", Dir: dir})
//	defer l.Close()
//	site, err := l.StartSite(ctx, lab.SiteOptions{Pools: []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 4}}})
//	reply := site.Client().Chat(ctx, lab.ChatRequest{Model: "sim", Messages: …})
//
// # Concurrency
//
// A Lab, its processes and a Client may be used by many goroutines. Start methods return when the process answers, or with the
// end of its log when it does not.
package lab
